"""Lucid: jobs that need little of a GPU share it in pairs, nobody is stopped, no user's code is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.cluster_view import jobs_on
from ddlsched.policies.doors import Start
from ddlsched.policies.elastic_views import free_by_server, on_one_server
from ddlsched.policies.views import ClusterView, GpuId, JobQueue, JobView
from ddlsched.ranges import check_fields, ranged


def refuse_exclusive(policy: str, cluster: Cluster) -> None:
    """Raise InputError if a cluster lets nobody share a GPU."""
    if cluster.exclusive:
        raise InputError(f"{policy}: the cluster is exclusive, so no jobs can share a GPU; expected one that is not")


_MOST_SCORE = 2
_MOST_PRIORITY_RATIO = 2


@dataclass(frozen=True, kw_only=True)
class Lucid:
    """Jobs by duration x GPUs (give ``--order srsf``); one may join the first running job alike that leaves room.

    Two jobs of equally many GPUs, at most a server's, share these if their sharing scores add up to at most 2, memory
    allows and the running one's priority is at most twice as far behind. Otherwise a job gets free GPUs: on the
    smallest server that suffices, large jobs on whole servers. One that does not fit is skipped. While few jobs
    come, nobody shares and the first that waits blocks the others.

    Assumed, as its predictors are known in part: durations are those of the workload; the sharing score is given for
    each model, or without ``scores`` by the share of an iteration that it computes (less than ``tiny``: 0, than
    ``medium``: 1, else 2) in place of a measured speed when packed; arrivals of the last ``window_s`` stand for those
    predicted. Left out: the profiling servers. What sharing costs says ``--interference``.

    Parameters
    ----------
    scores
        Of each model, as ``resnet50=0+bert=2``: 0 tiny, 1 medium, 2 jumbo.
    tiny
        A job with at most this compute share is tiny, from 0 to ``medium``.
    medium
        One with at most this is medium, to 1.
    few_arrivals
        With so many or fewer jobs in a window nobody shares; -1: jobs always may.
    window_s
        The window, seconds.

    References
    ----------
    Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs", ASPLOS
    2023.
    """

    scores: str = ""
    tiny: float = 0.4
    medium: float = 0.7
    few_arrivals: int = ranged(2, -1)
    window_s: float = ranged(100.0, 0.0, 1e9, above=True)

    def __post_init__(self) -> None:
        check_fields(self, "lucid")
        scores_of(self.scores)
        if not 0 <= self.tiny <= self.medium <= 1:
            raise InputError(f"lucid: tiny is {self.tiny} and medium {self.medium}; expected 0 <= tiny <= medium <= 1")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Packing:
        """Return what counts arrivals during a run.

        Raises
        ------
        InputError
            The cluster lets nobody share a GPU.
        """
        refuse_exclusive("lucid", cluster)
        return _Packing(self)


def scores_of(text: str) -> dict[str, int]:
    """Return the sharing score of each model.

    Raises
    ------
    InputError
        The text is none of that.
    """
    scores = {}
    for part in filter(None, text.split("+")):
        model, _, score = part.rpartition("=")
        if not model or score not in ("0", "1", "2"):
            raise InputError(f"lucid: scores has {part!r}; expected model=0, 1 or 2, such as resnet50=0+bert=2")
        scores[model] = int(score)
    return scores


class _Packing:
    def __init__(self, policy: Lucid) -> None:
        self._policy, self._scores = policy, scores_of(policy.scores)
        self._arrivals_s: deque[float] = deque()
        self._seen: set[int] = set()

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start the jobs that fit, in order."""
        may_share = self._may_share(queue, cluster.now_s)
        running = self._running(cluster)
        for job in queue:
            chosen = (self._shared(job, running, cluster) if may_share else None) or _alone(job, cluster)
            if chosen:
                running.append(job)
                yield job, chosen
            elif not may_share:
                return

    def _may_share(self, queue: JobQueue, now_s: float) -> bool:
        for job in queue:
            if job.number not in self._seen:
                self._seen.add(job.number)
                self._arrivals_s.append(job.arrival_s)
        while self._arrivals_s and self._arrivals_s[0] < now_s - self._policy.window_s:
            self._arrivals_s.popleft()
        return len(self._arrivals_s) > self._policy.few_arrivals

    def _running(self, cluster: ClusterView) -> list[JobView]:
        """Return the running jobs, in the order of their first start; those that share GPUs share all of them."""
        found = jobs_on(cluster, range(cluster.num_gpus)).values()
        return sorted(found, key=lambda job: (job.start_s or 0.0, job.number))

    def _shared(self, job: JobView, running: Sequence[JobView], cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs of the first running job that a job may share with."""
        if job.num_gpus > max(len(cluster.gpus_of(server)) for server in range(cluster.num_servers)):
            return None
        for other in running:
            alike = other.num_gpus == job.num_gpus and all(cluster.num_residents(gpu) == 1 for gpu in other.gpus)
            near = other.remaining_service_ns * _MOST_PRIORITY_RATIO >= job.remaining_service_ns
            small = self._score(job) + self._score(other) <= _MOST_SCORE
            if alike and near and small and all(cluster.fits(job, gpu) for gpu in other.gpus):
                return other.gpus
        return None

    def _score(self, job: JobView) -> int:
        """Return a job's sharing score.

        Raises
        ------
        InputError
            Scores are given, and none of the job's model.
        """
        if self._scores:
            if job.model not in self._scores:
                raise InputError(
                    f"job {job.job_id!r}: scores has none of its model {job.model!r}; expected one of each model "
                    f"(known: {', '.join(self._scores)})"
                )
            return self._scores[job.model]
        share = job.compute_ns / max(job.compute_ns + job.communication_ns, 1)
        return 0 if share < self._policy.tiny else 1 if share < self._policy.medium else 2


def _alone(job: JobView, cluster: ClusterView) -> list[GpuId] | None:
    """Return free GPUs: of the server with the fewest that suffice, or else of the servers with the most."""
    room = free_by_server(cluster.free(job).tolist(), cluster.server_of)
    if chosen := on_one_server(room, job.num_gpus):
        return chosen
    whole = [gpus for server, gpus in room.items() if len(gpus) == len(cluster.gpus_of(server))]
    chosen = [gpu for gpus in whole for gpu in gpus]
    return chosen[: job.num_gpus] if len(chosen) >= job.num_gpus else None
