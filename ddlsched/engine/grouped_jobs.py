"""Writes the parts of an iteration of jobs of groups into a run's arrays, when such a job gets its GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddlsched.engine.alike import Colours, GroupedDag, Parts, in_order, mixed
from ddlsched.engine.loop.splitting import put_on_network, stand_alone, take_off_network
from ddlsched.engine.run_state import RunState
from ddlsched.engine.sent_in_groups import Crossed, SentInGroups, alike

_ROOM = ("tasks", "ready", "successors", "members", "crossings")


class _Folded(NamedTuple):
    """How a job is simulated now."""

    colours: Colours
    parts: Parts
    sent: SentInGroups
    gpus: np.ndarray
    stands: np.ndarray

    def is_on(self, links: np.ndarray, gpus: Sequence[int] | np.ndarray) -> bool:
        """Return whether it is on one of some GPUs, or on a link that is marked."""
        return bool(links[self.sent.links].any() or np.isin(self.gpus, gpus).any())


class GroupedJobs:
    """The jobs of a run whose workers do different things.

    Attributes
    ----------
    may_fold
        Whether workers, tuples and links that are alike may be simulated as one.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.may_fold = False
        self._dags: dict[tuple[int, int], GroupedDag] = {}
        self._used = {name: len(getattr(state.arrays, name)) for name in _ROOM}
        self._rooms: dict[tuple[int, str], tuple[int, int]] = {}
        self._folded: dict[int, _Folded] = {}

    def part_of(self, number: int, transfer: int) -> int:
        """Return the number of a transfer of a job among the parts of an iteration."""
        state = self._state
        return int(state.tasks.part.item(state.jobs.first_task.item(number) + state.transfers.task.item(transfer)))

    def dag(self, number: int) -> GroupedDag:
        """Return the tasks of a job of groups."""
        job = self._state.workload[number]
        key = id(job.dag), job.num_gpus
        if key not in self._dags:
            self._dags[key] = GroupedDag(job.dag, job.num_gpus)
        return self._dags[key]

    def folds(self, number: int) -> bool:
        """Return whether some of a job's workers may be simulated for others."""
        return self.may_fold and bool(self._state.jobs.grouped.item(number))

    def write(self, number: int) -> None:
        """Write the parts of a job of groups, whose workers and tuples are each by itself; of others do nothing."""
        if self._state.jobs.grouped.item(number) and (number, "tasks") not in self._rooms:
            dag = self.dag(number)
            self._write(number, dag, dag.finest, dag.parts(dag.finest))

    # --- some stand for others

    def fold(self, number: int, gpus: np.ndarray, sent: SentInGroups) -> tuple[Crossed, Parts]:
        """Write the parts of a job that is about to get these GPUs, with as few workers, tuples and links as can be.

        Return them, and the links that their transfers cross.
        """
        state = self._state
        met, known = self._meeting(gpus, sent.links), np.zeros(len(state.arrays.links), np.int64)
        for other in met:
            known[self._folded[other].sent.links] += 1
        workers = in_order(mixed(state.gpus.slowness[gpus], state.gpus.kind[gpus]))
        links = in_order(
            mixed(state.links.relative_bandwidth[sent.links], state.links.bandwidth_bytes_per_s[sent.links])
        )
        workers = _apart(workers, state.gpus.num_residents[gpus] > 0)
        links = _apart(links, state.links.num_jobs[sent.links] > known[sent.links])
        (colours,) = self._tell_apart(met, gpus, np.zeros(0, np.int64), [(sent, Colours(workers, sent.tuples, links))])
        parts = sent.dag.parts(colours)
        self._write(number, sent.dag, colours, parts)
        if not state.jobs.folded.item(number):
            state.now.num_folded[0] += 1
        state.jobs.folded[number] = 1
        self._spread_links(sent.links)
        return self._lead(number, _Folded(colours, parts, sent, gpus, np.zeros(0, np.int64))), parts

    def _meeting(self, gpus: Sequence[int] | np.ndarray, links: np.ndarray) -> list[int]:
        """Return the folded jobs on some GPUs or links, those on the links of these, and so on."""
        state = self._state
        marked = np.zeros(len(state.arrays.links), bool)
        marked[links] = True
        self._folded = {number: held for number, held in self._folded.items() if state.jobs.folded.item(number)}
        met, rest = list[int](), [*self._folded]
        while near := [number for number in rest if self._folded[number].is_on(marked, gpus)]:
            for number in near:
                marked[self._folded[number].sent.links] = True
            met, rest = met + near, [number for number in rest if number not in near]
        return met

    def _tell_apart(
        self,
        met: Sequence[int],
        gpus: Sequence[int] | np.ndarray,
        links: np.ndarray,
        new: Sequence[tuple[SentInGroups, Colours]],
    ) -> list[Colours]:
        """Tell apart what differs in jobs by others on some GPUs and links, and by a new job, whose colours follow."""
        first = []
        for held in (self._folded[number] for number in met):
            workers = _apart(held.colours.workers, np.isin(held.gpus, gpus))
            own_links = _apart(held.colours.links, np.isin(held.sent.links, links))
            first.append((held.sent, Colours(workers, held.colours.tuples, own_links)))
        found = alike([*first, *new])
        finer = {n: own for n, own in zip(met, found, strict=False) if own.counts != self._folded[n].colours.counts}
        self._split(finer)
        for held in (self._folded[number] for number in met if number in self._folded):
            self._state.links.folded[held.sent.links] |= held.stands
        return found[len(met) :]

    def _lead(self, number: int, folded: _Folded) -> Crossed:
        """Write down which links transfers cross or stand for, and which link is simulated for each."""
        state, parts, sent = self._state, folded.parts, folded.sent
        crossed = sent.crossed(parts, folded.colours)
        first = self._take_room(number, "crossings", len(crossed.all_links))
        arrays, jobs = state.arrays, state.jobs
        arrays.crossings.link[first : first + len(crossed.all_links)] = crossed.all_links
        arrays.crossings.share[first : first + len(crossed.all_links)] = crossed.all_shares
        begin, count = jobs.first_transfer.item(number), len(parts.tuple)
        transfers = arrays.transfers[begin : begin + count]
        transfers.first_crossing, transfers.num_crossings = first + crossed.first, crossed.num
        state.links.leader[sent.links] = crossed.leaders
        state.links.leader_busy_ns[sent.links] = state.links.busy_ns[crossed.leaders]
        state.links.folded[sent.links] |= crossed.folded
        self._folded[number] = folded._replace(stands=crossed.folded)
        return crossed

    def split_meeting(self, gpus: Sequence[int], links: np.ndarray) -> None:
        """Tell apart the workers and links of a job that another comes to, and all that differ by that."""
        if self._folded and (met := self._meeting(gpus, links)):
            self._tell_apart(met, gpus, links, [])

    def split_all(self) -> None:
        """Simulate every worker and tuple by itself, as it may matter which of several that are alike goes first."""
        state = self._state
        state.now.doubt[0] = 0
        held = {number: held for number, held in self._folded.items() if state.jobs.folded.item(number)}
        self._split({n: Colours(*(np.arange(len(each)) for each in own.colours)) for n, own in held.items()})
        self._folded.clear()
        state.jobs.folded[[*held]] = 0
        state.now.num_folded[0] -= len(held)

    def _split(self, finer: Mapping[int, Colours]) -> None:
        """Simulate more workers, tuples and links of jobs, from the state of those that stood for them."""
        for number in finer:
            take_off_network(self._state.arrays, number)
        for number in finer:
            self._spread_links(self._folded[number].sent.links)
            self._state.links.folded[self._folded[number].sent.links] = 0
        for number, colours in finer.items():
            self._split_one(number, colours)
        for number in finer:
            put_on_network(self._state.arrays, number)

    def _split_one(self, number: int, colours: Colours) -> None:
        state, jobs, old = self._state, self._state.jobs, self._folded[number]
        first, count = jobs.first_transfer.item(number), jobs.num_transfers.item(number)
        transfers = state.arrays.transfers[first : first + count].copy()
        begin, flags = (self._rooms[number, name][0] for name in ("tasks", "ready"))
        ended = state.arrays.tasks.ended[begin : begin + len(old.parts.task)] == jobs.parity.item(number)
        ready = state.arrays.ready[flags : flags + len(old.parts.task)].copy()
        parts = old.sent.dag.parts(colours)
        self._write(number, old.sent.dag, colours, parts)
        before = _places_before(old, parts)
        begin, flags = (self._rooms[number, name][0] for name in ("tasks", "ready"))
        tasks = state.arrays.tasks[begin : begin + len(parts.task)]
        tasks.ended = np.where(ended[before], jobs.parity.item(number), 1 - jobs.parity.item(number))
        tasks.pending = parts.pending(ended[before])
        tasks.load_ns[parts.num_computes :] = old.sent.planned_of(parts)[2]
        state.arrays.ready[flags : flags + len(parts.task)] = ready[before]
        states = transfers[before[parts.num_computes :] - old.parts.num_computes]
        self._copy_transfers(number, old._replace(colours=colours, parts=parts), states)
        stand_alone(state.arrays, number)
        self._resume(number, parts, before)

    def _copy_transfers(self, number: int, folded: _Folded, states: Any) -> None:
        state, jobs = self._state, self._state.jobs
        first = jobs.first_transfer.item(number)
        transfers = state.arrays.transfers[first : first + len(states)]
        tasks = transfers.task.copy()
        transfers[:] = states
        transfers.task, transfers.others = tasks, folded.parts.copies[folded.parts.num_computes :] - 1
        crossed = self._lead(number, folded)
        begin = state.now.num_entries.item(0)
        state.make_room("entries", begin + len(crossed.links))
        entries = state.arrays.entries[begin : begin + len(crossed.links)]
        entries.link, entries.share = crossed.links, crossed.shares
        entries.transfer = np.repeat(first + np.arange(len(states)), crossed.num_links)
        ends = np.cumsum(crossed.num_links)
        transfers.first_entry, transfers.num_entries = begin + ends - crossed.num_links, crossed.num_links
        transfers.entry_room = crossed.num_links
        state.now.num_entries[0] += len(crossed.links)

    def _spread_links(self, links: np.ndarray) -> None:
        """Give links what those have that stood for them."""
        state = self._state.links
        led = links[state.leader[links] != links]
        leader = state.leader[led]
        state.busy_ns[led] += state.busy_ns[leader] - state.leader_busy_ns[led]
        state.busy_since_ns[led] = state.busy_since_ns[leader]
        state.leader[links] = links

    def _resume(self, number: int, parts: Parts, before: np.ndarray) -> None:
        """Say by their new numbers what workers compute and have ready: the tasks of each are still in one order."""
        state, first = self._state, self._state.jobs.first_worker.item(number)
        workers = state.arrays.workers[first : first + state.jobs.num_gpus.item(number)]
        simulated = np.flatnonzero(workers.leader == first + np.arange(len(workers)))
        starts = np.searchsorted(parts.worker[: parts.num_computes], simulated)
        moved, gpus = starts - before.take(starts, mode="clip"), workers.gpu[simulated]
        # What an idle GPU did last may be a task of another job.
        busy, ready = state.gpus.worker[gpus] == first + simulated, workers.num_ready[simulated] > 0
        state.gpus.task[gpus[busy]] += moved[busy]
        workers.first_ready[simulated[ready]] += moved[ready]

    # --- the arrays

    def _write(self, number: int, grouped: GroupedDag, colours: Colours, parts: Parts) -> None:
        state, jobs = self._state, self._state.jobs
        count, num_transfers = len(parts.task), len(parts.task) - parts.num_computes
        first_successor = self._take_room(number, "successors", len(parts.successors) + len(parts.sources))
        leaders = np.unique(colours.workers, return_index=True)[1]
        first_member = self._take_room(number, "members", len(parts.members) + len(leaders))
        first_task, first_flag = self._take_room(number, "tasks", count), self._take_room(number, "ready", count)
        first_transfer, first_worker = jobs.first_transfer.item(number), jobs.first_worker.item(number)
        arrays = state.arrays
        tasks = arrays.tasks[first_task : first_task + count]
        tasks.dag_task, tasks.part = parts.task, parts.part
        tasks.duration_ns = grouped.durations_ns[parts.task]
        tasks.worker = first_worker + parts.worker
        tasks.transfer, tasks.ended = -1, jobs.parity.item(number)
        tasks.transfer[parts.num_computes :] = first_transfer + np.arange(num_transfers)
        tasks.reduce_predecessors = tasks.pending = parts.predecessors
        tasks.first_successor = first_successor + parts.first_successor[:-1]
        tasks.num_successors = np.diff(parts.first_successor)
        tasks.first_member, tasks.num_members = first_member + parts.first_member, parts.num_members
        whole = np.concatenate([parts.successors, parts.sources])
        arrays.successors[first_successor : first_successor + len(whole)] = whole
        whole = np.concatenate([parts.members, leaders])
        arrays.members[first_member : first_member + len(whole)] = whole
        arrays.ready[first_flag : first_flag + count] = 0
        transfers = arrays.transfers[first_transfer : first_transfer + num_transfers]
        transfers.job, transfers.task = number, parts.num_computes + np.arange(num_transfers)
        transfers.step, transfers.num_crossings = -1, 0
        arrays.position[len(arrays.gpus) + first_transfer :][:num_transfers] = -1
        transfers.others = parts.copies[parts.num_computes :] - 1
        workers = arrays.workers[first_worker : first_worker + jobs.num_gpus.item(number)]
        workers.first_flag, workers.stands_for = first_flag, first_worker + leaders[colours.workers]
        jobs.first_task[number], jobs.num_tasks[number] = first_task, count
        jobs.num_transfers[number] = num_transfers
        jobs.first_source[number] = first_successor + len(parts.successors)
        jobs.num_sources[number] = len(parts.sources)
        jobs.first_leader[number] = first_member + len(parts.members)
        jobs.num_leaders[number] = len(leaders)

    def _take_room(self, number: int, name: str, needed: int) -> int:
        """Return where a job has room in an array for so many; one that is too short grows."""
        first, room = self._rooms.get((number, name), (0, -1))
        if needed > room:
            first = self._used[name]
            self._rooms[number, name] = first, needed
            self._used[name] = first + needed
            self._state.make_room(name, first + needed)
        return first


def _apart(colours: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Return colours of which some that others have, too, are told apart."""
    shared = some & (np.bincount(colours, minlength=1)[colours] > 1)
    return np.where(shared, len(colours) + np.arange(len(colours)), colours)


def _places_before(old: _Folded, parts: Parts) -> np.ndarray:
    """Return for each part of the finest partition the one that stood for it."""
    num_tasks, (workers, tuples, _) = int(parts.task.max()) + 1, old.colours
    num_classes = int(tuples.max()) + 1

    def keys_of(each: Parts) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of computes, then of collectives, by class of worker and task, and by task and class."""
        computes, collectives = np.split(each.task, [each.num_computes])
        of_computes = workers[each.worker[: each.num_computes]] * num_tasks + computes
        return of_computes, collectives * num_classes + tuples[each.tuple]

    (computes, collectives), (finer_computes, finer_collectives) = keys_of(old.parts), keys_of(parts)
    found = np.searchsorted(collectives, finer_collectives) + len(computes)
    return np.concatenate([np.searchsorted(computes, finer_computes), found])
