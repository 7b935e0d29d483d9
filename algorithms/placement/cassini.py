"""CASSINI's choice among placements: the one on whose links the jobs fit best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from algorithms.communication.cassini import ANGLES, Profile, best_rotations, profile_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.plugins.names import resolve
from ddlsched.policies.choosing import begun_placement
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import NS_PER_S

_MOST = 10


@dataclass(frozen=True, kw_only=True)
class CassiniPlacement:
    """Of what some placements would do, the GPUs whose links have the best mean score; of equal ones the first.

    The score of a link is that of its jobs at their best turn (:mod:`algorithms.communication.cassini`), over the links
    of the job's ring that others' rings cross, along the topology's own routes. Which placements the paper asks of its
    host scheduler is not known beyond their number, at most 10.

    Parameters
    ----------
    candidates
        Names of placements, joined by ``+``.
    tick_s
        Iterations alone are rounded to whole multiples of this, seconds.

    References
    ----------
    Rajasekaran, Ghobadi, Akella, "CASSINI", NSDI 2024.
    """

    candidates: str = "first-fit+lwf+blocks"
    tick_s: float = ranged(0.01, 1e-6, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "cassini")
        names = self.candidates.split("+")
        if not 1 <= len(names) <= _MOST:
            raise InputError(f"cassini: candidates has {len(names)} placements; expected 1 to {_MOST}")
        for name in names:
            if not hasattr(resolve("placement", name), "place"):
                raise InputError(f"cassini: candidate {name!r} decides about the whole queue; expected place")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Chooser:
        """Return the chooser of a run, with the other placements begun."""
        return _Chooser(self, cluster, rng)


class _Chooser:
    def __init__(self, policy: CassiniPlacement, cluster: Cluster, rng: np.random.Generator) -> None:
        self._others = [begun_placement(name, cluster, rng) for name in policy.candidates.split("+")]
        self._policy = policy

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the candidate of the best score."""
        answers: list[Sequence[GpuId] | None] = [other.place(job, cluster) for other in self._others]
        found = [gpus for gpus in answers if gpus is not None]
        if len(found) < 2:
            return found[0] if found else None
        running = {r.number: r for gpu in range(cluster.num_gpus) for r in cluster.residents(gpu) if len(r.servers) > 1}
        scores = [round(self._score(job, gpus, list(running.values()), cluster), 9) for gpus in found]
        return found[scores.index(max(scores))]

    def _score(self, job: JobView, gpus: Sequence[GpuId], running: Sequence[JobView], cluster: ClusterView) -> float:
        """Return the mean score of the links on which the job would meet others; 1 without any."""
        servers = {cluster.server_of(gpu) for gpu in gpus}
        mine = set(cluster.network.ring(sorted(servers)).links)
        met: dict[int, list[JobView]] = {}
        for other in running:
            for link in mine.intersection(cluster.network.ring(other.servers).links):
                met.setdefault(link, []).append(other)
        own = self._profile(job, cluster.all_reduce_s(job.message_bytes, len(servers)))
        of_jobs = {tuple(other.number for other in others): others for others in met.values()}
        scores = {
            numbers: self._fit([own, *(self._profile(o, o.communication_ns / NS_PER_S) for o in others)])
            for numbers, others in of_jobs.items()
        }
        return fmean(scores[tuple(o.number for o in others)] for others in met.values()) if met else 1.0

    def _profile(self, job: JobView, communication_s: float) -> Profile:
        return profile_of(job, communication_s, self._policy.tick_s)

    @staticmethod
    def _fit(profiles: list[Profile]) -> float:
        fit = best_rotations(profiles)
        alignable = fit.perimeter_ticks <= ANGLES // 2 * max(profile.period_ticks for profile in profiles)
        return fit.score if alignable else _unaligned(profiles)


def _unaligned(profiles: Sequence[Profile]) -> float:
    """Return the expected score of jobs that drift past each other: that of their mean demands, independent."""
    asked = np.zeros(1)
    chance = np.ones(1)
    for profile in profiles:
        busy = min(profile.length_ticks / profile.period_ticks, 1.0)
        asked = np.concatenate([asked, asked + profile.share])
        chance = np.concatenate([chance * (1 - busy), chance * busy])
    return float(1.0 - (chance * np.maximum(asked - 1.0, 0.0)).sum())
