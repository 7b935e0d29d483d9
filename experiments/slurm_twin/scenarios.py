"""What is run for real and simulated: who decides, and the times that Slurm itself takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from stream import CLUSTER

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
    between_looks
        Whether its jobs come and end between two looks.
    start_s
        From a decision to the first line of a job's script.
    """

    name: str
    options: Sequence[str] | None
    placement: Any
    order: str
    between_looks: bool = False
    start_s: float = START_S

    @property
    def looks_at_s(self) -> float:
        """Return at which part of a second of the clock decisions are made, seconds."""
        return 0.0 if self.options is None else SLURM_S / 2


_EASY = Rounds(placement=shaped(EasyBackfill()), interval_s=EVERY_S)
_LWF = Rounds(placement=shaped(LeastWorkloadFirst()), interval_s=EVERY_S)
_FIFO_OPTIONS = ("--placement", "easy-backfill", "--order", "fifo")
_SRSF_OPTIONS = ("--placement", "lwf", "--order", "srsf")
_ALONE = Rounds(
    placement=Rounds(placement=ConservativeBackfill(), interval_s=BACKFILL_S, in_order_between=True),
    interval_s=SLURM_S,
)
SCENARIOS = (
    Scenario("fifo-backfill", _FIFO_OPTIONS, _EASY, "fifo"),
    Scenario("srsf-lwf", _SRSF_OPTIONS, _LWF, "srsf"),
    Scenario("slurm-alone", None, _ALONE, "fifo", start_s=LAUNCH_S),
    Scenario("fifo-backfill-between", _FIFO_OPTIONS, _EASY, "fifo", between_looks=True),
    Scenario("srsf-lwf-between", _SRSF_OPTIONS, _LWF, "srsf", between_looks=True),
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
