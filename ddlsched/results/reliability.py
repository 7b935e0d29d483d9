"""What failures cost: effective training time, time to failure, and GPU time lost by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.deferred import pd
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import ElasticJob

if TYPE_CHECKING:
    from ddlsched.engine.outcome import JobFailure, Residency
    from ddlsched.results.result import Result

GPU_TIME_PARTS = ("detection", "restart", "checkpoints", "lost_work", "waiting_for_gpus_and_network", "training")
"""Columns of :func:`gpu_time_of` that add up to the time that a job held its GPUs."""


def failures_of(result: Result) -> pd.DataFrame:
    """Return a row for each failure that hit a running job, in order of time.

    Columns: time_s; job_id; gpus; cause; lost_s (work since the last checkpoint); detection_s (for which it hung; NaN
    where nobody noticed).
    """
    finished = result.finished
    rows = []
    for failure in finished.failures:
        job, hung_ns = result.workload[failure.job], failure.hang_ns
        if hung_ns:  # another failure may have ended it earlier
            stay = finished.stays[failure.stay]
            hung_ns = min(hung_ns, stay.to_ns - stay.from_ns)
        detection_s = np.nan if hung_ns is None else hung_ns / NS_PER_S
        time_s, lost_s = failure.time_ns / NS_PER_S, failure.lost_ns / NS_PER_S
        rows.append((time_s, job.job_id, job.num_gpus, failure.cause, lost_s, detection_s))
    return pd.DataFrame(rows, columns=["time_s", "job_id", "gpus", "cause", "lost_s", "detection_s"])


def failure_costs_of(result: Result, job_id: str) -> pd.DataFrame:
    """Return a row for each failure that hit a job while it ran, in order of time: what it cost that job.

    Columns: time_s; cause; detection_s; lost_s, as :func:`failures_of`; without_gpus_s and starting_s, until it worked
    again or the next failure hit it (start-up, and state on its way).

    Raises
    ------
    UnknownNameError
        No such job.
    """
    number, finished = result.number_of(job_id), result.finished
    stays = [stay for stay in finished.stays if stay.job == number and not stay.saved]
    found = failures_of(result)
    found = found[found["job_id"] == job_id].drop(columns=["job_id", "gpus"])
    own = [failure for failure in finished.failures if failure.job == number]
    after_ns = [*(failure.time_ns for failure in own), finished.end_ns][1:]
    idle_ns = [_idle_ns(failure, stays, next_ns) for failure, next_ns in zip(own, after_ns, strict=True)]
    without_s, starting_s = np.array(idle_ns, float).reshape(-1, 2).T / NS_PER_S
    starting_s -= np.minimum(found["detection_s"].astype(float).fillna(0.0).to_numpy(), starting_s)
    return found.assign(without_gpus_s=without_s, starting_s=starting_s).reset_index(drop=True)


def _idle_ns(failure: JobFailure, stays: list[Residency], next_ns: int) -> tuple[int, int]:
    """Return for how long a job had no GPUs after a failure, and held some without working, up to the next failure."""
    if failure.hang_ns is None and not failure.lost_ns:
        return 0, 0
    later = [stay for stay in stays if stay.from_ns >= failure.time_ns]
    without_ns, starting_ns, since_ns = 0, 0, failure.time_ns
    if failure.hang_ns is None and later:  # it was found when the job started again
        since_ns = later[0].from_ns
    for stay in later:
        if since_ns >= next_ns > failure.time_ns:
            break
        without_ns += stay.from_ns - since_ns
        starting_ns += min(stay.begin_ns, stay.to_ns) - stay.from_ns
        since_ns = stay.to_ns
        if stay.worked_ns:
            break
    return without_ns + (0 if later else next_ns - since_ns), starting_ns


def gpu_time_of(result: Result) -> pd.DataFrame:
    """Return a row a job: its GPUs, and what it held them for, seconds of a GPU; the parts add up.

    Columns: job_id; gpus; held; detection (it hung); restart (start-up and state on its way there); checkpoints (it was
    held up by them); lost_work; waiting_for_gpus_and_network (others computed or sent; of work that was lost later its
    share); training; and two that are not held: requeueing, the time without GPUs after the first start, and missing,
    that of the GPUs that a job went on without.
    """
    jobs, failures = result.jobs, failures_of(result)
    detection_s = failures.groupby("job_id")["detection_s"].sum().reindex(jobs["job_id"], fill_value=0.0).to_numpy()
    (saving_s, starting_s, _), (save_share, start_share, share) = _stays_of(result)
    gpus, wait_s = jobs["gpus"].to_numpy(), (jobs["gpu_wait_s"] + jobs["network_wait_s"]).to_numpy()
    first_wait_s = (jobs["start_s"] - jobs["arrival_s"]).fillna(jobs["queueing_s"]).to_numpy()
    held_s = jobs[["computing_s", "communication_s", "restart_s"]].sum(axis=1).to_numpy() + wait_s
    work_s = held_s - saving_s - starting_s
    wait_s = np.minimum(wait_s, work_s)  # for the network a job may wait with its state, too
    kept = np.divide(work_s - jobs["lost_s"], work_s, out=np.zeros(len(jobs)), where=work_s > 0)
    seconds = {
        "detection": detection_s * start_share,
        "restart": (starting_s - detection_s) * start_share,
        "checkpoints": saving_s * save_share,
        "lost_work": jobs["lost_s"].to_numpy() * share,
        "waiting_for_gpus_and_network": wait_s * kept * share,
        "training": (work_s - wait_s) * kept * share,
    }
    own_s = sum(seconds.values())
    seconds = {"held": own_s, **seconds, "requeueing": jobs["queueing_s"].to_numpy() - first_wait_s}
    seconds["missing"] = held_s - own_s
    return jobs[["job_id", "gpus"]].assign(**{name: gpus * value for name, value in seconds.items()})


def _stays_of(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return for how long each job saved its state, started and worked, seconds, and on which part of its GPUs.

    Both are 3 x jobs; elastic jobs count as having all of theirs.
    """
    all_ns = np.zeros((2, 3, len(result.workload)))
    for stay in result.finished.stays:
        job = result.workload[stay.job]
        share = 1.0 if isinstance(job, ElasticJob) else len(stay.gpus) / job.num_gpus
        before = 0 if stay.saved else 1
        for place, ns in ((before, min(stay.begin_ns, stay.to_ns) - stay.from_ns), (2, stay.worked_ns)):
            all_ns[:, place, stay.job] += ns, ns * share
    told, own = all_ns
    return told / NS_PER_S, np.divide(own, told, out=np.ones_like(own), where=told > 0)


def reliability_by_size(result: Result) -> pd.DataFrame:
    """Return a row a number of GPUs: what jobs of that size got of their time.

    Columns: gpus; jobs; failures (that were noticed); time_to_failure_h (hours in which jobs trained or waited for
    others / failures; infinite without one); ettr, the effective training time ratio: time that trained, of work that
    was kept / (time with GPUs, and queueing after a first start).
    """
    times, failures = gpu_time_of(result), failures_of(result)
    noticed = failures[failures["detection_s"].notna()].groupby("gpus").size()
    sums = times.drop(columns="job_id").groupby("gpus").sum()
    count = noticed.reindex(sums.index, fill_value=0).to_numpy()
    idle_s = sums["detection"] + sums["restart"] + sums["checkpoints"]
    work_s = (sums["held"] - idle_s).to_numpy() / sums.index.to_numpy()
    scheduled_s = (sums["held"] + sums["requeueing"] + sums["missing"]).to_numpy()
    kept_s = (sums["training"] + sums["waiting_for_gpus_and_network"]).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return pd.DataFrame(
            {
                "gpus": sums.index.to_numpy(),
                "jobs": times.groupby("gpus").size().to_numpy(),
                "failures": count,
                "time_to_failure_h": np.where(count, work_s / 3600 / np.maximum(count, 1), np.inf),
                "ettr": kept_s / scheduled_s,
            }
        )
