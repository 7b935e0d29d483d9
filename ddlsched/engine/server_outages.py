"""Servers that leave and come back during a run, what that does to jobs, and runs that get nowhere because of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddlsched.cluster.disturbances import CapacityChange
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus
from ddlsched.engine.records.field_values import NEVER, JobState
from ddlsched.engine.run_state import RunState
from ddlsched.errors import SimulationError

__all__ = ["ServerOutages", "Standstill"]


class ServerOutages:
    """Which servers of a run are there.

    Parameters
    ----------
    state
        The run.
    changes
        When servers leave and come, in order of time; may be endless.
    checkpoint_iterations
        Work is safe after every so many iterations, for a server that leaves without a warning.
    standstill
        Told of every job that stops.

    Attributes
    ----------
    down
        ServerOutages that are absent now, and since when.
    outages
        Server, from, to (nanoseconds) of each absence that has ended.
    """

    def __init__(
        self, state: RunState, changes: Iterator[CapacityChange], checkpoint_iterations: int, standstill: Standstill
    ) -> None:
        self._state, self._changes = state, changes
        self._checkpoint_iterations, self._standstill = checkpoint_iterations, standstill
        self.down: dict[int, int] = {}
        self.outages: list[tuple[int, int, int]] = []
        self._expect_change()

    def _expect_change(self) -> None:
        self._change = next(self._changes, None)
        self._state.now.next_capacity_ns[0] = NEVER if self._change is None else self._change.time_ns

    def change(self) -> tuple[list[int], frozenset[int]]:
        """Carry out this instant's changes; return the jobs that were stopped, and the GPUs that are gone."""
        state = self._state
        come, gone = self._take_changes()
        if come:
            restore_gpus(state.arrays, np.array(come, np.int64))
        running = state.jobs.state == JobState.RUNNING
        # Those that go without warning first, since a job may have GPUs on servers of both kinds.
        for warned, gpus in gone.items():
            if gpus:
                commit = 1 if warned else self._checkpoint_iterations
                fail_gpus(state.arrays, np.array(gpus, np.int64), commit)
        stopped: list[int] = np.flatnonzero(running & (state.jobs.state == JobState.QUEUED)).tolist()
        for number in stopped:
            state.end_stay(number)
            self._standstill.count(number, "failures")
        return stopped, frozenset(gone[True] + gone[False])

    def _take_changes(self) -> tuple[list[int], dict[bool, list[int]]]:
        """Return the GPUs that come now, and those that go, by whether there was a warning."""
        state, first_gpus = self._state, self._state.cluster.first_gpus
        come: list[int] = []
        gone: dict[bool, list[int]] = {False: [], True: []}
        while self._change is not None and self._change.time_ns == state.now_ns:
            server = self._change.server
            gpus = range(first_gpus.item(server), first_gpus.item(server + 1))
            if self._change.fails:
                self.down[server] = state.now_ns
                gone[self._change.warned] += gpus
            else:
                self.outages.append((server, self.down.pop(server), state.now_ns))
                come += gpus
            self._expect_change()
        return come, gone


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
