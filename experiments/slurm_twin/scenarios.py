"""What is run for real and simulated: who decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream import SIZES, WHOLE_NODES, stream

from algorithms.placement.backfilling import EasyBackfill
from algorithms.placement.conservative_backfill import ConservativeBackfill
from algorithms.placement.lwf import LeastWorkloadFirst
from algorithms.placement.rounds import Rounds
from ddlsched.real.slurm.board import shaped
from ddlsched.workload.job import Workload

EVERY_S = 1.0
"""From one look of the agent to the next."""
SELDOM_S = 5.3
"""The same where it is to be long beside what Slurm takes to start a job, which is up to a second and a half. It is no
multiple of the second that a turn of Slurm's own loop takes, so that looks fall on all parts of a turn."""
BACKFILL_S = 5.0
"""From one round of Slurm's own backfilling to the next (bf_interval)."""


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
    every_s
        From one look of the agent to the next.
    between_looks
        Whether jobs come and end between two looks only.
    """

    name: str
    options: Sequence[str] | None
    placement: Any
    order: str
    sizes: Mapping[int, float] = field(default_factory=lambda: SIZES)
    every_s: float = EVERY_S
    between_looks: bool = False

    def jobs(self, num_jobs: int, seed: int) -> Workload:
        """Return its jobs."""
        return stream(num_jobs, seed, self.sizes, self.every_s if self.between_looks else None)


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
    Scenario(
        "fifo-backfill-between",
        ["--placement", "easy-backfill", "--order", "fifo"],
        Rounds(placement=shaped(EasyBackfill()), interval_s=SELDOM_S),
        "fifo",
        every_s=SELDOM_S,
        between_looks=True,
    ),
    Scenario(
        "srsf-lwf-between",
        ["--placement", "lwf", "--order", "srsf"],
        Rounds(placement=shaped(LeastWorkloadFirst()), interval_s=SELDOM_S),
        "srsf",
        every_s=SELDOM_S,
        between_looks=True,
    ),
)
