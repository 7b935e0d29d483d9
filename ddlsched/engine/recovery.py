"""Jobs that lost servers go on: on spares that are held back, where they were once those are repaired, or elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf

import numpy as np

from ddlsched.cluster.reliability_doors import WAIT, RecoveryPolicy, StoppedJob
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus
from ddlsched.engine.outcome import Residency
from ddlsched.engine.reserved_gpus import ReservedGpus
from ddlsched.engine.run_state import RunState
from ddlsched.engine.shrunk_jobs import ShrunkJobs
from ddlsched.errors import InvalidDecisionError, guarded, label
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s

__all__ = ["Recovery"]


class Recovery:
    """Carries out what a recovery policy says.

    Attributes
    ----------
    spares
        The servers that are held back now, and there.
    shrunk
        The jobs that go on with fewer GPUs.
    """

    def __init__(
        self,
        state: RunState,
        policy: RecoveryPolicy,
        policies: CheckedPolicies,
        placing: JobPlacement,
        at: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._state, self._policy, self._placing, self._at = state, policy, placing, at
        self.shrunk = ShrunkJobs(state, policies, placing)
        self._name = f"recovery {label(policy)}"
        chosen = guarded(self._name, lambda: policy.spares(state.cluster.num_servers, state.network.racks))
        self.spares: list[int] = list(dict.fromkeys(chosen))
        self._lacking = 0
        self._waiting: dict[int, tuple[Residency, set[int]]] = {}
        self._reserved = ReservedGpus(state)
        self._patience_s: float = getattr(policy, "patience_s", inf)

    def hold_back(self) -> None:
        """Before the first event: nobody sees the spares."""
        if self.spares:
            fail_gpus(self._state.arrays, np.array(self._gpus(self.spares), np.int64), 1)

    def _gpus(self, servers: Iterable[int]) -> list[int]:
        first = self._state.cluster.first_gpus
        return [gpu for server in servers for gpu in range(first.item(server), first.item(server + 1))]

    # --- servers that go and come

    def goes(self, server: int) -> bool:
        """Return whether a server that fails now is one that jobs may be on; a spare is then one less."""
        if server in self.spares:
            self.spares.remove(server)
            self._lacking += 1
            return False
        self.shrunk.goes(server)
        for stay, lost in self._waiting.values():
            if any(self._state.server_of_gpu[gpu] == server for gpu in stay.gpus):
                lost.add(server)
        return True

    def comes(self, server: int) -> bool:
        """Return whether a server that comes back now is for jobs; otherwise it becomes a spare."""
        waits = self.waits_for(server)
        if waits or not self._lacking:
            return True
        self._lacking -= 1
        self.spares.append(server)
        return False

    def waits_for(self, server: int) -> bool:
        """Return whether a server that comes back now is kept for a job."""
        return self.shrunk.waits_for(server) or any(server in lost for _, lost in self._waiting.values())

    @property
    def waiting(self) -> Collection[int]:
        """The jobs that keep their GPUs until their servers are back, by number."""
        return self._waiting

    def resume(self, servers: list[int]) -> None:
        """After servers have come: jobs go on whose servers are all there again; others keep these for themselves."""
        for number, (stay, lost) in list(self._waiting.items()):
            if not lost.intersection(servers):
                continue
            self._reserved.take(number, self._state.gpus_on(stay.gpus, lost.intersection(servers)))
            lost.difference_update(servers)
            if not lost:
                del self._waiting[number]
                self._reserved.release(number)
                self._placing.put_again(number, list(stay.gpus), 0)
        self.shrunk.comes(servers)

    # --- jobs that have lost servers

    def recover(self, number: int) -> None:
        """Ask how a job goes on that has just been stopped and joined the queue."""
        state, stay = self._state, self._state.stays_of[number][-1]
        servers = [state.server_of_gpu[gpu] for gpu in stay.gpus]
        gone = Counter(server for server in servers if not state.is_present(server))
        seen = StoppedJob(
            job_id=state.workload[number].job_id,
            num_gpus=len(servers),
            servers=tuple(dict.fromkeys(servers)),
            lost=dict(gone),
            spares={spare: len(self._gpus([spare])) for spare in self.spares},
            racks=state.network.racks,
            now_s=state.now_s,
            can_shrink=self.shrunk.can_shrink(number),
        )
        answer = guarded(f"{self._name}: recover", lambda: self._policy.recover(seen))
        if answer is None:
            self.shrunk.forget(number)
            return
        if not (answer is WAIT or isinstance(answer, int)):
            self._refuse_answer(seen, answer)
        left = state.gpus_on(stay.gpus, set(servers) - set(gone))
        if isinstance(answer, int) and not (seen.can_shrink and 0 < answer <= len(left)):
            raise InvalidDecisionError(
                f"{self._name} answered {answer!r} for job {seen.job_id!r} at {seen.now_s} s; expected GPUs from 1 to "
                f"the {len(left)} left, of a job whose workers all do the same"
            )
        self._leave_queue(number)
        if isinstance(answer, int):
            self.shrunk.shrink(number, answer, stay.gpus, set(gone))
        elif isinstance(answer, Mapping):
            self._take(number, stay, answer)
        else:
            self._waiting[number] = stay, set(gone)
            self._reserved.take(number, left)
            if self._patience_s < MAX_NS / NS_PER_S / 2:
                self._at(state.now_ns + ns_from_s(self._patience_s), lambda: self._give_way(number, stay))

    def _give_way(self, number: int, stay: Residency) -> None:
        """Have a job that still waits give its GPUs back, and queue."""
        if number in self._waiting and self._waiting[number][0] is stay:
            del self._waiting[number]
            self._reserved.release(number)
            self.shrunk.forget(number)
            queue, now = self._state.arrays.queue, self._state.now
            queue[now.num_queued.item(0)] = number
            now.num_queued[0] += 1
            now.must_place[0] = 1

    def _refuse_answer(self, seen: StoppedJob, answer: object) -> None:
        spare_of = answer if isinstance(answer, Mapping) else {}
        good = spare_of.keys() == seen.lost.keys() and len({*spare_of.values()}) == len(spare_of)
        if not good or any(seen.spares.get(spare_of[lost], 0) < gpus for lost, gpus in seen.lost.items()):
            raise InvalidDecisionError(
                f"{self._name} answered {answer!r} for job {seen.job_id!r} at {seen.now_s} s; expected a spare of "
                f"{dict(seen.spares)} for each of the servers that it lost, with its GPUs: {dict(seen.lost)}"
            )

    def _take(self, number: int, stay: Residency, spare_of: Mapping[int, int]) -> None:
        """Put a job on spares in place of the servers that it lost."""
        state = self._state
        restore_gpus(state.arrays, np.array(self._gpus(spare_of.values()), np.int64))
        self.spares = [spare for spare in self.spares if spare not in spare_of.values()]
        self._lacking += len(spare_of)
        new = {lost: iter(self._gpus([spare])) for lost, spare in spare_of.items()}
        gpus = [next(new[server], gpu) if (server := state.server_of_gpu[gpu]) in new else gpu for gpu in stay.gpus]
        self.shrunk.replace(number, {old: now for old, now in zip(stay.gpus, gpus, strict=True) if old != now})
        self._placing.put_again(number, gpus, ns_from_s(self._policy.start_s))

    def _leave_queue(self, number: int) -> None:
        """Take a job out of the queue that has joined it at this instant."""
        queue, num_queued = self._state.arrays.queue, self._state.now.num_queued
        place = int(np.flatnonzero(queue[: num_queued.item(0)] == number)[-1])
        queue[place : num_queued.item(0) - 1] = queue[place + 1 : num_queued.item(0)].copy()
        num_queued[0] -= 1
