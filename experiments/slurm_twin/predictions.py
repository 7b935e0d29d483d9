"""What the simulation says of a run: the policies in rounds, and jobs that Slurm starts some time after a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scenarios import Scenario
from stream import CLUSTER

from ddlsched.simulation import simulate
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

SPARED_S = 0.6
"""By so much a job's script sleeps shorter than its job is said to run, for what Slurm takes to start and to end it."""
DRAWS = 8
"""Simulated runs, each with other times of Slurm's."""


@dataclass(frozen=True)
class Taken:
    """What Slurm and the agent take for a job, seconds.

    Parameters
    ----------
    starts_s
        From the tick of the clock at which the agent looks and first lets a job go to the first line of its script: of
        some jobs.
    end_s
        From the last line of a script until Slurm says that its GPUs are free, less what a look takes.
    """

    starts_s: np.ndarray
    end_s: float


USUAL = Taken(np.array([0.5]), 0.1)
"""Where nothing was measured: half a turn of Slurm's loop, which takes a second, and a little for the end."""


def taken(real: pd.DataFrame, scenario: Scenario) -> Taken:
    """Return what a run of the agent took."""
    begin_s, seen_s = (_tick_s(real[name], scenario.every_s) for name in ("decided_s", "seen_end_s"))
    starts_s = (real["start_s"] - begin_s).to_numpy()
    if scenario.between_looks:  # ends are in the middle between two looks, so that nothing is learnt of them
        return Taken(starts_s, USUAL.end_s)
    # Ends fall on any part of the time between two ticks, so that they wait for half of it on average.
    return Taken(starts_s, float((seen_s - real["end_s"]).mean()) - scenario.every_s / 2)


def _tick_s(times_s: pd.Series, every_s: float) -> pd.Series:
    return np.floor(times_s / every_s) * every_s


def predictions(workload: Workload, scenario: Scenario, took: Taken) -> list[pd.DataFrame]:
    """Return simulated runs: job, start and end, seconds.

    Between looks all jobs take the mean time, as it is to make no difference there; else each takes one of those that
    were measured, drawn for it in each run.
    """
    if scenario.between_looks or len(took.starts_s) == 1:
        return [predicted(workload, scenario, np.full(len(workload), took.starts_s.mean()), took.end_s)]
    return [predicted(workload, scenario, starts_s, took.end_s) for starts_s in _drawn(took, len(workload))]


def _drawn(took: Taken, num_jobs: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    return (rng.choice(took.starts_s, num_jobs) for _ in range(DRAWS))


def predicted(workload: Workload, scenario: Scenario, starts_s: np.ndarray, end_s: float) -> pd.DataFrame:
    """Return job, start and end, seconds, of one simulated run, given what each job takes to start and to end."""
    times_s = dict(zip((job.job_id for job in workload), starts_s.tolist(), strict=True))
    jobs = Workload.of([_as_held(job, times_s[job.job_id] + end_s - SPARED_S) for job in workload])
    table = simulate(jobs, CLUSTER, placement=scenario.placement, order=scenario.order).jobs
    begins_s = {"start_s": table["start_s"] + table["job_id"].map(times_s), "end_s": table["finish_s"] - end_s}
    return pd.DataFrame({"job_id": table["job_id"], **begins_s})


def _as_held(job: Job, longer_s: float) -> Job:
    """Return a job that holds its GPUs for longer."""
    assert isinstance(job.iteration, DataParallelIteration)
    forward_s = job.iteration.forward_s + longer_s / job.iterations
    return replace(job, iteration=replace(job.iteration, forward_s=forward_s))
