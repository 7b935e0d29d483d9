"""What failures cost: by hand, and what must hold of any run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.results import reliability
from ddlsched.results.reliability import GPU_TIME_PARTS, failures_of, gpu_time_of, reliability_by_size


def test_a_failure_by_hand() -> None:
    """2 GPUs, 10 s of work safe every 4 s; down from 7 to 12 s, then 1.5 s to start: 3 s lost, 5 s without GPUs."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    outage = Outage(server=0, from_s=7, to_s=12)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        ddlsched.Cluster(num_servers=1, gpus_per_server=2),
        disturbances=Disturbances(outages=(outage,), checkpoint_iterations=4, restart_s=1.5),
    )
    (row,) = gpu_time_of(result).to_dict("records")
    assert row == {
        "job_id": "a",
        "gpus": 2,
        "held": 2 * 14.5,
        "detection": 0,
        "restart": 2 * 1.5,
        "checkpoints": 0,
        "lost_work": 2 * 3.0,
        "waiting_for_gpus_and_network": 0,
        "training": 2 * 10.0,
        "requeueing": 2 * 5.0,
        "missing": 0,
    }
    (size,) = reliability_by_size(result).to_dict("records")
    assert size["ettr"] == pytest.approx(10 / 19.5)
    assert size["time_to_failure_h"] == pytest.approx(13 / 3600)
    assert failures_of(result)["lost_s"].tolist() == [3.0]


@pytest.mark.long
@pytest.mark.parametrize("undisturbed", [False, True])
@pytest.mark.parametrize("seed", range(3))  # the last goes on with what is left of its GPUs
def test_gpu_time_adds_up_and_no_more_is_lost_than_was_at_risk(seed, undisturbed) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        data_parallel_job(
            f"j{n}",
            gpus=int(rng.integers(1, 6)),
            iterations=30,
            arrival_s=float(n),
            backward_s=0.5,
            message_bytes=0.0 if undisturbed else 1e8,
        )
        for n in range(6)
    ]
    causes = (
        FailureCause(cause="hang", per="gpu", mtbf_s=200.0, noticed_s=3.0, repair_s=4.0),
        FailureCause(cause="software", per="job", mtbf_s=40.0, takes="job", noticed_s=2.0),
        FailureCause(cause="node", per="server", mtbf_s=60.0, repair_s=5.0),
    )
    recovery = "shrink" if seed == 2 else None
    disturbances = Disturbances(failures=causes, checkpoint_iterations=5, restart_s=1.0, recovery=recovery)
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=3, gpus_per_server=2, exclusive=undisturbed),
        disturbances=disturbances,
        seed=seed,
    )
    times, failures = gpu_time_of(result), failures_of(result)
    assert len(failures)
    assert result.jobs["gpus"].tolist() == [job.num_gpus for job in jobs]
    np.testing.assert_allclose(times[list(GPU_TIME_PARTS)].sum(axis=1), times["held"], rtol=1e-12)
    assert (times[list(GPU_TIME_PARTS)] >= -1e-9).all(axis=None)
    held_s = sum((stay.to_ns - stay.from_ns) * len(stay.gpus) / 1e9 for stay in result.finished.stays)
    assert times["held"].sum() == pytest.approx(held_s)
    lost = failures.groupby("job_id")["lost_s"].sum().reindex(times["job_id"], fill_value=0.0)
    np.testing.assert_allclose(lost, result.jobs["lost_s"], atol=1e-9)
    if undisturbed:  # a checkpoint's interval, of which the last iteration runs
        assert failures["lost_s"].max() <= 5 * 0.5
    assert (failures["detection_s"] <= 3.0).all()
    assert not (reliability_by_size(result)["ettr"] > 1).any()


def _stay(from_s: float, begin_s: float, to_s: float, worked_s: float, **further: Any) -> Any:
    times = {"from_ns": from_s, "begin_ns": begin_s, "to_ns": to_s, "worked_ns": worked_s}
    return SimpleNamespace(**{name: round(time_s * 1e9) for name, time_s in times.items()}, **further)


LATER = [_stay(130, 150, 140, 0), _stay(160, 165, 300, 5), _stay(400, 450, 500, 5)]


@pytest.mark.parametrize(
    ("hang_ns", "lost_ns", "next_s", "stays", "without_s", "starting_s"),
    [
        (None, 0, 1000, LATER, 0, 0),  # it noticed nothing
        (0, 0, 1000, LATER, 50, 15),  # the first stay ended before it worked
        (5, 0, 1000, LATER, 50, 15),
        (5, 0, 141, LATER, 50, 15),
        (5, 0, 140, LATER, 30, 10),  # the next failure hit it then
        (5, 0, 100, LATER, 50, 15),  # two at once: the last is told all of it
        (5, 0, 1000, [_stay(0, 0, 100, 90), *LATER], 50, 15),
        (5, 0, 1000, [_stay(100, 104, 200, 1), *LATER], 0, 4),
        (None, 7, 1000, LATER, 20, 15),  # found when it started again
        (None, 7, 1000, [], 900, 0),
        (5, 0, 1000, [], 900, 0),
    ],
)
def test_time_without_gpus_and_of_starting_after_a_failure_by_hand(
    hang_ns: int | None, lost_ns: int, next_s: int, stays: list[Any], without_s: int, starting_s: int
) -> None:
    failure: Any = SimpleNamespace(hang_ns=hang_ns, lost_ns=lost_ns, time_ns=100 * 10**9)
    found = reliability._idle_ns(failure, stays, next_s * 10**9)
    assert found == (without_s * 10**9, starting_s * 10**9)


def _failure(job: int, time_s: float, hang_s: float | None, stay: int = 0, lost_s: float = 0.0) -> Any:
    hang_ns = None if hang_s is None else round(hang_s * 1e9)
    return SimpleNamespace(
        job=job, time_ns=time_s * 1e9, hang_ns=hang_ns, stay=stay, lost_ns=lost_s * 1e9, cause=f"c{time_s}"
    )


def test_a_job_hung_no_longer_than_it_stayed() -> None:
    failures = [_failure(0, 1.0, None, lost_s=0.5), _failure(1, 2.0, 0.0), _failure(1, 3.0, 5.0), _failure(1, 4.0, 2.0)]
    jobs = [SimpleNamespace(job_id="a", num_gpus=4), SimpleNamespace(job_id="b", num_gpus=2)]
    finished = SimpleNamespace(failures=failures, stays=[_stay(6, 6, 9, 3)])
    table = failures_of(SimpleNamespace(workload=jobs, finished=finished))  # type: ignore[arg-type]
    assert table["time_s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert table["job_id"].tolist() == ["a", "b", "b", "b"]
    assert table["gpus"].tolist() == [4, 2, 2, 2]
    assert table["cause"].tolist() == ["c1.0", "c2.0", "c3.0", "c4.0"]
    assert table["lost_s"].tolist() == [0.5, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(table["detection_s"], [np.nan, 0.0, 3.0, 2.0])


def test_gpu_time_of_jobs_that_went_on_with_fewer_gpus_by_hand() -> None:
    """A job of 4 GPUs starts for 2 s and works 8 s; saves 1 s and works 9 s on 2, starts 2 s and works 1 s on 3."""
    stays = [
        _stay(0, 2, 10, 8, job=0, gpus=range(4), saved=False),
        _stay(10, 11, 20, 9, job=0, gpus=range(2), saved=True),
        _stay(20, 22, 23, 1, job=0, gpus=range(3), saved=False),
    ]
    jobs = [SimpleNamespace(job_id=name, num_gpus=gpus) for name, gpus in (("a", 4), ("b", 3))]
    columns: dict[str, list[Any]] = {
        "job_id": ["a", "b"],
        "gpus": [4, 3],
        "computing_s": [10.0, 0.0],
        "communication_s": [2.0, 0.0],
        "restart_s": [5.0, 0.0],
        "gpu_wait_s": [1.0, 0.0],
        "network_wait_s": [4.0, 0.0],
        "arrival_s": [5.0, 5.0],
        "start_s": [6.0, np.nan],
        "queueing_s": [2.5, 9.0],
        "lost_s": [3.4, 0.0],
    }
    finished = SimpleNamespace(failures=[_failure(0, 8.0, 0.5)], stays=stays)
    result: Any = SimpleNamespace(workload=jobs, finished=finished, jobs=pd.DataFrame(columns))
    seconds, shares = reliability._stays_of(result)
    np.testing.assert_allclose(seconds, [[1.0, 0.0], [4.0, 0.0], [18.0, 0.0]])
    np.testing.assert_allclose(shares, [[0.5, 1.0], [0.875, 1.0], [13.25 / 18, 1.0]])
    first, second = gpu_time_of(result).to_dict("records")
    work = 13.25 / 18  # the part of the GPUs on which it worked; 13.6 of 17 s were kept
    parts = {
        "detection": 4 * 0.5 * 0.875,
        "restart": 4 * 3.5 * 0.875,
        "checkpoints": 4 * 1.0 * 0.5,
        "lost_work": 4 * 3.4 * work,
        "waiting_for_gpus_and_network": 4 * 5.0 * 0.8 * work,
        "training": 4 * 12.0 * 0.8 * work,
    }
    held = sum(parts.values())
    expected = {"job_id": "a", "gpus": 4, "held": held, **parts, "requeueing": 4 * 1.5, "missing": 4 * 22.0 - held}
    assert first == pytest.approx(expected)
    assert list(first) == list(expected)
    assert second == {"job_id": "b", "gpus": 3} | dict.fromkeys([*expected][2:], 0.0)


def test_a_job_waits_for_the_network_at_most_as_long_as_it_works() -> None:
    """Of the 6 s that it waited it waited 5 s with its state, while it started."""
    stays = [_stay(0, 7, 10, 3, job=0, gpus=(0,), saved=False)]
    names = ["computing_s", "communication_s", "gpu_wait_s", "network_wait_s", "restart_s"]
    row = dict(zip(names, (2.0, 0.0, 0.0, 6.0, 2.0), strict=True)) | {"lost_s": 0.0, "queueing_s": 0.0}
    table = pd.DataFrame([row | {"job_id": "a", "gpus": 1, "arrival_s": 0.0, "start_s": 0.0}])
    finished = SimpleNamespace(failures=[], stays=stays)
    result: Any = SimpleNamespace(workload=[SimpleNamespace(num_gpus=1)], finished=finished, jobs=table)
    (found,) = gpu_time_of(result).to_dict("records")
    assert (found["restart"], found["waiting_for_gpus_and_network"], found["training"]) == (7.0, 3.0, 0.0)


def test_reliability_of_sizes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["job_id", "gpus", "held", *GPU_TIME_PARTS, "requeueing", "missing"]
    rows = [
        ("a", 2, 100.0, 4.0, 6.0, 10.0, 20.0, 24.0, 36.0, 30.0, 10.0),
        ("b", 2, 50.0, 0.0, 2.0, 8.0, 0.0, 20.0, 20.0, 0.0, 10.0),
        ("c", 8, 720.0, 0.0, 0.0, 0.0, 0.0, 0.0, 720.0, 0.0, 0.0),
    ]
    failures = pd.DataFrame({"gpus": [2, 2, 2, 8], "detection_s": [1.0, 0.0, np.nan, np.nan]})
    monkeypatch.setattr(reliability, "gpu_time_of", lambda _: pd.DataFrame(rows, columns=names))
    monkeypatch.setattr(reliability, "failures_of", lambda _: failures)
    two, eight = reliability_by_size(None).to_dict("records")  # type: ignore[arg-type]
    # 150 s held, of them 30 s idle: 60 s of work on each of two GPUs, and two failures that were noticed.
    assert two == pytest.approx(
        {"gpus": 2, "jobs": 2, "failures": 2, "time_to_failure_h": 60 / 3600 / 2, "ettr": 100.0 / 200.0}
    )
    assert eight == {"gpus": 8, "jobs": 1, "failures": 0, "time_to_failure_h": np.inf, "ettr": 1.0}


def test_a_failure_that_was_noticed_late_takes_from_the_starting_at_most_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure is told until the next: one hung 4 of 9 s, one longer than it took to start again, one unnoticed."""
    rows = [(1.0, "a", 4, "x", 0.5, 4.0), (2.0, "b", 1, "x", 0.0, 1.0), (3.0, "a", 4, "y", 0.0, 9.0)]
    rows += [(5.0, "a", 4, "z", 0.0, np.nan)]
    columns = ["time_s", "job_id", "gpus", "cause", "lost_s", "detection_s"]
    monkeypatch.setattr(reliability, "failures_of", lambda _: pd.DataFrame(rows, columns=columns))
    seen: list[tuple[int, list[str], int]] = []

    def idle(failure: Any, stays: list[Any], next_ns: int) -> tuple[int, int]:
        seen.append((failure.time_ns, [stay.name for stay in stays], next_ns))
        return [(3 * 10**9, 9 * 10**9), (0, 5 * 10**9), (2 * 10**9, 6 * 10**9)][len(seen) - 1]

    monkeypatch.setattr(reliability, "_idle_ns", idle)
    stays = [
        SimpleNamespace(job=job, saved=saved, name=name)
        for job, saved, name in ((0, False, "p"), (0, True, "q"), (1, False, "r"))
    ]
    failures = [SimpleNamespace(job=job, time_ns=time) for job, time in ((0, 1), (1, 2), (0, 3), (0, 5))]
    finished = SimpleNamespace(failures=failures, stays=stays, end_ns=77)
    result: Any = SimpleNamespace(number_of=["a", "b"].index, finished=finished)
    table = reliability.failure_costs_of(result, "a")
    assert seen == [(1, ["p"], 3), (3, ["p"], 5), (5, ["p"], 77)]
    assert table.columns.tolist() == ["time_s", "cause", "lost_s", "detection_s", "without_gpus_s", "starting_s"]
    assert table.index.tolist() == [0, 1, 2]
    assert table["cause"].tolist() == ["x", "y", "z"]
    assert table["without_gpus_s"].tolist() == [3.0, 0.0, 2.0]
    assert table["starting_s"].tolist() == [5.0, 0.0, 6.0]
