"""Checkpoints that are written while jobs work, and that contend with all that is sent, by hand."""

from __future__ import annotations

import pytest
from jobs_by_hand import data_parallel_job
from test_checkpoints_and_recovery import GB, run

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage

IN_BACKGROUND = {"checkpoint": "fixed:every_s=1.5", "checkpoint_to": "storage:background_share=0.25"}
"""At 10 Gbit/s, while the job is held up for a quarter of the time that it would take alone."""


@pytest.mark.parametrize(("num_jobs", "lost_s"), [(1, 1.25), (2, 3.25)])
def test_checkpoints_in_the_background_meet_on_the_way_to_storage(num_jobs, lost_s) -> None:
    """From 2 s on; 1 s alone, whole at 3 s; of two jobs 2 s, whole at 4 s: at 3.5 s it is too early for that."""
    jobs = [data_parallel_job(f"j{n}", gpus=1, iterations=10, backward_s=1.0) for n in range(num_jobs)]
    outage = Outage(server=0, from_s=3.5, to_s=6.0)
    given = IN_BACKGROUND | {"state_mb": 1.25 * GB, "outages": (outage,)}
    result = run(jobs[0], jobs=jobs[1:], servers=3, gpus=1, exclusive=True, **given)
    assert result.jobs["lost_s"].iloc[0] == pytest.approx(lost_s, abs=1e-3)


def test_a_checkpoint_that_is_due_while_another_is_on_its_way_is_left_out() -> None:
    """Those of two jobs at 2 s are whole at 4 s, not at 3.75 s: the next, due at 5.25 s, is at 6.25 s."""
    jobs = [data_parallel_job(f"j{n}", gpus=1, iterations=8, backward_s=1.0) for n in range(2)]
    result = run(jobs[0], jobs=jobs[1:], servers=3, gpus=1, exclusive=True, **IN_BACKGROUND, state_mb=1.25 * GB)
    assert sorted(stay.from_ns / 1e9 for stay in result.finished.stays) == [0.0, 0.0, 2.0, 2.0, 6.25, 6.25]


def test_a_checkpoint_in_the_background_holds_up_an_all_reduce() -> None:
    """1 s of compute, 1 s of all-reduce; from 4 to 6 s half of each card sends state: the third ends at 6.75 s."""
    job = data_parallel_job("a", gpus=2, iterations=3, backward_s=1.0, message_bytes=1.25e9)
    row = run(job, servers=3, gpus=1, **IN_BACKGROUND, state_mb=1.25 * GB).jobs.iloc[0]
    assert row["jct_s"] == pytest.approx(6.75, abs=1e-3)
    assert (row["computing_s"], row["communication_s"]) == pytest.approx((3.0, 3.25), abs=1e-3)


def test_a_job_that_ends_takes_its_checkpoint_along() -> None:
    """It ends at 4.5 s, its state would be there at 5 s; who comes then has the network alone."""
    job = data_parallel_job("a", gpus=2, iterations=4, backward_s=1.0)
    other = data_parallel_job("b", gpus=2, iterations=1, arrival_s=4.6, backward_s=1.0, message_bytes=1.25e9)
    result = run(job, jobs=[other], servers=3, gpus=1, **IN_BACKGROUND, state_mb=1.25 * GB)
    assert result.jobs["jct_s"].tolist() == pytest.approx([4.5, 2.0], abs=1e-3)


def test_whose_checkpoint_goes_first_changes_with_iterations_of_jobs_on_one_server() -> None:
    """Jobs a and c use no link but to storage, where srsf asks what each has left now when job b is to send."""
    jobs = [
        data_parallel_job(
            job_id,
            gpus=gpus,
            arrival_s=arrival_s,
            iterations=iterations,
            forward_s=forward_s,
            backward_s=backward_s,
            message_bytes=message_bytes,
        )
        for job_id, gpus, arrival_s, iterations, forward_s, backward_s, message_bytes in (
            ("a", 2, 1.268390687, 24, 0.025, 0.037, 99.2e6),
            ("b", 8, 1.278988059, 7, 0.036, 0.054, 526.4e6),
            ("c", 1, 1.300616892, 20, 0.036, 0.054, 526.4e6),
        )
    ]
    saved = {"checkpoint": "fixed:every_s=1", "checkpoint_to": "storage:servers=2,background_share=0.05"}
    recorded, skipping = (
        ddlsched.simulate(
            ddlsched.Workload.of(jobs),
            ddlsched.Cluster(num_servers=16, exclusive=True),
            placement="first-fit",
            order="srsf",
            communication="bounded-overlap:limit=1",
            contention="max-min",
            disturbances=Disturbances(**saved, state_mb=100.0),
            timeline=timeline,
        )
        for timeline in (True, False)
    )
    assert skipping.skipped_iterations > 0
    assert skipping.jobs["finish_s"].tolist() == recorded.jobs["finish_s"].tolist()
