"""Stops running jobs as the order says, and moves them as the placement says."""

from __future__ import annotations

from ddlsched.engine.decisions.checked_policies import CheckedPolicies, stop_running
from ddlsched.engine.field_values import JobState
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.from_python import plan_move, stop_job, wake_running
from ddlsched.engine.loop.iterations import go_on
from ddlsched.engine.outcome import Departure
from ddlsched.engine.recovery import ReservedGpus
from ddlsched.engine.run_state import RunState
from ddlsched.engine.server_outages import Standstill
from ddlsched.errors import InputError
from ddlsched.policies.views import JobQueue, JobView
from ddlsched.workload.elastic_job import ElasticJob


class StopsAndMoves:
    """What the order's ``stops`` and the placement's ``moves`` do to the jobs of a run.

    Attributes
    ----------
    departures
        Every stop and move, in order of time.
    """

    def __init__(
        self, state: RunState, policies: CheckedPolicies, placing: JobPlacement, standstill: Standstill
    ) -> None:
        self._state, self._policies, self._placing = state, policies, placing
        self._standstill = standstill
        self._targets: dict[int, list[int]] = {}
        self._reserved = ReservedGpus(state)
        self.departures: list[Departure] = []
        self._refuse_elastic()
        if policies.placement_moves:  # recovery and checkpoints may ask for it, too
            state.now.asks_moves[0] = 1

    def _refuse_elastic(self) -> None:
        for number, job in enumerate(self._state.workload):
            if isinstance(job, ElasticJob):
                kind = next(kind for kind in ("admission", "order", "placement") if self._policies.stops_or_moves(kind))
                raise InputError(
                    f"{self._state.workload.where(number)}: job {job.job_id!r} is elastic, and {kind} "
                    f"{self._policies.label(kind)} stops or moves running jobs; expected jobs that are not elastic only"
                )

    def _running(self) -> list[JobView]:
        """Return the running jobs, by number."""
        wake_running(self._state.arrays)
        state = self._state
        numbers = sorted(state.arrays.running[: state.now.num_running.item(0)].tolist())
        return [state.views[number] for number in numbers if state.jobs.state.item(number) == JobState.RUNNING]

    # --- stops

    def stop(self) -> bool:
        """Ask the order which running jobs stop for those that wait; return whether any does."""
        state, policies = self._state, self._policies
        if not policies.order_stops or not state.run.num_queued:
            return False
        queue = JobQueue(state.arrays.queue[: state.run.num_queued].copy(), state.views)
        return bool(stop_running(policies, self._running(), queue, self._placing.view(), self))

    def leave(self, number: int) -> None:
        """Take a job off its GPUs for others that wait."""
        self._stop(number, "stopped by the order", "order")

    def preempt(self, number: int, why: str) -> None:
        """Take a job off its GPUs, as the admission policy says."""
        self._stop(number, why, "admission")

    def _stop(self, number: int, why: str, kind: str) -> None:
        if number in self._targets:
            self._release(number)
        self._leave(number, why, moved=False)
        for tell in self._placing.stopped:
            tell(number)
        self._standstill.count(number, f"{kind} {self._policies.label(kind)}")

    def _leave(self, number: int, why: str, *, moved: bool) -> None:
        """Take a job off its GPUs; its state stays on its servers."""
        state = self._state
        gpus = state.views[number].gpus
        lost_before_ns = state.jobs.lost_ns.item(number)
        stop_job(state.arrays, number, 1)
        lost_ns = state.jobs.lost_ns.item(number) - lost_before_ns
        self.departures.append(Departure(number, state.now_ns, moved, gpus, lost_ns))
        state.end_stay(number, why)
        self._placing.state_at[number] = tuple(state.server_of_gpu[gpu] for gpu in gpus)

    # --- moves

    def plan(self) -> None:
        """Ask the placement which running jobs move, and keep memory free for them."""
        if not self._policies.placement_moves:
            return
        state, jobs = self._state, self._state.jobs
        movable = [
            view
            for view in self._running()
            if not jobs.leaving.item(view.number)
            and not jobs.restarting.item(view.number)
            and len(view.gpus) == state.workload[view.number].num_gpus
        ]
        for number, gpus in self._policies.moves(movable, self._placing.view()):
            self._targets[number] = gpus
            self._reserved.take(number, set(gpus).difference(state.views[number].gpus))
            plan_move(state.arrays, number)

    def _release(self, number: int) -> list[int]:
        """Give back what is reserved for a job, and return where it was to go."""
        self._reserved.release(number)
        return self._targets.pop(number)

    def carry_out(self) -> None:
        """Move the jobs whose iteration has ended; forget moves of jobs that have finished, or failed with a server."""
        leaving = self._state.jobs.leaving
        for number in sorted(self._targets):
            if leaving.item(number) == 0:
                self._release(number)
            elif leaving.item(number) == 2:
                self._move(number, self._release(number))

    def _move(self, number: int, gpus: list[int]) -> None:
        state = self._state
        if not all(state.is_present(state.server_of_gpu[gpu]) for gpu in gpus):
            go_on(state.arrays, number)
            return
        self._leave(number, "moved", moved=True)
        state.now.num_queued[0] -= 1  # it has joined the queue last
        self._placing.put_again(number, gpus, 0)
