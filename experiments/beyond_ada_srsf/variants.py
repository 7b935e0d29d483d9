"""Policies that were tried and not kept, used by name: ``variants.py:ChosenSet:exact=true``. See ``tried.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm

import numpy as np

from algorithms.placement.blocks import AlignedBlocks, _Placing, _Server
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView, NetworkView, TransferView
from ddlsched.units import NS_PER_S

# --- Which transfers run


@dataclass(frozen=True, kw_only=True)
class ChosenSet:
    """Transfers that share no link, those of the smallest keys first or those of the largest sum of 1 / key.

    Parameters
    ----------
    by
        The key: the job's remaining ``time`` (compute and communication without contention), its remaining
        ``communication``, or the time times (the root of) the number of its links.
    exact
        The set of largest total weight 1 / key (a weighted independent set) in place of the greedy one.
    """

    by: str = "time"
    exact: bool = False

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        """Return the set."""
        keys = [self._key(transfer) for transfer in transfers]
        links = [sum(1 << link for link in set(transfer.links)) for transfer in transfers]
        if self.exact:
            return [transfers[place] for place in heaviest([1.0 / max(key, 1.0) for key in keys], links)]
        taken, chosen = 0, []
        for place in sorted(range(len(transfers)), key=lambda place: (keys[place], transfers[place].number)):
            if not taken & links[place]:
                taken |= links[place]
                chosen.append(transfers[place])
        return chosen

    def _key(self, transfer: TransferView) -> float:
        job = transfer.job
        sending_ns = job.iterations_left * job.communication_ns
        time_ns = job.remaining_service_ns / job.num_gpus + sending_ns
        count = len(transfer.links)
        return {
            "time": time_ns,
            "communication": float(sending_ns),
            "time x links": time_ns * count,
            "time x root of links": time_ns * count**0.5,
        }[self.by]


def heaviest(weights: Sequence[float], links: Sequence[int]) -> list[int]:
    """Return which of some transfers, of weights > 0 and bit masks of links, share none and weigh the most together.

    Exact: the heaviest one left is in or out, and in for certain if it outweighs all that it excludes.
    """
    order = sorted(range(len(weights)), key=lambda place: (-weights[place], place))
    met = [sum(1 << j for j, b in enumerate(order) if links[a] & links[b] and a != b) for a in order]

    @cache
    def best(left: int) -> tuple[float, int]:
        if not left:
            return 0.0, 0
        first = (left & -left).bit_length() - 1
        others = left & ~(1 << first)
        excluded = met[first] & others
        weight, chosen = best(others & ~excluded)
        taking = weight + weights[order[first]], chosen | 1 << first
        if sum(weights[order[j]] for j in _bits(excluded)) <= weights[order[first]]:
            return taking
        return max(taking, best(others), key=lambda found: found[0])

    return [order[j] for j in _bits(best((1 << len(order)) - 1)[1])]


def _bits(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


# --- Who goes first on a GPU


@dataclass(frozen=True, kw_only=True)
class SpanningFirst:
    """By compute left, that of jobs that span servers times a factor below 1: 0 lets them all go first."""

    factor: float = 0.0

    def key(self, job: JobView, now_s: float) -> tuple[float, int]:
        """Return the key."""
        left_ns = job.remaining_service_ns / job.num_gpus
        return (left_ns * self.factor if len(job.servers) > 1 else left_ns), job.remaining_service_ns


# --- Where jobs go


@dataclass(frozen=True, kw_only=True)
class CompatibleBlocks(AlignedBlocks):
    """Blocks that charge for another spanning job only the part of time in which the two must meet (after CASSINI).

    A job alone computes, then communicates, again and again: arcs of a circle. Two jobs' circles are laid side by
    side over their common period, one is turned until their communication meets least, and what is left of it,
    as a share of the smaller communication, multiplies the delay that the block's price has for this pair.

    Simplified: pairs, not all jobs of a link together; periods in whole steps of 5 ms; nobody is told to shift its
    phase, because waiting for a free link shifts it anyway.

    References
    ----------
    Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI 2024.
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Compatible:
        """Return what is asked during a run."""
        return _Compatible(self)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the block's GPUs."""
        return _Compatible(self).place(job, cluster)


class _Compatible(_Placing):
    def _network_ns(self, job: JobView, cluster: ClusterView, servers: list[_Server]) -> float:
        per_byte_ns = NS_PER_S / cluster.network.nic_bytes_per_s
        own_ns = round(job.message_bytes * per_byte_ns)
        left_ns = job.iterations_left * (job.compute_ns + own_ns)
        jobs = {other.number: other for gpu in range(cluster.num_gpus) for other in cluster.residents(gpu)}
        ahead, behind = [0.0], {}
        for server in servers:
            ahead.append(0.0)
            for number, other_ns in server.spanning_ns.items():
                other = jobs[number]
                share = least_overlap(job.compute_ns, own_ns, other.compute_ns, other.communication_ns)
                if other_ns <= left_ns:
                    ahead[-1] += other_ns * share
                else:
                    behind[number] = job.iterations_left * own_ns * share
        return max(ahead) + sum(behind.values())


_STEP_NS = 5_000_000


@cache
def least_overlap(compute_ns: int, sending_ns: int, other_compute_ns: int, other_sending_ns: int) -> float:
    """Return the least share of the smaller communication that meets the other's, whatever the phases, from 0 to 1."""
    steps = [max(round(ns / _STEP_NS), 1) for ns in (compute_ns, sending_ns, other_compute_ns, other_sending_ns)]
    periods = steps[0] + steps[1], steps[2] + steps[3]
    circle = np.arange(lcm(*periods))
    one, other = circle % periods[0] >= steps[0], circle % periods[1] >= steps[2]
    overlap = np.fft.irfft(np.fft.rfft(one) * np.conj(np.fft.rfft(other)), len(circle))  # by how far one is turned
    return float(np.clip(overlap.min() / min(one.sum(), other.sum()), 0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class FewOnAGpu(AlignedBlocks):
    """Blocks with a limit on the jobs on a GPU, or on the spanning jobs that a spanning job joins.

    Parameters
    ----------
    jobs
        Most jobs on a GPU; 0 for no limit but memory.
    spanning
        Most spanning jobs on a server that one more would join; 0 for no limit.
    wait_s
        For how long after arrival the limits hold, seconds; after that memory alone counts (Dally's patience).
    """

    jobs: int = 0
    spanning: int = 0
    wait_s: float = 1e9

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Few:
        """Return what is asked during a run."""
        return _Few(self)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the block's GPUs, or None to wait."""
        return _Few(self).place(job, cluster)


class _Few:
    def __init__(self, policy: FewOnAGpu) -> None:
        self._policy = policy
        self._ends_s: set[float] = set()

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        end_s = job.arrival_s + self._policy.wait_s
        placing = _Placing(self._policy)
        if cluster.now_s >= end_s:
            return placing.place(job, cluster)
        self._ends_s.add(end_s)
        return placing.place(job, _Filtered(cluster, self._allows))  # type: ignore[arg-type]

    def _allows(self, job: JobView, gpu: GpuId, cluster: ClusterView) -> bool:
        if self._policy.jobs and cluster.num_residents(gpu) >= self._policy.jobs:
            return False
        gpus = cluster.gpus_of(cluster.server_of(gpu))
        if not self._policy.spanning or job.num_gpus <= len(gpus):
            return True
        here = {other.number for each in gpus for other in cluster.residents(each) if len(other.servers) > 1}
        return len(here) < self._policy.spanning

    def wake_s(self, now_s: float) -> float | None:
        self._ends_s = {end_s for end_s in self._ends_s if end_s > now_s}
        return min(self._ends_s, default=None)


class _Filtered:
    """A cluster's view in which only some GPUs are eligible."""

    def __init__(self, cluster: ClusterView, allows: Callable[[JobView, GpuId, ClusterView], bool]) -> None:
        self._cluster = cluster
        self._allows = allows

    def eligible_gpus(self, job: JobView) -> list[GpuId]:
        return [gpu for gpu in self._cluster.eligible_gpus(job) if self._allows(job, gpu, self._cluster)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)
