"""CASSINI: jobs that share links begin their iterations so that they send at different times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from algorithms.communication.circles import (
    ANGLES,
    Profile,
    best_rotations,
    is_a_forest,
    job_shifts,
    merged_links,
)
from algorithms.contention.crux import start_share
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import JobView, NetworkView, TransferView
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import NS_PER_S

__all__ = ["Cassini", "profile_of"]

_ROUNDING_NS = 2


@dataclass(frozen=True, kw_only=True)
class Cassini:
    """A transfer waits for its job's slot; slots repeat with the job's iteration alone, shifted to avoid the others'.

    For each link the circles of its jobs are turned to the best fit, and one shift a job is found that keeps the fits
    of all links (:mod:`algorithms.communication.circles`); anew whenever a job comes or leaves. A transfer that is
    ready at most ``drift`` of an iteration after its slot goes at once, any other at the next slot. With ``--placement
    cassini`` placements are chosen by the same score.

    Assumed, as only part is known: iterations are rounded to ``tick_s``, so that a common multiple exists; links that
    the same jobs share count as one, and if links and jobs still form a circle no one of them is shifted. Jobs are not
    shifted, either, that fit too badly (``least_score``) or whose iterations have no multiple within ``ANGLES`` / 2 of
    the longest. All-reduces of an iteration count as one; a link is asked for in full while a job sends. A job is known
    from its first transfer on.

    Parameters
    ----------
    tick_s
        Iterations alone are rounded to whole multiples of this, seconds.
    drift
        Of an iteration, from 0 to 1.
    least_score
        The worst score of a link on which jobs are shifted.

    References
    ----------
    Rajasekaran, Ghobadi, Akella, "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI 2024.
    """

    tick_s: float = ranged(0.01, 1e-6, 1e6)
    drift: float = ranged(0.05, 0.0, 1.0)
    least_score: float = ranged(0.8, -1e9, 1.0)

    def __post_init__(self) -> None:
        check_fields(self, "cassini")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Agent:
        """Return the agent of a run."""
        return _Agent(self)


def profile_of(job: JobView, communication_s: float, tick_s: float) -> Profile:
    """Return when a job sends in its iteration alone, in ticks."""
    compute_s = job.compute_ns / NS_PER_S
    start_s = start_share(job.dag) * compute_s
    period_s = max(compute_s, start_s + communication_s)
    return Profile(max(round(period_s / tick_s), 1), start_s / tick_s, communication_s / tick_s)


class _Agent:
    def __init__(self, policy: Cassini) -> None:
        self._policy = policy
        self._jobs: dict[int, JobView] = {}
        self._places: dict[int, tuple[int, ...]] = {}
        self._links: dict[int, frozenset[int]] = {}
        self._slots_ns: dict[int, tuple[int, int]] = {}
        """When a job may first send, and how long until it may again."""
        self._waits_ns: dict[int, int] = {}
        """Until when the transfers that are held wait, by number."""

    def __repr__(self) -> str:
        return repr(self._policy)

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether it is the transfer's time."""
        self._know(transfer, network)
        if transfer.number in self._waits_ns:
            if network.now_ns < self._waits_ns[transfer.number]:
                return False
            del self._waits_ns[transfer.number]
            return True
        slot = self._slots_ns.get(transfer.job.number)
        if slot is None:
            return True
        first_ns, period_ns = slot
        late_ns = (network.now_ns - first_ns) % period_ns
        if late_ns <= self._policy.drift * period_ns or period_ns - late_ns <= _ROUNDING_NS:
            return True
        self._waits_ns[transfer.number] = network.now_ns + period_ns - late_ns
        return False

    def wake_s(self, now_s: float) -> float | None:
        """Return the next slot of a transfer that is held."""
        return min(self._waits_ns.values()) / NS_PER_S if self._waits_ns else None

    def _know(self, transfer: TransferView, network: NetworkView) -> None:
        """Take note of a transfer's job and links; find the shifts anew if that, or who is there, has changed."""
        job, number = transfer.job, transfer.job.number
        gone = [n for n, known in self._jobs.items() if known.gpus != self._places[n] or known.iterations_left == 0]
        links = frozenset[int]() if number in gone else self._links.get(number, frozenset())
        for left in gone:
            del self._jobs[left], self._places[left], self._links[left]
        if gone or not links.issuperset(transfer.links):
            self._jobs[number], self._places[number] = job, job.gpus
            self._links[number] = links.union(transfer.links)
            self._shift(network.now_ns)

    def _shift(self, now_ns: int) -> None:
        """Find a slot for each job that shares links."""
        tick_s = self._policy.tick_s
        profiles = {n: profile_of(job, job.communication_ns / NS_PER_S, tick_s) for n, job in self._jobs.items()}
        jobs_on = merged_links(_jobs_on(self._links))
        on_link: dict[tuple[int, int], float] = {}
        for link, jobs in list(jobs_on.items()):
            shifts = self._fit([profiles[n] for n in sorted(jobs)])
            if shifts is None:
                del jobs_on[link]
            else:
                on_link |= {(n, link): shift for n, shift in zip(sorted(jobs), shifts, strict=True)}
        self._slots_ns, self._waits_ns = {}, {}
        if not is_a_forest(jobs_on):
            return
        periods = {number: profile.period_ticks for number, profile in profiles.items()}
        for number, shift in job_shifts(jobs_on, on_link, periods).items():
            first_ns = now_ns + round((profiles[number].start_ticks + shift) * tick_s * NS_PER_S)
            self._slots_ns[number] = first_ns, round(periods[number] * tick_s * NS_PER_S)

    def _fit(self, profiles: list[Profile]) -> tuple[float, ...] | None:
        """Return the shifts of the jobs on a link, or None if they fit too badly to be shifted."""
        fit = best_rotations(profiles)
        if fit.perimeter_ticks > ANGLES // 2 * max(profile.period_ticks for profile in profiles):
            return None
        return fit.shifts_ticks if fit.score >= self._policy.least_score else None


def _jobs_on(links: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    jobs_on: dict[int, set[int]] = {}
    for number, crossed in links.items():
        for link in crossed:
            jobs_on.setdefault(link, set()).add(number)
    return {link: frozenset(jobs) for link, jobs in jobs_on.items()}
