"""The tasks of an iteration: what a worker computes, and what workers tell each other.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ddlsched.errors import InputError
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
