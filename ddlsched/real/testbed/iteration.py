"""How far a rank is in its iterations: which task is ready when another ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddlsched.workload.dag import ComputeTask, IterationDag

__all__ = ["Compute", "Iterated", "Progress", "Reduce"]


class Compute(NamedTuple):
    """A compute task is ready on a GPU."""

    task: int
    gpu: int


class Reduce(NamedTuple):
    """The rank is ready for an all-reduce."""

    task: int


class Iterated(NamedTuple):
    """An iteration has ended."""

    iteration: int


class Progress:
    """The tasks of one rank: computes run on each of its GPUs, an all-reduce once.

    Parameters
    ----------
    dag
        Of an iteration.
    gpus
        Numbers of the GPUs.
    """

    def __init__(self, dag: IterationDag, gpus: Sequence[int]) -> None:
        self._gpus = tuple(gpus)
        self._numbers = {task.name: number for number, task in enumerate(dag.tasks)}
        self._computes = [isinstance(task, ComputeTask) for task in dag.tasks]
        self._before = [[self._numbers[name] for name in task.after] for task in dag.tasks]
        self._after = dag.successors()
        self.iteration = -1
        self._begin()

    def _begin(self) -> None:
        self.iteration += 1
        self._pending: dict[tuple[int, int | None], int] = {}
        for task, before in enumerate(self._before):
            for lane in self._lanes(task):
                self._pending[task, lane] = sum(self._weight(task, other) for other in before)
        self._left = len(self._pending)

    def _lanes(self, task: int) -> Sequence[int | None]:
        return self._gpus if self._computes[task] else (None,)

    def _weight(self, task: int, before: int) -> int:
        """Return how often an end of the task before is heard: on every GPU if an all-reduce waits for a compute."""
        return len(self._gpus) if self._computes[before] and not self._computes[task] else 1

    def start(self) -> Iterator[Compute | Reduce]:
        """Yield what is ready at the beginning of an iteration."""
        for (task, lane), pending in list(self._pending.items()):
            if pending == 0:
                yield self._event(task, lane)

    def _event(self, task: int, lane: int | None) -> Compute | Reduce:
        return Reduce(task) if lane is None else Compute(task, lane)

    def ended(self, task: int, gpu: int | None = None) -> Iterator[Compute | Reduce | Iterated]:
        """Note that a task has ended (on a GPU; an all-reduce: None); yield what is ready now."""
        self._left -= 1
        for after in self._after[task]:
            lanes = [gpu] if gpu is not None and self._computes[after] else self._lanes(after)
            for lane in lanes:
                self._pending[after, lane] -= 1
                if self._pending[after, lane] == 0:
                    yield self._event(after, lane)
        if self._left == 0:
            yield Iterated(self.iteration)
            self._begin()
