"""Ranks that share processors with what sends for them: a recording without that, and steps with it.

On two cores two ranks of one thread compute, and beside each a thread of gloo's sends and reduces: four threads. So
while a collective is under way behind computation each of them gets half a processor: both take twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from measured import Line, fitted_line, flights_ns, message_bytes

from ddlsched.training.recorded.rank_steps import RankStep, RankTrace
from ddlsched.workload.dag import ComputeTask, IterationDag, Task

SHARE: Final = 0.5
"""Of a processor, for each of two threads of a rank: two cores for two ranks. Nothing is fitted."""

Stretch = tuple[int, int]


def undisturbed(ranks: Sequence[RankTrace]) -> tuple[list[RankTrace], Line]:
    """Return what ranks would have recorded, and the network, if computing and sending each had its own processors."""
    steps_of = [dict[int, RankStep]() for _ in ranks]
    took_ns = []
    for numbers in zip(*(rank.steps for rank in ranks), strict=True):
        steps = [rank.steps[number] for rank, number in zip(ranks, numbers, strict=True)]
        flights = flights_ns(steps)
        behind = [_behind_computing(step, flights) for step in steps]
        for own, number, step, stretches in zip(steps_of, numbers, steps, behind, strict=True):
            own[number] = _alone(step, stretches)
        shared_ns = np.diff(np.array(behind), axis=2)[:, :, 0].mean(axis=0)
        took_ns.append(np.diff(np.array(flights), axis=1)[:, 0] - (1 - SHARE) * shared_ns)
    alone = [replace(rank, steps=own) for rank, own in zip(ranks, steps_of, strict=True)]
    return alone, fitted_line([(np.array(took_ns) / 1e9, message_bytes(ranks))])


def _behind_computing(step: RankStep, flights: Sequence[Stretch]) -> list[Stretch]:
    """Return, in a rank's compute time, from when until when each collective was under way while it computed."""
    return [(_computed_ns(step, begin), _computed_ns(step, end)) for begin, end in flights]


def _computed_ns(step: RankStep, at_ns: int) -> int:
    """Return the compute time of a rank from the begin of its step to a moment of the clock."""
    since_ns = min(max(at_ns - step.begin_ns, 0), step.wall_ns or 0)
    return since_ns - sum(min(end, since_ns) - begin for begin, end in step.stalls_ns if begin < since_ns)


def _alone(step: RankStep, stretches: Sequence[Stretch]) -> RankStep:
    """Return a step whose computation loses nothing to the collectives behind it."""

    def moved_ns(at_ns: int) -> int:
        shared_ns = sum(max(min(end, at_ns) - begin, 0) for begin, end in stretches)
        return round(at_ns - (1 - SHARE) * shared_ns)

    marks = tuple(replace(mark, at_ns=moved_ns(mark.at_ns)) for mark in step.marks)
    return replace(step, compute_ns=moved_ns(step.compute_ns), marks=marks)


def played_s(dag: IterationDag, network: Line) -> float:
    """Return the time of an iteration, seconds: while it computes and sends at once, both at :data:`SHARE`."""
    left_s = {task.name: _alone_s(task, network) for task in dag.tasks}
    waiting = {task.name: set(task.after) for task in dag.tasks}
    computes = {task.name for task in dag.tasks if isinstance(task, ComputeTask)}
    now_s = 0.0
    while left_s:
        ready = [name for name in left_s if waiting[name].isdisjoint(left_s)]
        both = not computes.isdisjoint(ready) and not computes.issuperset(ready)
        rate = SHARE if both else 1.0
        first = min(ready, key=left_s.__getitem__)
        worked_s = left_s.pop(first)
        now_s += worked_s / rate
        for name in set(ready) - {first}:
            left_s[name] -= worked_s
    return now_s


def _alone_s(task: Task, network: Line) -> float:
    if isinstance(task, ComputeTask):
        return task.duration_ns / 1e9
    return network.latency_s + network.per_byte_s * task.message_bytes
