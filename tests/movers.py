"""Orders that stop running jobs and placements that move them, for tests; none is a good policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from algorithms.placement.first_fit import FirstFit
from ddlsched.policies.stopping import StopsByKey


@dataclass(frozen=True, kw_only=True)
class StopsLongest(ShortestRemainingTimeFirst, StopsByKey):
    """Shortest remaining time first, also for those that run."""


@dataclass(frozen=True, kw_only=True)
class StopsOnAWhim:
    """First come, first served, but any running job may stop, as the seed and the time say, until ``until_s``."""

    seed: int
    until_s: float

    def key(self, job: Any, now_s: float) -> int:
        number: int = job.arrival_ns
        return number

    def stops(self, running: Sequence[Any], queue: Sequence[Any], cluster: Any) -> list[Any]:
        rng = random.Random(f"{self.seed} {cluster.now_s} {[job.number for job in queue]}")
        return [job for job in running if rng.random() < 0.3 and cluster.now_s < self.until_s]


@dataclass(frozen=True, kw_only=True)
class Whims:
    """Moves any running jobs to any GPUs that have the memory, or that they have, until ``until_s``."""

    seed: int
    until_s: float

    def moves(self, running: Sequence[Any], cluster: Any) -> Iterator[tuple[Any, list[int]]]:
        rng = random.Random(f"{self.seed} {cluster.now_s} {[job.iterations_left for job in running]}")
        taken: set[int] = set()
        for job in running:
            eligible = sorted({*cluster.eligible_gpus(job), *job.gpus} - taken)
            if rng.random() < 0.5 and cluster.now_s < self.until_s and len(eligible) >= job.num_gpus:
                gpus = rng.sample(eligible, job.num_gpus)
                if set(gpus) != set(job.gpus):
                    taken.update(gpus)
                    yield job, gpus


@dataclass(frozen=True, kw_only=True)
class FirstFitAndWhims(FirstFit):
    """First fit, with the moves of another."""

    whims: Whims

    def moves(self, running: Sequence[Any], cluster: Any) -> list[tuple[Any, list[int]]]:
        return list(self.whims.moves(running, cluster))
