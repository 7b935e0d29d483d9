"""A job's iteration alone on a network: when each task runs, and what the iteration waits for.

Each rank has a server, and each server a network card of one speed. Transfers of one job that meet on a card do not
slow each other here; ``ddlsched simulate`` knows better.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from ddlsched.network.collectives import ROUNDS
from ddlsched.ranges import Checked, ranged
from ddlsched.training.recorded.merging import RecordedIteration
from ddlsched.training.recorded.rank_steps import MarkKind
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag

_BITS: Final = 8
_RINGS: Final = ROUNDS | {"all-to-all": 1}
"""How many times (n - 1) / n of a message a rank sends, in as many times n - 1 steps."""


@dataclass(frozen=True, kw_only=True)
class Card(Checked, who="network card"):
    """A network card: its speed in Gbit/s, and the microseconds of a step from rank to rank."""

    gbps: float = ranged(10.0, 0.0, above=True)
    latency_us: float = ranged(0.0, 0.0)

    def alone_ns(self, task: CollectiveTask, num_ranks: int) -> int:
        """Return the time of a collective among so many ranks, nanoseconds."""
        rings = _RINGS.get(task.kind)
        share, steps = (1.0, 1) if rings is None else (rings * (num_ranks - 1) / num_ranks, rings * (num_ranks - 1))
        return ns_from_s(share * task.message_bytes * _BITS / (self.gbps * 1e9) + steps * self.latency_us * 1e-6)


@dataclass(frozen=True, slots=True)
class AloneIteration:
    """When the tasks of an iteration run.

    Parameters
    ----------
    begins_ns, ends_ns
        An entry a task, nanoseconds since the iteration began.
    critical
        Numbers of the tasks on the longest way, in order.
    """

    dag: IterationDag
    begins_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    critical: tuple[int, ...]

    @property
    def iteration_ns(self) -> int:
        """Length of the iteration, nanoseconds."""
        return max(self.ends_ns)

    def length_ns(self, numbers: Sequence[int]) -> int:
        """Return how long some tasks take together, nanoseconds."""
        return sum(self.ends_ns[number] - self.begins_ns[number] for number in numbers)


def timed_alone(dag: IterationDag, num_ranks: int, card: Card) -> AloneIteration:
    """Run an iteration whose tasks each wait for what they come after, and for nothing else."""
    begins, ends = [0] * len(dag.tasks), [0] * len(dag.tasks)
    waited_for: list[int | None] = [None] * len(dag.tasks)
    for number in dag.in_order():
        last = max(dag.predecessors[number], key=ends.__getitem__, default=None)
        begins[number] = 0 if last is None else ends[last]
        ends[number] = begins[number] + _duration_ns(dag, dag.tasks[number], num_ranks, card)
        waited_for[number] = last
    critical, at = [], max(range(len(ends)), key=ends.__getitem__)
    while at is not None:
        critical.append(at)
        at = waited_for[at]  # type: ignore[assignment]
    return AloneIteration(dag, tuple(begins), tuple(ends), tuple(reversed(critical)))


def _duration_ns(dag: IterationDag, task: ComputeTask | CollectiveTask, num_ranks: int, card: Card) -> int:
    if isinstance(task, ComputeTask):
        return task.duration_ns
    return card.alone_ns(task, num_ranks if task.group is None else len(dag.groups[task.group][0]))


def summary(recorded: RecordedIteration, card: Card) -> dict[str, Any]:
    """Return what is in a recorded iteration, with plain values for JSON; times in seconds.

    ``exposed_share_of_iteration`` is the part of the iteration alone in which the rank that computes longest does not;
    ``exposed_share_of_communication`` the same as a part of what that rank's communication takes.
    """
    dag, ranks = recorded.dag, recorded.num_ranks
    alone = timed_alone(dag, ranks, card)
    collectives = [number for number, task in enumerate(dag.tasks) if isinstance(task, CollectiveTask)]
    on_way = [number for number in alone.critical if isinstance(dag.tasks[number], CollectiveTask)]
    exposed_ns = alone.iteration_ns - dag.compute_ns
    communication_ns = alone.length_ns(collectives)
    return {
        "ranks": ranks,
        "classes": [list(each) for each in recorded.classes],
        "steps": recorded.steps,
        "nodes": recorded.nodes,
        "tasks": len(dag.tasks),
        "compute_tasks": len(dag.tasks) - len(collectives),
        "collectives": _by_kind(dag, collectives),
        "compute_s": dag.compute_ns / 1e9,
        "communication_alone_s": communication_ns / 1e9,
        "iteration_alone_s": alone.iteration_ns / 1e9,
        "critical_path_tasks": len(alone.critical),
        "critical_path_communication_s": alone.length_ns(on_way) / 1e9,
        "exposed_share_of_iteration": exposed_ns / alone.iteration_ns,
        "exposed_share_of_communication": exposed_ns / communication_ns if communication_ns else 0.0,
        "variation": variation(recorded),
        "notes": dict(recorded.notes),
    }


def _by_kind(dag: IterationDag, numbers: Sequence[int]) -> list[dict[str, object]]:
    """Return number and bytes of the collectives of each kind and group."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in numbers:
        task = dag.tasks[number]
        assert isinstance(task, CollectiveTask)
        found[task.kind, task.group or "all ranks"].append(task.message_bytes)
    return [
        {"kind": kind, "group": group, "count": len(sizes), "bytes": sum(sizes)}
        for (kind, group), sizes in found.items()
    ]


_QUANTILES = (0.05, 0.5, 0.95)


def variation(recorded: RecordedIteration) -> dict[str, Any]:
    """Return means and quantiles over steps, in seconds, of the class of the first rank.

    ``step_s`` is the time of a whole step, if the traces tell it, ``unrecorded_step_s`` that of steps before them that
    were not recorded, ``lengthening`` by what share recorded ones are longer (medians; None if one of them is not
    told), ``compute_s`` the compute time in a step; each of the ``collectives`` has its bytes and when it became
    ready, in compute time since the step began.
    """
    kinds: Counter[str] = Counter()
    names = []
    for communication in recorded.last.communications:
        kinds[communication.kind] += 1
        names.append(f"{communication.kind}-{kinds[communication.kind]}")
    columns = list(zip(*recorded.moments_ns, strict=True))
    collectives = [
        {
            "name": names[int(mark.what)],
            "input_bytes": recorded.last.communications[int(mark.what)].input_bytes,
            "ready_s": _spread(column),
        }
        for mark, column in zip(recorded.last.marks, columns, strict=False)
        if mark.kind is MarkKind.STARTS
    ]
    step_s, unrecorded_s = (_spread(ns) if ns else None for ns in (recorded.wall_ns, recorded.unrecorded_ns))
    return {
        "step_s": step_s,
        "unrecorded_step_s": unrecorded_s,
        "lengthening": step_s["p50"] / unrecorded_s["p50"] - 1 if step_s and unrecorded_s else None,
        "compute_s": _spread(columns[-1]),
        "collectives": collectives,
    }


def _spread(times_ns: Sequence[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    found = {"mean": fmean(ordered) / 1e9}
    for quantile in _QUANTILES:
        found[f"p{100 * quantile:g}"] = ordered[round(quantile * (len(ordered) - 1))] / 1e9
    return found
