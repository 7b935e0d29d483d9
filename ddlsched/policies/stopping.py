"""Stops by an order's keys, for any order that is to take GPUs from running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlsched.policies.views import ClusterView, JobView


class StopsByKey:
    """Gives an order the method ``stops``: a job that waits takes the GPUs of running jobs that go after it.

    In the order of the queue, running jobs with larger keys than its own (:meth:`stopping_key`) stop for each job that
    waits, those with the largest keys first, until it has enough GPUs. One that has too few even so stops nobody. GPUs
    are counted; those that a job needs are not given to one behind it in the queue.
    """

    def key(self, job: JobView, now_s: float) -> Any:
        """Return what jobs are sorted by, as any order does."""
        raise NotImplementedError("give the order a key(job, now_s)")

    def stopping_key(self, job: JobView, now_s: float) -> Any:
        """Return the key above which running jobs may stop for a job that waits: its own, unless it is to gain more."""
        return self.key(job, now_s)

    def stops(self, running: Sequence[JobView], queue: Sequence[JobView], cluster: ClusterView) -> list[JobView]:
        """Return the running jobs that stop now."""
        ranked = sorted((self.key(job, cluster.now_s), job.number, job) for job in running)
        stopped: list[JobView] = []
        promised = 0
        for job in queue:
            rank = self.stopping_key(job, cluster.now_s), job.number
            if not ranked or rank > ranked[-1][:2]:
                break  # the rest of the queue goes after everybody who runs
            needed, last = promised + job.num_gpus, len(ranked)
            room = cluster.without(stopped)
            while len(room.eligible(job)) < needed and last > 0 and ranked[last - 1][:2] > rank:
                last -= 1
                room = room.without([ranked[last][2]])
            if len(room.eligible(job)) >= needed:
                stopped += [other for *_, other in ranked[last:]]
                del ranked[last:]
                promised = needed
        return stopped
