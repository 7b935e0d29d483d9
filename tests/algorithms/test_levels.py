"""Levels that jobs require, prefer and want balanced, on clusters small enough to see."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.placement.levels import Levels
from ddlsched import Cluster, Workload
from ddlsched.errors import InputError, InvalidDecisionError
from ddlsched.testing import cluster_view, job_view
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job
from topologies.clos import Clos

CLOS = Clos(servers_per_rack=2, racks_per_pod=2)
"""Servers 0 1 | 2 3 are racks of the first pod, 4 5 | 6 7 of the second."""


def held(*gpus: int):
    """Eight servers of two GPUs, of which some GPUs are held."""
    other = job_view(number=9)
    return cluster_view(num_servers=8, gpus_per_server=2, residents={gpu: [other] for gpu in gpus}, topology=CLOS)


def place(*taken: int, gpus: int, policy: Levels | None = None, **demands: str) -> list[int] | None:
    return (policy or Levels()).place(job_view(num_gpus=gpus, **demands), held(*taken))


def test_best_fit_in_the_narrowest_level():
    assert place(0, 4, 5, gpus=1) == [1]
    assert place(0, 4, 5, gpus=2) == [2, 3]
    assert place(0, gpus=4) == [4, 5, 6, 7], "the rack of servers 0 and 1 has too few"
    assert place(0, 8, gpus=3) == [1, 2, 3]
    assert place(0, 4, 8, gpus=6) == [1, 2, 3, 5, 6, 7]
    assert place(0, 8, gpus=15) is None


def test_small_remainders_are_used_up():
    assert place(0, 8, 9, gpus=11) == [1, 2, 3, 4, 5, *range(10, 16)], "of the pods and racks with the most room some"
    assert place(4, gpus=3, preferred_levels="rack") == [5, 6, 7], "of racks with room for one slice that with 3 GPUs"
    assert place(12, gpus=9, required_levels="3:rack") == [0, 1, 2, 8, 9, 10, 13, 14, 15], "the fuller pod first"


def test_required_levels_wait():
    for level, gpus in (("server", [6, 7]), ("rack", [5, 6, 7])):
        assert place(0, 1, 2, 3, 4, *range(8, 16), gpus=len(gpus), required_levels=level) == gpus
        assert place(0, 1, 2, 4, 6, *range(8, 16), gpus=len(gpus), required_levels=level) is None
    assert place(0, 1, 8, 9, gpus=8, required_levels="pod") is None
    assert place(0, 1, 8, 9, gpus=8) is not None


def test_slices_are_not_torn():
    assert place(0, 4, gpus=6) == [1, 2, 3, 5, 6, 7], "in the fuller pod, on parts of servers"
    assert place(0, 4, gpus=6, required_levels="2:server") == [8, 9, 10, 11, 12, 13]
    assert place(0, 2, 4, 6, 8, 10, gpus=6, required_levels="2:server") is None
    assert place(0, 2, 4, 6, 8, 10, gpus=6, preferred_levels="2:server") == [9, 11, 12, 13, 14, 15]
    assert place(4, gpus=8, required_levels="4:rack") == [8, 9, 10, 11, 12, 13, 14, 15]
    assert place(4, 8, gpus=8, required_levels="4:rack") == [0, 1, 2, 3, 12, 13, 14, 15]


def test_tuples_of_groups_are_slices_and_nest():
    tasks = (
        ComputeTask(name="f", duration_ns=1),
        CollectiveTask(name="t", kind="all-reduce", message_bytes=1.0, after=("f",), group="tensor"),
        CollectiveTask(name="d", kind="all-reduce", message_bytes=1.0, after=("t",), group="stage"),
    )
    groups = {"tensor": ((0, 4), (1, 5), (2, 6), (3, 7)), "stage": ((0, 4, 2, 6), (1, 5, 3, 7))}
    levels = "tensor:server stage:rack"
    job = Job(
        job_id="a",
        arrival_s=0,
        num_gpus=8,
        iterations=1,
        iteration=IterationDag(tasks, groups),
        gpu_memory_mb=1,
        required_levels=levels,
    )
    cluster = Cluster(num_servers=8, gpus_per_server=2, topology=CLOS)
    gpus = ddlsched.simulate(Workload.of([job]), cluster, placement="levels").gpus_of("a")
    assert gpus == (0, 4, 2, 6, 1, 5, 3, 7)
    with pytest.raises(InvalidDecisionError, match="2 units of the level 'server' for workers"):
        ddlsched.simulate(Workload.of([job]), cluster, placement="first-fit")


@pytest.mark.long
def test_groups_of_an_estimated_job_go_by_their_first_words():
    plan = Parallelism(tensor=2, data=2, pipeline=2, global_batch=4)
    estimated = MODELS["gpt3-350m"], parse_cluster("h100", topology="nvl72").machine(8)
    one, other = (
        job_of(estimated[0], replace(plan, interleave=chunks), estimated[1], job_id="a", iterations=1, groups=True)
        for chunks in (1, 2)
    )
    tuples = [members for stage in (0, 1) for members in one.dag.groups[f"tensor {stage}"]]
    cluster = Cluster(num_servers=18, gpus_per_server=3, gpu_memory_mb=80000, topology="nvl72")
    for levels, torn in ((None, True), ("tensor:tray", False)):
        jobs = Workload.of([replace(one, required_levels=levels)])
        gpus = ddlsched.simulate(jobs, cluster, placement="levels", contention="max-min").gpus_of("a")
        assert any(gpus[first] // 3 != gpus[second] // 3 for first, second in tuples) is torn
    known = r"; expected a group of the job \(stage, tensor, data, on, back\)$"
    for wrong, why in (("tensr", known), ("on", ", of whose tuples some share workers")):
        with pytest.raises(InputError, match=f"required_levels has the group '{wrong}'{why}"):
            replace(other, required_levels=f"{wrong}:tray")


def test_balanced_over_as_few_units():
    taken = (0, 8, 9)
    assert place(*taken, gpus=12) is not None
    pods = [gpu // 8 for gpu in place(*taken, gpus=12, balanced_level="pod") or []]
    assert (pods.count(0), pods.count(1)) == (6, 6)
    pods = [gpu // 8 for gpu in place(*taken, gpus=11, balanced_level="pod") or []]
    assert (pods.count(0), pods.count(1)) == (6, 5)
    pods = [gpu // 8 for gpu in place(0, *range(8, 12), gpus=10, balanced_level="pod") or []]
    assert (pods.count(0), pods.count(1)) == (6, 4), "as evenly as there is room"


def test_spare_gpus_stay_free():
    spare = Levels(spare_gpus=1, spare_level="rack")
    assert place(gpus=3, policy=spare) == [0, 1, 2]
    assert place(gpus=4, policy=spare) == [0, 1, 2, 4]
    assert place(gpus=13, policy=spare) is None
    with pytest.raises(InputError, match="no level 'cage'"):
        place(gpus=1, policy=Levels(spare_level="cage"))


def test_demands_that_cannot_be():
    for wrong, why in (
        ("3:rack", "slices of 3 workers; expected a divisor of the job's 8"),
        ("tensr:rack", "the group 'tensr'; expected a group of the job"),
        ("8:", "expected levels between spaces"),
    ):
        with pytest.raises(InputError, match=f"job '.*': required_levels .*{why}"):
            job_view(num_gpus=8, required_levels=wrong)
    jobs = [replace(data_parallel_job("a", 2, forward_s=0.1, message_bytes=1e6), required_levels="cage")]
    said = "row 1, column required_levels: job 'a': topology star: has no level 'cage'; expected one of server$"
    with pytest.raises(InputError, match=said):
        ddlsched.simulate(Workload.of(jobs), Cluster(num_servers=2))


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpus", "levels", "said"),
    [
        (128, "block rack", "'rack' have room for 0 of its 1 slices of 128 GPUs, the largest with 72; .* '64:rack'"),
        (128, "64:rack", None),
        (144, "48:rack", "'rack' have room for 2 of its 3 slices of 48 GPUs, the largest with 72; .* '72:rack'"),
    ],
)
def test_what_no_unit_ever_holds_is_refused_before_the_run(gpus, levels, said):
    jobs = [replace(data_parallel_job("a", gpus, forward_s=0.1), required_levels=levels)]
    run = partial(
        ddlsched.simulate,
        Workload.of(jobs),
        Cluster(num_servers=36, gpus_per_server=4, topology="nvl72"),
        placement="levels",
        contention="max-min",
    )
    if said is None:
        assert len(run().gpus_of("a")) == gpus
        return
    said = f"row 1, column required_levels: job 'a' has '{levels}', so it can never fit: units of the level {said}"
    with pytest.raises(InputError, match=said):
        run()


def test_files_keep_levels(tmp_path):
    demands = {"required_levels": "pod 2:server", "preferred_levels": "rack", "balanced_level": "rack"}
    job = replace(data_parallel_job("a", 4, forward_s=0.1), **demands)
    for suffix in ("csv", "json", "parquet"):
        path = tmp_path / f"jobs.{suffix}"
        ddlsched.write_workload(Workload.of([job]), path)
        assert ddlsched.read_workload(path).jobs == (job,)
