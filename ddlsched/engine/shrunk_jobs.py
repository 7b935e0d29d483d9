"""Jobs of a fixed size that go on with the data-parallel replicas left, until their servers are back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.from_python import stop_job, wake
from ddlsched.engine.loop.iterations import go_on
from ddlsched.engine.loop.state_flows import plan_move
from ddlsched.engine.records.field_values import JobState
from ddlsched.engine.reserved_gpus import ReservedGpus
from ddlsched.engine.run_state import RunState
from ddlsched.workload.dag import ComputeTask
from ddlsched.workload.rescale import Rescale

__all__ = ["ShrunkJobs"]

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

    def can_shrink(self, number: int) -> bool:
        """Return whether all workers of a job do the same."""
        return not self._state.jobs.grouped.item(number)

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
            if jobs.dormant.item(number):
                wake(self._state.arrays, number)
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
        change = Rescale(
            job_id=state.workload[number].job_id,
            time_s=state.now_s,
            from_gpus=len(before),
            to_gpus=len(gpus),
            from_batch=1,
            to_batch=1,
            lost_gpus=num_lost,
            added_gpus=len(set(gpus) - set(before)),
            removed_gpus=len(set(before) - set(gpus)),
            to_servers=len({state.server_of_gpu[gpu] for gpu in gpus}),
            is_first=False,
            pending_s=0.0,
            lost_samples=0,
        )
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
