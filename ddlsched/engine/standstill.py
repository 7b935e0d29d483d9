"""Gives up on a run without an end in which a job is stopped again and again and gets no further."""

from __future__ import annotations

from ddlsched.engine.run_state import RunState
from ddlsched.errors import SimulationError

__all__ = ["Standstill"]

_MOST_RESTARTS = 1_000


class Standstill:
    """Counts how often in a row each job was stopped before it got on; ``ends`` is whether the run is cut off."""

    def __init__(self, state: RunState, ends: bool) -> None:
        self._state, self._ends = state, ends
        self._stops: dict[int, tuple[int, int]] = {}  # of each job: iterations then left, and how often in a row

    def count(self, number: int, what: str) -> None:
        """Count a stop of a job by ``what``.

        Raises
        ------
        SimulationError
            It was one too many.
        """
        state = self._state
        left = state.jobs.samples_left.item(number) or state.jobs.iterations_left.item(number)
        before, times = self._stops.get(number, (left, 0))
        self._stops[number] = left, times + 1 if left == before else 1
        if self._stops[number][1] > _MOST_RESTARTS and not self._ends:
            goal, fewer = ("a checkpoint", "failures") if what == "failures" else ("its next iteration", "stops")
            raise SimulationError(
                f"at {state.now_s} s: {what} stopped job {state.views[number].job_id!r} {_MOST_RESTARTS} times "
                f"in a row before it reached {goal}; expected rarer {fewer}, shorter restarts, or until_s"
            )
