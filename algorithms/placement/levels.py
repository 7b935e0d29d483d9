"""Slices of jobs in units of named levels: required, preferred, balanced, best fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ddlsched.errors import InputError
from ddlsched.policies.elastic_views import best_fit
from ddlsched.policies.views import ClusterView, GpuId, JobView, as_list
from ddlsched.ranges import Checked, ranged
from ddlsched.workload.groups import LevelDemand, demands_of, slices_of


@dataclass(frozen=True, kw_only=True)
class Levels(Checked, who="levels"):
    """What a job requires and prefers of the topology's levels, on GPUs without a job; best fit otherwise.

    A job goes to the unit of the narrowest level that holds it, the one with the fewest free GPUs that suffice. Over
    several units it takes as few as can be, those with the most room and the one that fits best for the rest, and fills
    all but the roomiest of them, so that small remainders are used up; so again within each. Of the level that the job
    wants balanced it takes as few units, as evenly as these have room.
    A slice is never torn over units of a level that it requires. Without room for all that it prefers, the job goes
    without the wishes about its largest slices, then without the others; it waits for what it requires.

    Parameters
    ----------
    spare_gpus
        GPUs that stay free in every unit of ``spare_level``, such as 8 of the 72 of a rack.
    spare_level
        Where.

    References
    ----------
    Kueue, "Topology Aware Scheduling" (KEP 2724): from level to level with as few units as can be.
    """

    spare_gpus: int = ranged(0, 0, 1_000_000)
    spare_level: str = "server"

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, in the order of the job's workers, or None to wait."""
        gpus = cluster.free(job)
        if len(gpus) < job.num_gpus:
            return None
        required = demands_of(job.required_levels)
        preferred = sorted(demands_of(job.preferred_levels), key=lambda demand: _size(demand, job))
        for kept in range(len(preferred), -1, -1):
            tree = _Tree(job, cluster, [*required, *preferred[:kept]], self)
            if (chosen := tree.chosen(gpus)) is not None:
                return chosen
        return None


def _size(demand: LevelDemand, job: JobView) -> int:
    return max(map(len, slices_of(demand.part, job.dag.groups, job.num_gpus)))


class _Tree:
    """The levels of a cluster, from GPUs to all of it, and what a job demands of each."""

    def __init__(self, job: JobView, cluster: ClusterView, demands: Sequence[LevelDemand], policy: Levels) -> None:
        names = ["", *cluster.network.levels]
        cluster.network.units(policy.spare_level)  # which refuses an unknown one
        units = [np.arange(cluster.num_gpus), *map(cluster.units, names[1:]), np.zeros(cluster.num_gpus, np.int64)]
        dense = [np.unique(of_level, return_index=True, return_inverse=True)[1:] for of_level in units]
        self._parents = [above[first] for (first, _), (_, above) in pairwise(dense)]
        """At each level but the last, the unit of the level above that each unit is in."""
        self._units = [of_level for _, of_level in dense]
        self._num_gpus = job.num_gpus
        self._balanced = names.index(job.balanced_level or "")
        self._spare = names.index(policy.spare_level), policy.spare_gpus
        slices = [slices_of(demand.part, job.dag.groups, job.num_gpus) for demand in demands]
        self._order = _nested(job, slices)
        self._atoms = [1] * len(units)
        """At each level, the workers of the largest slice that no unit of it may tear."""
        for demand, own in zip(demands, slices, strict=True):
            for level in range(names.index(demand.level), len(units)):
                self._atoms[level] = max(self._atoms[level], len(own[0]))

    def chosen(self, gpus: np.ndarray) -> list[GpuId] | None:
        """Return some of these GPUs for the job, in the order of its workers, or None if they have no room for it."""
        room = self._room(gpus)
        holding = (level for level in range(1, len(room)) if room[level].max() >= self._num_gpus)
        level = next(holding, None)
        if level is None:
            return None
        free = [np.bincount(units[gpus], minlength=len(own)) for units, own in zip(self._units, room, strict=True)]
        fits = np.where(room[level] >= self._num_gpus, room[level], np.iinfo(np.int64).max)
        placed = np.empty(self._num_gpus, np.int64)
        placed[self._order] = self._taken(level, int(np.lexsort((free[level], fits))[0]), self._num_gpus, room, free)
        return placed.tolist()

    def _room(self, gpus: np.ndarray) -> list[np.ndarray]:
        """Return how many workers each unit of each level has room for, in whole slices."""
        room = [np.zeros(len(self._parents[0]), np.int64)]
        room[0][gpus] = 1
        for level, parents in enumerate(self._parents, start=1):
            inside = np.bincount(parents, weights=room[-1]).astype(np.int64)
            if level == self._spare[0]:
                inside = np.maximum(inside - self._spare[1], 0)
            room.append(inside // self._atoms[level] * self._atoms[level])
        return room

    def _taken(
        self, level: int, unit: int, count: int, room: Sequence[np.ndarray], free: Sequence[np.ndarray]
    ) -> list[GpuId]:
        """Return so many GPUs of a unit."""
        inside = np.flatnonzero((self._parents[level - 1] == unit) & (room[level - 1] > 0))
        if level == 1:
            return as_list(inside[:count])
        inside = inside[np.argsort(free[level - 1][inside], kind="stable")]
        atom = self._atoms[level - 1]
        divide = _evenly if level - 1 == self._balanced else _tightly
        shares = divide(
            dict(zip(inside.tolist(), (room[level - 1][inside] // atom).tolist(), strict=True)), count // atom
        )
        return [gpu for each in sorted(shares) for gpu in self._taken(level - 1, each, shares[each] * atom, room, free)]


def _nested(job: JobView, slices: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Return the workers so that those of each slice follow each other."""
    order = np.arange(job.num_gpus)
    wider = np.zeros(job.num_gpus, np.int64)
    for own in sorted(slices, key=lambda own: len(own[0]), reverse=True):
        number = np.empty(job.num_gpus, np.int64)
        for place, workers in enumerate(own):
            number[list(workers)] = place
        torn = any(len(set(wider[list(workers)].tolist())) > 1 for workers in own)
        if torn or len({len(workers) for workers in own}) > 1:
            raise InputError(
                f"levels, job {job.job_id!r}: slices of {len(own[0])} workers differ in length, or lie across larger "
                "ones; expected slices of one length, each in one of those that are larger"
            )
        first = np.array([min(workers) for workers in own])
        order = order[np.lexsort((order, first[number[order]], wider[order]))]
        wider = np.unique(np.stack([wider, number]), axis=1, return_inverse=True)[1].reshape(-1)
    return order


def _tightly(room: Mapping[int, int], count: int) -> dict[int, int]:
    """Return how many each unit gets: as few units as can be, the last fits best; room stays in the roomiest alone."""
    left, missing, shares = dict(room), count, dict[int, int]()
    while missing > 0:
        unit = best_fit(left, missing)
        shares[unit] = left.pop(unit)
        missing -= shares[unit]
    for unit in sorted(shares, key=room.__getitem__):
        shares[unit] = min(room[unit], count)
        count -= shares[unit]
    return shares


def _evenly(room: Mapping[int, int], count: int) -> dict[int, int]:
    """Return how many each unit gets: as few units as can be, each as many as its room allows."""
    units = sorted(room, key=lambda unit: (-room[unit], unit))
    needed = next(n for n in range(1, len(units) + 1) if sum(room[unit] for unit in units[:n]) >= count)
    roomy = [unit for unit in units if room[unit] >= -(-count // needed)]
    chosen = sorted((roomy if len(roomy) >= needed else units[:needed])[-needed:], key=lambda unit: (room[unit], unit))
    shares = dict[int, int]()
    for left, unit in zip(range(needed, 0, -1), chosen, strict=True):
        shares[unit] = min(room[unit], count // left)
        count -= shares[unit]
    return shares
