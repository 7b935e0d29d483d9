"""Jobs that lost servers go on: on spares, with fewer GPUs, where they were once repaired, or elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

import numpy as np

from ddlsched.cluster.reliability_doors import WAIT, RecoveryPolicy, StoppedJob
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.field_values import JobState
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus
from ddlsched.engine.loop.from_python import change_free_bytes, plan_move, stop_job
from ddlsched.engine.loop.iterations import go_on
from ddlsched.engine.outcome import Residency
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InvalidDecisionError, guarded, label
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s
from ddlsched.workload.dag import ComputeTask
from ddlsched.workload.elastic_job import ElasticJob

GREW = "went on with all its GPUs"


class ShrunkJobs:
    """Has jobs go on with fewer GPUs, and with all of them once these are there again.

    A job's batch stays as it was: on m of n GPUs its compute tasks take n / m times as long. Either change costs what
    the run's ``rescale_cost`` says, and a start.
    """

    def __init__(self, state: RunState, policies: CheckedPolicies, placing: JobPlacement) -> None:
        self._state, self._policies, self._placing = state, policies, placing
        self._reserved = ReservedGpus(state)
        self._whole: dict[int, tuple[int, ...]] = {}
        self._missing: dict[int, set[int]] = {}
        self._leaving: set[int] = set()
        state.now.asks_moves[0] = 1
        placing.started.append(self._started)
        placing.stopped.append(self.forget)

    def shrink(self, number: int, num_gpus: int, before: Sequence[int], lost: set[int]) -> None:
        """Put a job that has lost servers on some of the GPUs that it had ``before``; its others are kept for it."""
        self._whole.setdefault(number, tuple(before))
        self._missing.setdefault(number, set()).update(lost)
        left = [gpu for gpu in before if self._state.server_of_gpu[gpu] not in lost]
        self._reserved.take(number, left[num_gpus:])
        self._put(number, left[:num_gpus], before, len(before) - len(left))

    def replace(self, number: int, new: Mapping[int, int]) -> None:
        """Note that a job has other GPUs in place of some, on servers that it does not wait for any more."""
        if number in self._whole:
            self._missing[number].difference_update(self._state.server_of_gpu[gpu] for gpu in new)
            self._whole[number] = tuple(new.get(gpu, gpu) for gpu in self._whole[number])

    def forget(self, number: int) -> None:
        """Give a job that has been stopped its whole size again, and others what was kept for it."""
        if number in self._whole:
            self._let_go(number)
            self._resize(number, self._state.workload[number].num_gpus)

    def waits_for(self, server: int) -> bool:
        """Return whether a server that comes back now is kept for a job."""
        return any(server in missing for missing in self._missing.values())

    def goes(self, server: int) -> None:
        """Note that a server fails, perhaps one that is kept for a job."""
        for number, gpus in self._whole.items():
            if any(self._state.server_of_gpu[gpu] == server for gpu in gpus):
                self._missing[number].add(server)

    def comes(self, servers: Iterable[int]) -> None:
        """After servers have come: they are kept for their jobs, which grow when all are there."""
        state = self._state
        for number, missing in self._missing.items():
            back = missing.intersection(servers)
            if back:
                self._reserved.take(number, state.gpus_on(self._whole[number], back))
                missing -= back
                self._grow_soon(number)

    def carry_out(self) -> None:
        """Have jobs grow whose iteration has ended; forget those that have finished."""
        jobs = self._state.jobs
        for number in sorted(self._leaving):
            if jobs.leaving.item(number) == 1:
                continue
            self._leaving.remove(number)
            if jobs.leaving.item(number) == 2 and self._missing.get(number):
                go_on(self._state.arrays, number)  # a server has failed again
            elif jobs.leaving.item(number) == 2:
                self._grow(number)
        for number in [n for n in self._whole if jobs.state.item(n) == JobState.FINISHED]:
            self._let_go(number)

    def _started(self, number: int) -> None:
        if number in self._whole:
            self._grow_soon(number)

    def _grow_soon(self, number: int) -> None:
        """Have a job leave its GPUs at the end of its iteration, if all its servers are there."""
        jobs = self._state.jobs
        runs = jobs.state.item(number) == JobState.RUNNING
        if runs and not self._missing[number] and not jobs.leaving.item(number):
            plan_move(self._state.arrays, number)
            self._leaving.add(number)

    def _grow(self, number: int) -> None:
        state = self._state
        whole, before = self._whole[number], state.stays[state.jobs.stay.item(number)].gpus
        stop_job(state.arrays, number, 1)
        state.end_stay(number, GREW)
        state.now.num_queued[0] -= 1  # it has joined the queue last
        self._let_go(number)
        self._put(number, whole, before, 0)

    def _let_go(self, number: int) -> None:
        """Forget that a job is smaller than it was."""
        self._reserved.release(number)
        del self._whole[number], self._missing[number]

    def _put(self, number: int, gpus: Sequence[int], before: Sequence[int], num_lost: int) -> None:
        """Put a job on GPUs at the price of the change."""
        state = self._state
        self._resize(number, len(gpus))
        other = {"from_batch": 1, "to_batch": 1, "is_first": False, "pending_s": 0.0, "lost_samples": 0}
        change = state.rescale(number, before, gpus, lost_gpus=num_lost, **other)
        self._placing.put_again(number, list(gpus), self._policies.rescale_ns(state.workload[number], change))

    def _resize(self, number: int, num_gpus: int) -> None:
        """Give the records of a job that does not run the size that it has from now on."""
        state, jobs, job = self._state, self._state.jobs, self._state.workload[number]
        first = jobs.first_task.item(number)
        own = slice(first, first + jobs.num_tasks.item(number))
        tasks = state.arrays.tasks[own]
        long = [task.duration_ns if isinstance(task, ComputeTask) else 0 for task in job.dag.tasks]
        tasks["duration_ns"] = [round(each * job.num_gpus / num_gpus) for each in long]
        tasks["pending"] = tasks["compute_predecessors"] * num_gpus + tasks["reduce_predecessors"]
        compute_ns = int(np.sum(tasks["duration_ns"]))
        attained_ns = jobs.service_ns.item(number) - jobs.remaining_service_ns.item(number)
        remaining_ns = jobs.iterations_left.item(number) * compute_ns * num_gpus
        state.refuse_service(number, attained_ns + remaining_ns)
        jobs.num_gpus[number], jobs.compute_ns[number] = num_gpus, compute_ns
        jobs.remaining_service_ns[number], jobs.service_ns[number] = remaining_ns, attained_ns + remaining_ns


class ReservedGpus:
    """Keeps memory of GPUs for jobs; of a GPU that is for one job alone, or where jobs are elastic, the whole."""

    def __init__(self, state: RunState) -> None:
        self._state, self._taken = state, defaultdict[int, list[tuple[int, int]]](list)
        self._alone = state.cluster.exclusive or any(isinstance(job, ElasticJob) for job in state.workload)

    def take(self, number: int, gpus: Iterable[int]) -> None:
        """Keep GPUs for a job."""
        state, known = self._state, {gpu for gpu, _ in self._taken[number]}
        for gpu in gpus:
            if gpu not in known:
                free_bytes = state.gpus.free_bytes.item(gpu) + 1
                taken_bytes = free_bytes if self._alone else state.jobs.memory_bytes.item(number)
                change_free_bytes(state.arrays, gpu, -taken_bytes)
                self._taken[number].append((gpu, taken_bytes))

    def release(self, number: int) -> None:
        """Give back what is kept for a job."""
        for gpu, taken_bytes in self._taken.pop(number, ()):
            change_free_bytes(self._state.arrays, gpu, taken_bytes)


class Recovery:
    """Carries out what a recovery policy says.

    Attributes
    ----------
    spares
        The servers that are held back now, and there.
    shrunk
        The jobs that go on with fewer GPUs.
    waiting
        Those that keep their GPUs until their servers are back, by number: their stays, and these servers.
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
        self.waiting: dict[int, tuple[Residency, set[int]]] = {}
        self._reserved = ReservedGpus(state)
        self._patience_s: float = getattr(policy, "patience_s", inf)

    def hold_back(self) -> None:
        """Before the first event: nobody sees the spares."""
        if self.spares:
            fail_gpus(self._state.arrays, np.array(self._state.gpus_of(self.spares), np.int64), 1)

    # --- servers that go and come

    def goes(self, server: int) -> bool:
        """Return whether a server that fails now is one that jobs may be on; a spare is then one less."""
        if server in self.spares:
            self.spares.remove(server)
            self._lacking += 1
            return False
        self.shrunk.goes(server)
        for stay, lost in self.waiting.values():
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
        return self.shrunk.waits_for(server) or any(server in lost for _, lost in self.waiting.values())

    def resume(self, servers: list[int]) -> None:
        """After servers have come: jobs go on whose servers are all there again; others keep these for themselves."""
        for number, (stay, lost) in list(self.waiting.items()):
            if not lost.intersection(servers):
                continue
            self._reserved.take(number, self._state.gpus_on(stay.gpus, lost.intersection(servers)))
            lost.difference_update(servers)
            if not lost:
                del self.waiting[number]
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
            spares={spare: len(state.gpus_of([spare])) for spare in self.spares},
            racks=state.network.racks,
            now_s=state.now_s,
            can_shrink=not state.jobs.grouped.item(number),  # all its workers do the same
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
            self.waiting[number] = stay, set(gone)
            self._reserved.take(number, left)
            if self._patience_s < MAX_NS / NS_PER_S / 2:
                self._at(state.now_ns + ns_from_s(self._patience_s), lambda: self._give_way(number, stay))

    def _give_way(self, number: int, stay: Residency) -> None:
        """Have a job that still waits give its GPUs back, and queue."""
        if number in self.waiting and self.waiting[number][0] is stay:
            del self.waiting[number]
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
        restore_gpus(state.arrays, np.array(state.gpus_of(spare_of.values()), np.int64))
        self.spares = [spare for spare in self.spares if spare not in spare_of.values()]
        self._lacking += len(spare_of)
        new = {lost: iter(state.gpus_of([spare])) for lost, spare in spare_of.items()}
        gpus = [next(new[server], gpu) if (server := state.server_of_gpu[gpu]) in new else gpu for gpu in stay.gpus]
        self.shrunk.replace(number, {old: now for old, now in zip(stay.gpus, gpus, strict=True) if old != now})
        self._placing.put_again(number, gpus, ns_from_s(self._policy.start_s))

    def _leave_queue(self, number: int) -> None:
        """Take a job out of the queue that has joined it at this instant."""
        queue, num_queued = self._state.arrays.queue, self._state.now.num_queued
        place = int(np.flatnonzero(queue[: num_queued.item(0)] == number)[-1])
        queue[place : num_queued.item(0) - 1] = queue[place + 1 : num_queued.item(0)].copy()
        num_queued[0] -= 1
