"""MonkeyTree: best fit by rack, and migration where too many rings leave a rack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np

from algorithms.solving import Solver
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import Start
from ddlsched.policies.views import ClusterView, GpuId, JobQueue, JobView
from ddlsched.ranges import check_fields, ranged
from ddlsched.workload.tasks import CollectiveTask


@dataclass(frozen=True)
class Segment:
    """A part of a job whose rings are its own: all of it, or a pipeline stage.

    Parameters
    ----------
    rings
        How many independent rings it has.
    blocks
        How many of its blocks are in each rack.
    """

    rings: int
    blocks: Mapping[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Blocks in all."""
        return sum(self.blocks.values())

    @property
    def is_fragmented(self) -> bool:
        """Whether it is in more than one rack."""
        return len(self.blocks) > 1


def fragmentation(segments: Sequence[Segment], racks: int) -> list[int]:
    """Return the rings of fragmented segments on each rack."""
    on = [0] * racks
    for segment in segments:
        for rack in segment.blocks if segment.is_fragmented else ():
            on[rack] += segment.rings
    return on


def planned(
    segments: Sequence[Segment], room: Sequence[int], most: int, solver: Solver, now_s: float = 0.0
) -> list[dict[int, int]] | None:
    """Return the blocks of each fragmented segment on each rack, with the fewest moves; None if none was found.

    Whole w: blocks; binary x: presence on a rack; binary y: the rack is its only one; d at least the change of w. The
    sum of d is minimised; all blocks are placed; racks hold their room; the rings of segments with another rack, too,
    are at most ``most`` on each rack.

    Parameters
    ----------
    segments
        The fragmented ones.
    room
        Blocks of each rack that no other segment holds.
    most
        λ, as many as a rack has cables to spines.
    """
    from ortools.math_opt.python import mathopt

    model, racks = mathopt.Model(name="monkeytree"), range(len(room))
    total, moved = mathopt.fast_sum, []
    w = [[model.add_integer_variable(lb=0, ub=min(s.size, room[t])) for t in racks] for s in segments]
    x = [[model.add_binary_variable() for _ in racks] for _ in segments]
    y = [[model.add_binary_variable() for _ in racks] for _ in segments]
    for i, segment in enumerate(segments):
        model.add_linear_constraint(total(w[i]) == segment.size)
        for t in racks:
            model.add_linear_constraint(w[i][t] <= min(segment.size, room[t]) * x[i][t])
            model.add_linear_constraint(x[i][t] <= w[i][t])
            model.add_linear_constraint(y[i][t] <= x[i][t])
            others = total(x[i][u] for u in racks if u != t)
            model.add_linear_constraint(others + (len(room) - 1) * y[i][t] <= len(room) - 1)
            moved.append(_change(model, w[i][t], segment.blocks.get(t, 0), segment.size))
    for t in racks:
        model.add_linear_constraint(total(w[i][t] for i in range(len(segments))) <= room[t])
        cut = total(s.rings * (x[i][t] - y[i][t]) for i, s in enumerate(segments))
        model.add_linear_constraint(cut <= most)
    model.minimize(total(moved))
    values = solver.solve(model, now_s, f"{len(segments)} fragmented segments", is_whole=True)
    if values is None:
        return None
    return [{t: count for t in racks if (count := round(values[row[t]]))} for row in w]


def _change(model: Any, blocks: Any, before: int, most: int) -> Any:
    change = model.add_integer_variable(lb=0, ub=most)
    model.add_linear_constraint(change >= blocks - before)
    model.add_linear_constraint(change >= before - blocks)
    return change


@dataclass(frozen=True, kw_only=True)
class MonkeyTreePlacement:
    """First come, first served, to the rack with the fewest free blocks that holds the job, or else to the emptiest.

    When a job came or left and the rings of jobs on several racks are more than ``spines`` on some rack, blocks of
    these jobs move between racks by the programme of :mod:`algorithms.placement.monkeytree`. A job that moves stops at
    the end of its iteration; its state crosses the network (``--state-mb``). Give ``--path perfect`` for its routing,
    and ``--exclusive``.

    Deviations: a running job moves only to GPUs that are free, so that two jobs cannot swap places; a plan that needs
    it is carried out as far as it can be, and the rest is planned anew at the next event. With ``--order monkeytree``
    jobs do swap, if somebody waits: they stop at once, lose the iteration under way, and start where the plan says.
    Two tiers; for three the paper solves the same once more for pods. Jobs that are no whole blocks take GPUs of the
    last block, the rest of which stays free.

    Parameters
    ----------
    gpus_per_rack
        GPUs are racks in the order of their numbers.
    block_gpus
        GPUs of a block, which a rack has a whole number of.
    spines
        λ: how many rings of fragmented jobs a rack may have.
    moves_jobs
        Whether running jobs move; False: best fit alone.
    time_limit_s
        Of one programme; the best found by then is used.

    References
    ----------
    Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    gpus_per_rack: int = ranged(64, 1, 1_000_000)
    block_gpus: int = ranged(8, 1, 1_000_000)
    spines: int = ranged(16, 1, 1_000_000)
    moves_jobs: bool = True
    time_limit_s: float = ranged(10.0, 0.0, above=True)

    def __post_init__(self) -> None:
        check_fields(self, "monkeytree")
        if self.gpus_per_rack % self.block_gpus:
            expected = f"expected a multiple of block_gpus, {self.block_gpus}"
            raise InputError(f"monkeytree: gpus_per_rack is {self.gpus_per_rack}; {expected}")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _BestFit:
        """Return the blocks of a run.

        Raises
        ------
        InputError
            The cluster is no whole number of racks.
        """
        if cluster.num_gpus % self.gpus_per_rack:
            expected = f"expected a multiple of gpus_per_rack, {self.gpus_per_rack}"
            raise InputError(f"monkeytree: the cluster has {cluster.num_gpus} GPUs; {expected}")
        return _Moving(self, cluster) if self.moves_jobs else _BestFit(self, cluster)


class _BestFit:
    def __init__(self, policy: MonkeyTreePlacement, cluster: Cluster) -> None:
        self._policy = policy
        self._racks = cluster.num_gpus // policy.gpus_per_rack
        self._blocks_per_rack = policy.gpus_per_rack // policy.block_gpus

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start jobs in order until one finds no room."""
        yield from self._in_order(queue, cluster)

    def _in_order(self, jobs: Iterable[JobView], cluster: ClusterView) -> Iterator[Start]:
        for job in jobs:
            free = self._free(job, cluster)
            blocks = _best_fit(free, -(-job.num_gpus // self._policy.block_gpus))
            if blocks is None:
                return
            yield job, self._gpus(blocks)[: job.num_gpus]

    def _free(self, job: JobView, cluster: ClusterView) -> list[list[int]]:
        """Return the free blocks of each rack, ascending."""
        size, free = self._policy.block_gpus, list[list[int]]([] for _ in range(self._racks))
        blocks, counts = np.unique(cluster.eligible(job) // size, return_counts=True)
        for block in blocks[counts == size].tolist():
            if all(cluster.num_residents(gpu) == 0 for gpu in range(block * size, (block + 1) * size)):
                free[block // self._blocks_per_rack].append(block)
        return free

    def _gpus(self, blocks: Sequence[int]) -> list[GpuId]:
        size = self._policy.block_gpus
        return [gpu for block in blocks for gpu in range(block * size, (block + 1) * size)]


def _best_fit(free: Sequence[Sequence[int]], count: int) -> list[int] | None:
    """Return blocks of the fullest rack that has enough, or else of the emptiest racks, one after the other."""
    if sum(map(len, free)) < count:
        return None
    enough = [rack for rack in free if len(rack) >= count]
    if enough:
        return list(min(enough, key=lambda rack: (len(rack), rack))[:count])
    chosen: list[int] = []
    for rack in sorted(free, key=lambda rack: (-len(rack), rack)):
        chosen += rack[: count - len(chosen)]
    return sorted(chosen)


class MigrationPlanner(_BestFit):
    """Where the blocks of running jobs should go, for a placement that moves jobs and an order that stops them."""

    def __init__(self, policy: MonkeyTreePlacement, cluster: Cluster, kind: str) -> None:
        super().__init__(policy, cluster)
        self.solver = Solver(f"{kind} monkeytree", policy.time_limit_s)

    def targets(
        self, held: Mapping[JobView, Sequence[GpuId]], free: list[list[int]], now_s: float, *, swaps: bool
    ) -> dict[int, list[GpuId]]:
        """Return the new GPUs of each job that should move, by its number; none if no rack has too many rings.

        Parameters
        ----------
        held
            The GPUs of each running job.
        free
            The free blocks of each rack, ascending; those that are taken are removed.
        swaps
            Whether blocks that others leave may be taken.
        """
        parts = [part for job, gpus in held.items() for part in self._parts(job, gpus)]
        segments = [Segment(rings, self._by_rack(blocks)) for blocks, rings in parts]
        if not held or max(fragmentation(segments, self._racks)) <= self._policy.spines:
            return {}
        places = [i for i, segment in enumerate(segments) if segment.is_fragmented]
        room = [len(rack) + sum(segments[i].blocks.get(t, 0) for i in places) for t, rack in enumerate(free)]
        plan = planned([segments[i] for i in places], room, self._policy.spines, self.solver, now_s)
        if plan is None:
            return {}
        wanted = {parts[i][0]: to for i, to in zip(places, plan, strict=True)}
        leaving = {blocks: self._leaving(blocks, to) for blocks, to in wanted.items()}
        for block in sorted(block for gone in leaving.values() for block in gone) if swaps else ():
            free[block // self._blocks_per_rack].append(block)
        changes = {blocks: self._after(blocks, leaving[blocks], to, free) for blocks, to in wanted.items()}
        moved = {job: self._moved(job, gpus, changes) for job, gpus in held.items()}
        return {job.number: gpus for job, gpus in moved.items() if sorted(gpus) != sorted(held[job])}

    def _by_rack(self, blocks: Sequence[int]) -> Counter[int]:
        return Counter(block // self._blocks_per_rack for block in blocks)

    def _blocks(self, gpus: Sequence[GpuId]) -> list[int]:
        """Return the blocks of a job, in the order of its workers."""
        return [gpu // self._policy.block_gpus for gpu in gpus[:: self._policy.block_gpus]]

    def _parts(self, job: JobView, gpus: Sequence[GpuId]) -> list[tuple[tuple[int, ...], int]]:
        """Return the blocks of each segment of a job, and how many rings it has."""
        blocks = self._blocks(gpus)
        segments = rings_of(job, self._policy.block_gpus)
        return [(tuple(blocks[place] for place in places), rings) for places, rings in segments]

    def _leaving(self, blocks: Sequence[int], to: Mapping[int, int]) -> list[int]:
        """Return the blocks that a segment leaves, the highest of a rack first."""
        leave: list[int] = []
        for rack, count in self._by_rack(blocks).items():
            own = sorted((block for block in blocks if block // self._blocks_per_rack == rack), reverse=True)
            leave += own[: max(count - to.get(rack, 0), 0)]
        return leave

    def _after(
        self, blocks: Sequence[int], leave: Sequence[int], to: Mapping[int, int], free: list[list[int]]
    ) -> list[int]:
        """Return the blocks of a segment after its move, as far as there are free ones."""
        after, left, there = list(blocks), list(leave), self._by_rack(blocks)
        for rack, count in to.items():
            for _ in range(count - there.get(rack, 0)):
                if left and free[rack]:
                    after[after.index(left.pop(0))] = free[rack].pop(0)
        return after

    def _moved(
        self, job: JobView, gpus: Sequence[GpuId], changes: Mapping[tuple[int, ...], Sequence[int]]
    ) -> list[GpuId]:
        """Return a job's GPUs after its move; within a segment ascending, so that a ring leaves each rack once."""
        blocks = self._blocks(gpus)
        for places, _ in rings_of(job, self._policy.block_gpus):
            own = tuple(blocks[place] for place in places)
            for place, block in zip(places, sorted(changes.get(own, own)), strict=True):
                blocks[place] = block
        return self._gpus(blocks)[: job.num_gpus]


class _Moving(MigrationPlanner):
    def __init__(self, policy: MonkeyTreePlacement, cluster: Cluster) -> None:
        super().__init__(policy, cluster, "placement")
        self._then: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
        self._held: dict[JobView, tuple[GpuId, ...]] = {}

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start again the jobs that the order has stopped, where the plan says; then jobs in order."""
        targets = self._planned_again(queue, cluster) if self._held else {}
        waiting: list[JobView] = []
        for job in queue:
            gpus = targets.get(job.number)
            if gpus is not None and all(cluster.fits(job, gpu) for gpu in gpus):
                self._held[job] = tuple(gpus)
                yield job, gpus
            else:
                waiting.append(job)
        for job, chosen in self._in_order(waiting, cluster):
            self._held[job] = tuple(chosen)
            yield job, chosen

    def _planned_again(self, queue: JobQueue, cluster: ClusterView) -> dict[int, list[GpuId]]:
        """Return the targets that the order had in mind when it stopped jobs: the same programme, solved again."""
        waits = set(queue.numbers.tolist())
        self._held = {job: job.gpus or g for job, g in self._held.items() if job.number in waits or job.gpus}
        stopped = {job: gpus for job, gpus in self._held.items() if job.number in waits}
        if not stopped:
            return {}
        free = self._free(next(iter(stopped)), cluster)
        for gpus in stopped.values():
            for block in self._blocks(gpus):
                if block in free[block // self._blocks_per_rack]:
                    free[block // self._blocks_per_rack].remove(block)
        held = dict(sorted(self._held.items(), key=lambda item: item[0].number))
        old = {job.number: list(gpus) for job, gpus in stopped.items()}
        self._held = {job: gpus for job, gpus in self._held.items() if job not in stopped}
        return old | self.targets(held, free, cluster.now_s, swaps=True)

    def moves(self, running: Sequence[JobView], cluster: ClusterView) -> list[tuple[JobView, list[GpuId]]]:
        """Return the jobs that move into free blocks, and their new GPUs."""
        now = frozenset((job.number, job.gpus) for job in running)
        if now == self._then or not running:
            return []
        self._then = now
        held = {job: job.gpus for job in running}
        targets = self.targets(held, self._free(running[0], cluster), cluster.now_s, swaps=False)
        self._held = held
        return [(job, targets[job.number]) for job in running if job.number in targets]


def rings_of(job: JobView, block_gpus: int) -> list[tuple[tuple[int, ...], int]]:
    """Return, of each segment of a job, the places of its blocks and the number of its independent rings.

    Blocks that an all-reduce or another collective of several joins are one segment. Its rings are as many as the
    tuples of the collective that has the most there which leave a block; a job without groups has one.
    """
    count = -(-job.num_gpus // block_gpus)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    joined: list[list[set[int]]] = []
    for task in job.dag.tasks:
        if not isinstance(task, CollectiveTask) or task.kind == "send":
            continue
        tuples = (tuple(range(job.num_gpus)),) if task.group is None else job.dag.groups[task.group]
        places = [{worker // block_gpus for worker in members} for members in tuples]
        joined.append([blocks for blocks in places if len(blocks) > 1])
        for blocks in joined[-1]:
            nx.add_path(graph, sorted(blocks))
    segments = [tuple(sorted(part)) for part in nx.connected_components(graph)]
    return [
        (part, max((sum(blocks <= set(part) for blocks in of_task) for of_task in joined), default=0))
        for part in sorted(segments)
    ]
