"""Whole runs of the gate with ranks that are threads: every policy, DAGs, buckets, placement, slots."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from in_process_ranks import Exchange, Outcome, ThreadCrew, quick_job, run_jobs, settings

from ddlsched.cluster.cluster import Cluster
from ddlsched.real.gate.gate import GateSettings
from ddlsched.real.gate.transfer_gate import TransferGate
from ddlsched.simulation import simulate
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job

FOUR = Cluster(num_servers=4, gpus_per_server=1, gpu_memory_mb=1000)


def ran(jobs: list[Job], cluster: Cluster = FOUR, delay_s: float = 0.001, **given: Any) -> Outcome:
    return run_jobs(jobs, settings(cluster, **given), ThreadCrew(Exchange(delay_s)))


POLICIES = [
    "bounded-overlap:limit=1",
    "bounded-overlap:limit=2",
    "adadual",
    "preemptive:by=time",
    "preemptive:by=bytes",
]


@pytest.mark.parametrize("communication", POLICIES)
def test_every_iteration_of_every_job_is_recorded_in_order(communication: str) -> None:
    jobs = [quick_job("a"), quick_job("b", iterations=4), quick_job("c", gpus=2, message_bytes=3e5)]
    outcome = ran(jobs, communication=communication)
    rows = {name: [row for row in outcome.rows if row.job_id == name] for name in "abc"}
    assert {name: [row.iteration for row in rows[name]] for name in "abc"} == {
        "a": [0, 1, 2],
        "b": [0, 1, 2, 3],
        "c": [0, 1, 2],
    }
    for row in outcome.rows:
        assert 0 <= row.ready_ns <= row.granted_ns < row.ended_ns
    assert all(one.finished_ns > one.began_ns >= one.placed_ns >= 0 for one in outcome.gate.jobs)
    assert all(one.view.remaining_service_ns == 0 == one.view.iterations_left for one in outcome.gate.jobs)


@pytest.mark.long
def test_one_at_a_time_never_overlaps_and_free_overlap_does() -> None:
    jobs = [quick_job("a", compute_s=0.0), quick_job("b", compute_s=0.0)]
    alone = ran(jobs, communication="bounded-overlap:limit=1", delay_s=0.01)
    spans = sorted((row.granted_ns, row.ended_ns) for row in alone.rows)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    free = sorted((row.granted_ns, row.ended_ns) for row in ran(jobs, delay_s=0.01).rows)
    assert any(before[1] > after[0] for before, after in itertools.pairwise(free))


@pytest.mark.long
def test_a_shorter_job_pauses_a_longer_ones_transfer_between_chunks() -> None:
    long = quick_job("long", iterations=1, compute_s=0.0, message_bytes=4e6)
    short = quick_job("short", iterations=2, compute_s=0.002, message_bytes=1e5, arrival_s=0.1)
    outcome = ran([long, short], communication="preemptive:by=time", chunk_bytes=1e5, delay_s=0.01)
    spans = {row.job_id: [] for row in outcome.rows}
    for row in outcome.rows:
        spans[row.job_id].append(row)
    assert spans["long"][0].chunks == 40
    assert spans["long"][0].granted_ns < spans["short"][0].granted_ns
    assert spans["short"][-1].ended_ns < spans["long"][0].ended_ns


@pytest.mark.long
def test_chunks_of_a_job_reach_all_its_ranks_in_one_order_and_the_window_is_kept() -> None:
    """The exchange fails on ranks that issue in different orders, as gloo would wait for ever."""
    crew = ThreadCrew(Exchange(0.0005))
    jobs = [quick_job("a", buckets=5, message_bytes=2e6, iterations=4), quick_job("b", buckets=3, iterations=4)]
    given = settings(FOUR, chunk_bytes=2e4, window=3, communication="bounded-overlap:limit=99")
    outcome = run_jobs(jobs, given, crew)
    assert len(outcome.rows) == 4 * (5 + 3)
    assert {row.chunks for row in outcome.rows} == {20, 17}
    assert crew.exchange.most_at_a_time <= 3 * (5 + 3)


def test_a_window_of_two_never_stalls_between_chunks() -> None:
    crew = ThreadCrew(Exchange(0.005))
    run_jobs([quick_job("a", iterations=1)], settings(FOUR, chunk_bytes=1e5, window=2), crew)
    assert crew.exchange.most_at_a_time == 2


def test_a_graph_of_tasks_keeps_its_order_on_every_rank() -> None:
    tasks = (
        ComputeTask(name="first", duration_ns=2_000_000),
        AllReduceTask(name="early", message_bytes=1e5, after=("first",)),
        ComputeTask(name="beside", duration_ns=3_000_000, after=("first",)),
        ComputeTask(name="needs-both", duration_ns=1_000_000, after=("early", "beside")),
        AllReduceTask(name="late", message_bytes=1e5, after=("needs-both",)),
    )
    outcome = ran([quick_job("graph", iteration=IterationDag(tasks))])
    assert [(row.iteration, row.task) for row in outcome.rows] == [(i, t) for i in range(3) for t in ("early", "late")]
    for server in range(4):
        own = [message for at, message in outcome.said if at == server and message["say"] in ("computed", "ready")]
        names = [tasks[message["task"]].name for message in own]
        assert names[:5] == ["first", "early", "beside", "needs-both", "late"]


def test_a_job_on_one_server_reduces_nothing() -> None:
    outcome = ran([quick_job("a", gpus=2)], Cluster(num_servers=2, gpus_per_server=2))
    assert outcome.rows == []
    assert outcome.gate.jobs[0].view.servers == (0,)


def test_jobs_wait_for_gpus_and_are_placed_when_one_leaves() -> None:
    cluster = Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=100)
    jobs = [quick_job("first", gpus=2), quick_job("second", gpus=2, iterations=2)]
    outcome = ran(jobs, cluster, order="fifo")
    first, second = outcome.gate.jobs
    assert second.placed_ns >= first.finished_ns
    assert second.gpus == first.gpus == (0, 1)


def test_the_order_decides_who_leaves_the_queue_first() -> None:
    cluster = Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=100)
    jobs = [
        quick_job("first", gpus=2),
        quick_job("long", gpus=2, iterations=9),
        quick_job("short", gpus=2, iterations=2),
    ]
    _, long, short = ran(jobs, cluster, order="srsf").gate.jobs
    assert short.placed_ns < long.placed_ns


def test_an_exclusive_gpu_has_one_job_at_a_time() -> None:
    cluster = Cluster(num_servers=2, gpus_per_server=1, exclusive=True)
    first, second = ran([quick_job("first", gpus=2), quick_job("second", gpus=2)], cluster).gate.jobs
    assert second.placed_ns >= first.finished_ns


@pytest.mark.long
def test_with_slots_jobs_compute_one_at_a_time_on_a_gpu_they_share() -> None:
    cluster = Cluster(num_servers=2, gpus_per_server=1)
    jobs = [quick_job("a", gpus=2, iterations=5, compute_s=0.02), quick_job("b", gpus=2, iterations=5, compute_s=0.02)]
    shared = ran(jobs, cluster, slots=True)
    beside = ran(jobs, cluster, slots=False)
    assert max(one.finished_ns for one in shared.gate.jobs) > 0.2e9  # 10 iterations of 0.02 s, one after the other
    assert not any(message["say"] == "compute" for _, message in beside.said)  # nobody asks for a slot
    asked = [message for _, message in shared.said if message["say"] == "compute"]
    assert len(asked) == 2 * 2 * 5 * 2  # jobs x servers x iterations x forward and backward


def test_with_slots_every_gpu_of_a_server_computes() -> None:
    cluster = Cluster(num_servers=2, gpus_per_server=2)
    outcome = ran([quick_job("a", gpus=4, iterations=2)], cluster, slots=True)
    computed = [message for _, message in outcome.said if message["say"] == "computed"]
    first = sorted(message["gpus"] for message in computed if message["task"] == 0)
    assert first == [
        [0],
        [0],
        [1],
        [1],
        [2],
        [2],
        [3],
        [3],
    ]


@pytest.mark.long
def test_workers_are_used_again() -> None:
    crew = ThreadCrew(Exchange())
    jobs = [quick_job("a"), quick_job("b", arrival_s=0.3)]
    run_jobs(jobs, settings(FOUR), crew)
    assert len(crew.threads) == 4


@pytest.mark.long
def test_a_job_that_arrives_later_is_placed_later() -> None:
    late = ran([quick_job("a"), quick_job("late", arrival_s=0.2)]).gate.jobs[1]
    assert late.placed_ns >= 0.2e9


def test_jobs_placed_at_one_instant_begin_together() -> None:
    outcome = ran([quick_job("a"), quick_job("b"), quick_job("late", arrival_s=0.1)])
    a, b, late = outcome.gate.jobs
    assert a.began_ns == b.began_ns < late.began_ns


def test_of_a_whole_message_is_guessed_how_far_it_comes_and_of_one_in_chunks_not() -> None:
    active = [
        SimpleNamespace(
            chunks=chunks,
            view=SimpleNamespace(bytes_left=8.0, links=()),
            columns=SimpleNamespace(bytes_left=[0.0], since_ns=[0], ns_per_byte=[0.0], rate=[0.0]),
        )
        for chunks in (1, 2)
    ]
    costs = SimpleNamespace(network=SimpleNamespace(links=()), model=SimpleNamespace(alone_per_byte_s=1e-9))
    gate: Any = SimpleNamespace(active=active, _costs=costs)
    TransferGate._estimate(gate, 5)
    assert [transfer.columns.bytes_left for transfer in active] == [[8.0], [0.0]]
    assert [transfer.columns.since_ns for transfer in active] == [[5], [0]]


def test_a_gate_and_a_simulation_have_one_seed_unless_told() -> None:
    (seed,) = (field.default for field in dataclasses.fields(GateSettings) if field.name == "seed")
    assert seed == inspect.signature(simulate).parameters["seed"].default
