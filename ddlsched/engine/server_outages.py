"""Servers that leave and come back during a run, what that does to jobs, and runs that get nowhere because of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddlsched.cluster.capacity_changes import CapacityChange, Strike
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus
from ddlsched.engine.loop.from_python import stop_job
from ddlsched.engine.outcome import JobFailure
from ddlsched.engine.records.field_values import NEVER, JobState
from ddlsched.engine.run_state import RunState
from ddlsched.errors import SimulationError
from ddlsched.units import NS_PER_S

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
    placing
        Puts a job that hangs, or that starts again where it is, back on its GPUs.

    Attributes
    ----------
    failures
        Every failure that hit a running job, in order of time.
    down
        Servers that are absent now, and since when.
    outages
        Server, from, to (nanoseconds) of each absence that has ended.
    """

    def __init__(
        self,
        state: RunState,
        changes: Iterator[CapacityChange | Strike],
        checkpoint_iterations: int,
        standstill: Standstill,
        placing: JobPlacement,
    ) -> None:
        self._state, self._changes, self._placing = state, changes, placing
        self._checkpoint_iterations, self._standstill = checkpoint_iterations, standstill
        self.down: dict[int, int] = {}
        self.failures: list[JobFailure] = []
        self._hung: dict[int, tuple[int, int, int]] = {}  # of a job that hangs: its stay, since when, for how long
        self.outages: list[tuple[int, int, int]] = []
        self._expect_change()

    def _expect_change(self) -> None:
        self._change = next(self._changes, None)
        self._state.now.next_capacity_ns[0] = NEVER if self._change is None else self._change.time_ns

    def change(self) -> tuple[list[int], frozenset[int]]:
        """Carry out this instant's changes; return the jobs that were stopped, and the GPUs that are gone."""
        state = self._state
        come, going, strikes = self._take_changes()
        if come:
            restore_gpus(state.arrays, np.array(come, np.int64))
        running, lost_ns = state.jobs.state == JobState.RUNNING, state.jobs.lost_ns.copy()
        # Those that go without warning first, since a job may have GPUs on servers of both kinds.
        going.sort(key=lambda change: change.warned)
        for warned in (False, True):
            if gpus := [gpu for change in going if change.warned == warned for gpu in self._gpus(change.server)]:
                fail_gpus(state.arrays, np.array(gpus, np.int64), 1 if warned else self._checkpoint_iterations)
        stopped: list[int] = np.flatnonzero(running & (state.jobs.state == JobState.QUEUED)).tolist()
        for number in stopped:
            self._note_stop(number, going, state.jobs.lost_ns.item(number) - lost_ns.item(number))
        for strike in strikes:
            for number in self._hit(strike):
                self._strike(number, strike)
        state.now.must_place[0] = 1
        return stopped, frozenset(gpu for change in going for gpu in self._gpus(change.server))

    def _gpus(self, server: int) -> range:
        first_gpus = self._state.cluster.first_gpus
        return range(first_gpus.item(server), first_gpus.item(server + 1))

    def _take_changes(self) -> tuple[list[int], list[CapacityChange], list[Strike]]:
        """Return the GPUs that come now, the servers that go, and what hits jobs only."""
        state = self._state
        come: list[int] = []
        going: list[CapacityChange] = []
        strikes: list[Strike] = []
        while self._change is not None and self._change.time_ns == state.now_ns:
            change = self._change
            if isinstance(change, Strike):
                strikes.append(change)
            elif change.fails:
                self.down[change.server] = state.now_ns
                going.append(change)
            else:
                self.outages.append((change.server, self.down.pop(change.server), state.now_ns))
                come += self._gpus(change.server)
            self._expect_change()
        return come, going, strikes

    def _note_stop(self, number: int, going: list[CapacityChange], lost_ns: int) -> None:
        """Note that a job has lost its GPUs, and to which of the servers that go now."""
        state = self._state
        servers = {state.server_of_gpu[gpu] for gpu in state.stays[state.jobs.stay.item(number)].gpus}
        cause = next(change.cause for change in going if change.server in servers)
        hung = self._hanging(number)
        state.end_stay(number, _ending(cause, lost_ns))
        self._standstill.count(number, "failures")
        if not hung:  # that the server goes is then what was noticed
            self.failures.append(JobFailure(number, state.now_ns, cause, lost_ns))

    # --- failures that hit jobs while their servers stay

    def _hanging(self, number: int) -> bool:
        """Return whether a job hangs, or was to be noticed to hang at this instant."""
        stay, since_ns, hang_ns = self._hung.get(number, (-1, 0, 0))
        return stay == self._state.jobs.stay.item(number) and self._state.now_ns <= since_ns + hang_ns

    def _hit(self, strike: Strike) -> list[int]:
        """Return the running jobs that a failure hits, by number; not those that hang already."""
        state = self._state
        numbers = {strike.job} if strike.job >= 0 else set()
        for gpu in strike.gpus:
            workers = state.arrays.residents[gpu, : state.gpus.num_residents.item(gpu)]
            numbers.update(state.arrays.workers.job[workers].tolist())
        running = (number for number in sorted(numbers) if state.jobs.state.item(number) == JobState.RUNNING)
        return [number for number in running if not self._hanging(number)]

    def _strike(self, number: int, strike: Strike) -> None:
        """Have a job hang on its GPUs, and start again there unless a server of its goes by then."""
        state = self._state
        if strike.hang_ns is None:
            stay = state.jobs.stay.item(number)
            self.failures.append(JobFailure(number, state.now_ns, strike.cause, 0, stay, None))
            return
        gpus, lost_ns = list(state.views[number].gpus), state.jobs.lost_ns.item(number)
        stop_job(state.arrays, number, self._checkpoint_iterations)
        lost_ns = state.jobs.lost_ns.item(number) - lost_ns
        state.end_stay(number, _ending(strike.cause, lost_ns))
        self._standstill.count(number, "failures")
        state.now.num_queued[0] -= 1  # it has joined the queue last
        self._placing.put_again(number, gpus, strike.hang_ns)
        stay = state.jobs.stay.item(number)
        self._hung[number] = stay, state.now_ns, strike.hang_ns
        self.failures.append(JobFailure(number, state.now_ns, strike.cause, lost_ns, stay, strike.hang_ns))


def _ending(cause: str, lost_ns: int) -> str:
    """Return why a stay ended, for who reads it."""
    return f"stopped by a failure ({cause}, {lost_ns / NS_PER_S:g} s of work lost)" if cause else "stopped by a failure"


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
