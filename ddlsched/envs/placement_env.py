"""On which servers a job runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ddlsched.envs.job_seconds import JobSeconds
from ddlsched.envs.scheduling_env import Ask, AskedPolicy, Decision, SchedulingEnv
from ddlsched.policies.choosing import JOB_FEATURES, log_shares, queue_features
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.units import NS_PER_S

__all__ = ["SERVER_FEATURES", "PlacementEnv"]

SERVER_FEATURES = ("eligible", "taken", "load")


class PlacementEnv(SchedulingEnv):
    """On which servers the job runs that is first in the queue, server by server.

    Action s takes as many of the job's GPUs on server s as are eligible and still needed, the least-loaded first; it is
    asked again until the job has all. The last action lets the job wait; it is allowed before the first server, and not
    on an idle cluster.

    ``job`` has the columns :data:`~ddlsched.policies.choosing.JOB_FEATURES`; ``servers`` has a row a server: the
    GPUs eligible, and taken by this job so far, as shares of the most that a server has; the load of the least-loaded
    eligible GPU, seconds, by :func:`~ddlsched.policies.choosing.log_share`.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"placement"})

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        servers = self.cluster.num_servers
        return {"job": (len(JOB_FEATURES),), "servers": (servers, len(SERVER_FEATURES))}, servers + 1

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a placement policy that asks where."""
        most = int(np.diff(self.cluster.first_gpus).max())
        return {"placement": _AskedPlacement(ask, seconds, most)}


@dataclass(frozen=True)
class _AskedPlacement(AskedPolicy):
    ask: Ask
    seconds: JobSeconds
    most_on_a_server: int

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return GPUs of the servers that were chosen one after the other."""
        by_server, servers = self._servers(cluster.eligible(job), cluster)
        (features,), _ = queue_features([job], cluster, 1)
        taken: list[GpuId] = []
        while len(taken) < job.num_gpus:
            server = self._chosen({"job": features, "servers": servers}, by_server, bool(taken), cluster)
            if server == cluster.num_servers:
                return None
            chosen = by_server.pop(server)[: job.num_gpus - len(taken)]
            servers[server] = 0, len(chosen) / self.most_on_a_server, 0
            taken += chosen
        self.seconds.started(job)
        return taken

    def _chosen(
        self, seen: dict[str, np.ndarray], by_server: Mapping[int, list[GpuId]], has_some: bool, cluster: ClusterView
    ) -> int:
        """Return the next server, or one more than there are: the job waits."""
        may_wait = not has_some and not cluster.is_idle
        if len(by_server) + may_wait == 1:
            return next(iter(by_server), cluster.num_servers)
        mask = np.zeros(cluster.num_servers + 1, bool)
        mask[list(by_server)] = True
        mask[-1] = may_wait
        return self.ask(Decision(cluster.now_s, seen | {"servers": seen["servers"].copy()}, mask))

    def _servers(self, eligible: np.ndarray, cluster: ClusterView) -> tuple[dict[int, list[GpuId]], np.ndarray]:
        """Return the eligible GPUs of each server that has some, the least-loaded first, and the servers' features."""
        loads_ns = cluster.loads_of(eligible)
        order = np.argsort(loads_ns, kind="stable")
        servers = cluster.servers_of(eligible)[order]
        found: dict[int, list[GpuId]] = {}
        for server, gpu in zip(servers.tolist(), eligible[order].tolist(), strict=True):
            found.setdefault(server, []).append(gpu)
        features = np.zeros((cluster.num_servers, len(SERVER_FEATURES)), np.float32)
        present, first = np.unique(servers, return_index=True)
        features[present, 0] = np.bincount(servers)[present] / self.most_on_a_server
        features[present, 2] = log_shares(loads_ns[order][first] / NS_PER_S)
        return found, features
