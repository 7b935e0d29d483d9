"""CASSINI: jobs that share links begin their iterations so that they send at different times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from algorithms.contention.crux import start_share
from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import nx
from ddlsched.policies.views import JobView, NetworkView, TransferView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S

ANGLES = 72
"""Steps of 5 degrees on a circle."""

_MOST_COMBINATIONS = 20_000
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """What a job does on a link, alone: it sends once an iteration.

    Parameters
    ----------
    period_ticks
        An iteration, in whole ticks of a common length.
    start_ticks, length_ticks
        When in the iteration it sends, and for how long.
    share
        Of the link's bandwidth while it sends.
    """

    period_ticks: int
    start_ticks: float
    length_ticks: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class CircleFit:
    """The best turn of the jobs on a link.

    Attributes
    ----------
    score
        1: they never send together more than the link carries; it may be below 0.
    shifts_ticks
        Of each job, by how much its iterations begin later.
    perimeter_ticks
        After which all of it repeats.
    """

    score: float
    shifts_ticks: tuple[float, ...]
    perimeter_ticks: int


def demand(profile: Profile, perimeter_ticks: int, shift_ticks: float = 0.0) -> np.ndarray:
    """Return the mean share of the link that a job asks for in each step of the circle, shape (ANGLES,)."""
    edges = np.arange(ANGLES + 1) * (perimeter_ticks / ANGLES) - shift_ticks - profile.start_ticks
    whole, rest = np.divmod(edges, profile.period_ticks)
    length = min(profile.length_ticks, float(profile.period_ticks))
    sent = whole * length + np.minimum(rest, length)
    return np.diff(sent) * (profile.share * ANGLES / perimeter_ticks)


def score(demands: Sequence[np.ndarray]) -> float:
    """Return 1 - the mean of what is asked for beyond the link's bandwidth, in parts of it."""
    return float(1.0 - np.maximum(np.sum(demands, axis=0) - 1.0, 0.0).mean())


def best_rotations(profiles: Sequence[Profile]) -> CircleFit:
    """Return the turn of jobs on one link with the best score, in steps of 5 degrees; the first job stays.

    All combinations are tried if they are few; otherwise one job after another is turned to its best, a few times over
    (what the paper's solver is, is not known).
    """
    perimeter = math.lcm(*(profile.period_ticks for profile in profiles))
    steps = [1, *(max(ANGLES * profile.period_ticks // perimeter, 1) for profile in profiles[1:])]
    step_ticks = perimeter / ANGLES
    turned = [
        [demand(profile, perimeter, step * step_ticks) for step in range(count)]
        for profile, count in zip(profiles, steps, strict=True)
    ]
    chosen = _tried(turned) if math.prod(steps) <= _MOST_COMBINATIONS else _climbed(turned)
    shifts = [step * step_ticks % profile.period_ticks for step, profile in zip(chosen, profiles, strict=True)]
    return CircleFit(score([of[step] for of, step in zip(turned, chosen, strict=True)]), tuple(shifts), perimeter)


def _tried(turned: Sequence[Sequence[np.ndarray]]) -> tuple[int, ...]:
    """Return the best combination of all; of equally good ones the first."""
    combinations = list(product(*(range(len(of)) for of in turned)))
    sums = np.zeros((len(combinations), ANGLES))
    for job, of in enumerate(turned):
        sums += np.asarray(of)[[combination[job] for combination in combinations]]
    return combinations[int(np.maximum(sums - 1.0, 0.0).mean(axis=1).round(12).argmin())]


def _climbed(turned: Sequence[Sequence[np.ndarray]]) -> tuple[int, ...]:
    chosen = [0] * len(turned)
    for _ in range(_ROUNDS):
        for job, of in enumerate(turned):
            others = np.sum([turned[k][chosen[k]] for k in range(len(turned)) if k != job], axis=0)
            chosen[job] = int(np.maximum(np.asarray(of) + others - 1.0, 0.0).mean(axis=1).round(12).argmin())
    return tuple(chosen)


def merged_links(jobs_on: Mapping[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    """Return of the links that the same two or more jobs share one each, the lowest."""
    first: dict[frozenset[int], int] = {}
    for link in sorted(jobs_on):
        if len(jobs_on[link]) > 1:
            first.setdefault(jobs_on[link], link)
    return {link: jobs for jobs, link in first.items()}


def is_a_forest(jobs_on: Mapping[int, frozenset[int]]) -> bool:
    """Return whether the graph of jobs and the links that they share has no circle."""
    return not jobs_on or nx.is_forest(_graph(jobs_on))


def _graph(jobs_on: Mapping[int, frozenset[int]]) -> nx.Graph[tuple[str, int]]:
    graph: nx.Graph[tuple[str, int]] = nx.Graph()
    graph.add_edges_from((("link", link), ("job", job)) for link, jobs in jobs_on.items() for job in jobs)
    return graph


def job_shifts(
    jobs_on: Mapping[int, frozenset[int]], on_link: Mapping[tuple[int, int], float], periods: Mapping[int, int]
) -> dict[int, float]:
    """Return one shift a job that keeps, on every link, who sends when beside whom.

    Parameters
    ----------
    jobs_on
        The jobs of each link that is shared; a forest (:func:`is_a_forest`).
    on_link
        The shift of a job on a link, by (job, link).
    periods
        Of each job.
    """
    graph, shifts, reached_by = _graph(jobs_on), dict[int, float](), dict[int, int]()
    for root in (job for _, jobs in sorted(jobs_on.items()) for job in sorted(jobs)):
        if root in shifts:
            continue
        shifts[root] = 0.0
        for (_, above), (kind, node) in nx.bfs_edges(graph, ("job", root)):
            if kind == "link":
                reached_by[node] = above
            else:
                job, link = reached_by[above], above
                shifts[node] = (shifts[job] - on_link[job, link] + on_link[node, link]) % periods[node]
    return shifts


_ROUNDING_NS = 2


@dataclass(frozen=True, kw_only=True)
class Cassini(Checked, who="cassini"):
    """A transfer waits for its job's slot; slots repeat with the job's iteration alone, shifted to avoid the others'.

    For each link the circles of its jobs are turned to the best fit, and one shift a job is found that keeps the fits
    of all links (:mod:`algorithms.communication.cassini`); anew whenever a job comes or leaves. A transfer that is
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
