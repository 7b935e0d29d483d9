"""The oracle against the golden cases and against tiny cases worked out by hand."""

from __future__ import annotations

import functools
import itertools
from decimal import Decimal
from typing import Any

import pytest
from golden_cases import golden_cases
from jobs_by_hand import data_parallel_job
from policies_of_users import IterationWeights, SizeLevels, SizeWeights
from reference_simulator import ReferenceRun, reference_simulate

from ddlsched.cluster.cluster import Cluster
from ddlsched.network.contention import ContentionModel, EqualShare, Linear, MaxMin
from ddlsched.simulation import simulate
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import read_workload
from topologies.star import Star

CASES = [f"case{i}" for i in range(1, 9)]
PLACEMENTS = ["first-fit", "list-scheduling", "lwf:kappa=1", "lwf:kappa=4"]
COMMUNICATIONS = [
    *(f"bounded-overlap:limit={limit}" for limit in (1, 2, 3)),
    "adadual",
    *(f"preemptive:by={by}" for by in ("service-per-gpu", "bytes", "service")),
]
RUNS = list(itertools.product(CASES, PLACEMENTS, COMMUNICATIONS))
QUICK = [run for i, run in enumerate(RUNS) if i % (4 if run[0] in ("case7", "case8") else 13) == 0]

MS = 1_000_000
NS_A_BYTE = Linear(per_byte_s=1e-9, penalty_per_byte_s=0.5e-9)
"""1 ns a byte alone, 2.5 ns for each of two that share a server."""


# ---- Golden cases


def check_golden(case: str, placement: str, communication: str) -> None:
    golden = golden_cases()[case, placement, communication]
    run = reference_simulate(
        read_workload(golden.workload),
        Cluster(num_servers=golden.servers, gpus_per_server=4, gpu_memory_mb=32768),
        placement=placement,
        order="srsf",
        communication=communication,
        contention=Linear(latency_s=golden.latency_s, per_byte_s=8.56e-10, penalty_per_byte_s=2.35e-10),
        topology=Star(),
    )
    found = {job_id: (outcome.start_ns, outcome.finish_ns) for job_id, outcome in run.jobs.items()}
    assert found == {job_id: (exact_ns(start), exact_ns(finish)) for job_id, (start, finish) in golden.times_s.items()}


def exact_ns(seconds: str) -> int:
    return int(Decimal(seconds) * 10**9)


@pytest.mark.long
@pytest.mark.parametrize(("case", "placement", "communication"), QUICK)
def test_golden_sample(case: str, placement: str, communication: str) -> None:
    check_golden(case, placement, communication)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "placement", "communication"), [run for run in RUNS if run not in QUICK])
def test_golden_rest(case: str, placement: str, communication: str) -> None:
    check_golden(case, placement, communication)


# ---- Cases worked out by hand

job = functools.partial(
    data_parallel_job, gpus=2, forward_s=0.004, backward_s=0.006, message_bytes=20e6, memory_mb=1000
)
"""By default 20 MB, which is 20 ms alone."""


def run_on_two_gpus(
    *jobs: Job,
    communication: str,
    contention: ContentionModel = NS_A_BYTE,
    gpus_per_server: int = 1,
    star: Star | None = None,
    order: str = "srsf",
) -> ReferenceRun:
    """By default each GPU on a server of its own, so that every job of 2 GPUs communicates."""
    return reference_simulate(
        Workload(jobs),
        Cluster(num_servers=2 // gpus_per_server, gpus_per_server=gpus_per_server, gpu_memory_mb=2000),
        placement="first-fit",
        order=order,
        communication=communication,
        contention=contention,
        topology=star or Star(),
    )


def finish_ms(run: ReferenceRun) -> dict[str, float]:
    return {job_id: outcome.finish_ns / MS for job_id, outcome in run.jobs.items()}


def test_one_job_on_one_server_communicates_in_no_time() -> None:
    run = run_on_two_gpus(job("a", iterations=3, arrival_s=1), communication="adadual", gpus_per_server=2)
    # 3 iterations of 10 ms; 3 x 2 tasks on each of 2 GPUs.
    assert run.jobs["a"].start_ns == 1000 * MS
    assert finish_ms(run) == {"a": 1030}
    assert run.jobs["a"].gpus == (0, 1)
    assert (run.events, len(run.compute), run.transfers) == (12, 12, [])


@pytest.mark.parametrize(
    ("communication", "expected"),
    [
        # Both GPUs compute a until 10 ms (4 ms in, a has less service left than b), then b until 20 ms.
        # a sends alone from 10 to 20 ms: 10 of its 20 MB. With b it sends its last 10 MB in 25 ms, until 45 ms.
        # By then b has sent 10 MB, too, and the other 10 MB take 10 ms alone.
        ("bounded-overlap:limit=2", {"a": 45, "b": 55}),
        # a ends undisturbed after 20 ms, then b.
        ("bounded-overlap:limit=1", {"a": 30, "b": 50}),
        # 20 MB x 2 x 1.5 ns = 60 ms > 10 MB x 1 ns = 10 ms: b waits.
        ("adadual", {"a": 30, "b": 50}),
    ],
)
def test_two_jobs_contend(communication: str, expected: dict[str, float]) -> None:
    run = run_on_two_gpus(job("a"), job("b"), communication=communication)
    assert finish_ms(run) == expected
    for job_id in "ab":
        assert sum(s.sent_bytes for s in run.transfers if s.job_id == job_id) == pytest.approx(20e6)


def test_adadual_starts_on_the_threshold() -> None:
    # At 20 ms a has 15 of 25 MB left, 15 ms; b's 5 MB x 2 x 1.5 ns are 15 ms, too: equality starts.
    # Both send at 2.5 ns a byte until b ends at 32.5 ms; a sends its last 10 MB alone.
    big, small = job("a", message_bytes=25e6), job("b", message_bytes=5e6)
    assert finish_ms(run_on_two_gpus(big, small, communication="adadual")) == {"a": 42.5, "b": 32.5}
    # One byte more waits, until 35 ms.
    larger = job("b", message_bytes=5e6 + 1)
    assert finish_ms(run_on_two_gpus(big, larger, communication="adadual")) == {"a": 35, "b": 40.000001}


def test_preemption_keeps_bytes() -> None:
    # At 20 ms a has 10 MB left, b 5 MB: a pauses until b ends at 25 ms.
    run = run_on_two_gpus(job("a"), job("b", message_bytes=5e6), communication="preemptive:by=bytes")
    assert finish_ms(run) == {"a": 35, "b": 25}
    assert [(s.job_id, s.start_ns, s.end_ns) for s in run.transfers] == [
        ("a", 10 * MS, 20 * MS),
        ("b", 20 * MS, 25 * MS),
        ("a", 25 * MS, 35 * MS),
    ]


@pytest.mark.parametrize(
    ("communication", "expected"),
    [
        # Backward ends in two parts at 7 and 10 ms, 10 MB each. The second waits for the first: 7 + 10 + 10.
        ("bounded-overlap:limit=1", 27),
        # From 10 ms both send. The first has 7 MB left: 17.5 ms, until 27.5 ms. The second then has 3 MB left.
        ("bounded-overlap:limit=2", 30.5),
    ],
)
def test_buckets_overlap_backward(communication: str, expected: float) -> None:
    run = run_on_two_gpus(job("a", buckets=2), communication=communication)
    assert finish_ms(run) == {"a": expected}


def test_latency_is_not_stretched_by_contention() -> None:
    # a: latency 10-11 ms, 9 MB alone until 20 ms, the other 11 MB at 2.5 ns until 47.5 ms, as b counts in its latency.
    # b: latency 20-21 ms, 26.5 ms at 2.5 ns: 10.6 MB; the other 9.4 MB alone until 56.9 ms.
    model = Linear(latency_s=0.001, per_byte_s=1e-9, penalty_per_byte_s=0.5e-9)
    run = run_on_two_gpus(job("a"), job("b"), communication="bounded-overlap:limit=2", contention=model)
    assert finish_ms(run) == {"a": 47.5, "b": 56.9}
    # The same 1 ms from cables: a ring over 2 servers is 2 steps over 2 cables.
    cables = Star(latency_s=0.00025)
    assert run_on_two_gpus(job("a"), job("b"), communication="bounded-overlap:limit=2", star=cables).jobs == run.jobs


def test_latency_left_is_kept_across_a_pause() -> None:
    # a's latency of 15 ms has 5 ms left when b, of 5 MB, preempts it at 20 ms. b: 15 + 5 ms. a: 5 + 20 ms.
    model = Linear(latency_s=0.015, per_byte_s=1e-9)
    run = run_on_two_gpus(job("a"), job("b", message_bytes=5e6), communication="preemptive:by=bytes", contention=model)
    assert finish_ms(run) == {"a": 65, "b": 40}


def test_a_general_graph_may_begin_with_an_all_reduce() -> None:
    # The 3 MB take 0-3 ms, beside the 10 ms of "other"; "after" follows on each GPU as it gets free: 10-12 ms.
    dag = IterationDag(
        (
            AllReduceTask(name="reduce", message_bytes=3e6),
            ComputeTask(name="after", duration_ns=2 * MS, after=("reduce",)),
            ComputeTask(name="other", duration_ns=10 * MS),
        )
    )
    general = Job(job_id="a", arrival_s=0, num_gpus=2, iterations=2, iteration=dag, gpu_memory_mb=1000)
    run = run_on_two_gpus(general, communication="bounded-overlap:limit=1")
    assert finish_ms(run) == {"a": 24}
    assert [(s.start_ns, s.end_ns) for s in run.transfers] == [(0, 3 * MS), (12 * MS, 15 * MS)]


def finish_ms_of_both(*jobs: Job, **options: Any) -> dict[str, float]:
    """Return what the oracle finds, after a look whether the engine finds the same."""
    found = finish_ms(run_on_two_gpus(*jobs, **options))
    given = {"order": "srsf", "contention": NS_A_BYTE} | options
    cluster = Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=2000)
    run = simulate(Workload(jobs), cluster, placement="first-fit", **given)
    assert found == {name: int(ns) / MS for name, ns in zip(found, run.finished.state.jobs.finish_ns, strict=True)}
    return found


def test_tiresias_goes_on_to_the_next_queue_after_a_task() -> None:
    # The threshold is 25 GPU-ms. Both on one GPU: a, which came first, has had 24 ms at 24 ms and 30 ms at 30 ms.
    # Then b, until it has had 30 ms, at 60 ms. In the second queue a, which came first, goes on with its other 50 ms,
    # then b.
    jobs = job("a", gpus=1, iterations=8), job("b", gpus=1, iterations=4, arrival_s=0.001)
    order = "tiresias:threshold_gpu_s=0.025"
    assert finish_ms_of_both(*jobs, order=order, communication="adadual") == {"a": 110, "b": 120}


def test_themis_serves_who_falls_behind_most() -> None:
    # Alone a takes 50 ms, b 10 ms. At 0 both have rho 1, a goes for 4 ms. Then a has (4 + 50) / 50, b (4 + 10) / 10,
    # and at 8 ms (8 + 50) / 50 and (8 + 10) / 10: b ends at 14 ms. The other 46 ms are a's.
    jobs = job("a", gpus=1, iterations=5), job("b", gpus=1)
    assert finish_ms_of_both(*jobs, order="themis", communication="adadual") == {"a": 60, "b": 14}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # a computes until 10 ms and sends until 30 ms, while b, on one of its GPUs, computes two iterations. Each then
        # has 10 ms left, and a the lower number: it computes until 40 ms and sends until 60 ms; b computes until 50 ms.
        ("srtf", {"a": 60, "b": 50}),
        # a has 20 ms to compute and 2 x 20 ms to send, b 30 ms to compute: b goes first, and a has 60 ms to go then.
        ("srtf:communication=true", {"a": 90, "b": 30}),
    ],
)
def test_srtf_with_and_without_communication(order: str, expected: dict[str, float]) -> None:
    jobs = job("a", iterations=2), job("b", gpus=1, iterations=3)
    assert finish_ms_of_both(*jobs, order=order, communication="bounded-overlap:limit=1") == expected


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        # a computes until 10 ms, b until 20 ms. By then a has 10 ms to compute and 2 x 20 ms to send, b 20 ms and
        # 3 x 5 ms: b preempts a, sends until 25 ms and computes until 35 ms, as long as a sends its last 10 MB.
        # a computes until 45 ms and sends; b sends until 40 ms, computes from 45 to 55 ms, preempts a, with 5 ms
        # against 20 ms, and ends at 60 ms. a sends its last 10 MB.
        ("time", {"a": 70, "b": 60}),
        # a, with 10 ms to compute against 20 ms, sends on until 30 ms, computes until 40 ms and sends until 60 ms.
        # b sends from 30 to 35 ms, computes from 40 to 50 ms, sends from 60 to 65 ms, and needs 15 ms more.
        ("service-per-gpu", {"a": 60, "b": 80}),
        ("service", {"a": 60, "b": 80}),
        # At 20 ms b has 5 MB left, a 10 MB: as by time until then. At 55 ms, too.
        ("bytes", {"a": 70, "b": 60}),
    ],
)
def test_preemption_by_each_key(by: str, expected: dict[str, float]) -> None:
    jobs = job("a", iterations=2), job("b", iterations=3, message_bytes=5e6)
    assert finish_ms_of_both(*jobs, communication=f"preemptive:by={by}") == expected


@pytest.mark.parametrize(
    ("contention", "iterations", "expected"),
    [
        # a sends from 10 ms on; it has 10 MB left when b, of 5 MB, starts at 20 ms. Half each: b ends at 30 ms, a has
        # 5 MB left then.
        (EqualShare(per_byte_s=1e-9), 1, {"a": 35, "b": 30}),
        (MaxMin(per_byte_s=1e-9), 1, {"a": 35, "b": 30}),
        (SizeWeights(per_byte_s=1e-9), 1, {"a": 35, "b": 30}),
        # a of one iteration counts 1.5, b of three 1: b gets 2/5 and ends at 32.5 ms, a has 2.5 MB left then. b has
        # two iterations of 15 ms to go.
        (IterationWeights(per_byte_s=1e-9), 3, {"a": 35, "b": 62.5}),
        # Less than 10 MB go first: a stands still until b ends at 25 ms.
        (SizeLevels(per_byte_s=1e-9), 1, {"a": 35, "b": 25}),
        # The same with 1 ms of latency for each: a has 11 MB left when b starts, and stands still for 6 ms.
        (SizeLevels(per_byte_s=1e-9, latency_s=0.001), 1, {"a": 37, "b": 26}),
    ],
)
def test_sharing(contention: ContentionModel, iterations: int, expected: dict[str, float]) -> None:
    jobs = job("a"), job("b", iterations=iterations, message_bytes=5e6)
    run = finish_ms_of_both(*jobs, communication="bounded-overlap:limit=2", contention=contention)
    assert run == pytest.approx(expected, abs=1e-5)


def test_a_job_that_never_fits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="big"):
        run_on_two_gpus(job("a"), job("big", gpus=3), communication="adadual")
