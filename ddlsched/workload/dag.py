"""The work of one iteration: a directed acyclic graph of compute tasks and collectives.

A :class:`ComputeTask` runs once on every worker (GPU) of the job, or of its group; a :class:`CollectiveTask` once in
every tuple of its group, by default once over all workers. A compute task on a worker waits for its compute
predecessors on that worker and for the collectives before it whose tuple has the worker; a collective in a tuple waits
for its compute predecessors on the tuple's workers and for the collectives before it whose tuples share a worker with
it.

Groups of a job's workers, and what of an iteration runs in each tuple of one, and on which levels of a network.

The tasks of an iteration: what a worker computes, and what workers tell each other.

``message_bytes`` of a collective follows nccl-tests: it is the larger of the buffers that a rank of it has, so that the
bus bandwidths that those print compare. n is the number of ranks, S is ``message_bytes``.

===============  =========================================================  =======================  ================
kind             what S is                                                  a rank sends in a ring   nccl-tests prints
===============  =========================================================  =======================  ================
all-reduce       the tensor that each rank brings, and has reduced after    2 (n - 1) / n S          the same
all-gather       what each rank has after: n parts of S / n                 (n - 1) / n S            the same
reduce-scatter   what each rank brings: n parts of S / n                    (n - 1) / n S            the same
all-to-all       what each rank brings: S / n for each, itself included     (n - 1) / n S            the same
broadcast        what the first rank has and the others get                 S                        S
send             what the first rank sends to the second                    S                        S
===============  =========================================================  =======================  ================
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from ddlsched.deferred import nx
from ddlsched.errors import InputError, says_unknown_arguments
from ddlsched.network.collectives import KINDS
from ddlsched.units import MAX_MESSAGE_BYTES, MAX_NS, is_whole, ns_from_s, s_from_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeTask:
    """A piece of computation that workers of the job run once an iteration.

    Parameters
    ----------
    name
        Unique within the iteration.
    duration_ns
        Time on one GPU, whole nanoseconds, not negative.
    after
        Names of the tasks that must have ended before this one is ready.
    group
        The workers that run it: all that the group of this name lists; by default all of the job.
    """

    name: str
    duration_ns: int
    after: tuple[str, ...] = ()
    group: str | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.duration_ns, 0):
            raise InputError(
                f"task {self.name!r}: duration_ns is {self.duration_ns!r}; expected a whole number from 0 to {MAX_NS}"
            )
        object.__setattr__(self, "duration_ns", int(self.duration_ns))  # one of numpy's would overflow in products
        _refuse_text(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTask:
    """A communication between workers, once an iteration for each tuple of its group.

    Parameters
    ----------
    name
        Unique within the iteration.
    kind
        One of :data:`KINDS`. A broadcast goes out from the first rank of a tuple, a send from the first to the second.
    message_bytes
        S in the table of this module, bytes, finite and not negative.
    group
        Name of the group in whose tuples it runs, in each apart; by default in one of all workers.
    algorithm
        Name of a collective algorithm (``ddlsched list collective``), with parameters if it has any. ``"ring"``: from
        neighbour to neighbour over all ranks; all-to-alls and sends go straight. ``"hierarchical"``: inside each
        server, and between them over the ranks that have the same place in theirs. Where a topology does not state the
        inside of servers, a server counts as one rank, but of all-to-alls and sends.
    after
        Names of the tasks that must have ended, on all workers of the tuple that take part in them, before this one is
        ready.
    """

    name: str
    kind: str
    message_bytes: float
    group: str | None = None
    algorithm: str = "ring"
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"task {self.name!r}: kind is {self.kind!r}; expected one of {', '.join(KINDS)}")
        if not 0 <= self.message_bytes <= MAX_MESSAGE_BYTES:
            raise InputError(
                f"task {self.name!r}: message_bytes is {self.message_bytes}; expected 0 to {MAX_MESSAGE_BYTES:g}"
            )
        if not isinstance(self.algorithm, str) or not self.algorithm:
            raise InputError(f"task {self.name!r}: algorithm is {self.algorithm!r}; expected a collective's name")
        _refuse_text(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceTask(CollectiveTask):
    """An all-reduce over all workers of the job, in a ring, once an iteration.

    Parameters
    ----------
    name
        Unique within the iteration.
    message_bytes
        Size of the reduced tensor, bytes, finite and not negative.
    after
        Names of the tasks that must have ended (on all workers) before this one is ready.
    """

    kind: str = field(default="all-reduce", init=False)
    group: None = field(default=None, init=False)
    algorithm: str = field(default="ring", init=False)


Task: TypeAlias = ComputeTask | CollectiveTask


def _refuse_text(task: Task) -> None:
    if isinstance(task.after, str):
        raise InputError(f"task {task.name!r}: after is {task.after!r}; expected a tuple of names")


def task_to_dict(task: Task) -> dict[str, Any]:
    """Return a task as a plain dictionary for JSON; durations in seconds."""
    after = {"after": list(task.after)}
    group = {} if task.group is None else {"group": task.group}
    if isinstance(task, ComputeTask):
        return {"name": task.name, "kind": "compute", "duration_s": s_from_ns(task.duration_ns)} | group | after
    fields = {"name": task.name, "kind": task.kind, "message_bytes": task.message_bytes}
    algorithm = {} if isinstance(task, AllReduceTask) else {"algorithm": task.algorithm}
    return fields | group | algorithm | after


def task_from_dict(fields: Mapping[str, Any]) -> Task:
    """Return the task that :func:`task_to_dict` gave.

    Raises
    ------
    InputError
        A field is missing, unknown or of the wrong type.
    """
    name, kind, after = fields.get("name"), fields.get("kind"), fields.get("after", [])
    if not isinstance(name, str) or not name:
        raise InputError(f"task: name is {name!r}; expected a text")
    if kind != "compute" and kind not in KINDS:
        raise InputError(f"task {name!r}: kind is {kind!r}; expected one of compute, {', '.join(KINDS)}")
    if not isinstance(after, list) or not all(isinstance(a, str) for a in after):
        raise InputError(f"task {name!r}: after is {after!r}; expected a list of task names")
    amount = "duration_s" if kind == "compute" else "message_bytes"
    optional = ("group",) if kind == "compute" else ("group", "algorithm")
    unknown = set(fields) - {"name", "kind", "after", amount, *optional}
    if unknown:
        known = ", ".join(("name", "kind", "after", amount, *optional))
        raise InputError(f"task {name!r}: unknown field {min(unknown)!r}; a {kind} task has {known}")
    texts = {field: fields[field] for field in optional if field in fields}
    for field_, text in texts.items():
        if not isinstance(text, str):
            raise InputError(f"task {name!r}: {field_} is {text!r}; expected a text")
    value = fields.get(amount)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"task {name!r}: {amount} is {value!r}; expected a finite number >= 0")
    if kind == "compute":
        return ComputeTask(name=name, duration_ns=ns_from_s(value), after=tuple(after), **texts)
    if kind == "all-reduce" and not texts:
        return AllReduceTask(name=name, message_bytes=float(value), after=tuple(after))
    return CollectiveTask(name=name, kind=kind, message_bytes=float(value), after=tuple(after), **texts)


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


__all__ = ["AllReduceTask", "CollectiveTask", "ComputeTask", "DataParallelIteration", "IterationDag", "Task"]


@dataclass(frozen=True)
class IterationDag:
    """The tasks of one iteration, numbered by their place in ``tasks``.

    Parameters
    ----------
    tasks
        At least one.
    groups
        For each group's name its tuples of workers, disjoint, numbered from 0 in the order of the job's GPUs:
        ``{"tensor": ((0, 1), (2, 3))}``.

    Raises
    ------
    InputError
        No task, two tasks of one name, an unknown predecessor, a cycle, a group that is none or that no group of that
        name is, a send whose tuples have not two workers, a task after one with which it shares no worker.
    """

    tasks: tuple[Task, ...]
    groups: Groups = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", checked_groups(self.groups))
        numbers = {task.name: number for number, task in enumerate(self.tasks)}
        if not self.tasks:
            raise InputError("an iteration needs at least one task")
        if len(numbers) < len(self.tasks):
            raise InputError("two tasks of an iteration have the same name")
        for task in self.tasks:
            for name in task.after:
                if name not in numbers:
                    raise InputError(f"task {task.name!r} comes after {name!r}, which is no task of the iteration")
            if len(set(task.after)) < len(task.after):
                raise InputError(f"task {task.name!r} names a predecessor twice")
        refuse_strangers(self.tasks, self.groups)
        if len(order := self.in_order()) < len(self.tasks):
            stuck = next(task.name for number, task in enumerate(self.tasks) if number not in set(order))
            raise InputError(f"the tasks of the iteration form a cycle through or before {stuck!r}")

    def in_order(self) -> list[int]:
        """Return the numbers of the tasks, each behind those that it waits for."""
        waiting, successors = [len(task.after) for task in self.tasks], self.successors()
        order = [number for number, count in enumerate(waiting) if count == 0]
        for number in order:
            for successor in successors[number]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    order.append(successor)
        return order

    def successors(self) -> list[list[int]]:
        """Return, for each task number, the numbers of the tasks that wait for it."""
        result: list[list[int]] = [[] for _ in self.tasks]
        for number, before in enumerate(self.predecessors):
            for earlier in before:
                result[earlier].append(number)
        return result

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For each task number, the numbers of the tasks that it waits for."""
        numbers = {task.name: number for number, task in enumerate(self.tasks)}
        return [[numbers[name] for name in task.after] for task in self.tasks]

    @cached_property
    def compute_ns(self) -> int:
        """Compute time of one iteration on a worker, of those that compute for the longest, nanoseconds."""
        alike_ns, own_ns = self._compute_times_ns
        return alike_ns + max(own_ns.values(), default=0)

    @cached_property
    def message_bytes(self) -> float:
        """Bytes of all collectives of one iteration, those of a group counted for each of its tuples."""
        collectives = [task for task in self.tasks if isinstance(task, CollectiveTask)]
        return sum(
            task.message_bytes * (1 if task.group is None else len(self.groups[task.group])) for task in collectives
        )

    @cached_property
    def num_parts(self) -> tuple[int, int]:
        """How many parts there are, a collective counted for each tuple of its group, and how many collectives."""
        groups = [task.group for task in self.tasks if isinstance(task, CollectiveTask)]
        num_tuples = sum(1 if group is None else len(self.groups[group]) for group in groups)
        return len(self.tasks) - len(groups) + num_tuples, num_tuples

    @cached_property
    def messages(self) -> tuple[float, ...]:
        """The message of each collective, bytes."""
        return tuple(task.message_bytes for task in self.tasks if isinstance(task, CollectiveTask))

    @cached_property
    def collectives(self) -> frozenset[tuple[str, str]]:
        """Kind and algorithm of each collective."""
        return frozenset((task.kind, task.algorithm) for task in self.tasks if isinstance(task, CollectiveTask))

    @cached_property
    def only_rings_of_all(self) -> bool:
        """Whether all collectives are all-reduces over all workers, in rings."""
        return all(isinstance(task, AllReduceTask | ComputeTask) for task in self.tasks)

    @cached_property
    def part_names(self) -> tuple[str, ...]:
        """The name of each compute task, and of a collective in each of its tuples, numbered if there are several."""
        return tuple(name for task in self.tasks for name in self.names_of(task))

    def names_of(self, task: Task) -> list[str]:
        """Return those of a task, a name for each part."""
        if isinstance(task, ComputeTask) or task.group is None or len(self.groups[task.group]) == 1:
            return [task.name]
        return [f"{task.name} {place}" for place in range(len(self.groups[task.group]))]

    def worker_compute_ns(self, num_gpus: int) -> list[int]:
        """Return the compute time of one iteration on each worker of a job, nanoseconds."""
        alike_ns, own_ns = self._compute_times_ns
        return [alike_ns + own_ns.get(worker, 0) for worker in range(num_gpus)]

    def all_compute_ns(self, num_gpus: int) -> int:
        """Return the compute time of one iteration, added up over the workers of a job, nanoseconds."""
        alike_ns, own_ns = self._compute_times_ns
        return alike_ns * num_gpus + sum(own_ns.values())

    @cached_property
    def _compute_times_ns(self) -> tuple[int, dict[int, int]]:
        """Return what every worker computes, and what each worker of groups does besides."""
        of_groups_ns: Counter[str | None] = Counter()
        for task in self.tasks:
            if isinstance(task, ComputeTask):
                of_groups_ns[task.group] += task.duration_ns
        alike_ns, own_ns = of_groups_ns.pop(None, 0), dict.fromkeys(workers_of(self.groups.values()), 0)
        for name, group_ns in of_groups_ns.items():
            for worker in workers_of([self.groups[str(name)]]):
                own_ns[worker] += group_ns
        return alike_ns, own_ns

    @cached_property
    def overlaps(self) -> bool:
        """Whether a worker may compute while a collective of the same iteration is under way."""
        before, after = self.predecessors, self.successors()
        computes = {number for number, task in enumerate(self.tasks) if isinstance(task, ComputeTask)}
        collectives = [number for number, task in enumerate(self.tasks) if isinstance(task, CollectiveTask)]
        return any(computes - _reached(before, number) - _reached(after, number) for number in collectives)

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return a graph with a node a task (attributes ``kind`` and the task's own) and an edge a dependency.

        Its attribute ``groups`` holds the groups.
        """
        graph: nx.DiGraph[str] = nx.DiGraph(groups=self.groups)
        for task in self.tasks:
            graph.add_node(task.name, **{k: v for k, v in task_to_dict(task).items() if k not in ("name", "after")})
        graph.add_edges_from((name, task.name) for task in self.tasks for name in task.after)
        return graph

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph[Any]) -> IterationDag:
        """Build from a graph as :meth:`to_networkx` gives; tasks are numbered in the graph's node order."""
        tasks = [
            {"name": str(name), **data, "after": [str(before) for before in graph.predecessors(name)]}
            for name, data in graph.nodes(data=True)
        ]
        return cls.from_dicts(tasks, graph.graph.get("groups", {}))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the tasks as plain dictionaries for JSON (durations in seconds)."""
        return [task_to_dict(task) for task in self.tasks]

    @classmethod
    def from_dicts(
        cls, tasks: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> IterationDag:
        """Build from dictionaries as :meth:`to_dicts` gives; of ``groups`` lists will do.

        Raises
        ------
        InputError
            A field is missing, unknown or of the wrong type.
        """
        return cls(tuple(task_from_dict(task) for task in tasks), groups or {})  # type: ignore[arg-type]


def _reached(following: Sequence[Sequence[int]], start: int) -> set[int]:
    """Return what is reached from a task by way of what follows each."""
    found: set[int] = set()
    to_do = [start]
    while to_do:
        new = set(following[to_do.pop()]) - found
        found |= new
        to_do += new
    return found


@says_unknown_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallelIteration:
    """Forward, backward, all-reduce: the iteration of synchronous data-parallel training.

    With ``buckets`` k > 1 the backward pass is k equal parts (the remainder of the nanoseconds on the
    last) and the all-reduce of part i, of ``message_bytes`` / k, overlaps the parts after it, as PyTorch
    DistributedDataParallel does.

    Parameters
    ----------
    forward_s, backward_s
        Time of the passes on one GPU, seconds.
    message_bytes
        Gradient bytes a worker contributes each iteration.
    buckets
        Parts into which backward and message are split.
    algorithm
        Name of the collective algorithm of its all-reduces (``ddlsched list collective``).
    """

    forward_s: float
    backward_s: float
    message_bytes: float
    buckets: int = 1
    algorithm: str = "ring"

    @lru_cache(maxsize=4096)  # noqa: B019 - equal iterations of a trace's jobs share one graph
    def dag(self) -> IterationDag:
        """Return the graph of tasks."""
        part_ns, rest_ns = divmod(ns_from_s(self.backward_s), self.buckets)
        suffixes = [""] if self.buckets == 1 else [f"-{i + 1}" for i in range(self.buckets)]
        tasks: list[Task] = [ComputeTask(name="forward", duration_ns=ns_from_s(self.forward_s))]
        before = "forward"
        for i, suffix in enumerate(suffixes):
            last = i == self.buckets - 1
            backward = ComputeTask(name=f"backward{suffix}", duration_ns=part_ns + rest_ns * last, after=(before,))
            before = backward.name
            message_bytes = self.message_bytes / self.buckets
            tasks += [backward, self._all_reduce(f"all-reduce{suffix}", message_bytes, before)]
        return IterationDag(tuple(tasks))

    def _all_reduce(self, name: str, message_bytes: float, before: str) -> CollectiveTask:
        if self.algorithm == "ring":
            return AllReduceTask(name=name, message_bytes=message_bytes, after=(before,))
        kind, algorithm = "all-reduce", self.algorithm
        return CollectiveTask(name=name, kind=kind, message_bytes=message_bytes, algorithm=algorithm, after=(before,))
