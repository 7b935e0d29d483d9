"""Estimates as jobs: their graph, and that the simulator runs them in the estimated time."""

from __future__ import annotations

import dataclasses
import math

import pytest

import ddlsched
from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of, scaling_curve, step_dag
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.units import s_from_ns
from ddlsched.workload.dag import AllReduceTask

PLAN = Parallelism(tensor=2, data=8, micro_batch=2, global_batch=32)
MACHINE = parse_cluster("v100:nodes=4,gpus_per_node=4,nic_gbps=10", efficiency="ideal").machine(16)
GPT = MODELS["gpt3-350m"]


def reduces(dag) -> list[AllReduceTask]:
    return [task for task in dag.tasks if isinstance(task, AllReduceTask)]


def test_the_graph_holds_the_whole_step() -> None:
    found = estimate_checked(GPT, PLAN, MACHINE)
    dag = step_dag(found, PLAN, MACHINE)
    assert [task.name for task in dag.tasks] == ["forward", "backward-1", "all-reduce-1", "optimiser"]
    assert s_from_ns(dag.compute_ns) == pytest.approx(float(found.step_s - found.data_s), rel=1e-6)


def test_bytes_that_cross_a_servers_card() -> None:
    """4 GPUs a server: 2 tensor-parallel groups of 2, so 2 data-parallel groups with 2 members on each server."""
    found = estimate_checked(GPT, PLAN, MACHINE)
    (reduce,) = reduces(step_dag(found, PLAN, MACHINE))
    assert reduce.message_bytes == pytest.approx(2 * float(found.reduced_bytes))


def test_experts_are_reduced_among_their_copies() -> None:
    """8 experts over 4 GPUs of a server: each has one copy on each of 4 servers; the rest, reduced inside first, 4."""
    mixture = dataclasses.replace(GPT, experts=8, active_experts=2)
    machine = parse_cluster("h200:nodes=4,gpus_per_node=4").machine(16)
    plan = Parallelism(data=16, expert=4, global_batch=16)
    found = estimate_checked(mixture, plan, machine)
    (reduce,) = reduces(step_dag(found, plan, machine))
    assert reduce.message_bytes == pytest.approx(float(found.reduced_bytes + 4 * found.reduced_expert_bytes))


def test_zero_3_sends_more() -> None:
    plans = [dataclasses.replace(PLAN, zero=zero) for zero in (0, 3)]
    plain, more = (reduces(step_dag(estimate_checked(GPT, plan, MACHINE), plan, MACHINE))[0] for plan in plans)
    assert more.message_bytes == pytest.approx(1.5 * 2 * plain.message_bytes)  # 2 micro-batches


def test_buckets_when_overlapping() -> None:
    plan = dataclasses.replace(PLAN, overlap=True)
    found = estimate_checked(GPT, plan, MACHINE)
    dag = step_dag(found, plan, MACHINE, buckets=4)
    plain = reduces(step_dag(found, PLAN, MACHINE))[0].message_bytes
    assert [reduce.message_bytes for reduce in reduces(dag)] == [plain / 4] * 4
    assert [reduce.after for reduce in reduces(dag)] == [("forward",), *((f"backward-{n}",) for n in (1, 2, 3))]
    assert dag.tasks[-1].after == (*(f"all-reduce-{number}" for number in (1, 2, 3, 4)), "backward-4")
    whole_s = float(found.step_s - found.data_s)
    assert s_from_ns(dag.compute_ns) == pytest.approx(whole_s, rel=1e-6)


def drained_s(computing_s: float, sending_s: float, taken: float) -> float:
    """Both begin at once; while something is sent, computation goes at what sending leaves of its speed."""
    slowed_s = computing_s / (1 - taken) if taken < 1 else math.inf
    together_s = min(sending_s, slowed_s)
    return together_s + (sending_s - together_s) + (computing_s - (1 - taken) * together_s)


@pytest.mark.long
@pytest.mark.parametrize("groups", [False, True], ids=["no groups", "groups"])
@pytest.mark.parametrize("taken", [0, 0.1, 0.3, 1])
@pytest.mark.parametrize("sent", [0.5, 1.2, 3])
@pytest.mark.parametrize("zero", [0, 3])
def test_estimate_and_job_take_what_two_drains_take(zero: int, sent: float, taken: float, groups: bool) -> None:
    """Sending takes so many times the computation that hides it; with 0.3 taken, computation hides 1.2 times itself."""
    plan = dataclasses.replace(PLAN, zero=zero)

    def machine(nic_gbps: float) -> Machine:
        text = f"v100:nodes=4,gpus_per_node=4,nic_gbps={nic_gbps},taken={taken}"
        return parse_cluster(text, efficiency="ideal").machine(16)

    slow = estimate_checked(GPT, plan, machine(10))
    hiding_s = float(slow.backward_s) / (2 if zero == 0 else 1)  # of 2 micro-batches the last, or all
    at = machine(10 * float(slow.data_s) / (sent * hiding_s))
    open_s = estimate_checked(GPT, plan, at)
    hidden = dataclasses.replace(plan, overlap=True)
    found = estimate_checked(GPT, hidden, at)
    drains_s = float(open_s.step_s - open_s.data_s) - hiding_s + drained_s(hiding_s, float(open_s.data_s), taken)
    assert float(open_s.data_s) == pytest.approx(sent * hiding_s, rel=0.1)
    assert float(found.step_s) == pytest.approx(drains_s, rel=1e-9)
    for own, seconds in ((hidden, drains_s), (plan, float(open_s.step_s)))[: 1 if taken else 2]:
        job = job_of(GPT, own, at, job_id="gpt", iterations=1, groups=groups)
        assert alone_s(job, at) == pytest.approx(seconds, rel=0.01)


def alone_s(job: ddlsched.Job, machine: Machine) -> float:
    """Return how long it runs on the machine's servers; their cards are one, or one a GPU."""
    inner, outer = (8 * float(tier.bytes_per_s) / 1e9 for tier in machine.tiers)
    star, rails = f"star:nic_gbps={4 * outer}", f"rail-optimised:rails=4,rail_gbps={outer},nvlink_gbps={inner}"
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=4, topology=rails if job.iteration.groups else star)
    communication = "bounded-overlap:limit=100"
    jobs = ddlsched.Workload.of([job])
    result = ddlsched.simulate(jobs, cluster, placement="first-fit", communication=communication, contention="max-min")
    return float(result.jobs["jct_s"].item())


def test_groups_inside_a_server_leave_the_network_alone() -> None:
    plan = Parallelism(data=4, pipeline=4, global_batch=16)
    found = estimate_checked(GPT, plan, MACHINE)
    dag = step_dag(found, plan, MACHINE)
    assert reduces(dag) == []
    assert s_from_ns(dag.compute_ns) == pytest.approx(float(found.step_s), rel=1e-6)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        Parallelism(tensor=2, data=4, pipeline=2, micro_batch=2, global_batch=32),
        Parallelism(data=16, micro_batch=1, global_batch=64, zero=3, overlap=True),
    ],
    ids=["data", "pipeline", "zero 3 behind every backward"],
)
def test_the_simulator_runs_a_job_alone_in_the_estimated_time(plan) -> None:
    """A ring over 4 cards moves 2 x 3/4 of the message; with a pipeline of 2, the estimate's join 2 cards each."""
    job = job_of(GPT, plan, MACHINE, job_id="gpt", iterations=10, label="gpt3-350m")
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=4, topology="star:nic_gbps=10")
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, contention="equal-share")
    estimated_s = 10 * float(estimate_checked(GPT, plan, MACHINE).step_s)
    assert result.jobs["jct_s"].item() == pytest.approx(estimated_s, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("groups", [False, True], ids=["no groups", "groups"])
@pytest.mark.parametrize(
    "algorithm",
    ["double-binary-tree", "nccl:outside_gbps=2.5", "nccl:switches=all", "in-network", "halving-doubling", "direct"],
)
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        Parallelism(data=16, micro_batch=1, global_batch=64, zero=2, overlap=True),
        Parallelism(tensor=8, data=2, global_batch=32, sequence_parallel=True, overlap=True),
    ],
    ids=["data", "zero 2 behind every backward", "tensor over two servers"],
)
def test_a_job_of_any_collective_takes_its_estimated_time(plan: Parallelism, algorithm: str, groups: bool) -> None:
    job = job_of(GPT, plan, MACHINE, job_id="gpt", iterations=1, groups=groups, algorithm=algorithm)
    estimated_s = float(estimate_checked(GPT, plan, MACHINE, algorithm=algorithm).step_s)
    assert alone_s(job, MACHINE) == pytest.approx(estimated_s, rel=0.05)


def test_what_does_not_fit_is_no_job() -> None:
    with pytest.raises(InputError, match=r"job 'big': does not fit by \d+\.\d\d GB a GPU"):
        job_of(MODELS["gpt3-175b"], PLAN, MACHINE, job_id="big", iterations=1)


def test_a_job_goes_through_a_file(tmp_path) -> None:
    job = job_of(GPT, PLAN, MACHINE, job_id="gpt", iterations=10)
    path = tmp_path / "jobs.json"
    ddlsched.write_workload(ddlsched.Workload.of([job]), path)
    (again,) = ddlsched.read_workload(path)
    assert again.dag == job.dag
    assert again.num_gpus == 16


@pytest.mark.long
def test_a_scaling_curve() -> None:
    curve = scaling_curve(GPT, parse_cluster("v100"), gpus=(1, 2, 4, 8, 16), global_batches=(16, 64))
    assert set(curve["global_batch"]) == {16, 64}
    for _, rows in curve.groupby("global_batch"):
        assert rows["gpus"].tolist() == [1, 2, 4, 8, 16]
        rates = rows["samples_per_s"].to_numpy()
        assert (rates[1:] < 2.001 * rates[:-1]).all()  # never better than linear
    large, small = (curve[curve["global_batch"] == batch]["samples_per_s"].iloc[-1] for batch in (64, 16))
    assert large > small


@pytest.mark.long
def test_a_scaling_curve_leaves_out_what_does_not_fit() -> None:
    curve = scaling_curve(MODELS["gpt3-6.7b"], parse_cluster("v100"), gpus=(1, 2, 16), global_batches=(16,))
    assert curve["gpus"].tolist() == [16]
