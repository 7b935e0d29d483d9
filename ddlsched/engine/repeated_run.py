"""A run that may be begun again: what another of the same jobs is until its first decision, without building it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.all_reduce_costs import Costs
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.policy_forms import PolicyForms
from ddlsched.engine.records.layout import State
from ddlsched.engine.rescaling import Rescaling
from ddlsched.engine.run_state import RunState
from ddlsched.engine.settings import RunSettings
from ddlsched.units import MAX_NS

__all__ = ["RepeatedRun", "RunParts"]


class RunParts(NamedTuple):
    """What does the work of a run."""

    state: RunState
    placing: JobPlacement
    resizing: Rescaling
    costs: Costs
    forms: PolicyForms
    settings: RunSettings


class RepeatedRun:
    """A run under way, whose state before its first event is kept if it may be begun again."""

    def __init__(self, parts: RunParts) -> None:
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
