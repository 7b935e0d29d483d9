"""The work of one iteration: a directed acyclic graph of compute tasks and collectives.

A :class:`ComputeTask` runs once on every worker (GPU) of the job, or of its group; a :class:`CollectiveTask` once in
every tuple of its group, by default once over all workers. A compute task on a worker waits for its compute
predecessors on that worker and for the collectives before it whose tuple has the worker; a collective in a tuple waits
for its compute predecessors on the tuple's workers and for the collectives before it whose tuples share a worker with
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from ddlsched.deferred import nx
from ddlsched.errors import InputError, says_unknown_arguments
from ddlsched.units import ns_from_s
from ddlsched.workload.groups import Groups, checked_groups, refuse_strangers, workers_of
from ddlsched.workload.tasks import AllReduceTask, CollectiveTask, ComputeTask, Task, task_from_dict, task_to_dict

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
        runs = [list(run) for _, run in groupby(self.in_order(), lambda n: isinstance(self.tasks[n], ComputeTask))]
        return not all(map(self._all_wait, runs, runs[1:]))

    def _all_wait(self, earlier: list[int], later: list[int]) -> bool:
        """Return whether all of some tasks wait for all of others, of two runs one behind the other in the order.

        Whoever comes last of the earlier ones can only be waited for directly, by whoever comes first of the later.
        """
        last = set(earlier).difference(*(self.predecessors[number] for number in earlier))
        behind = set(later)
        waited_for = (self.predecessors[number] for number in later)
        return all(last.issubset(before) or not behind.isdisjoint(before) for before in waited_for)

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
