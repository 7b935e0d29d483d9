"""Writes the parts of an iteration of jobs of groups into a run's arrays, when such a job gets its GPUs."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.grouped_parts import GroupedDag, Parts
from ddlsched.engine.records.layout import Columns, make_records
from ddlsched.engine.run_state import RunState

__all__ = ["GroupedJobs"]

_ROOM = ("tasks", "ready", "successors", "members")


class GroupedJobs:
    """The jobs of a run whose workers do different things."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._dags: dict[tuple[int, int], GroupedDag] = {}
        self._used = {name: len(getattr(state.arrays, name)) for name in _ROOM}
        self._rooms: dict[tuple[int, str], tuple[int, int]] = {}

    def part_of(self, number: int, transfer: int) -> int:
        """Return the number of a transfer of a job among the parts of an iteration."""
        state = self._state
        return int(state.tasks.part.item(state.jobs.first_task.item(number) + state.transfers.task.item(transfer)))

    def write(self, number: int) -> None:
        """Write the parts of a job of groups, whose workers and tuples are each by itself; of others do nothing."""
        state, job = self._state, self._state.workload[number]
        if not state.jobs.grouped.item(number) or (number, "tasks") in self._rooms:
            return
        grouped = self._dags.setdefault((id(job.dag), job.num_gpus), GroupedDag(job.dag, job.num_gpus))
        self._write(number, grouped, grouped.parts(grouped.finest))

    def _write(self, number: int, grouped: GroupedDag, parts: Parts) -> None:
        state, jobs = self._state, self._state.jobs
        count, num_transfers = len(parts.task), len(parts.task) - parts.num_computes
        first_successor = self._take_room(number, "successors", len(parts.successors) + len(parts.sources))
        first_member = self._take_room(number, "members", len(parts.members))
        first_task, first_flag = self._take_room(number, "tasks", count), self._take_room(number, "ready", count)
        first_transfer, first_worker = jobs.first_transfer.item(number), jobs.first_worker.item(number)
        arrays = state.arrays
        tasks = arrays.tasks[first_task : first_task + count]
        tasks.dag_task, tasks.part = parts.task, parts.part
        tasks.duration_ns = grouped.durations_ns[parts.task]
        tasks.worker = first_worker + parts.worker
        tasks.transfer = -1
        tasks.transfer[parts.num_computes :] = first_transfer + np.arange(num_transfers)
        tasks.reduce_predecessors = tasks.pending = parts.predecessors
        tasks.first_successor = first_successor + parts.first_successor[:-1]
        tasks.num_successors = np.diff(parts.first_successor)
        tasks.first_member, tasks.num_members = first_member + parts.first_member, parts.num_members
        whole = np.concatenate([parts.successors, parts.sources])
        arrays.successors[first_successor : first_successor + len(whole)] = whole
        arrays.members[first_member : first_member + len(parts.members)] = parts.members
        arrays.ready[first_flag : first_flag + count] = 0
        transfers = arrays.transfers[first_transfer : first_transfer + num_transfers]
        transfers.job, transfers.task = number, parts.num_computes + np.arange(num_transfers)
        transfers.step = -1
        arrays.workers.first_flag[first_worker : first_worker + jobs.num_gpus.item(number)] = first_flag
        jobs.first_task[number], jobs.num_tasks[number] = first_task, count
        jobs.num_transfers[number] = num_transfers
        jobs.first_source[number] = first_successor + len(parts.successors)
        jobs.num_sources[number] = len(parts.sources)

    def _take_room(self, number: int, name: str, needed: int) -> int:
        """Return where a job has room in an array for so many; one that is too short grows."""
        first, room = self._rooms.get((number, name), (0, -1))
        if needed <= room:
            return first
        state, first = self._state, self._used[name]
        self._rooms[number, name] = first, needed
        self._used[name] = first + needed
        array = getattr(state.arrays, name)
        if first + needed > len(array):
            length = max(first + needed, len(array) + len(array) // 2)
            longer = make_records("task", length) if name == "tasks" else np.zeros(length, array.dtype)
            longer[: len(array)] = array
            state.arrays = state.arrays._replace(**{name: longer})
            if name == "tasks":
                state.tasks = Columns(longer)
        return first
