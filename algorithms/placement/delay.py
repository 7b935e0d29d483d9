"""Delay scheduling by tiers of the network (after Dally)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class DelayScheduling(Checked, who="delay"):
    """Free GPUs of one server if they come within a while, then of one rack, then anywhere.

    A GPU is free if nobody is on it. A job waits for a tier only if it could ever be had.

    Parameters
    ----------
    server_s
        How long after arrival a job waits for one server, seconds.
    rack_s
        How long it then waits for one rack, seconds.
    servers_per_rack
        Racks are runs of so many servers.

    References
    ----------
    Sharma et al., "Dally", arXiv 2401.16492 (there the timers are tuned as it runs).
    """

    server_s: float = ranged(60.0, 0.0, 1e9)
    rack_s: float = ranged(60.0, 0.0, 1e9)
    servers_per_rack: int = ranged(4, 1)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Delaying:
        """Return the policy with a list of the timers that run."""
        return _Delaying(self)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs of the best tier that is free, if the job no longer waits for a better one."""
        free = cluster.free(job).tolist()
        for servers, until_s in self._tiers(job, cluster):
            chosen = self._fewest(job, cluster, free, servers)
            if chosen:
                return chosen
            if cluster.now_s < until_s and self._possible(job, cluster, servers):
                return None
        return None

    def _tiers(self, job: JobView, cluster: ClusterView) -> list[tuple[int, float]]:
        """Return each tier's number of servers, and until when a job waits for it."""
        first = job.arrival_s + self.server_s
        return [(1, first), (self.servers_per_rack, first + self.rack_s), (cluster.num_servers, first + self.rack_s)]

    def _possible(self, job: JobView, cluster: ClusterView, servers: int) -> bool:
        """Return whether so many neighbouring servers have the GPUs at all."""
        starts = range(0, cluster.num_servers, servers)
        return any(sum(map(len, self._gpus(cluster, first, servers))) >= job.num_gpus for first in starts)

    def _gpus(self, cluster: ClusterView, first: int, servers: int) -> list[range]:
        return [cluster.gpus_of(server) for server in range(first, min(first + servers, cluster.num_servers))]

    def _fewest(self, job: JobView, cluster: ClusterView, free: list[GpuId], servers: int) -> list[GpuId] | None:
        """Return GPUs of the run of servers with the fewest free ones left over, its fullest servers first."""
        best: list[GpuId] | None = None
        least = cluster.num_gpus + 1
        available = set(free)
        for first in range(0, cluster.num_servers, servers):
            own = [[gpu for gpu in gpus if gpu in available] for gpus in self._gpus(cluster, first, servers)]
            count = sum(map(len, own))
            if job.num_gpus <= count < least:
                least = count
                best = [gpu for gpus in sorted(own, key=len, reverse=True) for gpu in gpus][: job.num_gpus]
        return best


class _Delaying:
    def __init__(self, policy: DelayScheduling) -> None:
        self._policy = policy
        self._timers_s: set[float] = set()

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        chosen = self._policy.place(job, cluster)
        if chosen is None:
            self._timers_s.update(until_s for _, until_s in self._policy._tiers(job, cluster))
        return chosen

    def wake_s(self, now_s: float) -> float | None:
        self._timers_s = {time_s for time_s in self._timers_s if time_s > now_s}
        return min(self._timers_s, default=None)
