"""Slurm's backfilling: jobs that wait have servers reserved, and others start beside these."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from algorithms.placement.backfilling import Backfilling, BackfillingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Start
from ddlsched.policies.views import ClusterView, GpuId, JobQueue, JobView
from ddlsched.ranges import LAST_S, ranged
from ddlsched.units import MAX_NS, ns_from_s

Place: TypeAlias = Callable[[JobView, Sequence[JobView]], Sequence[GpuId] | None]
"""Where a job would go now if some running jobs left."""

_TOGETHER_NS = ns_from_s(30)
"""Running jobs that end within so much are taken away together, then within twice as much, and so on."""


class _Reservations:
    """Which GPUs are not reserved, in spans of time that each begin at a time and end with the next; the last never."""

    def __init__(self, now_ns: int, num_gpus: int) -> None:
        self._begins_ns, self._free = [now_ns], [np.ones(num_gpus, bool)]

    def usable(self, from_ns: int, until_ns: int) -> tuple[np.ndarray, int]:
        """Return the GPUs that are not reserved in a time, and from when on others are not; the end of time for never.

        Looked at is only what changes before or just after the time's end.
        """
        usable, later_ns = np.ones_like(self._free[0]), MAX_NS
        first = max(bisect_left(self._begins_ns, from_ns + 1) - 1, 0)
        for place in range(first, len(self._begins_ns)):
            both = usable & self._free[place]
            if later_ns == MAX_NS and place + 1 < len(self._free) and (self._free[place + 1] & ~both).any():
                later_ns = self._begins_ns[place + 1]
            if self._begins_ns[place] > until_ns:
                break
            usable = both
        return np.flatnonzero(usable), later_ns

    def add(self, gpus: Sequence[GpuId], begin_ns: int, end_ns: int) -> bool:
        """Reserve GPUs, unless some are reserved in that time; return whether that was done."""
        spans = self._free[self._split(begin_ns) : self._split(end_ns)]
        may = all(free[list(gpus)].all() for free in spans)
        for free in spans if may else ():
            free[list(gpus)] = False
        return may

    def _split(self, time_ns: int) -> int:
        place = bisect_left(self._begins_ns, time_ns)
        if place == len(self._begins_ns) or self._begins_ns[place] != time_ns:
            self._begins_ns.insert(place, time_ns)
            self._free.insert(place, self._free[place - 1].copy())
        return place


class _SlurmBackfill(Backfilling):
    def __init__(self, policy: SlurmBackfill, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy, cluster, rng)
        self._depth, self._reserved_ns = policy.depth, dict[int, int]()
        self._step_ns, self._horizon_ns = ns_from_s(policy.resolution_s), ns_from_s(policy.horizon_s)

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start those that can, in order, and reserve GPUs for the others."""
        yield from ((job, chosen) for job, chosen, _ in self.start_round(queue, cluster, lambda *_: ()))

    def start_round(
        self, queue: JobQueue, cluster: ClusterView, victims: Callable[[JobView, Place], Sequence[JobView]]
    ) -> Iterator[tuple[JobView, Sequence[GpuId], Sequence[JobView]]]:
        """Yield who starts, where, and who gives way: of a job that could not start, those that ``victims`` says."""
        self._take_note(queue, cluster)
        self._reserved_ns, reserved = {}, _Reservations(cluster.now_ns, cluster.num_gpus)
        for job in queue[: self._depth]:
            chosen, gone = self._start_or_reserve(job, reserved, cluster, victims)
            if chosen is not None:
                for number in (each.number for each in gone):
                    self._held[self._running.pop(number)[0]] = False
                    self._run_ns_of[number] = -1  # it has less left
                yield *self._start(job, chosen, cluster.now_ns), gone

    def reservations_ns(self) -> Mapping[int, int]:
        """Return when jobs that wait are expected to start, by number, nanoseconds."""
        return self._reserved_ns

    def _start_or_reserve(
        self,
        job: JobView,
        reserved: _Reservations,
        cluster: ClusterView,
        victims: Callable[[JobView, Place], Sequence[JobView]],
    ) -> tuple[Sequence[GpuId] | None, Sequence[JobView]]:
        """Return GPUs with which a job starts now, and who gives way; otherwise None, and some may be reserved."""
        now_ns, run_ns = cluster.now_ns, int(self._run_ns_of[job.number])
        from_ns = now_ns
        while from_ns < MAX_NS:
            usable, later_ns = reserved.usable(from_ns, from_ns + run_ns)
            start_ns, chosen = self._earliest(job, usable, from_ns, cluster)
            if chosen is not None and start_ns == now_ns:
                return chosen, ()
            if from_ns == now_ns:

                def place(job: JobView, leaving: Sequence[JobView], usable: np.ndarray = usable) -> Any:
                    known = [(now_ns, each.number) for each in leaving if each.number in self._running]
                    return self._choice(job, usable, known, cluster)

                gone = [each for each in victims(job, place) if each.number in self._running]
                if gone and (instead := place(job, gone)) is not None:
                    return instead, gone
            if chosen is None or start_ns > later_ns:
                from_ns = later_ns
                continue
            begin_ns = max(start_ns // self._step_ns * self._step_ns, now_ns)
            end_ns = -(-(start_ns + run_ns) // self._step_ns) * self._step_ns
            if start_ns > now_ns + self._horizon_ns:
                return None, ()
            if reserved.add(chosen, begin_ns, end_ns):
                self._reserved_ns[job.number] = start_ns
                return None, ()
            from_ns = start_ns if start_ns > from_ns else later_ns
        return None, ()

    def _earliest(
        self, job: JobView, usable: np.ndarray, from_ns: int, cluster: ClusterView
    ) -> tuple[int, Sequence[GpuId] | None]:
        """Return from when, not before a time, a job could have some of the usable GPUs, and which; None for never."""
        if len(usable) < job.num_gpus:
            return MAX_NS, None
        running = [(max(end_ns, cluster.now_ns + 1), number) for number, (_, end_ns) in self._running.items()]
        gone = sorted(each for each in running if each[0] < from_ns)
        if (chosen := self._choice(job, usable, gone, cluster)) is not None:
            return from_ns, chosen
        there = np.isin(np.arange(cluster.num_gpus), usable)
        left = sorted(each for each in running if each[0] >= from_ns and there[self._running[each[1]][0]].any())
        together_ns = _TOGETHER_NS
        first_ns = (left[0][0] // _TOGETHER_NS + 1) * _TOGETHER_NS if left else 0
        while left:
            while left[0][0] > first_ns + together_ns:
                together_ns *= 2
            ending = sum(end_ns <= first_ns + together_ns for end_ns, _ in left)
            gone, left = gone + left[:ending], left[ending:]
            if (chosen := self._choice(job, usable, gone, cluster)) is not None:
                return max(gone[-1][0], from_ns), chosen
        return MAX_NS, None

    def _choice(
        self, job: JobView, usable: np.ndarray, gone: Sequence[tuple[int, int]], cluster: ClusterView
    ) -> Sequence[GpuId] | None:
        """Return the other placement's choice of the usable GPUs once some running jobs have ended."""
        held, leaving = self._held.copy(), []
        for _, number in gone:
            gpus = self._running[number][0]
            held[gpus] = False
            leaving += [each for each in cluster.residents(gpus[0]) if each.number == number]
        after = cluster.without(leaving) if leaving else cluster
        chosen: Sequence[GpuId] | None = self._other.place(job, after.restricted_to(usable[~held[usable]]))
        return chosen


@dataclass(frozen=True, kw_only=True)
class SlurmBackfill(BackfillingPolicy):
    """A job that cannot start has GPUs reserved, in the order of the queue; others start where they delay nobody.

    Reserved is what the placement chooses when enough running jobs have ended, of GPUs that are not reserved for as
    long as the job is expected to run. All reservations are made anew whenever jobs come or go. Beside
    ``slurm-multifactor`` jobs of lower QOS give way to one that cannot start, on GPUs that are not reserved then.

    Parameters
    ----------
    resolution_s
        Reservations begin and end at multiples of it, seconds (bf_resolution).
    horizon_s
        None begins later than this from now, seconds (bf_window).
    depth
        How many of the jobs that wait are looked at (bf_max_job_test).

    References
    ----------
    Slurm 24.11, sched/backfill and select/cons_tres; benchmarks/slurm_decisions.py compares with it.
    """

    resolution_s: float = ranged(60.0, 1e-9, LAST_S)
    horizon_s: float = ranged(86400.0, 0.0, LAST_S, above=True)
    depth: int = ranged(500, 1)

    asked = _SlurmBackfill
