"""Crux's choice of paths: the least congested, given those of jobs that compute more for their traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.network.collectives import ROUNDS
from ddlsched.policies.views import FlowView, JobView, LinkLoads
from ddlsched.ranges import Checked
from ddlsched.units import NS_PER_S
from ddlsched.workload.tasks import CollectiveTask


@dataclass(frozen=True, kw_only=True)
class CruxPaths(Checked, who="crux"):
    """Jobs by descending intensity; each flow takes the path whose busiest link has the fewest flows chosen before.

    Alone it is ``crux:paths-only``; with ``--contention crux`` its classes are there, too.

    Deviations: the paper does not say how it measures congestion; this is the measure of the re-implementation in
    MonkeyTree's code, in flows for the link's bandwidth. The paper chooses the paths of all jobs anew whenever one
    arrives or ends. Without ``anew`` one that arrives goes round those of higher or equal intensity as the rule says,
    those of lower intensity count only between paths that are equal otherwise, and stay where they are. With it a job
    is gone round from its first transfer on, and a transfer that runs keeps its path. The ratio is taken of the
    messages of all rings together, before these are known.

    Parameters
    ----------
    intensity
        ``ratio``, compute x GPUs over the time of the traffic, as in the paper; or ``sum``, compute plus time of the
        traffic of all workers, as in MonkeyTree's code.
    anew
        Whether the paths of all jobs are chosen anew for their next transfers whenever a job came or left.

    References
    ----------
    Cao et al., "Crux", SIGCOMM 2024; Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    intensity: Literal["ratio", "sum"] = "ratio"
    anew: bool = False

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Chosen | _ChosenAnew:
        """Return what remembers the paths of the jobs that run."""
        return _ChosenAnew(self.intensity) if self.anew else _Chosen(self.intensity)


@dataclass
class _Job:
    """The flows that a running job has on each link."""

    view: JobView
    intensity: float
    flows: Counter[int] = field(default_factory=Counter)


class _Chosen:
    def __init__(self, intensity: Literal["ratio", "sum"]) -> None:
        self._intensity = intensity
        self._jobs: dict[int, _Job] = {}
        self._ahead, self._behind = Counter[int](), Counter[int]()

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the least congested path, of equal ones the first."""
        if flow.number == 0:
            self._begin(flow.job, network)
        place = min(range(len(flow.paths)), key=lambda place: self._congestion(flow.paths[place], network))
        for flows in (self._ahead, self._jobs[flow.job.number].flows):
            flows.update(flow.paths[place])
        return place

    def _congestion(self, links: tuple[int, ...], network: LinkLoads) -> tuple[float, float]:
        return _busiest(links, self._ahead, network), _busiest(links, self._behind, network)

    def _begin(self, job: JobView, network: LinkLoads) -> None:
        """Forget jobs that have left, and what this one had before."""
        for number, other in list(self._jobs.items()):
            if not other.view.servers or other.view.iterations_left == 0:
                del self._jobs[number]
        self._jobs.pop(job.number, None)
        mine = _Job(job, _intensity_of(self._intensity, job, network))
        self._ahead, self._behind = Counter(), Counter()
        for other in self._jobs.values():
            (self._ahead if other.intensity >= mine.intensity else self._behind).update(other.flows)
        self._jobs[job.number] = mine


@dataclass
class _Known:
    """A running job, and of each of its flows, as they were first asked for, the paths and the one chosen."""

    view: JobView
    gpus: tuple[int, ...]
    intensity: float
    offered: dict[Hashable, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    places: dict[Hashable, int] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[float, int]:
        """Ascending: who chooses before whom."""
        return -self.intensity, self.view.number


class _ChosenAnew:
    chosen: ClassVar[str] = "transfer"
    compiled: ClassVar[bool] = False  # it keeps the flows of all jobs by name

    def __init__(self, intensity: Literal["ratio", "sum"]) -> None:
        self._intensity = intensity
        self._jobs: dict[int, _Known] = {}
        self._ahead, self._newest = Counter[int](), -1
        self._is_stale = False
        self._looked_ns = -1

    def __repr__(self) -> str:
        return repr(CruxPaths(intensity=self._intensity, anew=True))

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the flow's path, of all jobs' anew if a job came or left since."""
        if network.now_ns != self._looked_ns:
            self._looked_ns = network.now_ns
            self._forget()
        job = self._jobs.get(flow.job.number)
        if job is None:
            job = _Known(flow.job, flow.job.gpus, _intensity_of(self._intensity, flow.job, network))
            self._jobs[flow.job.number] = job
        name = flow.source, flow.target, flow.cards
        if name not in job.offered:
            self._add(job, name, flow.paths, network)
        elif self._is_stale:
            self._choose_all(network)
        return job.places[name]

    def _forget(self) -> None:
        """Forget jobs that have ended or are no longer where they were."""
        gone = [n for n, job in self._jobs.items() if job.view.gpus != job.gpus or job.view.iterations_left == 0]
        for number in gone:
            del self._jobs[number]
        if gone:
            self._is_stale, self._newest = True, -1

    def _add(self, job: _Known, name: Hashable, paths: Sequence[tuple[int, ...]], network: LinkLoads) -> None:
        """Give a job's new flow its path; those that choose after it are to choose again."""
        if self._newest != job.view.number:
            if self._is_stale:
                self._choose_all(network)
            before = [other for other in self._jobs.values() if other.rank <= job.rank]
            chosen = (other.offered[each][place] for other in before for each, place in other.places.items())
            self._ahead = Counter(link for path in chosen for link in path)
            self._newest = job.view.number
        job.offered[name], job.places[name] = paths, _least_busy(paths, self._ahead, network)
        self._ahead.update(paths[job.places[name]])
        self._is_stale = True

    def _choose_all(self, network: LinkLoads) -> None:
        """Let all flows choose, those of the highest intensity first."""
        taken = Counter[int]()
        for job in sorted(self._jobs.values(), key=lambda job: job.rank):
            for name, paths in job.offered.items():
                job.places[name] = _least_busy(paths, taken, network)
                taken.update(paths[job.places[name]])
        self._is_stale, self._newest = False, -1


def _intensity_of(kind: str, job: JobView, network: LinkLoads) -> float:
    bytes_per_s = max(link.bandwidth_bytes_per_s for link in network.links)
    compute_s = job.compute_ns / NS_PER_S * job.num_gpus
    if kind == "sum":
        return compute_s + _sent_bytes(job) / bytes_per_s
    network_s = job.message_bytes / bytes_per_s
    return compute_s / network_s if network_s else float("inf")


def _sent_bytes(job: JobView) -> float:
    """Return what all workers together send in an iteration, bytes."""
    sent_bytes = 0.0
    for task in job.dag.tasks:
        if isinstance(task, CollectiveTask):
            members = [job.num_gpus] if task.group is None else map(len, job.dag.groups[task.group])
            # Of a kind that goes round no ring, as many messages as there are others.
            hops = sum(ROUNDS.get(task.kind, 1) * (count - 1) for count in members)
            sent_bytes += hops * task.message_bytes
    return sent_bytes


def _least_busy(paths: Sequence[tuple[int, ...]], flows: Counter[int], network: LinkLoads) -> int:
    """Return the place of the path whose busiest link has the fewest flows, of equal ones the first."""
    return min(range(len(paths)), key=lambda place: _busiest(paths[place], flows, network))


def _busiest(links: tuple[int, ...], flows: Counter[int], network: LinkLoads) -> float:
    """Return the flows on the busiest link of a path, for its bandwidth."""
    return max((flows[link] / network.links[link].relative_bandwidth for link in links), default=0.0)
