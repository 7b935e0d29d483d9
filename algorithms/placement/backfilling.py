"""EASY backfilling, and what placements share that leave the choice of GPUs to another and plan ahead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, InvalidDecisionError, label
from ddlsched.plugins.names import resolve
from ddlsched.policies.choosing import begun_placement
from ddlsched.policies.doors import PlacementPolicy, Start
from ddlsched.policies.views import ClusterView, GpuId, JobQueue, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import MAX_NS, ns_from_s
from ddlsched.workload.dag import CollectiveTask


class PlacesOthers:
    """During a run: another policy, which chooses GPUs.

    Raises
    ------
    InputError
        The other policy decides about the whole queue itself.
    """

    def __init__(self, policy: OfAnother, cluster: Cluster, rng: np.random.Generator) -> None:
        self._other = begun_placement(policy.placement, cluster, rng)

    def wake_s(self, now_s: float) -> float | None:
        """Return when the other policy wants to be asked again."""
        return self._other.wake_s(now_s) if hasattr(self._other, "wake_s") else None


@dataclass(frozen=True, kw_only=True)
class OfAnother(Checked):
    """A policy that another placement, ``placement``, is given to; ``asked`` is what goes by it during a run."""

    placement: PlacementPolicy | str = "first-fit"
    asked: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve("placement", self.placement)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return the policy with the other one begun, and what it knows of the queue and of running jobs."""
        return self.asked(self, cluster, rng)


@dataclass(frozen=True, kw_only=True)
class BackfillingPolicy(OfAnother, who="backfilling"):
    """What every backfilling policy is given.

    A GPU is free if the policy has no running job on it: jobs have their GPUs for themselves. Not meant for runs with
    elastic jobs, which take GPUs past the placement policy; theirs count as absent.

    Parameters
    ----------
    placement
        Chooses among free GPUs.
    error_sigma
        None: a job is expected to run for its ``time_limit_s``, which every job must have. A number: for its time
        without contention x the exponential of a normal error with mean 0 and this standard deviation, drawn once
        a job. The time without contention is that of compute and all-reduces, one after the other, on as few servers
        as can be, at relative speed 1.

    Raises
    ------
    InputError
        No such placement, or an error below 0; and in a run, a job without a time limit where one is needed.
    """

    error_sigma: float | None = ranged(None, 0.0, 10.0)


class Backfilling(PlacesOthers):
    """During a run: also what the jobs that wait need, and until when each GPU is expected to be taken.

    ``_gpus_of``, ``_run_ns_of`` and ``_memory_of`` are, by job number, how many GPUs a job that has come needs, for how
    long it is expected to run, and its memory on each; a run time of -1 stands for one that is not known yet.
    """

    def __init__(self, policy: BackfillingPolicy, cluster: Cluster, rng: np.random.Generator) -> None:
        self._error_sigma = policy.error_sigma
        self._errors_seed = int(rng.integers(2**62))
        super().__init__(policy, cluster, rng)
        self._gpus_on_fewest = np.cumsum(np.sort(np.diff(cluster.first_gpus))[::-1])
        self._memory_bytes = cluster.gpu_memory_bytes
        self._running: dict[int, tuple[list[GpuId], int]] = {}
        self._held = np.zeros(cluster.num_gpus, bool)
        self._gpus_of, self._memory_of = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._run_ns_of = np.zeros(0, np.int64)

    def _take_note(self, queue: JobQueue, cluster: ClusterView) -> list[tuple[int, int]]:
        """Note whose GPUs are free again, and what new jobs need; refuse one that cannot be planned with.

        Return the number of GPUs of each job that left them, and when it was expected to.
        """
        left = []
        for number, (gpus, end_ns) in list(self._running.items()):
            if cluster.num_residents(gpus[0]) == 0:
                self._held[gpus] = False
                self._run_ns_of[number] = -1  # it has ended, or waits again and has less left
                del self._running[number]
                left.append((len(gpus), end_ns))
        if (more := int(queue.numbers.max(initial=-1)) + 1 - len(self._gpus_of)) > 0:
            room = max(more, len(self._gpus_of))
            self._gpus_of, self._memory_of = np.pad(self._gpus_of, (0, room)), np.pad(self._memory_of, (0, room))
            self._run_ns_of = np.pad(self._run_ns_of, (0, room), constant_values=-1)
        for place in np.flatnonzero(self._run_ns_of[queue.numbers] < 0).tolist():
            job = queue[place]
            self._gpus_of[job.number], self._memory_of[job.number] = job.num_gpus, job.memory_bytes
            self._run_ns_of[job.number] = self._expected_run_ns(job, cluster)
        return left

    def _free(self, job: JobView, cluster: ClusterView) -> np.ndarray:
        """Return the GPUs with nobody on them and the memory for a job, ascending."""
        eligible = cluster.eligible(job)
        free: np.ndarray = eligible[~self._held[eligible]]
        return free

    def _could_hold(self, job: JobView, cluster: ClusterView) -> np.ndarray:
        """Return the GPUs that are there and have the memory for a job when nobody is on them, ascending."""
        held = np.flatnonzero(self._held & (self._memory_bytes >= job.memory_bytes))
        return np.union1d(self._free(job, cluster), held)

    def _free_from_ns(self, now_ns: int) -> np.ndarray:
        """Return from when each GPU is expected to be free; one whose job should have ended, from now."""
        free_from_ns = np.full(len(self._held), now_ns)
        for gpus, end_ns in self._running.values():
            free_from_ns[gpus] = max(end_ns, now_ns)
        return free_from_ns

    def _chosen_of_free(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the other policy's choice among free GPUs, if there are enough."""
        free = self._free(job, cluster)
        if len(free) < job.num_gpus:
            return None
        chosen: Sequence[GpuId] | None = self._other.place(job, cluster.restricted_to(free))
        if chosen is not None and not set(chosen) <= set(free.tolist()):
            raise InvalidDecisionError(f"{label(self._other)} answered {chosen}; expected some of the free GPUs {free}")
        return chosen

    def _start(self, job: JobView, chosen: Sequence[GpuId], now_ns: int) -> tuple[JobView, Sequence[GpuId]]:
        """Note that a job runs from now on, and return it with its GPUs."""
        end_ns = min(now_ns + int(self._run_ns_of[job.number]), MAX_NS)
        self._running[job.number] = list(chosen), end_ns
        self._held[list(chosen)] = True
        return job, chosen

    def _expected_run_ns(self, job: JobView, cluster: ClusterView) -> int:
        """Return for how long a job that waits is expected to run: its limit, or the time alone x the job's error.

        The error depends on nothing but seed and job.
        """
        if self._error_sigma is None:
            return _time_limit_ns(job)
        servers = int(np.searchsorted(self._gpus_on_fewest, job.num_gpus)) + 1
        messages = [task.message_bytes for task in job.dag.tasks if isinstance(task, CollectiveTask)]
        reduces_ns = sum(ns_from_s(cluster.all_reduce_s(message, servers)) for message in messages)
        normal = np.random.default_rng([self._errors_seed, job.number]).standard_normal()
        error = math.exp(self._error_sigma * normal)
        return round(min(job.iterations_left * (job.compute_ns + reduces_ns) * error, float(MAX_NS // 2)))


def _time_limit_ns(job: JobView) -> int:
    if job.time_limit_s is None:
        raise InputError(
            f"job {job.job_id!r} has no time_limit_s; expected one in the workload file, or the parameter "
            "error_sigma for estimates with an error of that size"
        )
    return ns_from_s(job.time_limit_s)


class _Easy(Backfilling):
    def __init__(self, policy: BackfillingPolicy, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy, cluster, rng)
        self._reserved_ns: dict[int, int] = {}

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start jobs in order as long as they can, then those that do not delay the first that cannot."""
        self._take_note(queue, cluster)
        self._reserved_ns = {}
        for place, first in enumerate(queue):
            chosen = self._chosen_of_free(first, cluster)
            if chosen is None:
                yield from self._backfill(first, queue[place + 1 :], cluster)
                return
            yield self._start(first, chosen, cluster.now_ns)

    def reservations_ns(self) -> Mapping[int, int]:
        """Return when the first that waits is expected to start, by its number, nanoseconds."""
        return self._reserved_ns

    def _backfill(self, first: JobView, rest: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start those of the rest of the queue that do not delay the first, in order."""
        reserved_ns, usable = self._reservation(first, cluster)
        place = 0
        while (place := self._next(rest.numbers, place, first, reserved_ns, usable, cluster)) < len(rest):
            job = rest[place]
            place += 1
            chosen = self._chosen_of_free(job, cluster)
            if chosen is None:
                continue
            in_time = cluster.now_ns + int(self._run_ns_of[job.number]) <= reserved_ns
            if in_time or len(np.setdiff1d(usable, chosen)) >= first.num_gpus:
                yield self._start(job, chosen, cluster.now_ns)
                reserved_ns, usable = self._reservation(first, cluster)
        self._reserved_ns = {first.number: reserved_ns} if reserved_ns < MAX_NS else {}

    def _next(
        self,
        numbers: np.ndarray,
        place: int,
        first: JobView,
        reserved_ns: int,
        usable: np.ndarray,
        cluster: ClusterView,
    ) -> int:
        """Return the place of the next job that may start: not so large, or so long, that it surely cannot."""
        free = np.flatnonzero(~self._held)
        too_small = len(np.setdiff1d(free, usable))
        spare = len(usable) - first.num_gpus + too_small
        gpus, end_ns = self._gpus_of[numbers[place:]], cluster.now_ns + self._run_ns_of[numbers[place:]]
        may = (gpus <= len(free)) & ((end_ns <= reserved_ns) | (gpus <= spare))
        return place + int(may.argmax()) if may.any() else len(numbers)

    def _reservation(self, first: JobView, cluster: ClusterView) -> tuple[int, np.ndarray]:
        """Return when a job is expected to start, and the GPUs that it could then take, more than it needs perhaps.

        Of a job for which there are not enough GPUs now, the end of time.
        """
        gpus = self._could_hold(first, cluster)
        if len(gpus) < first.num_gpus:
            return MAX_NS, gpus
        free_from_ns = self._free_from_ns(cluster.now_ns)[gpus]
        reserved_ns = int(np.sort(free_from_ns)[first.num_gpus - 1])
        return reserved_ns, gpus[free_from_ns <= reserved_ns]


@dataclass(frozen=True, kw_only=True)
class EasyBackfill(BackfillingPolicy):
    """A job behind the first starts if it is expected to end by the first's reservation, or takes spare GPUs only.

    The reservation is the earliest time at which enough GPUs are expected to be free for the first job; spare are those
    that it then leaves over. It is made anew whenever jobs come or go.

    References
    ----------
    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; the rule as in Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
    """

    asked = _Easy


class _InOrder(PlacesOthers):
    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        for job in queue:
            chosen = self._other.place(job, cluster)
            if chosen is None:
                return
            yield job, chosen


@dataclass(frozen=True, kw_only=True)
class InOrder(OfAnother):
    """The GPUs of another placement, for the first job that waits only. Jobs share GPUs if the other lets them.

    Parameters
    ----------
    placement
        Chooses the GPUs.
    """

    asked = _InOrder
