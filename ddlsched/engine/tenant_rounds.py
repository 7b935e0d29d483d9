"""Rounds of a run with tenants: who may start, who gives way, and why the others wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from ddlsched.cluster.tenants import ANY_KIND, Tenants
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.field_values import JobState
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.outcome import Refused
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InputError
from ddlsched.policies import tenants_view
from ddlsched.policies.cluster_view import looked_up_once
from ddlsched.policies.quota_tree import QuotaTree
from ddlsched.policies.views import ClusterView, JobView

_RUNNING, _QUEUED = JobState.RUNNING.value, JobState.QUEUED.value
_NO_PLACE = "the placement found no place, though the quota would do"


class TenantRounds:
    """Asks the admission policy of a run, and has its answers carried out.

    Parameters
    ----------
    state, policies, placing
        The run.
    tenants
        Its queues.
    stop
        Takes a job, by number, off its GPUs, and notes why.
    waiting
        The jobs that keep their GPUs, and so their quota, until their servers are back; nobody preempts them.

    Attributes
    ----------
    reasons
        By the number of each job that waits, why.
    refused
        Why jobs waited, whenever that changed, in order of time.
    """

    def __init__(
        self,
        state: RunState,
        policies: CheckedPolicies,
        placing: JobPlacement,
        tenants: Tenants,
        stop: Callable[[int, str], None],
        waiting: Collection[int] = (),
    ) -> None:
        self._waiting, self._aside = waiting, dict[int, tenants_view.HeldQuota]()
        self._state, self._policies, self._placing, self._stop = state, policies, placing, stop
        if policies.placement_has_rounds and not hasattr(policies.placement, "place"):
            raise InputError(
                "the placement decides about all jobs that wait; expected one that is asked about a job beside queues, "
                "such as first-fit (backfilling: --admission slurm-multifactor:backfill=NAME)"
            )
        if policies.order_stops:  # it would stop jobs for those of whom the admission lets none start
            raise InputError(
                f"order {policies.label('order')} stops running jobs, and beside queues admission "
                f"{policies.label('admission')} says who stops; expected an order that stops none"
            )
        for number, job in enumerate(state.workload):
            tenants.refuse_others(state.workload.where(number), job.job_id, job.queue)
        self._tenants, self._quotas = tenants, QuotaTree(tenants)
        self._pending = tenants_view.PendingJobs(tenants.leaves)
        self._holdings: dict[int, tenants_view.HeldQuota] = {}
        self._left: list[tuple[tenants_view.HeldQuota, int]] = []
        self._by_queue = {queue: tenants_view.RunningJobs() for queue in tenants.leaves}
        self._known, self._holds = np.zeros(len(state.workload), bool), np.zeros(len(state.workload), bool)
        self._gpus_of_kind: dict[str, np.ndarray] = {}
        self.reasons: dict[int, str] = {}
        self._freed, self._num_there, self._started = 0, 0, False
        self._room = tenants_view.LevelRoom(placing.view(), len(state.workload))
        placing.started.append(self._note_place)
        self._next_capacity_ns = -1  # not looked at yet
        self._no_place: set[tuple[tenants_view.Size, str]] = set()
        self.refused: list[Refused] = []

    def place_queue(self) -> None:
        """Ask who of the queue may start, and where."""
        state, now = self._state, self._state.now
        queue = state.arrays.queue[: now.num_queued.item(0)].copy()
        self._note_left()
        self._note_come(queue)
        stopped = self._carry_out() if len(self._pending) else []
        left = queue[state.jobs.state[queue] == _QUEUED]
        state.arrays.queue[: len(left)] = left
        state.arrays.queue[len(left) : len(left) + len(stopped)] = stopped
        now.num_sorted[0], now.num_queued[0] = len(left), len(left) + len(stopped)
        self._placing.note_reservations()

    def _note_left(self) -> None:
        """Give back what jobs held that have ended, or failed with a server; note servers that have come back."""
        self._note_servers()
        if not self._aside and self._state.now.num_running.item(0) == len(self._holdings):
            return
        state, left = self._state, self._holds.copy()
        left[state.arrays.running[: state.now.num_running.item(0)]] = False
        for number in np.flatnonzero(left).tolist():
            if number in self._waiting:
                self._aside[number] = self._taken_back(number)
            else:
                self._release(number)
        for number in [number for number in self._aside if number not in self._waiting]:
            self._give(number, self._aside.pop(number))
            if self._state.jobs.state.item(number) != _RUNNING:  # it has given way
                self._release(number)

    def _note_servers(self) -> None:
        state, there = self._state, self._num_there
        if (next_ns := state.now.next_capacity_ns.item(0)) != self._next_capacity_ns:
            self._next_capacity_ns = next_ns
            self._num_there = int(np.count_nonzero(state.gpus.free_bytes[state.cluster.first_gpus[:-1]] >= -1))
        self._make_room(self._num_there > there or self._started)  # who has just started may be preempted now
        self._started = False

    def _make_room(self, more: bool = True) -> None:
        """Note that what found no place may find one now."""
        if more:
            self._freed += 1
            self._no_place.clear()

    def _note_come(self, queue: np.ndarray) -> None:
        for number in queue[~self._known[queue]].tolist():
            self._known[number] = True
            self._pending.add(self._state.views[number])

    def _give(self, number: int, holding: tenants_view.HeldQuota) -> None:
        self._holdings[number] = self._by_queue[holding.queue][number] = holding
        self._holds[number] = True

    def _taken_back(self, number: int) -> tenants_view.HeldQuota:
        holding = self._holdings.pop(number)
        del self._by_queue[holding.queue][number]
        self._holds[number] = False
        return holding

    def _release(self, number: int) -> None:
        holding, finish_ns = self._taken_back(number), self._state.jobs.finish_ns.item(number)
        self._left.append((holding, self._state.now_ns if finish_ns < 0 else finish_ns))
        self._quotas[holding.queue].remove(holding.kind, holding.num_gpus)
        self._known[number] = False
        self._make_room()

    def _view(self) -> tenants_view.TenantsView:
        jobs = self._pending, self._holdings, self._by_queue
        left, self._left = self._left, []
        room, now_ns = self._room, self._state.now_ns
        return tenants_view.TenantsView(
            self._tenants, self._quotas, *jobs, now_ns, self._freed, room, left, self._place
        )

    def _place(self, job: JobView, leaving: Sequence[JobView]) -> list[int] | None:
        """Return where a job would go if others had left."""
        victims = tuple(tenants_view.Victim(each, "") for each in leaving)
        return self._gpus_for(tenants_view.Admission(job, ANY_KIND, victims), self._placing.view())

    def _carry_out(self) -> list[int]:
        """Carry out the policy's answers; return who stopped, by number."""
        stopped: list[int] = []
        new, cluster = set[int](), self._placing.view()
        now = self._look(cluster)
        for answer in self._policies.admit_jobs(self._view(), cluster, new):
            if isinstance(answer, tenants_view.NotAdmitted):
                self._note_refusal(answer.job.number, answer.reason)
            elif (gpus := self._gpus_for(answer, now)) is None:
                self._note_refusal(answer.job.number, _NO_PLACE)
            else:
                stopped += self._start(answer, gpus)
                now = self._look(cluster)
                new.add(answer.job.number)
        return stopped

    def _look(self, cluster: ClusterView) -> ClusterView:
        """Return the cluster as it is until somebody starts."""
        now = looked_up_once(cluster)
        self._room.look_at(now)
        return now

    def _gpus_for(self, answer: tenants_view.Admission, cluster: ClusterView) -> list[int] | None:
        """Return where a job goes, as if its victims had left."""
        if answer.gpus is not None:
            return list(answer.gpus)
        size, victims = self._pending.size(answer.job.number), [victim.job for victim in answer.victims]
        if not victims and (size, answer.kind) in self._no_place:
            return None
        enough = self._room.suffices(answer.job, victims)
        if enough and victims:
            cluster = cluster.without(victims)
        if enough and answer.kind != ANY_KIND:
            cluster = cluster.restricted_to(self._of_kind(answer.kind))
        enough = enough and len(cluster.eligible(answer.job)) >= answer.job.num_gpus
        gpus = self._policies.place(answer.job, cluster) if enough else None
        if gpus is None and not victims:
            self._no_place.add((size, answer.kind))
        return gpus

    def _of_kind(self, kind: str) -> np.ndarray:
        """Return the GPUs of a kind."""
        if kind not in self._gpus_of_kind:
            cluster = self._state.cluster
            kinds = [server.gpu_kind for server in cluster.servers] or [None] * cluster.num_servers
            there = np.array([own == kind for own in kinds])
            self._gpus_of_kind[kind] = np.flatnonzero(there[cluster.server_of_gpu])
        return self._gpus_of_kind[kind]

    def _start(self, answer: tenants_view.Admission, gpus: list[int]) -> list[int]:
        """Stop an admission's victims and start its job; return who stopped."""
        number, queue = answer.job.number, str(answer.job.queue)
        for victim in answer.victims:
            self._release(victim.job.number)
            self._stop(victim.job.number, f"preempted for job {answer.job.job_id}: {victim.reason}")
            self._note_refusal(victim.job.number, f"preempted: {victim.reason}")
        self._pending.remove(answer.job)
        self.reasons.pop(number, None)
        holding = tenants_view.HeldQuota.of(answer.job, answer.kind, self._state.now_ns)
        self._give(number, holding)
        self._quotas[queue].add(answer.kind, holding.num_gpus)
        self._policies.check_quotas(self._quotas[queue], answer, self._state.now_s)
        self._placing.put(number, gpus)
        self._started = True
        return [victim.job.number for victim in answer.victims]

    def _note_place(self, number: int) -> None:
        """Note where a job is that starts, or that goes on elsewhere: others may find room then."""
        gpus = self._state.views[number].gpus
        if self._room.note(number, gpus) and (holding := self._holdings.get(number)) is not None:
            self._by_queue[holding.queue].changes += 1
            self._make_room(holding.since_ns < self._state.now_ns)

    def _note_refusal(self, number: int, reason: str) -> None:
        if self.reasons.get(number) != reason:
            self.reasons[number] = reason
            self.refused.append(Refused(self._state.now_ns, number, reason))
