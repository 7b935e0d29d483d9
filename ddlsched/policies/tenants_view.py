"""The queues of tenants as admission policies see them, and what such a policy answers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ddlsched.cluster.tenants import ANY_KIND, Tenants
from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobView
from ddlsched.policies.quota_tree import QuotaTree
from ddlsched.policies.view_parts import GpuId, ViewAtAnInstant, text_code, view
from ddlsched.workload.groups import whole_levels

Size: TypeAlias = tuple[int, int, str | None, str | None, str | None]
"""How many GPUs a job needs, the memory on each, bytes, and the levels that it requires, prefers and wants balanced."""


Rank: TypeAlias = tuple[int, int, int]
"""Priority, minus the start, nanoseconds, and number: of a queue's running jobs the lowest gives way first."""


class Victim(NamedTuple):
    """A running job that gives way, and why."""

    job: JobView
    reason: str


class Admission(NamedTuple):
    """A job that may start, on GPUs of a kind, and the running jobs that give way to it.

    ``gpus`` are given by a policy that chooses them itself; otherwise the placement policy is asked.
    """

    job: JobView
    kind: str = ANY_KIND
    victims: tuple[Victim, ...] = ()
    gpus: tuple[GpuId, ...] | None = None


class NotAdmitted(NamedTuple):
    """A job that may not start now, and why; jobs of its queue and :data:`Size` that come later wait behind it."""

    job: JobView
    reason: str


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Who of the jobs that wait may start, and who gives way.

    One that gives the GPUs of every admission says ``chooses_gpus = True``: a placement beside it is refused.
    """

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterable[Admission | NotAdmitted]:
        """Yield the jobs that may start, one after the other, and why others may not.

        Asked at each round of placement. An admission is carried out before the next is asked for: the placement policy
        is asked for GPUs as if the victims had left, and only if it has some do they stop, and the job starts. Whether
        it has is what :meth:`TenantsView.holding` says then.
        """


class HeldQuota(NamedTuple):
    """A running job, its queue, the kind of GPU that its quota is of, and since when it runs, nanoseconds.

    What else is asked of thousands of jobs is here by value: priority, number of GPUs, and arrival and number.
    """

    job: JobView
    queue: str
    kind: str
    since_ns: int
    priority: int
    num_gpus: int
    came: tuple[int, int]

    @classmethod
    def of(cls, job: JobView, kind: str, since_ns: int) -> HeldQuota:
        """Return what a job holds that starts now."""
        return cls(job, str(job.queue), kind, since_ns, job.priority, job.num_gpus, (job.arrival_ns, job.number))


class RunningJobs(dict[int, HeldQuota]):
    """The running jobs of a queue by their numbers, in the order in which they started.

    Attributes
    ----------
    ordered
        The same, first who gives way first.
    changes
        Goes up whenever one starts or leaves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ordered: list[tuple[Rank, HeldQuota]] = []
        self._rows = np.zeros((16, 6), np.int64)
        self.changes = 0

    @property
    def rows(self) -> np.ndarray:
        """The same for compiled code: a rank's three numbers, GPUs, arrival in nanoseconds, :func:`kind_code`."""
        return self._rows[: len(self.ordered)]

    def __setitem__(self, number: int, holding: HeldQuota) -> None:
        super().__setitem__(number, holding)
        rank, count = _rank_of(holding), len(self.ordered)
        place = bisect_left(self.ordered, (rank,))
        self.ordered.insert(place, (rank, holding))
        if count == len(self._rows):
            self._rows = np.concatenate([self._rows, self._rows])
        self._rows[place + 1 : count + 1] = self._rows[place:count]
        self._rows[place] = *rank, holding.num_gpus, holding.came[0], kind_code(holding.kind)
        self.changes += 1

    def __delitem__(self, number: int) -> None:
        holding = self[number]
        super().__delitem__(number)
        place, count = bisect_left(self.ordered, (_rank_of(holding),)), len(self.ordered)
        del self.ordered[place]
        self._rows[place : count - 1] = self._rows[place + 1 : count]
        self.changes += 1


kind_code = cache(text_code)
"""Returns 64 bits by which compiled code tells kinds of GPU apart."""


def _rank_of(holding: HeldQuota) -> Rank:
    return holding.priority, -holding.since_ns, holding.came[1]


class PendingJobs:
    """The jobs that wait, by queue and size, each in the order of priority, arrival and number."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._of: dict[str, dict[Size, list[tuple[int, int, int]]]] = {queue: {} for queue in queues}
        self._views: dict[int, JobView] = {}
        self._sizes: dict[int, Size] = {}
        self._heads: dict[str, Heads] = {}
        self._firsts: list[Heads] | None = None

    def __len__(self) -> int:
        return len(self._views)

    def __contains__(self, number: int) -> bool:
        return number in self._views

    def job(self, number: int) -> JobView:
        """Return a job that waits."""
        return self._views[number]

    def size(self, number: int) -> Size:
        """Return the :data:`Size` of a job that waits."""
        return self._sizes[number]

    def add(self, job: JobView) -> None:
        """Let a job wait."""
        self._views[job.number] = job
        self._sizes[job.number] = size = size_of(job)
        self._forget_heads(str(job.queue))
        insort(self._of[str(job.queue)].setdefault(size, []), _rank(job))

    def remove(self, job: JobView) -> None:
        """Let a job wait no more."""
        size = self._sizes.pop(job.number)
        del self._views[job.number]
        self._forget_heads(str(job.queue))
        sizes = self._of[str(job.queue)]
        ranks = sizes[size]
        del ranks[bisect_left(ranks, _rank(job))]
        if not ranks:
            del sizes[size]

    def _forget_heads(self, queue: str) -> None:
        self._heads.pop(queue, None)
        self._firsts = None

    def heads(self, queue: str, below_priority: int | None = None) -> list[JobView]:
        """Return the first job of each size of a queue, the first of all first; of lower priority than one, if told.

        What lets another of the same size start lets the first start.
        """
        if below_priority is None:
            return self.first(queue).jobs
        lists = self._of[queue].values()
        places = [(ranks, bisect_left(ranks, (1 - below_priority, -1, -1))) for ranks in lists]
        return [self._views[rank[2]] for rank in sorted(ranks[at] for ranks, at in places if at < len(ranks))]

    def first(self, queue: str) -> Heads:
        """Return :meth:`heads`, and what each asks for; the same object until they are others."""
        if (heads := self._heads.get(queue)) is None:
            firsts = sorted((ranks[0], size[0]) for size, ranks in self._of[queue].items())
            jobs = [self._views[rank[2]] for rank, _ in firsts]
            asked = np.array([(gpus, -rank[0], rank[2]) for rank, gpus in firsts], np.int64).reshape(-1, 3)
            self._heads[queue] = heads = Heads(jobs, asked)
        return heads

    def firsts(self) -> list[Heads]:
        """Return :meth:`first` of all queues; the same list until one is another."""
        if self._firsts is None:
            self._firsts = [*map(self.first, self._of)]
        return self._firsts

    def jobs(self, queue: str) -> Iterator[JobView]:
        """Yield all jobs of a queue, the first first."""
        for rank in sorted(rank for ranks in self._of[queue].values() for rank in ranks):
            yield self._views[rank[2]]


class Heads(NamedTuple):
    """The first job of each size of a queue, and the GPUs, the priority and the number of each."""

    jobs: list[JobView]
    asked: np.ndarray


def size_of(job: JobView) -> Size:
    """Return what jobs have in common of which one has a place if another has."""
    return job.num_gpus, job.memory_bytes, job.required_levels, job.preferred_levels, job.balanced_level


def _rank(job: JobView) -> tuple[int, int, int]:
    return -job.priority, job.arrival_ns, job.number


class LevelRoom:
    """How many eligible GPUs each unit of a level has, and where running jobs are, for compiled searches.

    Parameters
    ----------
    cluster
        The cluster as it is at any time.
    num_jobs
        Of the run.

    Attributes
    ----------
    parts, spans
        Of jobs that run, or ran, on each of their servers: its first GPU, and how many GPUs they have there; and by a
        job's number where its own begin and end.
    """

    def __init__(self, cluster: ClusterView, num_jobs: int) -> None:
        self._cluster = cluster
        self._unit_of = cache(lambda level: _units(cluster, level))
        self._level_of = cache(lambda *levels: _narrowest(cluster, *levels))
        self._free: dict[tuple[str, int], np.ndarray] = {}
        self.parts, self.spans, self._end = np.zeros((1024, 2), np.int64), np.zeros((num_jobs, 2), np.int64), 0

    def note(self, number: int, gpus: Sequence[int]) -> bool:
        """Note on which GPUs a job is from now on; return whether that changes where it was."""
        counts = Counter(self._cluster.servers_of(np.array(gpus)).tolist())
        parts = np.array([(self._cluster.gpus_of(server).start, count) for server, count in counts.items()])
        first, end = self.spans[number].tolist()
        if np.array_equal(parts, self.parts[first:end]):
            return False
        if first + len(parts) > end:  # more than it had before
            first, self._end = self._end, self._end + len(parts)
        self.spans[number] = first, end = first, first + len(parts)
        while end > len(self.parts):
            self.parts = np.concatenate([self.parts, self.parts])
        self.parts[first:end] = parts
        return True

    def look_at(self, cluster: ClusterView) -> None:
        """Reckon room anew, in the cluster as it is now."""
        self._cluster = cluster
        self._free.clear()

    def suffices(self, job: JobView, leaving: Sequence[JobView] = ()) -> bool:
        """Return whether a unit of the level that all of a job requires has enough GPUs, with those of who leaves.

        For a job that only prefers a level that unit is the cluster. Otherwise no placement has a place for it.
        """
        if self.level_of(job) is None:
            return True
        units, free = self.of(job)
        if leaving:
            freed = np.array([gpu for each in leaving for gpu in each.gpus], np.int64)
            free = free + np.bincount(units[freed], minlength=len(free))
        return bool(free.max() >= job.num_gpus)

    def level_of(self, job: JobView) -> str | None:
        """Return the narrowest level that all of a job requires, an empty text if it prefers one, None for none."""
        return self._level_of(job.required_levels, job.preferred_levels)

    def of(self, job: JobView) -> tuple[np.ndarray, np.ndarray]:
        """Return the unit of each GPU, of the narrowest level that all of a job requires, and the free GPUs of each.

        For a job that requires none the cluster is one unit.
        """
        level = self.level_of(job) or ""
        (units, count), what = self._unit_of(level), (level, job.memory_bytes)
        if (free := self._free.get(what)) is None:
            self._free[what] = free = np.bincount(units[self._cluster.eligible(job)], minlength=count)
        return units, free


def _narrowest(cluster: ClusterView, required: str | None, preferred: str | None) -> str | None:
    none = "" if preferred else None
    return min(whole_levels(required), key=[*cluster.network.levels].index, default=none)


def _units(cluster: ClusterView, level: str) -> tuple[np.ndarray, int]:
    """Return the unit of each GPU, and how many units there are; without a level all are in one."""
    units = cluster.units(level) if level else np.zeros(cluster.num_gpus, np.int64)
    return units, int(units.max()) + 1


@view
class TenantsView(ViewAtAnInstant):
    """The queues, what they use, who waits and who runs, as an admission policy sees them."""

    _what = "the tenants"

    tenants: Tenants
    """The queues."""
    quotas: QuotaTree
    """What each may use and uses."""
    pending: PendingJobs
    """The jobs that wait."""
    holdings: Mapping[int, HeldQuota]
    """What running jobs hold, by their numbers."""
    _by_queue: Mapping[str, RunningJobs]
    now_ns: int
    """Simulated time, nanoseconds."""
    freed: int
    """Goes up whenever there may be more room than before: while it stays the same, who was refused is again."""
    room: LevelRoom | None = None
    """What room the units of levels have, in a run."""
    left: Sequence[tuple[HeldQuota, int]] = ()
    """Who has left since the policy was last asked, and when, nanoseconds."""
    _place: Callable[[JobView, Sequence[JobView]], Sequence[GpuId] | None] = lambda *_: None

    def holding(self, number: int) -> HeldQuota | None:
        """Return what a running job holds, by its number; None if it does not run."""
        return self.holdings.get(number)

    def running(self, queue: str) -> list[HeldQuota]:
        """Return the running jobs of a queue, in the order in which they started."""
        return list(self._by_queue[queue].values())

    def ordered(self, queue: str) -> Sequence[tuple[Rank, HeldQuota]]:
        """Return the running jobs of a queue, first who gives way first: of low priority, started last."""
        return self._by_queue[queue].ordered

    def changes(self) -> list[int]:
        """Return of each queue a number that goes up whenever one of its jobs starts or leaves."""
        return [running.changes for running in self._by_queue.values()]

    def rows(self, queue: str) -> np.ndarray:
        """Return :attr:`RunningJobs.rows` of a queue."""
        return self._by_queue[queue].rows

    def place(self, job: JobView, leaving: Sequence[JobView] = ()) -> Sequence[GpuId] | None:
        """Return where the run's placement puts a job now, or would if some running jobs left; None if nowhere."""
        return self._place(job, leaving)
