"""Crux's choice of paths: the least congested, given those of jobs that compute more for their traffic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.views import FlowView, JobView, LinkLoads
from ddlsched.units import NS_PER_S

__all__ = ["CruxPaths"]

_INTENSITIES = ("ratio", "sum")


@dataclass(frozen=True, kw_only=True)
class CruxPaths:
    """Jobs by descending intensity; each flow takes the path whose busiest link has the fewest flows chosen before.

    Alone it is ``crux:paths-only``; with ``--contention crux`` its classes are there, too.

    Deviations: the paper does not say how it measures congestion; this is the measure of the re-implementation in
    MonkeyTree's code, in flows for the link's bandwidth. The paper chooses the paths of all jobs anew whenever one
    arrives or ends; here one that arrives goes round those of higher or equal intensity as the rule says, those of
    lower intensity count only between paths that are equal otherwise, and stay where they are. Intensity is taken of
    the message, before the ring is known.

    Parameters
    ----------
    intensity
        ``ratio``, compute x GPUs over the time of the traffic, as in the paper; or ``sum``, compute plus time of the
        traffic, as in MonkeyTree's code.

    References
    ----------
    Cao et al., "Crux", SIGCOMM 2024; Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    intensity: str = "ratio"

    def __post_init__(self) -> None:
        if self.intensity not in _INTENSITIES:
            raise InputError(f"crux: intensity is {self.intensity!r}; expected one of {', '.join(_INTENSITIES)}")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Chosen:
        """Return what remembers the paths of the jobs that run."""
        return _Chosen(self.intensity)


@dataclass
class _Job:
    """The flows that a running job has on each link."""

    view: JobView
    intensity: float
    flows: Counter[int] = field(default_factory=Counter)


class _Chosen:
    def __init__(self, intensity: str) -> None:
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
        mine = _Job(job, self._intensity_of(job, network))
        self._ahead, self._behind = Counter(), Counter()
        for other in self._jobs.values():
            (self._ahead if other.intensity >= mine.intensity else self._behind).update(other.flows)
        self._jobs[job.number] = mine

    def _intensity_of(self, job: JobView, network: LinkLoads) -> float:
        compute_s = job.compute_ns / NS_PER_S
        network_s = job.message_bytes / max(link.bandwidth_bytes_per_s for link in network.links)
        if self._intensity == "sum":
            return compute_s + network_s
        return compute_s * job.num_gpus / network_s if network_s else float("inf")


def _busiest(links: tuple[int, ...], flows: Counter[int], network: LinkLoads) -> float:
    """Return the flows on the busiest link of a path, for its bandwidth."""
    return max((flows[link] / network.links[link].relative_bandwidth for link in links), default=0.0)
