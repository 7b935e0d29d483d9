"""Tenants: a tree of queues, what each is guaranteed of which kind of GPU, and what it may borrow, lend and preempt.

:mod:`ddlsched.cluster.cluster_files` reads one from a file; ``docs/tenants.md`` has an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal

from ddlsched.errors import InputError, UnknownNameError, abbreviated, did_you_mean, says_unknown_arguments
from ddlsched.ranges import Checked, check_fields, ranged

ANY_KIND = "any"
"""The kind of GPU of a quota that holds for all GPUs."""


@dataclass(frozen=True, kw_only=True)
class Quota(Checked, who="quota"):
    """How many GPUs of one kind a queue has.

    Parameters
    ----------
    gpus
        Guaranteed, from 0.
    borrowing_limit
        How many more it may use that others of its group leave; by default any number.
    lending_limit
        How many of its own it lends at most; by default all.
    """

    gpus: int = ranged(0, 0)
    borrowing_limit: int | None = ranged(None, 0)
    lending_limit: int | None = ranged(None, 0)


@dataclass(frozen=True, kw_only=True)
class Preemption(Checked, who="preemption"):
    """Whom the jobs of a queue may preempt: none, those of lower priority, those too that came later with it, or all.

    Parameters
    ----------
    within_queue
        Of the same queue, for a job of higher priority that does not fit.
    reclaim
        Of queues of the same tree that have borrowed, for GPUs that this queue is guaranteed.
    borrow
        Of such queues, even if this queue borrows with the job: only jobs of lower priority, or none.
    borrow_max_priority
        With ``borrow``: none above this priority.
    """

    within_queue: Literal["never", "lower-priority", "lower-or-newer"] = "never"
    reclaim: Literal["never", "lower-priority", "lower-or-newer", "any"] = "never"
    borrow: Literal["never", "lower-priority"] = "never"
    borrow_max_priority: int | None = ranged(None, -(2**31))


@says_unknown_arguments
@dataclass(frozen=True, kw_only=True)
class Queue:
    """A tenant's queue; or a group of queues, if others name it as their parent.

    Parameters
    ----------
    name
        Unique.
    parent
        The group it belongs to, if any: the queues of a tree lend to each other.
    quotas
        By the kind of GPU, in the order in which they are tried; ``any`` alone where kinds do not matter. A group's are
        on top of those of its queues.
    weight
        Its share of what is not guaranteed, from 0.
    order
        ``strict``: nobody starts before the first job of the queue; ``best-effort``: one that fits may.
    preemption
        Whom its jobs may preempt.
    """

    name: str
    parent: str | None = None
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    weight: float = ranged(1.0, 0.0)
    order: Literal["best-effort", "strict"] = "best-effort"
    preemption: Preemption = Preemption()

    def __post_init__(self) -> None:
        check_fields(self, f"queue {self.name!r}")
        if not isinstance(self.parent, str | None):
            raise InputError(f"queue {self.name!r}: parent is {abbreviated(self.parent)}; expected a queue's name")
        if ANY_KIND in self.quotas and len(self.quotas) > 1:
            raise InputError(f"queue {self.name!r}: has quotas of {ANY_KIND!r} and of kinds; expected one of the two")


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """The queues of a cluster.

    Parameters
    ----------
    queues
        In the order by which ties are broken.

    Raises
    ------
    InputError
        No queue, a name twice, a circle of parents, or kinds of GPU beside ``any``.
    UnknownNameError
        A parent that is no queue.

    Examples
    --------
    >>> from ddlsched import Queue, Quota, Tenants
    >>> half = {"any": Quota(gpus=32)}
    >>> group = Queue(name="all")
    >>> Tenants(queues=(group, *(Queue(name=name, parent="all", quotas=half) for name in "ab"))).leaves
    ('a', 'b')
    """

    queues: tuple[Queue, ...]

    def __post_init__(self) -> None:
        if not self.queues:
            raise InputError("queues: holds none; expected at least one")
        for queue in self.queues:
            if self.by_name[queue.name] is not queue:
                raise InputError(f"queue {queue.name!r}: is there twice; expected unique names")
            if queue.parent is not None and queue.parent not in self.by_name:
                hint = did_you_mean(queue.parent, self.by_name)
                raise UnknownNameError(f"queue {queue.name!r}: no queue is named {queue.parent!r}, its parent.{hint}")
        for queue in self.queues:
            if len(list(islice(self.path(queue.name), len(self.queues) + 1))) > len(self.queues):
                raise InputError(f"queue {queue.name!r}: is above itself; expected parents that form a tree")
        if ANY_KIND in self.kinds and len(self.kinds) > 1:
            raise InputError(
                f"queues: quotas of the kinds {', '.join(self.kinds)}; expected {ANY_KIND!r} in all or none"
            )

    @cached_property
    def by_name(self) -> dict[str, Queue]:
        """Each queue by its name; of two of a name the last."""
        return {queue.name: queue for queue in self.queues}

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The queues that jobs are submitted to: those that are nobody's parent."""
        parents = {queue.parent for queue in self.queues}
        return tuple(queue.name for queue in self.queues if queue.name not in parents)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of GPU of all quotas."""
        return tuple(dict.fromkeys(kind for queue in self.queues for kind in queue.quotas))

    def path(self, name: str) -> Iterator[Queue]:
        """Yield a queue and those above it."""
        above: str | None = name
        while above is not None:
            queue = self.by_name[above]
            yield queue
            above = queue.parent

    def refuse_others(self, where: str, job_id: str, queue: str | None) -> None:
        """Refuse a job's queue unless it is one of :attr:`leaves`; ``where`` is the job's place in its file.

        Raises
        ------
        InputError
            With the near matches.
        """
        if queue in self.leaves:
            return
        hint = did_you_mean(queue, self.leaves) if queue is not None else f" The queues are {', '.join(self.leaves)}."
        told = "has no queue" if queue is None else f"has the queue {queue!r}"
        raise InputError(f"{where}: job {job_id!r} {told}; expected a queue of the run without others below.{hint}")
