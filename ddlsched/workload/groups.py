"""Groups of a job's workers, and what of an iteration runs in each tuple of one, and on which levels of a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from ddlsched.errors import InputError
from ddlsched.units import is_whole
from ddlsched.workload.tasks import CollectiveTask, Task

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
    return len(together) < len(groups) and any(task.group is not None and task.group not in together for task in tasks)


class LevelDemand(NamedTuple):
    """A level in one unit of which all workers of a slice shall be.

    ``part`` is empty for the whole job, a group's name or the first word of some (``tensor`` of ``tensor 0`` and
    ``tensor 1``) for each of their tuples, or a number for each so many workers in their order.
    """

    part: str
    level: str


def demands_of(text: str | None) -> tuple[LevelDemand, ...]:
    """Return the demands of a job's ``required_levels`` or ``preferred_levels``.

    Raises
    ------
    InputError
        The text is none of that.

    Examples
    --------
    >>> demands_of("pod stage:rack 8:server")
    (LevelDemand(part='', level='pod'), LevelDemand(part='stage', level='rack'), LevelDemand(part='8', level='server'))
    """
    demands = [LevelDemand(*item.rpartition(":")[::2]) for item in (text or "").split()]
    for demand in demands:
        if not demand.level or (demand.part.isdecimal() and not int(demand.part)):
            expected = "expected levels between spaces, for a slice with it before a colon, such as 'pod 8:server'"
            raise InputError(f"is {text!r}; {expected}")
    return tuple(demands)


@cache
def whole_levels(text: str | None) -> tuple[str, ...]:
    """Return the levels that demands want of the whole job."""
    return tuple(demand.level for demand in demands_of(text) if not demand.part)


def slices_of(part: str, groups: Mapping[str, Sequence[Sequence[int]]], num_gpus: int) -> list[tuple[int, ...]]:
    """Return the workers of each slice of a part of a job, each worker once; who is in no tuple is one by itself.

    Raises
    ------
    InputError
        The job has no such group, these share workers, or it has no whole number of such slices.
    """
    if not part:
        return [tuple(range(num_gpus))]
    if part.isdecimal():
        if num_gpus % int(part):
            raise InputError(f"has slices of {part} workers; expected a divisor of the job's {num_gpus}")
        return [tuple(range(first, first + int(part))) for first in range(0, num_gpus, int(part))]
    words = {name: name.partition(" ")[0] for name in groups}
    named = [part] if part in groups else [name for name, word in words.items() if word == part]
    tuples = [tuple(members) for name in named for members in groups[name]]
    if not tuples:
        known = ", ".join(dict.fromkeys(words.values())) or "there is none"
        raise InputError(f"has the group {part!r}; expected a group of the job ({known})")
    if len(workers_of([tuples])) < sum(map(len, tuples)):
        raise InputError(f"has the group {part!r}, of whose tuples some share workers; expected one of disjoint tuples")
    alone = sorted(set(range(num_gpus)).difference(*tuples))
    return [*tuples, *((worker,) for worker in alone)]
