"""Which worker gets which GPU, by hand: two tensor pairs of two stages and two replicas."""

from __future__ import annotations

import pytest

import ddlsched
from algorithms.placement.ranked import LeastBytes, Nested, tp_dp_pp, tp_pp_dp
from ddlsched import Cluster, Workload
from ddlsched.errors import InputError
from ddlsched.plugins.names import names, resolve
from ddlsched.testing import cluster_view
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job

GROUPS = {
    "tensor 0": ((0, 1), (2, 3)),
    "tensor 1": ((4, 5), (6, 7)),
    "data 0": ((0, 2), (1, 3)),
    "data 1": ((4, 6), (5, 7)),
    "on 0": ((0, 4), (1, 5), (2, 6), (3, 7)),
}


def job(tensor_bytes: float, data_bytes: float, send_bytes: float) -> Job:
    sizes = {"tensor": ("all-reduce", tensor_bytes), "data": ("all-reduce", data_bytes), "on": ("send", send_bytes)}
    tasks = [ComputeTask(name="f", duration_ns=1)]
    for group in GROUPS:
        kind, size = sizes[group.split()[0]]
        tasks.append(CollectiveTask(name=group, kind=kind, message_bytes=size, group=group, after=("f",)))
    iteration = IterationDag(tuple(tasks), GROUPS)
    return Job(job_id="a", arrival_s=0, num_gpus=8, iterations=1, iteration=iteration, gpu_memory_mb=1)


def view(of: Job):
    from ddlsched.testing.handmade import job_view

    made = job_view(num_gpus=8)
    object.__setattr__(made, "_job", of)
    return made


CLUSTER = cluster_view(num_servers=4, gpus_per_server=2, topology=resolve("topology", "leaf-spine:servers_per_leaf=2"))


def test_usual_orders():
    of = view(job(1, 1, 1))
    assert tp_dp_pp().order(of, range(8), CLUSTER) == [*range(8)], "as estimate numbers them"
    assert tp_pp_dp().order(of, range(8), CLUSTER) == [0, 1, 4, 5, 2, 3, 6, 7]
    assert Nested(kinds="data-on-tensor").order(of, range(8), CLUSTER) == [0, 4, 1, 5, 2, 6, 3, 7]
    with pytest.raises(InputError, match="kinds is ''"):
        Nested(kinds="")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((9.0, 2.0, 1.0), "tensor-data-on"),
        ((9.0, 1.0, 5.0), "tensor-on-data"),
        ((1.0, 9.0, 4.0), "data-on-tensor"),
        ((2.0, 1.0, 30.0), "on-tensor-data"),
    ],
)
def test_least_bytes_over_racks_then_servers(sizes: tuple[float, float, float], expected: str):
    of = view(job(*sizes))
    assert LeastBytes().order(of, range(8), CLUSTER) == Nested(kinds=expected).order(of, range(8), CLUSTER)


@pytest.mark.long
def test_a_run_takes_the_order():
    cluster = Cluster(num_servers=4, gpus_per_server=2, topology="leaf-spine:servers_per_leaf=2")
    workload = Workload.of([job(9.0, 1.0, 5.0)])
    placement = "ranked:placement=first-fit,ranks=tp-pp-dp"
    result = ddlsched.simulate(workload, cluster, placement=placement, contention="max-min")
    assert result.gpus_of("a") == (0, 1, 4, 5, 2, 3, 6, 7)
    assert names("ranks") == ["least-bytes", "nested", "tp-dp-pp", "tp-pp-dp"]

    class Twice:
        def order(self, job, gpus, cluster):
            return [gpus[0]] * len(gpus)

    from algorithms.placement.ranked import Ranked

    with pytest.raises(InputError, match="expected the 8 GPUs that it was given, each once"):
        ddlsched.simulate(workload, cluster, placement=Ranked(placement="first-fit", ranks=Twice()))
