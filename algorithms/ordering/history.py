"""Jobs whose like were short go first: by what finished jobs of the kind took, aged or not (QSSF)."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import JobView
from ddlsched.ranges import Checked, ranged

Kind: TypeAlias = tuple[object, ...]


class FinishedJobs:
    """Counts the finished among the jobs that an order was asked about, by their kinds.

    Parameters
    ----------
    kinds
        The kinds that a job is of.
    took_ns
        What one that has finished took, nanoseconds.
    """

    def __init__(self, kinds: Callable[[JobView], Iterable[Kind]], took_ns: Callable[[JobView], float]) -> None:
        self._kinds, self._took_ns = kinds, took_ns
        self._unfinished: dict[int, JobView] = {}
        self._finished: dict[Kind, tuple[int, float]] = {}
        self._sorted: dict[Kind, list[float]] = {}
        self._looked_s = -1.0

    def look(self, job: JobView, now_s: float) -> None:
        """Take note of a job; once an instant in which one queues, of those that have finished since."""
        if job.iterations_left:
            self._unfinished[job.number] = job
        if not job.servers and now_s != self._looked_s:
            self._looked_s = now_s
            for each in [each for each in self._unfinished.values() if not each.iterations_left]:
                del self._unfinished[each.number]
                own_ns = self._took_ns(each)
                for kind in self._kinds(each):
                    count, total_ns = self.of(kind)
                    self._finished[kind] = count + 1, total_ns + own_ns
                    insort(self._sorted.setdefault(kind, []), own_ns)

    def of(self, kind: Kind, ran_ns: float = 0.0) -> tuple[int, float]:
        """Return how many of a kind took longer than ``ran_ns``, and by how much together, nanoseconds."""
        if not ran_ns:
            return self._finished.get(kind, (0, 0.0))
        took = self._sorted.get(kind, [])
        longer = took[bisect_right(took, ran_ns) :]
        return len(longer), sum(longer) - ran_ns * len(longer)

    def left_ns(self, job: JobView, ran_ns: float = 0.0) -> float:
        """Return what a job that has run so long is expected to have left: of one that has not run, all.

        The mean of the jobs of its narrowest kind that took longer, to which that of the next wider one is added as one
        job more, and so on. To one that has run, as one job more, as long again; nothing else where none of its
        narrowest kind took longer.
        """
        count, left_ns = 0, 0.0
        for kind in self._kinds(job):
            count, total_ns = self.of(kind, ran_ns)
            if count:
                wider = int(kind != ())
                left_ns = (wider * left_ns + total_ns) / (wider + count)
        return (count * left_ns + ran_ns) / (count + 1) if ran_ns else left_ns


@dataclass(frozen=True, kw_only=True)
class ShortByHistory(Checked, who="history"):
    """As if each job had arrived ``patience`` times its expected run time later; knows nobody's iterations before.

    What is expected is the mean of the finished jobs of as many GPUs, the same model and user, to which is added, as
    one job more, the mean of those of as many GPUs and the same model; to that the mean of those of as many GPUs, and
    to that the mean of all. So a kind that nobody has seen is taken for its nearest known one, and without history the
    order is that of arrival.

    A job took its compute and all-reduces alone. It is asked in Python: its history is kept by names.

    Parameters
    ----------
    patience
        Expected run times; 0 is FIFO. A job is behind only those that come within so many of its own after it.

    References
    ----------
    Hu et al., "Characterization and prediction of deep learning workloads in large-scale GPU datacenters", SC 2021,
    section 4.2: what like jobs took tells what a job takes; there without ageing, times GPUs, by a learned model.
    """

    patience: float = ranged(2.0, 0.0, 1e6)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _History:
        """Return the order with an empty history."""
        return _History(self.patience)


class _History:
    compiled: ClassVar[bool] = False

    def __init__(self, patience: float) -> None:
        self._patience, self._jobs = patience, FinishedJobs(kinds_of, took_ns)

    def key(self, job: JobView, now_s: float) -> float:
        """Return the time from which the job counts, nanoseconds."""
        self._jobs.look(job, now_s)
        return job.arrival_ns + self._patience * self._jobs.left_ns(job)


def kinds_of(job: JobView) -> tuple[Kind, ...]:
    """Return the kinds that a job is of, the widest first."""
    whole = job.num_gpus, job.model, job.user
    return whole[:0], whole[:1], whole[:2], whole


def took_ns(job: JobView) -> float:
    """Return how long a placed job has run, its all-reduces taken alone, nanoseconds."""
    return job.attained_service_ns / job.num_gpus * (1.0 + job.communication_ns / max(job.compute_ns, 1))


@dataclass(frozen=True, kw_only=True)
class QuasiShortestServiceFirst:
    """The job of the least predicted compute time x GPUs; knows nobody's iterations.

    The prediction is the mean of what finished jobs of the same user and model computed on each of their GPUs, x the
    job's own GPUs; where none of the kind has finished, of all that have.

    It is asked in Python: its history is kept by the names of users and models.

    References
    ----------
    Hu et al., "Characterization and prediction of deep learning workloads in large-scale GPU datacenters",
    SC 2021, section 4.2 (there with gradient-boosted trees over months of history).
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Predicting:
        """Return the order with an empty history."""
        return _Predicting()


class _Predicting:
    compiled: ClassVar[bool] = False  # its history is kept by user and model, which are texts

    def __init__(self) -> None:
        self._jobs = FinishedJobs(
            lambda job: ((), (job.user, job.model)), lambda job: job.attained_service_ns / job.num_gpus
        )

    def key(self, job: JobView, now_s: float) -> float:
        self._jobs.look(job, now_s)
        alike = self._jobs.of((job.user, job.model))
        count, total_ns = alike if alike[0] else self._jobs.of(())
        return job.num_gpus * (1.0 + total_ns / max(count, 1))
