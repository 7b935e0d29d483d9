"""The work of one iteration: a directed acyclic graph of compute and all-reduce tasks.

A :class:`ComputeTask` runs once on every worker (GPU) of the job; an :class:`AllReduceTask` runs once a
job, over all its workers. A compute task waits for its compute predecessors on the same worker; an
all-reduce waits for its compute predecessors on all workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ddlsched.errors import InputError
from ddlsched.units import MAX_MESSAGE_BYTES, MAX_NS, is_whole, ns_from_s, s_from_ns

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["AllReduceTask", "ComputeTask", "DataParallelIteration", "IterationDag", "Task"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeTask:
    """A piece of computation that every worker of the job runs once an iteration.

    Parameters
    ----------
    name
        Unique within the iteration.
    duration_ns
        Time on one GPU, whole nanoseconds, not negative.
    after
        Names of the tasks that must have ended before this one is ready.
    """

    name: str
    duration_ns: int
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_whole(self.duration_ns, 0):
            raise InputError(
                f"task {self.name!r}: duration_ns is {self.duration_ns!r}; expected a whole number from 0 to {MAX_NS}"
            )
        object.__setattr__(self, "duration_ns", int(self.duration_ns))  # one of numpy's would overflow in products
        _refuse_text(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceTask:
    """An all-reduce over all workers of the job, once an iteration.

    Parameters
    ----------
    name
        Unique within the iteration.
    message_bytes
        Size of the reduced tensor, bytes, finite and not negative.
    after
        Names of the tasks that must have ended (on all workers) before this one is ready.
    """

    name: str
    message_bytes: float
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.message_bytes <= MAX_MESSAGE_BYTES:
            raise InputError(
                f"task {self.name!r}: message_bytes is {self.message_bytes}; expected 0 to {MAX_MESSAGE_BYTES:g}"
            )
        _refuse_text(self)


Task: TypeAlias = ComputeTask | AllReduceTask


def _refuse_text(task: Task) -> None:
    if isinstance(task.after, str):
        raise InputError(f"task {task.name!r}: after is {task.after!r}; expected a tuple of names")


@dataclass(frozen=True)
class IterationDag:
    """The tasks of one iteration, numbered by their place in ``tasks``.

    Raises
    ------
    InputError
        No task, two tasks of one name, an unknown predecessor, or a cycle.
    """

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
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
        self._refuse_cycles(numbers)

    def _refuse_cycles(self, numbers: Mapping[str, int]) -> None:
        waiting = [len(task.after) for task in self.tasks]
        successors = self.successors()
        ready = [number for number, count in enumerate(waiting) if count == 0]
        for number in ready:
            for successor in successors[number]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    ready.append(successor)
        if len(ready) < len(self.tasks):
            stuck = next(task.name for number, task in enumerate(self.tasks) if number not in set(ready))
            raise InputError(f"the tasks of the iteration form a cycle through or before {stuck!r}")

    def successors(self) -> list[list[int]]:
        """Return, for each task number, the numbers of the tasks that wait for it."""
        numbers = {task.name: number for number, task in enumerate(self.tasks)}
        result: list[list[int]] = [[] for _ in self.tasks]
        for number, task in enumerate(self.tasks):
            for name in task.after:
                result[numbers[name]].append(number)
        return result

    @property
    def compute_ns(self) -> int:
        """Compute time of one iteration on one worker, nanoseconds."""
        return sum(task.duration_ns for task in self.tasks if isinstance(task, ComputeTask))

    @cached_property
    def overlaps(self) -> bool:
        """Whether a worker may compute while an all-reduce of the same iteration is under way."""
        import networkx as nx

        graph: nx.Graph[object] = nx.DiGraph((name, task.name) for task in self.tasks for name in task.after)
        graph.add_nodes_from(task.name for task in self.tasks)
        computes = {task.name for task in self.tasks if isinstance(task, ComputeTask)}
        reduces = [task.name for task in self.tasks if isinstance(task, AllReduceTask)]
        return any(computes - nx.ancestors(graph, name) - nx.descendants(graph, name) for name in reduces)

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return a graph with a node a task (attributes ``kind`` and the task's own) and an edge a dependency."""
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph()
        for task in self.tasks:
            graph.add_node(task.name, **{k: v for k, v in _task_to_dict(task).items() if k not in ("name", "after")})
        graph.add_edges_from((name, task.name) for task in self.tasks for name in task.after)
        return graph

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph[Any]) -> IterationDag:
        """Build from a graph as :meth:`to_networkx` gives; tasks are numbered in the graph's node order."""
        return cls.from_dicts(
            [
                {"name": str(n), **data, "after": [str(p) for p in graph.predecessors(n)]}
                for n, data in graph.nodes(data=True)
            ]
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the tasks as plain dictionaries for JSON (durations in seconds)."""
        return [_task_to_dict(task) for task in self.tasks]

    @classmethod
    def from_dicts(cls, tasks: Sequence[Mapping[str, Any]]) -> IterationDag:
        """Build from dictionaries as :meth:`to_dicts` gives.

        Raises
        ------
        InputError
            A field is missing, unknown or of the wrong type.
        """
        return cls(tuple(_task_from_dict(task) for task in tasks))


_FIELD_OF_KIND = {"compute": "duration_s", "all-reduce": "message_bytes"}


def _task_to_dict(task: Task) -> dict[str, Any]:
    if isinstance(task, ComputeTask):
        return {
            "name": task.name,
            "kind": "compute",
            "duration_s": s_from_ns(task.duration_ns),
            "after": list(task.after),
        }
    return {"name": task.name, "kind": "all-reduce", "message_bytes": task.message_bytes, "after": list(task.after)}


def _task_from_dict(fields: Mapping[str, Any]) -> Task:
    name, kind, after = fields.get("name"), fields.get("kind"), fields.get("after", [])
    if not isinstance(name, str) or not name:
        raise InputError(f"task: name is {name!r}; expected a text")
    if not isinstance(kind, str) or kind not in _FIELD_OF_KIND:
        raise InputError(f"task {name!r}: kind is {kind!r}; expected 'compute' or 'all-reduce'")
    if not isinstance(after, list) or not all(isinstance(a, str) for a in after):
        raise InputError(f"task {name!r}: after is {after!r}; expected a list of task names")
    field = _FIELD_OF_KIND[kind]
    unknown = set(fields) - {"name", "kind", "after", field}
    if unknown:
        raise InputError(f"task {name!r}: unknown field {min(unknown)!r}; a {kind} task has name, kind, after, {field}")
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"task {name!r}: {field} is {value!r}; expected a finite number >= 0")
    if kind == "compute":
        return ComputeTask(name=name, duration_ns=ns_from_s(value), after=tuple(after))
    return AllReduceTask(name=name, message_bytes=float(value), after=tuple(after))


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
    """

    forward_s: float
    backward_s: float
    message_bytes: float
    buckets: int = 1

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
            reduce = AllReduceTask(name=f"all-reduce{suffix}", message_bytes=message_bytes, after=(before,))
            tasks += [backward, reduce]
        return IterationDag(tuple(tasks))
