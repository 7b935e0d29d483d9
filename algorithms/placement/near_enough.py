"""As near to each other as a job's all-reduces need: whole racks on a slow network, any free GPUs on a fast one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.placement.whole_servers import WholeRacks, rings_leaving
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.policies.cluster_view import jobs_on
from ddlsched.policies.views import ClusterView, GpuId, JobView, as_list
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class NearEnough(Checked, who="near-enough"):
    """Whole servers, racks and pods; where none are free, GPUs on which an iteration takes little longer than alone.

    A job goes where ``whole-racks`` puts it. If that has it wait, whole servers of as few racks as can be are looked
    at, then any free GPUs. It takes them if neither its own iteration nor that of a job whose card it shares grows by
    more than ``slower``, and waits otherwise.

    An iteration is taken for its compute and its all-reduces one after the other. These have a card's bandwidth over
    the jobs that send there, between racks or pods no more than that of a cable, and as many rings may leave one as it
    has cables; so paths should avoid each other (``--path least-congested``). Racks, pods and cables are those of the
    topology. Shared GPUs are not looked at: there it is ``whole-racks``.

    Parameters
    ----------
    slower
        By what share of its time an iteration may be longer; 0: by nothing.
    """

    slower: float = ranged(0.1, 0.0, 100.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> PlacesNear:
        """Return the policy of a run.

        Raises
        ------
        InputError
            Servers differ in their GPUs.
        """
        WholeRacks().begin(cluster, rng)
        return PlacesNear(self)


@dataclass(frozen=True)
class _Tier:
    """Racks or pods: GPUs of one, the cables that leave it, a cable's bandwidth over a card's, 1 at most."""

    gpus: int
    cables: int
    share: float


class PlacesNear:
    """The policy of a run."""

    def __init__(self, policy: NearEnough) -> None:
        self._policy, self._tiers = policy, list[_Tier]()
        self._whole: WholeRacks | None = None

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait."""
        size, *_ = units = self.units(cluster)
        if self._whole is None:
            racks, pods, *_ = [*(unit // size for unit in units[1:]), 0, 0]
            self._whole = WholeRacks(servers_per_rack=racks, servers_per_pod=pods)
        free = cluster.eligible(job)
        if len(free) < job.num_gpus:
            return None
        found = self._whole.place(job, cluster)
        if found is not None or not cluster.exclusive:
            return found
        on_server = np.bincount(free // size, minlength=cluster.num_servers)
        whole = free[on_server[free // size] == size]
        looked_at = (self._nearest(job, gpus, size) for gpus in ((whole, free) if job.num_gpus > size else (free,)))
        return next((gpus for gpus in looked_at if gpus and self._is_near(job, gpus, cluster)), None)

    def units(self, cluster: ClusterView) -> list[int]:
        """Return how many GPUs a server has, a rack and a pod, as far as the topology has several of them."""
        size = len(cluster.gpus_of(0))
        if self._whole is None:
            self._tiers = _tiers(cluster.network, size)
        return [size, *(tier.gpus for tier in self._tiers)]

    def _nearest(self, job: JobView, gpus: np.ndarray, size: int) -> list[GpuId]:
        """Return GPUs of as few pods, racks and servers as can be, none if there are too few."""
        for unit in [*(tier.gpus for tier in reversed(self._tiers)), size]:
            gpus = gpus[np.isin(gpus // unit, _fewest(np.bincount(gpus // unit), job.num_gpus))]
        return as_list(gpus[: job.num_gpus])

    def _is_near(self, job: JobView, gpus: Sequence[GpuId], cluster: ClusterView) -> bool:
        """Return whether the job, and those whose cards it shares, send nearly as fast as alone."""
        size, most = len(cluster.gpus_of(0)), 1.0 + self._policy.slower
        servers = {gpu // size for gpu in gpus}
        here = {server: _sending(cluster, cluster.gpus_of(server)) for server in servers}
        for others in here.values():
            for other in others.values():
                now_ns = other.compute_ns + other.communication_ns * len(others)
                if now_ns + other.communication_ns > most * now_ns:
                    return False
        share = min(1.0 / (1 + len(others)) for others in here.values())
        running = dict[int, JobView]()
        for tier in self._tiers:
            if rings := rings_leaving(job, gpus, tier.gpus):
                share = min(share, tier.share)
                running = running or _sending(cluster, range(cluster.num_gpus))
                held = sum((rings_leaving(other, other.gpus, tier.gpus) for other in running.values()), rings)
                if any(held[place] > tier.cables for place in rings):
                    return False
        compute_s = job.compute_ns / NS_PER_S
        alone_s = compute_s + cluster.all_reduce_s(job.message_bytes, -(-job.num_gpus // size))
        return compute_s + cluster.all_reduce_s(job.message_bytes, len(servers)) / share <= most * alone_s


def _fewest(counts: np.ndarray, needed: int) -> list[int]:
    """Return as few units as hold so many, those with the most first and the one that fits best for the rest."""
    most = np.argsort(-counts, kind="stable")
    held = np.cumsum(counts[most])
    enough = int(np.searchsorted(held, needed))
    if enough == len(most):
        return []
    left, rest = needed - (int(held[enough - 1]) if enough else 0), most[enough:]
    fitting = rest[counts[rest] >= left]
    last = fitting[counts[fitting] == counts[fitting[-1]]][0]
    return [*most[:enough].tolist(), int(last)]


def _sending(cluster: ClusterView, gpus: Sequence[GpuId]) -> dict[int, JobView]:
    """Return the jobs of several servers on some GPUs, which no two jobs share."""
    return {number: job for number, job in jobs_on(cluster, gpus).items() if len(job.servers) > 1}


def _tiers(network: Network, size: int) -> list[_Tier]:
    """Return racks and pods, as far as the topology has several of them."""
    tiers: list[_Tier] = []
    names = [name for name in ("rack", "pod") if len({*network.levels.get(name, ())}) > 1]
    for place, name in enumerate(names):
        units = network.units(name)
        wider = network.units(names[place + 1]) if place + 1 < len(names) else (0,) * len(units)
        other = next(server for server, unit in enumerate(units) if unit != units[0] and wider[server] == wider[0])
        servers = units.count(units[0])
        if units != tuple(units[server - server % servers] for server in range(len(units))) or len(units) % servers:
            many = f"the first {name} has {servers} servers of {len(units)}"
            raise InputError(f"near-enough: {many}; expected {name}s of as many, each of neighbours")
        cables = {path.links[place] for path in network.paths(0, other)}
        share = min(network.links[cable].relative_bandwidth for cable in cables)
        tiers.append(_Tier(servers * size, len(cables), min(share, 1.0)))
    return tiers
