"""A collective of all ranks as ASTRA-sim runs it on several dimensions: phase by phase, each in one of them.

Read in its ``Sys::generate_collective``, with ``"collective-optimization": "localBWAware"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from torus import Torus

from ddlsched.workload.dag import CollectiveTask, IterationDag, Task


class Phase(NamedTuple):
    """A part of a collective, at once in all rings of a dimension; ``message_bytes`` as in its task."""

    kind: str
    dimension: int
    message_bytes: float


def phases_of(kind: str, message_bytes: float, sizes: Sequence[int]) -> list[Phase]:
    """Return the phases of a collective, in order.

    An all-reduce scatters on all dimensions but the last, reduces on that, and gathers on the way back. What is
    gathered goes over the last dimension first, so that the first has the larger parts, as in a reduce-scatter.
    """
    own = [dimension for dimension, size in enumerate(sizes) if size > 1]
    before = {dimension: message_bytes / prod(sizes[:dimension]) for dimension in own}
    if kind == "all-to-all":
        return [Phase(kind, dimension, message_bytes) for dimension in own]
    if kind == "reduce-scatter":
        return [Phase(kind, dimension, before[dimension]) for dimension in own]
    if kind == "all-gather":
        return [Phase(kind, dimension, before[dimension]) for dimension in reversed(own)]
    if kind != "all-reduce":
        raise ValueError(f"{kind} has no phases; expected an all-reduce, all-gather, reduce-scatter or all-to-all")
    *inner, last = own
    scattered = [Phase("reduce-scatter", dimension, before[dimension]) for dimension in inner]
    gathered = [Phase("all-gather", dimension, before[dimension]) for dimension in reversed(inner)]
    return [*scattered, Phase("all-reduce", last, before[last]), *gathered]


def phased(dag: IterationDag, torus: Torus) -> IterationDag:
    """Return an iteration whose collectives, each of all ranks, run in phases on the dimensions of a network."""
    parts = {task.name: _parts(task, torus) if isinstance(task, CollectiveTask) else [task] for task in dag.tasks}
    tasks: list[Task] = []
    for task in dag.tasks:
        after = tuple(parts[name][-1].name for name in task.after)
        for part in parts[task.name]:
            tasks.append(replace(part, after=after))
            after = (part.name,)
    groups = {_group(number): torus.groups(number) for number, size in enumerate(torus.sizes) if size > 1}
    return IterationDag(tuple(tasks), groups)


def _parts(task: CollectiveTask, torus: Torus) -> list[Task]:
    return [
        CollectiveTask(
            name=f"{task.name}, phase {number}",
            kind=phase.kind,
            message_bytes=phase.message_bytes,
            group=_group(phase.dimension),
        )
        for number, phase in enumerate(phases_of(task.kind, task.message_bytes, torus.sizes), 1)
    ]


def _group(dimension: int) -> str:
    return f"dimension {dimension}"
