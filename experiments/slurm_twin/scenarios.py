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
SLURM_S = 1.0
"""From one turn of Slurm's own scheduler to the next; they are at whole seconds of the clock."""
LAUNCH_S = 0.15
"""From a turn of Slurm in which a job starts to the first line of its script."""
START_S = SLURM_S / 2 + LAUNCH_S
"""From a decision of the agent, which looks halfway between two turns of Slurm, to the first line of the script."""
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
    start_s
        From a decision to the first line of a job's script.
    """

    name: str
    options: Sequence[str] | None
    placement: Any
    order: str
    sizes: Mapping[int, float] = field(default_factory=lambda: SIZES)
    start_s: float = START_S

    @property
    def looks_at_s(self) -> float:
        """Return at which part of a second of the clock decisions are made, seconds."""
        return 0.0 if self.options is None else SLURM_S / 2


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
        Rounds(
            placement=Rounds(placement=ConservativeBackfill(), interval_s=BACKFILL_S, in_order_between=True),
            interval_s=SLURM_S,
        ),
        "fifo",
        start_s=LAUNCH_S,
    ),
    Scenario(
        "whole-nodes-srsf-lwf",
        ["--placement", "lwf", "--order", "srsf"],
        Rounds(placement=shaped(LeastWorkloadFirst()), interval_s=EVERY_S),
        "srsf",
        WHOLE_NODES,
    ),
)


def predicted(workload: Workload, scenario: Scenario, own: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return job, start and end, seconds, as simulated.

    Parameters
    ----------
    workload, scenario
        Jobs, whose times hold the usual time that Slurm takes to start and to end them, and who decides.
    own
        What each job took for real, if that is known: job_id; ``start_s`` from a decision to its start; ``held_s`` from
        a decision until its GPUs were free.
    """
    jobs = workload if own is None else Workload.of([_as_held(job, own) for job in workload])
    table = simulate(jobs, CLUSTER, placement=scenario.placement, order=scenario.order).jobs
    start_s = scenario.start_s if own is None else table["job_id"].map(own.set_index("job_id")["start_s"])
    return pd.DataFrame(
        {"job_id": table["job_id"], "start_s": table["start_s"] + start_s, "end_s": table["finish_s"] - END_S}
    )


def _as_held(job: Job, own: pd.DataFrame) -> Job:
    assert isinstance(job.iteration, DataParallelIteration)
    held_s = own.loc[own["job_id"] == job.job_id, "held_s"].item()
    return replace(job, iteration=replace(job.iteration, forward_s=held_s / job.iterations))
