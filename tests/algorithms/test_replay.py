"""Replays: the same jobs at the GPUs and starts of another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ddlsched
from algorithms.placement.replay import Replay
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.comparisons.sweeps.stored_runs import run_bytes
from ddlsched.errors import InputError
from ddlsched.results.result import Result
from ddlsched.units import NS_PER_S
from ddlsched.workload.job import Workload
from tests.jobs_by_hand import Fixed, data_parallel_job

CLUSTER = ddlsched.Cluster(num_servers=4, gpus_per_server=2, exclusive=True)
ONE_SERVER = ddlsched.Cluster(num_servers=1, gpus_per_server=2, exclusive=True)
JOBS = Workload.of(
    [
        data_parallel_job(
            f"job {n}", 1 + n % 4, arrival_s=0.3 * n, iterations=20 + 7 * n, backward_s=0.05, message_bytes=9e7
        )
        for n in range(12)
    ]
)


def _kept(result: Result, folder: Path) -> Path:
    path = folder / "run.parquet"
    path.write_bytes(run_bytes(result, {}, {}, stays=True))
    return path


def _starts(result: Result) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(stay.job, stay.from_ns, stay.gpus) for stay in result.finished.stays]


@pytest.mark.long
@pytest.mark.parametrize("further", [{}, {"disturbances": ddlsched.Disturbances(server_mtbf_s=20, server_repair_s=2)}])
def test_a_run_replayed_is_the_run(further: dict[str, Any], tmp_path: Path) -> None:
    first = ddlsched.simulate(JOBS, CLUSTER, placement="lwf", **further)
    again = ddlsched.simulate(JOBS, CLUSTER, replay=_kept(first, tmp_path), **further)
    assert not further or first.jobs["restarts"].sum() > 0
    assert again.jobs.equals(first.jobs)
    assert _starts(again) == _starts(first)


@pytest.mark.long
@pytest.mark.parametrize("admission", ["slurm-multifactor", "kueue", "volcano", "kai"])
def test_an_admission_may_ask_where_a_job_would_start_before_it_does(admission: str, tmp_path: Path) -> None:
    queue = ddlsched.Queue(name="all", quotas={"any": ddlsched.Quota(gpus=8)})
    jobs = Workload.of([replace(job, queue="all") for job in JOBS])
    given: dict[str, Any] = {"queues": ddlsched.Tenants(queues=(queue,)), "admission": admission}
    first = ddlsched.simulate(jobs, CLUSTER, placement="first-fit", **given)
    again = ddlsched.simulate(jobs, CLUSTER, replay=_kept(first, tmp_path), **given)
    assert _starts(again) == _starts(first)
    assert again.jobs.equals(first.jobs)


FAILING = (
    FailureCause(cause="hangs", per="gpu", mtbf_s=20.0, noticed_s=0.4, repair_s=1.5, takes="server"),
    FailureCause(cause="crashes", per="job", mtbf_s=8.0, takes="job"),
)


@pytest.mark.long
@pytest.mark.parametrize(
    "further",
    [
        {},
        {"recovery": "spares:count=1"},
        {"recovery": "shrink"},
        {"recovery": "wait:patience_s=0.5"},
        {"checkpoint": "fixed:every_s=1", "checkpoint_to": "peer", "restart_s": 0.1},
    ],
)
def test_starts_that_no_placement_chose_are_not_replayed(further: dict[str, Any], tmp_path: Path) -> None:
    given = {"disturbances": ddlsched.Disturbances(failures=FAILING, **further)}
    first = ddlsched.simulate(JOBS, CLUSTER, placement="lwf", **given)
    again = ddlsched.simulate(JOBS, CLUSTER, replay=_kept(first, tmp_path), **given)
    assert sum(not stay.from_queue for stay in first.finished.stays) > 0
    assert again.jobs.equals(first.jobs)
    assert _starts(again) == _starts(first)


@pytest.mark.long
def test_another_sending_policy_has_the_same_gpus_and_starts_unless_a_job_is_still_there(tmp_path: Path) -> None:
    first = ddlsched.simulate(JOBS, CLUSTER, placement="lwf", communication="bounded-overlap:limit=1")
    again = ddlsched.simulate(JOBS, CLUSTER, replay=_kept(first, tmp_path), communication="bounded-overlap:limit=9")
    assert again.jobs["finish_s"].tolist() != first.jobs["finish_s"].tolist()
    then, now = sorted(_starts(first)), sorted(_starts(again))
    assert [(job, gpus) for job, _, gpus in now] == [(job, gpus) for job, _, gpus in then]
    assert all(later >= start for (_, start, _), (_, later, _) in zip(then, now, strict=True))
    assert any(later == start > 0 for (_, start, _), (_, later, _) in zip(then, now, strict=True))


@pytest.mark.long
def test_a_job_that_is_late_keeps_its_turn_on_its_gpus(tmp_path: Path) -> None:
    def jobs(first_s: int) -> Workload:
        one = data_parallel_job("one", iterations=first_s, forward_s=1.0)
        both = data_parallel_job("both", 2, arrival_s=1.0, iterations=5, forward_s=1.0)
        last = data_parallel_job("last", arrival_s=20.0, iterations=100, forward_s=1.0)
        return Workload.of([one, both, last])

    there = Fixed(gpus={"one": [0], "both": [0, 1], "last": [1]})
    first = ddlsched.simulate(jobs(10), ONE_SERVER, placement=there, order="fifo")
    assert first.jobs["start_s"].tolist() == [0.0, 10.0, 20.0]
    run = _kept(first, tmp_path)
    again = ddlsched.simulate(jobs(25), ONE_SERVER, replay=run, order="srsf")
    assert again.jobs["start_s"].tolist() == [0.0, 25.0, 30.0]
    larger = replace(ONE_SERVER, gpus_per_server=4)
    on_spare_gpus = ddlsched.simulate(jobs(25), larger, placement=f"replay:run={run},spare=2", order="srsf")
    assert on_spare_gpus.jobs["start_s"].tolist() == [0.0, 10.0, 20.0]
    assert _starts(on_spare_gpus) == [(0, 0, (0,)), (1, 10 * NS_PER_S, (2, 1)), (2, 20 * NS_PER_S, (1,))]


@pytest.mark.long
def test_what_cannot_be_replayed_is_told(tmp_path: Path) -> None:
    run = _kept(ddlsched.simulate(JOBS, CLUSTER), tmp_path)
    with pytest.raises(InputError, match="one of the two"):
        ddlsched.simulate(JOBS, CLUSTER, replay=run, placement="lwf")
    with pytest.raises(InputError, match="of elastic jobs allocation= does; expected one of them"):
        ddlsched.simulate(JOBS, CLUSTER, replay=run, allocation="tiresias")
    with pytest.raises(InputError, match="has no start of job 'other'; expected the same jobs"):
        ddlsched.simulate(Workload.of([data_parallel_job("other")]), CLUSTER, replay=run)
    stops = ddlsched.Disturbances(server_mtbf_s=20, server_repair_s=2)
    with pytest.raises(InputError, match="did not there; expected runs without either, or a placement in place of"):
        ddlsched.simulate(JOBS, CLUSTER, replay=run, sample=True, disturbances=stops)
    with pytest.raises(InputError, match="of this cluster"):
        ddlsched.simulate(JOBS, ddlsched.Cluster(num_servers=2, gpus_per_server=2), replay=run)
    with pytest.raises(InputError, match="spare is 3; expected servers of so many times"):
        ddlsched.simulate(JOBS, CLUSTER, placement=Replay(run=str(run), spare=3))
    without = tmp_path / "without.parquet"
    without.write_bytes(run_bytes(ddlsched.simulate(JOBS, CLUSTER), {}, {}))
    with pytest.raises(InputError, match="does not say where its jobs were"):
        ddlsched.simulate(JOBS, CLUSTER, replay=without)


def test_a_job_whose_gpu_is_still_taken_waits_for_it_though_another_is_free(tmp_path: Path) -> None:
    cluster = replace(ONE_SERVER, gpus_per_server=3)
    jobs = [
        data_parallel_job(name, arrival_s=s, backward_s=n) for name, s, n in (("a", 0, 4), ("b", 0, 1), ("c", 1.5, 1))
    ]
    first = ddlsched.simulate(Workload.of(jobs), cluster, placement="first-fit")
    slow = ddlsched.Disturbances(straggler_share=1.0, straggler_slowdown=2.0)
    again = ddlsched.simulate(Workload.of(jobs), cluster, replay=_kept(first, tmp_path), disturbances=slow)
    assert [result.jobs["start_s"].tolist() for result in (first, again)] == [[0.0, 0.0, 1.5], [0.0, 0.0, 2.0]]
    assert again.gpus_of("c") == first.gpus_of("c") == (0,)
