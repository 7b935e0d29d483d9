"""Runs whose elastic jobs get their GPUs from outside of the loop and of the driver."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlsched.engine.records.layout import State
from ddlsched.engine.repeated_run import RepeatedRun, RunParts
from ddlsched.errors import InputError
from ddlsched.policies.doors import Allocation
from ddlsched.workload.rescale import ConstantRescaleCost

__all__ = ["OutsideAllocations"]


class OutsideAllocations(RepeatedRun):
    """Gives the jobs of a run, all of them elastic, their GPUs, a round whenever jobs came or left.

    Raises
    ------
    InputError
        The order is asked in Python, between the end of a round and what follows.
    """

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        resizing, settings = parts.resizing, parts.settings
        if parts.state.run.order_ranked:
            raise InputError("the order is asked in Python, or remembers what it was asked; expected a compiled one")
        costs = {type(job.rescale_cost) for job in resizing.jobs.all_jobs} | {type(settings.rescale_cost)}
        if not costs <= {type(None), ConstantRescaleCost}:
            self.may_begin_again = False
        self._resizing = resizing

    def begin_again(self) -> State:
        """Put everything back to before the first event."""
        self._resizing.begin_again()
        return super().begin_again()

    def open_round(self) -> tuple[list[int], list[int], list[int], int]:
        """Return who is there, by number, in the order of arrival, and how many GPUs there are.

        Between them: how many GPUs each has, and until when it makes no progress, ns.
        """
        self._resizing.take_in()
        there = self._resizing.jobs.there.values()
        num_gpus = int(np.count_nonzero(self._state.gpus.free_bytes >= -1))  # -1 where a job has the GPU for itself
        held = [len(holding.gpus) for holding in there]
        return [*self._resizing.jobs.there], held, [holding.hold_until_ns for holding in there], num_gpus

    def close_round(self, given: Sequence[int]) -> State:
        """Give the jobs that are there so many GPUs each, and return the state, which may have had to grow."""
        there = self._resizing.jobs.there.values()
        answer = {
            holding.job.job_id: Allocation(num_gpus) for holding, num_gpus in zip(there, given, strict=True) if num_gpus
        }
        self._resizing.carry_out(answer)
        return self._state.arrays
