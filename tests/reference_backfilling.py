"""Placements that know who waits, once more: the reference simulator's, simple and slow.

Jobs have GPUs to themselves and are expected to run for their time limits; GPUs are taken first fit. What may start is
found by trying it: with the job started, would the first of the queue be expected to start later?
"""

from __future__ import annotations

from typing import Any

NAMES = ("in-order", "easy-backfill", "conservative-backfill")
NEVER = float("inf")


class Waiting:
    """What a placement of one of these names remembers: reservations, by job."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reserved: dict[Any, float] = {}

    def begin_round(self, simulation: Any, queue: list[Any]) -> None:
        """Plan anew in the order of the reservations that jobs have, then those that have none."""
        self.queue = queue
        order = sorted(queue, key=lambda state: self.reserved.get(state, NEVER))
        self.reserved = {}
        planned = running(simulation)
        there = sum(simulation.server(gpu) not in simulation.down for gpu in range(simulation.cluster.num_gpus))
        for state in order:
            free_later = sorted({simulation.now_ns} | {end for _, end, _ in planned})
            starts = [t for t in free_later if fits(state, t, planned, there)]
            if starts:
                self.reserved[state] = starts[0]
                planned.append((starts[0], starts[0] + limit_ns(state), state.job.num_gpus))

    def gpus_for(self, simulation: Any, state: Any, gpus: list[int]) -> list[int]:
        """The GPUs on which a job starts now, of those with the memory; too few if it does not."""
        first = next(other for other in self.queue if not other.gpus)
        if self.name == "in-order":
            return gpus[: state.job.num_gpus] if state is first else []
        chosen = [gpu for gpu in gpus if not any(gpu in other.gpus for other in simulation.residents)]
        chosen = chosen[: state.job.num_gpus]
        if self.name == "conservative-backfill":
            return chosen if self.reserved.get(state) == simulation.now_ns else []
        if state is first or len(chosen) < state.job.num_gpus:
            return chosen
        taken = {gpu: simulation.now_ns + limit_ns(state) for gpu in chosen}
        return [] if start_ns(simulation, first, taken) > start_ns(simulation, first, {}) else chosen


def limit_ns(state: Any) -> int:
    return round(state.job.time_limit_s * 1e9)


def running(simulation: Any) -> list[tuple[float, float, int]]:
    """From when to when each running job is expected to have how many GPUs; one that is overdue ends now."""
    now_ns = simulation.now_ns
    return [(0, max(s.placed_ns + limit_ns(s), now_ns), s.job.num_gpus) for s in simulation.residents]


def fits(state: Any, from_ns: float, planned: list[tuple[float, float, int]], there: int) -> bool:
    """Whether at no time of its run others are expected to have too many GPUs; that rises only where one starts."""
    to_ns = from_ns + limit_ns(state)
    times = [from_ns, *(start for start, _, _ in planned if from_ns < start < to_ns)]
    used = [sum(count for start, end, count in planned if start <= t < end) for t in times]
    return max(used) + state.job.num_gpus <= there


def start_ns(simulation: Any, first: Any, taken: dict[int, int]) -> float:
    """When the first of the queue is expected to start, if some more GPUs are taken until some time."""
    ends = taken | {
        gpu: max(s.placed_ns + limit_ns(s), simulation.now_ns) for s in simulation.residents for gpu in s.gpus
    }
    there = [gpu for gpu in range(simulation.cluster.num_gpus) if simulation.server(gpu) not in simulation.down]
    enough = [gpu for gpu in there if simulation.cluster.gpu_memory_bytes[gpu] >= first.job.gpu_memory_bytes]
    for time_ns in sorted({simulation.now_ns, *ends.values()}):
        if sum(ends.get(gpu, 0) <= time_ns for gpu in enough) >= first.job.num_gpus:
            return time_ns
    return NEVER
