"""Runs some of whose decisions are carried out from outside of the driver, many of them beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.policy_forms import PolicyForms
from ddlsched.engine.records.layout import State
from ddlsched.engine.rescaling import Rescaling
from ddlsched.engine.run_state import RunState
from ddlsched.engine.settings import RunSettings
from ddlsched.errors import InputError
from ddlsched.policies.doors import Allocation
from ddlsched.units import MAX_NS
from ddlsched.workload.rescale import ConstantRescaleCost

__all__ = ["BatchedRun", "ResizedRun", "RunParts", "StartedRun"]


class RunParts(NamedTuple):
    """What does the work of a run."""

    state: RunState
    placing: JobPlacement
    resizing: Rescaling
    forms: PolicyForms
    settings: RunSettings


class BatchedRun:
    """A run under way, whose state before its first event is kept if it may be begun again.

    Raises
    ------
    InputError
        The order is asked in Python, between what is decided and what follows.
    """

    def __init__(self, parts: RunParts) -> None:
        if parts.state.run.order_ranked:
            raise InputError("the order is asked in Python, or remembers what it was asked; expected a compiled one")
        self._state, forms, settings = parts.state, parts.forms, parts.settings
        self.may_begin_again = forms.all_compiled and not forms.have_memory and _is_alike_each_time(settings)
        """Whether another run of the same jobs is the same until its first decision, whatever its seed."""
        self._arrays: State = parts.state.arrays
        self._first: list[tuple[np.ndarray, np.ndarray]] = []

    def remember(self) -> None:
        """Keep the state before the first event, to begin with it again."""
        if self.may_begin_again:
            self._arrays = self._state.arrays
            arrays = [_bytes_of(array) for array in self._arrays if array is not self._arrays.snapshots]
            self._first = [(array, array.copy()) for array in arrays if len(array)]

    def begin_again(self) -> State:
        """Put everything back to before the first event."""
        state = self._state
        self._arrays.snapshots[: state.now.num_words.item(0)] = 0  # too large to be written whole
        for array, first in self._first:
            array[:] = first
        if state.stays:
            for view in state.views:
                view._placed((), ())
            state.stays.clear()
            state.transfer_views.clear()
        state.arrays = self._arrays
        return self._arrays

    def note(self) -> None:
        """Make what Python looks at of what compiled code has done since."""


class StartedRun(BatchedRun):
    """Starts jobs of a run, whose Python objects are made of its arrays whenever Python is to look.

    Raises
    ------
    InputError
        Jobs may also leave their GPUs.
    """

    def __init__(self, parts: RunParts) -> None:
        _refuse_stops(parts.state, parts.settings)
        super().__init__(parts)
        self._placing = parts.placing

    def start(self, number: int, gpus: list[int]) -> None:
        """Start a job on GPUs, in placement order."""
        self.note()
        self._placing.put(number, gpus)

    def place(self, number: int) -> list[int] | None:
        """Ask the placement policy for the GPUs of a job."""
        self.note()
        return self._placing.place(number)

    def num_gpus(self, number: int) -> int:
        """Return how many GPUs a job needs."""
        return int(self._state.jobs.num_gpus.item(number))

    def note(self) -> None:
        """Make what Python looks at of the jobs that compiled code has started since."""
        self._placing.note_starts()


class ResizedRun(BatchedRun):
    """Gives the jobs of a run, all of them elastic, their GPUs, a round whenever jobs came or left."""

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        resizing, settings = parts.resizing, parts.settings
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

    def close_round(self, given: Sequence[int]) -> None:
        """Give the jobs that are there so many GPUs each."""
        there = self._resizing.jobs.there.values()
        answer = {
            holding.job.job_id: Allocation(num_gpus) for holding, num_gpus in zip(there, given, strict=True) if num_gpus
        }
        self._resizing.carry_out(answer)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return an array's own bytes, which are copied at once; records would be, field by field."""
    return array.reshape(-1).view(np.ndarray).view(np.uint8)


def _is_alike_each_time(settings: RunSettings) -> bool:
    """Return whether nothing is drawn, or begun anew, for each run."""
    policies = settings.order, settings.communication, settings.contention
    return (
        settings.disturbances == Disturbances()
        and settings.capacity is None
        and settings.window is None
        and settings.path is None
        and settings.options["watch"] is None
        and (settings.span.warmup_ns, settings.span.until_ns) == (0, MAX_NS)
        and not any(hasattr(policy, "begin") for policy in policies)
    )


def _refuse_stops(state: RunState, settings: RunSettings) -> None:
    """Raise InputError if jobs may leave their GPUs before they end."""
    run = state.run
    why = ""
    if settings.disturbances.servers_fail or settings.capacity is not None:
        why = "servers come and go"
    elif run.asks_moves or hasattr(settings.order, "stops"):
        why = "jobs are stopped or moved"
    elif run.elastic:
        why = "jobs are elastic"
    elif settings.window is not None:
        why = "the run is recorded"
    if why:
        raise InputError(f"{why}; expected a run whose jobs start once")
