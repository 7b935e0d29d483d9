"""Why a job waited in the queue, of two servers whose stays and outages are written down by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.errors import InputError
from ddlsched.results import explanation, paired_comparison
from ddlsched.results.placed_waits import Blocker
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag

POLICY = "the placement policy chose to wait, though enough GPUs had the memory"
ITERATION = DataParallelIteration(forward_s=1.0, backward_s=0.0, message_bytes=0.0)
WORKLOAD = Workload.of(
    Job(job_id=name, arrival_s=0.0, num_gpus=gpus, iterations=1, iteration=ITERATION, gpu_memory_mb=memory_mb)
    for name, gpus, memory_mb in (("waits", 3, 10.0), ("small", 1, 4.0), ("large", 2, 8.0))
)


def stay(job: int, gpus: tuple[int, ...], from_ns: int, to_ns: int) -> Any:
    return SimpleNamespace(job=job, gpus=gpus, from_ns=from_ns, to_ns=to_ns)


def run(stays: list[Any], outages: tuple[Any, ...] = (), *, exclusive: bool = False, **finished: Any) -> Any:
    """Return a run of jobs 0, 1 and 2 on two servers of two GPUs with 12 MB each, which ends at 100 ns."""
    cluster = Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=12.0, exclusive=exclusive)
    jobs = SimpleNamespace(arrival_ns=np.array([5, 0, 0]), finish_ns=np.array([-1, 60, 60]))
    usual = {"state": SimpleNamespace(jobs=jobs), "end_ns": 100, "refused": (), "outages": outages, "stays": stays}
    return SimpleNamespace(finished=SimpleNamespace(**(usual | finished)), workload=WORKLOAD, cluster=cluster)


def memory(server: int, held_by: str) -> Blocker:
    return Blocker("queueing", f"GPU memory of server {server}", held_by)


def test_each_holder_of_memory_has_an_equal_share_of_the_wait() -> None:
    result = run([stay(1, (0,), 0, 40), stay(2, (1, 2), 20, 60)])
    assert [*explanation._queue_span(result, 0, 10, 70)] == [
        (Blocker("queueing", POLICY, None), 10.0),  # three of the four GPUs have the memory
        (memory(0, "small"), 20 / 3), (memory(0, "large"), 20 / 3), (memory(1, "large"), 20 / 3),
        (memory(0, "large"), 10.0), (memory(1, "large"), 10.0),
        (Blocker("queueing", POLICY, None), 10.0),
    ]  # fmt: skip


def test_a_server_that_failed_is_waited_for_and_its_holders_are_not() -> None:
    result = run([stay(1, (0, 2), 0, 50)], ((1, 10, 30), (0, 90, 95)))
    assert [*explanation._queue_span(result, 0, 10, 50)] == [
        (memory(0, "small"), 10.0), (Blocker("queueing", "repair of server 1", None), 10.0),
        (memory(0, "small"), 10.0), (memory(1, "small"), 10.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("exclusive", "held"), [(True, "GPUs"), (False, "GPU memory")])
def test_what_is_held_is_gpus_where_jobs_have_them_for_themselves(exclusive: bool, held: str) -> None:
    result = run([stay(1, (0, 1), 0, 50)], exclusive=exclusive)
    blockers = explanation._lacking(result, 0, result.finished.stays, set())
    assert blockers == [Blocker("queueing", f"{held} of server 0", "small")] * 2


def test_a_gpu_has_room_for_exactly_what_is_free() -> None:
    """12 MB less 2 x 4 MB leave 4 MB, which a job of 4 MB fits."""
    both = [stay(1, (0, 1, 2, 3), 0, 9), stay(1, (0, 1, 2, 3), 0, 9)]
    assert explanation._lacking(run(both), 1, both, set()) == [Blocker("queueing", POLICY, None)]
    more = [*both, stay(1, (0, 1, 2, 3), 0, 9)]
    assert [each.held_by for each in explanation._lacking(run(more), 1, more, set())] == ["small"] * 12


def test_a_job_queues_from_its_arrival_and_after_each_stay() -> None:
    spans: list[tuple[int, int]] = []
    result = run([stay(0, (0,), 20, 40), stay(1, (1,), 0, 90), stay(0, (0,), 50, 60)])
    for finish_ns, expected in (
        (60, [(5, 20), (40, 50)]),
        (0, [(5, 20), (40, 50)]),
        (-1, [(5, 20), (40, 50), (60, 100)]),
    ):
        spans.clear()
        result.finished.state.jobs.finish_ns[0] = finish_ns
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(explanation, "_queue_span", lambda _, number, *span: spans.append(span) or ())
            assert [*explanation._queueing(result, 0)] == []
        assert spans == expected


@pytest.mark.parametrize(
    ("job", "run_of", "recorded", "told"),
    [
        ((10, 50), (10, 50, True), None, True),
        ((10, 50), (11, 50, True), None, False),
        ((10, 50), (10, 49, True), None, False),
        ((10, 50), (10, 50, False), None, False),
        ((10, 50), (0, 99, True), "waits", True),
        ((10, 50), (0, 99, True), "other", False),
        ((0, 0), (0, 0, True), None, True),
        ((0, 50), (1, 60, True), None, False),  # it was placed at once
        ((10, -1), (0, 100, True), None, True),  # it runs to the end
        ((10, -1), (0, 99, True), None, False),
        ((-1, -1), (50, 60, True), None, True),  # never placed
    ],
)
def test_a_life_that_is_not_recorded_as_a_whole_is_refused(
    job: tuple[int, int], run_of: tuple[int, int, bool], recorded: str | None, told: bool
) -> None:
    of_job = SimpleNamespace(start_ns=job[0], finish_ns=job[1])
    of_run = SimpleNamespace(record_from_ns=run_of[0], record_to_ns=run_of[1], record=run_of[2])
    state = SimpleNamespace(run=[of_run], jobs=[of_job])
    result = run([], state=state, recorded_job_id=recorded)
    if told:
        explanation._refuse_unrecorded(result, 0)
        return
    with pytest.raises(
        InputError, match="job 'waits': the run's timeline does not hold its whole life; expected one of"
    ):
        explanation._refuse_unrecorded(result, 0)


def test_reservations_of_a_job_are_in_seconds() -> None:
    result = run([], reservations=[(1, 5, 6), (0, 10**9, 3 * 10**9), (0, 2 * 10**9, 4 * 10**9)])
    result.number_of = lambda name: {"waits": 0}[name]
    assert explanation.reservations(result, "waits").values.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_transfers_of_a_job_are_its_collectives_and_its_state_with_the_time_that_they_cover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts 0 to 2: computation, and the two tuples of a group's collective; -1 is state."""
    tasks = (
        ComputeTask(name="run", duration_ns=1),
        CollectiveTask(name="sum", kind="all-reduce", message_bytes=1.0, group="g", after=("run",)),
    )
    dag = IterationDag(tasks, {"g": ((0, 1), (2, 3))})
    rows = [(0, 1, 0, 10**9), (0, 2, 5 * 10**8, 3 * 10**9), (0, -1, 0, 2 * 10**9), (1, 1, 0, 9 * 10**9)]
    job, task, start_ns, end_ns = (np.array(column) for column in zip(*rows, strict=True))
    slices = SimpleNamespace(job=job, task=task, start_ns=start_ns, end_ns=end_ns)
    monkeypatch.setattr(explanation, "sending", lambda _: slices)
    result: Any = SimpleNamespace(number_of=lambda _: 0, workload=[SimpleNamespace(dag=dag)])
    assert explanation.transfers_of(result, "a").values.tolist() == [
        ["state", "state", 1, 2.0], ["sum", "all-reduce", 2, 3.0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "values", "ends"),
    [
        ("average_jct_s", [0.0, 0.0, 3.0], (0.0, None)),
        ("gpu_utilisation", [0.1, 0.9, 1.0], (0.0, 1.0)),
        ("average_jct_s", [0.0, 0.5, 1.0], (0.0, None)),
    ],
)
def test_an_interval_ends_where_its_metric_does(
    metric: str, values: list[float], ends: tuple[float, float | None]
) -> None:
    found = paired_comparison._mean(metric, np.array(values))
    free = paired_comparison._mean("own", np.array(values))
    assert free.low < 0.0
    assert found.low == ends[0]
    assert found.high == (free.high if ends[1] is None else ends[1])
    assert free.high > 1.0
    assert np.isnan(paired_comparison._mean(metric, np.array([])).mean)
