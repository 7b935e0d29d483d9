"""What is run for real and simulated: three schedulers, and the times that Slurm itself takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from stream import CLUSTER, SIZES, WHOLE_NODES

from algorithms.placement.conservative_backfill import ConservativeBackfill
from algorithms.placement.easy_backfill import EasyBackfill
from algorithms.placement.lwf import LeastWorkloadFirst
from algorithms.placement.rounds import Rounds
from ddlsched.simulation import simulate
from ddlsched.slurm.board import shaped
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

EVERY_S = 1.0
"""From one look of the agent to the next."""
BACKFILL_S = 5.0
"""From one round of Slurm's own backfilling to the next (bf_interval)."""
START_S = 0.5
"""From a decision to the first line of a job's script."""
END_S = 0.1
"""From the last line of a job's script until Slurm says that its GPUs are free."""


@dataclass(frozen=True)
class Scenario:
    """Who decides.

    Parameters
    ----------
    name
        Of its files.
    options
        What ``ddlsched slurm-agent`` is told; None if Slurm decides alone.
    placement, order
        The same for a simulation.
    sizes
        GPUs of jobs, and their shares.
    """

    name: str
    options: Sequence[str] | None
    placement: Any
    order: str
    sizes: Mapping[int, float] = field(default_factory=lambda: SIZES)


SCENARIOS = (
    Scenario(
        "fifo-backfill",
        ["--placement", "easy-backfill", "--order", "fifo"],
        Rounds(placement=shaped(EasyBackfill()), interval_s=EVERY_S),
        "fifo",
    ),
    Scenario(
        "srsf-lwf",
        ["--placement", "lwf", "--order", "srsf"],
        Rounds(placement=shaped(LeastWorkloadFirst()), interval_s=EVERY_S),
        "srsf",
    ),
    Scenario(
        "slurm-alone",
        None,
        Rounds(placement=ConservativeBackfill(), interval_s=BACKFILL_S, in_order_between=True),
        "fifo",
    ),
    Scenario(
        "whole-nodes-srsf-lwf",
        ["--placement", "lwf", "--order", "srsf"],
        Rounds(placement=shaped(LeastWorkloadFirst()), interval_s=EVERY_S),
        "srsf",
        WHOLE_NODES,
    ),
)


def predicted(workload: Workload, scenario: Scenario, start_s: float = START_S, end_s: float = END_S) -> pd.DataFrame:
    """Return job, start and end, seconds, as simulated.

    Parameters
    ----------
    workload, scenario
        Jobs, whose times hold the usual time that Slurm takes to start and to end them, and who decides.
    start_s, end_s
        What Slurm takes, if that is known of a run.
    """
    more_s = start_s + end_s - START_S - END_S
    longer = Workload.of([_longer(job, more_s) for job in workload])
    jobs = simulate(longer, CLUSTER, placement=scenario.placement, order=scenario.order).jobs
    times = {"start_s": jobs["start_s"] + start_s, "end_s": jobs["finish_s"] - end_s}
    return pd.DataFrame({"job_id": jobs["job_id"], **times})


def _longer(job: Job, more_s: float) -> Job:
    assert isinstance(job.iteration, DataParallelIteration)
    forward_s = job.iteration.forward_s + more_s / job.iterations
    return replace(job, iteration=replace(job.iteration, forward_s=forward_s))
