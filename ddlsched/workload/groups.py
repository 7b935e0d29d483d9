"""Groups of a job's workers, and what of an iteration runs in each tuple of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from ddlsched.errors import InputError
from ddlsched.units import is_whole
from ddlsched.workload.tasks import CollectiveTask, Task

__all__ = ["Groups", "TaskPart", "checked_groups", "is_grouped", "parts_of", "refuse_strangers", "workers_of"]

Groups: TypeAlias = Mapping[str, tuple[tuple[int, ...], ...]]
"""For each group's name its tuples of workers."""

MOST_WORKERS = 1_000_000


def workers_of(groups: Iterable[Iterable[Iterable[int]]]) -> set[int]:
    """Return all workers of some groups."""
    return {worker for group in groups for members in group for worker in members}


def checked_groups(groups: Any) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return groups as tuples.

    Raises
    ------
    InputError
        A group is not a list of disjoint lists of workers.
    """
    if not isinstance(groups, Mapping):
        raise InputError(f"groups is {groups!r}; expected a name and a list of lists of workers for each group")
    return {name: _checked_group(name, group) for name, group in groups.items()}


def _checked_group(name: Any, group: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(name, str) or not name:
        raise InputError(f"group {name!r}: the name is no text; expected one that tasks can name")
    if not _is_list(group) or not group or not all(_is_list(members) and members for members in group):
        raise InputError(f"group {name!r}: is {group!r}; expected a list of lists of workers, such as [[0, 1], [2, 3]]")
    seen: set[int] = set()
    for worker in chain.from_iterable(group):
        if not is_whole(worker, 0, MOST_WORKERS):
            raise InputError(f"group {name!r}: worker {worker!r}; expected a whole number from 0")
        if worker in seen:
            raise InputError(f"group {name!r}: worker {worker} occurs twice; expected tuples that share no worker")
        seen.add(worker)
    return tuple(tuple(int(worker) for worker in members) for members in group)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def refuse_strangers(tasks: Sequence[Task], groups: Groups) -> None:
    """Raise InputError for a task of an unknown group, a send not between two, or a wait that never takes place."""
    for task in tasks:
        if task.group is not None and task.group not in groups:
            known = ", ".join(map(repr, groups)) or "there is none"
            raise InputError(f"task {task.name!r}: group is {task.group!r}; expected a group of the job ({known})")
        if isinstance(task, CollectiveTask) and task.kind == "send":
            _refuse_crowds(task, groups)
    workers = {name: workers_of([group]) for name, group in groups.items()}
    named = {task.name: task for task in tasks}
    for task in tasks:
        for before in (named[name] for name in task.after if task.group is not None):
            if before.group is not None and workers[before.group].isdisjoint(workers[str(task.group)]):
                raise InputError(
                    f"task {task.name!r} comes after {before.name!r}, but groups {task.group!r} and {before.group!r} "
                    "share no worker, so that it would not wait; expected a send or another collective between them"
                )


def _refuse_crowds(task: CollectiveTask, groups: Groups) -> None:
    if task.group is None:
        raise InputError(f"task {task.name!r}: a send names no group; expected one whose tuples have two workers")
    for members in groups[task.group]:
        if len(members) != 2:
            raise InputError(
                f"task {task.name!r}: group {task.group!r} has the tuple {list(members)}; "
                "expected two workers in each tuple of a send, the first of which sends"
            )


@dataclass(frozen=True)
class TaskPart:
    """What the simulator handles as one: a compute task, or a collective in one tuple.

    ``task`` is its number in the DAG, ``place`` the tuple's in its group; ``workers`` take part, ascending for a
    compute task, in the tuple's order for a collective.
    """

    task: int
    place: int
    workers: tuple[int, ...]


def parts_of(tasks: Sequence[Task], groups: Groups, num_gpus: int) -> list[TaskPart]:
    """Return the parts of an iteration on so many workers, in the order of tasks and of tuples."""
    parts: list[TaskPart] = []
    for number, task in enumerate(tasks):
        tuples = (tuple(range(num_gpus)),) if task.group is None else groups[task.group]
        if isinstance(task, CollectiveTask):
            parts += [TaskPart(number, place, members) for place, members in enumerate(tuples)]
        else:
            parts.append(TaskPart(number, 0, tuple(sorted(workers_of([tuples])))))
    return parts


def is_grouped(tasks: Sequence[Task], groups: Groups, num_gpus: int) -> bool:
    """Return whether some task is not one of all workers together, so that these may do different things."""
    together = {name for name, tuples in groups.items() if len(tuples) == 1 and len(tuples[0]) == num_gpus}
    return any(task.group is not None and task.group not in together for task in tasks)
