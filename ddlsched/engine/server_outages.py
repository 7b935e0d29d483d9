"""Servers that leave and come back during a run, what that does to jobs, and runs that get nowhere because of it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import count
from math import inf

import numpy as np

from ddlsched.cluster.capacity_changes import CapacityChange, Strike
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.checkpointing import Checkpointing
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.field_values import NEVER, JobState
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus, slow_gpus
from ddlsched.engine.loop.from_python import stop_job
from ddlsched.engine.outcome import JobFailure
from ddlsched.engine.recovery import Recovery
from ddlsched.engine.run_state import RunState
from ddlsched.errors import SimulationError, guarded, label
from ddlsched.plugins.names import resolve
from ddlsched.units import NS_PER_S, ns_from_s


class ServerOutages:
    """Which servers of a run are there.

    Parameters
    ----------
    state
        The run.
    changes
        Returns when servers leave and come, in order of time, perhaps without an end; it is given the servers that have
        been replaced, which become more.
    disturbances
        When work is safe, how jobs go on, and who looks after servers.
    standstill
        Told of every job that stops.
    policies
        Know what a change of a job's size costs.
    placing
        Puts a job that hangs, or that starts again where it is, back on its GPUs.

    Attributes
    ----------
    failures
        Every failure that hit a running job, in order of time.
    down
        Servers that are absent now, and since when.
    replaced
        Servers that were taken for lemons.
    outages
        Server, from, to (nanoseconds) of each absence that has ended.
    """

    def __init__(
        self,
        state: RunState,
        changes: Callable[[Collection[int]], Iterator[CapacityChange | Strike]],
        disturbances: Disturbances,
        standstill: Standstill,
        policies: CheckedPolicies,
        placing: JobPlacement,
    ) -> None:
        self._state, self._placing = state, placing
        self.replaced: set[int] = set()
        self._changes = changes(self.replaced)
        self._disturbances, self._standstill = disturbances, standstill
        self._health = disturbances.health_policy
        given = disturbances.recovery
        self.recovery = (
            None if given is None else Recovery(state, resolve("recovery", given), policies, placing, self.at)
        )
        self.checkpointing: Checkpointing | None = None
        """Takes jobs back to what they have saved, if they do so at a cost."""
        self.down: dict[int, int] = {}
        self.failures: list[JobFailure] = []
        self._hung: dict[int, tuple[int, int, int]] = {}  # of a job that hangs: its stay, since when, for how long
        self.outages: list[tuple[int, int, int]] = []
        self._failed_s: defaultdict[int, list[float]] = defaultdict(list)
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._num_calls = count()
        self._slowness = state.gpus.slowness.copy()
        self._expect_change()

    def begin(self) -> None:
        """Before the first event: hold spares back."""
        if self.recovery is not None:
            self.recovery.hold_back()

    def at(self, time_ns: int, call: Callable[[], None]) -> None:
        """Have something called at a time, nanoseconds, at least one from now."""
        heapq.heappush(self._calls, (max(time_ns, self._state.now_ns + 1), next(self._num_calls), call))
        self._tell_next()

    def _expect_change(self) -> None:
        self._change = next(self._changes, None)
        self._tell_next()

    def _tell_next(self) -> None:
        change_ns = NEVER if self._change is None else self._change.time_ns
        self._state.now.next_capacity_ns[0] = min(change_ns, self._calls[0][0]) if self._calls else change_ns

    def change(self) -> tuple[list[int], frozenset[int]]:
        """Carry out this instant's changes and calls; return the jobs that were stopped, and the GPUs that are gone."""
        state = self._state
        come, going, strikes = self._take_changes()
        if come or going or strikes:
            state.now.must_place[0] = 1
        if come:
            restore_gpus(state.arrays, np.array(state.gpus_of(come), np.int64))
        if come and self.recovery is not None:
            self.recovery.resume(come)
        running, lost_ns = state.jobs.state == JobState.RUNNING, state.jobs.lost_ns.copy()
        # Those that go without warning first, since a job may have GPUs on servers of both kinds.
        going.sort(key=lambda change: change.warned)
        for warned in (False, True):
            if gpus := state.gpus_of(change.server for change in going if change.warned == warned):
                iterations = 1 if warned else self._disturbances.checkpoint_iterations
                fail_gpus(state.arrays, np.array(gpus, np.int64), iterations)
        stopped: list[int] = np.flatnonzero(running & (state.jobs.state == JobState.QUEUED)).tolist()
        for number in stopped:
            self._note_stop(number, going, lost_ns.item(number))
        fixed = (number for number in stopped if not state.jobs.elastic.item(number))
        for number in fixed if self.recovery is not None else ():
            self.recovery.recover(number)  # type: ignore[union-attr]
        for strike in strikes:
            if strike.slowdown > 1:
                self._placing.groups.split_meeting(strike.gpus, np.array([], np.int64))
                slow_gpus(state.arrays, np.array(strike.gpus, np.int64), strike.slowdown)
            for number in self._hit(strike):
                self._strike(number, strike)
        while self._calls and self._calls[0][0] <= state.now_ns:
            heapq.heappop(self._calls)[2]()
        self._tell_next()
        return stopped, frozenset(state.gpus_of(change.server for change in going))

    def _take_changes(self) -> tuple[list[int], list[CapacityChange], list[Strike]]:
        """Return the servers that come now, those that go, and what hits jobs only; of spares nobody notices either."""
        state, recovery = self._state, self.recovery
        come: list[int] = []
        going: list[CapacityChange] = []
        strikes: list[Strike] = []
        while self._change is not None and self._change.time_ns == state.now_ns:
            change = self._change
            if isinstance(change, Strike):
                strikes.append(change)
            elif change.fails:
                self.down[change.server] = state.now_ns
                self._examine(change)
                if recovery is None or recovery.goes(change.server):
                    going.append(change)
            else:
                self.outages.append((change.server, self.down.pop(change.server), state.now_ns))
                gpus = state.gpus_of([change.server])
                state.gpus.slowness[gpus] = self._slowness[gpus]  # what was slow is repaired
                if recovery is None or recovery.comes(change.server):
                    come.append(change.server)
            self._expect_change()
        return come, going, strikes

    def _examine(self, change: CapacityChange) -> None:
        """Ask whether a server that has failed is a lemon."""
        if self._health is None or change.warned:
            return
        health, failed_s = self._health, self._failed_s[change.server]
        failed_s.append(self._state.now_s)
        if guarded(f"health {label(health)}: replaces", lambda: health.replaces(failed_s)):
            self.replaced.add(change.server)
            failed_s.clear()

    def _note_stop(self, number: int, going: list[CapacityChange], before_ns: int) -> None:
        """Note that a job has lost its GPUs, and to which of the servers that go now."""
        state = self._state
        servers = {state.server_of_gpu[gpu] for gpu in state.stays[state.jobs.stay.item(number)].gpus}
        change = next(change for change in going if change.server in servers)
        hung = self._hanging(number)
        lost_ns = self._end_stay(number, change.cause, before_ns, saved=change.warned)
        if not hung:  # that the server goes is then what was noticed
            self.failures.append(JobFailure(number, state.now_ns, change.cause, lost_ns))

    def _end_stay(
        self, number: int, cause: str, before_ns: int, *, saved: bool = False, since_ns: int | None = None
    ) -> int:
        """Take a stopped job, which had lost ``before_ns``, back to what it has ``saved``; return what it loses now."""
        state = self._state
        state.end_stay(number)
        if self.checkpointing is not None and not saved and not state.jobs.elastic.item(number):
            lost_ns = self.checkpointing.fall_back(number, state.now_ns if since_ns is None else since_ns)
            state.jobs.lost_ns[number] = before_ns + lost_ns
        lost_ns = int(state.jobs.lost_ns.item(number)) - before_ns
        about = f" ({cause}, {lost_ns / NS_PER_S:g} s of work lost)" if cause else ""
        state.stays[state.jobs.stay.item(number)].ended_by = "stopped by a failure" + about
        self._standstill.count(number, "failures")
        return lost_ns

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
            numbers.update(state.workers.job[workers].tolist())
        running = (number for number in sorted(numbers) if state.jobs.state.item(number) == JobState.RUNNING)
        return [number for number in running if not self._hanging(number)]

    def _strike(self, number: int, strike: Strike) -> None:
        """Have a job hang on its GPUs, and start again there unless a server of its goes by then."""
        state = self._state
        if strike.hang_ns is None:
            stay = state.jobs.stay.item(number)
            self.failures.append(JobFailure(number, state.now_ns, strike.cause, 0, stay, None))
            if strike.slowdown == 1:
                self._find_later(number, len(self.failures) - 1)
            return
        lost_ns = self._start_again(number, strike.cause, strike.hang_ns)
        stay = state.jobs.stay.item(number)
        self._hung[number] = stay, state.now_ns, strike.hang_ns
        self.failures.append(JobFailure(number, state.now_ns, strike.cause, lost_ns, stay, strike.hang_ns))

    def _start_again(self, number: int, cause: str, hang_ns: int, since_ns: int | None = None) -> int:
        """Stop a job and put it back on its GPUs; return the time of the work lost."""
        state = self._state
        gpus, before_ns = list(state.views[number].gpus), state.jobs.lost_ns.item(number)
        stop_job(state.arrays, number, self._disturbances.checkpoint_iterations)
        lost_ns = self._end_stay(number, cause, before_ns, since_ns=since_ns)
        if state.jobs.elastic.item(number):
            state.now.num_elastic_queued[0] -= 1
            state.jobs.lost_samples[number] = 0  # which an allocation policy is told at a loss of GPUs
        else:
            state.now.num_queued[0] -= 1  # it has joined the queue last
        self._placing.put_again(number, gpus, hang_ns)
        return lost_ns

    def _find_later(self, number: int, failure: int) -> None:
        """Have the next check of jobs find what nobody noticed."""
        if self._health is not None and self._health.check_s < inf:
            check_ns = ns_from_s(self._health.check_s)
            self.at((self._state.now_ns // check_ns + 1) * check_ns, lambda: self._find(number, failure))

    def _find(self, number: int, failure: int) -> None:
        """Take a job back to before a failure that a check has found, unless it has finished."""
        state, found = self._state, self.failures[failure]
        lost_ns = 0
        if state.jobs.state.item(number) == JobState.RUNNING:
            lost_ns = self._start_again(number, found.cause, 0, found.time_ns)
        elif state.jobs.state.item(number) == JobState.QUEUED and self.checkpointing is not None:
            lost_ns = self.checkpointing.fall_back(number, found.time_ns)
            state.jobs.lost_ns[number] += lost_ns
        self.failures[failure] = replace(found, lost_ns=lost_ns)


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
