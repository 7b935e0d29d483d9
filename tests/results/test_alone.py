"""The time of a job alone is what simulating it alone gives, to the nanosecond."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from policies_of_users import LateIterations
from strategies import Setting, settings
from tiers import examples

import ddlsched
from ddlsched.cluster.cluster import Server
from ddlsched.comparisons import alone
from ddlsched.comparisons.alone import alone_s
from ddlsched.network.contention import Linear, MaxMin
from ddlsched.plugins.names import names
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload
from topologies.leaf_spine import LeafSpine

ITERATION = DataParallelIteration(forward_s=0.03, backward_s=0.05, message_bytes=1e8)


def job(number: int = 0, **changes) -> Job:
    fields = {"num_gpus": 1, "iterations": 3, "iteration": ITERATION, "gpu_memory_mb": 1000.0} | changes
    return Job(job_id=str(number), arrival_s=0.0, **fields)


def one_at_a_time_s(workload: Workload, cluster: ddlsched.Cluster, contention) -> list[float]:
    """Simulate all iterations of each job by itself."""
    return [
        ddlsched.simulate(
            Workload.of([dataclasses.replace(job, arrival_s=0.0)]),
            cluster,
            placement="first-fit",
            communication="bounded-overlap:limit=1",
            contention=contention,
        ).jobs["jct_s"][0]
        for job in workload
    ]


@pytest.mark.long
@hypothesis_settings(max_examples=examples(20, by_default=5))
@given(settings())
def test_it_is_the_time_of_simulating_each_job_alone(setting: Setting):
    assume(not isinstance(setting.contention, LateIterations))  # its iterations are not alike
    cluster = dataclasses.replace(setting.cluster, topology=setting.topology)
    found = alone_s(setting.workload, cluster, setting.contention)
    assert found.tolist() == one_at_a_time_s(setting.workload, cluster, setting.contention)


def test_by_hand():
    """16 GPUs are on four servers: every iteration computes 0.08 s and sends 1e8 bytes at 0.856 ns each."""
    jobs = Workload.of([job(0), job(1, num_gpus=16), job(2, num_gpus=4, iterations=7)])
    assert alone_s(jobs, ddlsched.Cluster()) == pytest.approx([0.24, 3 * (0.08 + 0.0856), 0.56], abs=1e-12)


def test_on_servers_of_different_kinds_by_hand():
    """The first server is fast and has too little memory for the second job; over all, the slowest is waited for."""
    fast, slow = Server(gpus=2, gpu_memory_mb=500.0, relative_speed=2.0), Server(gpus=4, gpu_memory_mb=2000.0)
    jobs = Workload.of([job(0, gpu_memory_mb=100.0), job(1), job(2, gpu_memory_mb=100.0, num_gpus=6)])
    found = alone_s(jobs, ddlsched.Cluster(servers=(fast, slow)))
    assert found == pytest.approx([0.12, 0.24, 3 * (0.08 + 0.0856)], abs=1e-12)


def test_it_depends_on_neither_arrival_nor_neighbours():
    jobs = [job(n, num_gpus=2**n, iterations=n + 1) for n in range(6)]
    together = alone_s(Workload.of(jobs), ddlsched.Cluster())
    shuffled = [dataclasses.replace(jobs[n], arrival_s=10.0 * n) for n in (3, 1, 5, 0, 4, 2)]
    assert alone_s(Workload.of(shuffled), ddlsched.Cluster()).tolist() == together[[3, 1, 5, 0, 4, 2]].tolist()


@pytest.mark.long
def test_jobs_that_would_meet_at_the_first_guess_do_not():
    """A network a thousand times slower than the guess: the run is repeated with more room."""
    slow = Linear(per_byte_s=1e-6, penalty_per_byte_s=5e-6)
    jobs = Workload.of(
        [job(n, num_gpus=8, iteration=dataclasses.replace(ITERATION, message_bytes=n * 1e7)) for n in range(5)]
    )
    cluster = ddlsched.Cluster(num_servers=2)
    assert alone_s(jobs, cluster, slow).tolist() == one_at_a_time_s(jobs, cluster, slow)


@pytest.mark.parametrize(("jct_s", "arrivals_s"), [(2.5, [[0.0, 5.0]]), (2.75, [[0.0, 5.0], [0.0, 5.5]])])
def test_a_job_arrives_after_twice_the_time_of_the_one_before(
    jct_s: float, arrivals_s: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first guess is 1 s and twice the 1 s of compute and the 1 s of 100 MB: 5 s."""
    asked: list[list[float]] = []

    def runs(workload: Workload, *_: object) -> np.ndarray:
        asked.append([each.arrival_s for each in workload])
        return np.full(len(workload), jct_s)

    monkeypatch.setattr(alone, "_jct_s", runs)
    iteration = DataParallelIteration(forward_s=0.25, backward_s=0.75, message_bytes=1e8)
    kinds = [alone._Kind(iteration, 2, memory_mb) for memory_mb in (1.0, 2.0)]
    assert alone._one_by_one_ns(kinds, ddlsched.Cluster(), "linear") == [round(jct_s * 1e9)] * 2
    assert asked == arrivals_s


@pytest.mark.long
def test_iterations_longer_together_than_the_clock_take_several_runs():
    def year(number: int) -> IterationDag:
        compute = ComputeTask(name="compute", duration_ns=10**18 + number)
        return IterationDag((compute, AllReduceTask(name="reduce", message_bytes=1e6, after=("compute",))))

    jobs = Workload.of([job(n, num_gpus=2, iterations=1, iteration=year(n)) for n in range(12)])
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=1)
    assert alone_s(jobs, cluster).tolist() == one_at_a_time_s(jobs, cluster, "10gbe")


def test_buckets_overlap_with_the_backward_pass():
    whole, split = (
        alone_s(
            Workload.of([job(num_gpus=8, iteration=dataclasses.replace(ITERATION, buckets=k))]), ddlsched.Cluster()
        )[0]
        for k in (1, 4)
    )
    assert split < whole
    assert split >= 3 * 0.0856


def test_the_topology_and_the_model_count():
    """Eight servers under four leaves, whose uplinks carry two cards' traffic at a quarter: half a card each."""
    jobs = Workload.of([job(num_gpus=32, iterations=1)])
    on_a_star = alone_s(jobs, ddlsched.Cluster(), MaxMin())[0] - 0.08
    oversubscribed = ddlsched.Cluster(topology=LeafSpine(servers_per_leaf=2, spines=1, oversubscription=4.0))
    assert alone_s(jobs, oversubscribed, MaxMin())[0] - 0.08 == pytest.approx(2 * on_a_star)
    assert on_a_star == pytest.approx(2 * 7 / 8 * 1e8 / 1.25e9)


def test_many_jobs_of_different_durations_are_one_simulated_kind(monkeypatch):
    from ddlsched.comparisons import alone

    simulated = []

    def counting(workload, *rest, **options):
        simulated.append(len(workload))
        return ddlsched.simulate(workload, *rest, **options)

    monkeypatch.setattr(alone, "simulate", counting)
    rng = np.random.default_rng(0)
    jobs = [
        job(n, num_gpus=int(gpus), iteration=dataclasses.replace(ITERATION, forward_s=float(forward_s)))
        for n, (gpus, forward_s) in enumerate(zip(rng.choice([1, 8], 500), rng.uniform(0.0, 1.0, 500), strict=True))
    ]
    alone_s(Workload.of(jobs), ddlsched.Cluster())
    assert simulated == [2]


@pytest.mark.long
@pytest.mark.parametrize("topology", ["star", "rail-optimised:nvlink_gbps=3600"])
@pytest.mark.parametrize("algorithm", names("collective"))
def test_a_data_parallel_job_alone_takes_what_its_run_takes(algorithm: str, topology: str) -> None:
    cluster = ddlsched.Cluster(num_servers=3, gpus_per_server=8, topology=topology)
    iteration = DataParallelIteration(forward_s=0.01, backward_s=0.02, message_bytes=1e8, algorithm=algorithm)
    for gpus in (2, 6, 8, 24):
        one = Workload.of([job(num_gpus=gpus, iterations=10, iteration=iteration)])
        assert alone_s(one, cluster, "max-min").tolist() == one_at_a_time_s(one, cluster, "max-min")
