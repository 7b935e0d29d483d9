"""CASSINI's geometry: when jobs send on a shared link, how they turn to fit, and one shift a job that keeps it."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

__all__ = [
    "ANGLES",
    "CircleFit",
    "Profile",
    "best_rotations",
    "demand",
    "is_a_forest",
    "job_shifts",
    "merged_links",
    "score",
]

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
    result: np.ndarray = np.diff(sent) * (profile.share * ANGLES / perimeter_ticks)
    return result


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
    import networkx as nx

    graph: nx.Graph[tuple[str, int]] = nx.Graph()
    graph.add_edges_from((("link", link), ("job", job)) for link, jobs in jobs_on.items() for job in jobs)
    return not graph or nx.is_forest(graph)


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
    links_of = defaultdict(list)
    for link, jobs in sorted(jobs_on.items()):
        for job in sorted(jobs):
            links_of[job].append(link)
    shifts: dict[int, float] = {}
    for root in links_of:
        if root in shifts:
            continue
        shifts[root] = 0.0
        waiting, seen = deque([root]), set[int]()
        while waiting:
            job = waiting.popleft()
            for link in links_of[job]:
                if link in seen:
                    continue
                seen.add(link)
                for other in sorted(jobs_on[link] - {job}):
                    shifts[other] = (shifts[job] - on_link[job, link] + on_link[other, link]) % periods[other]
                    waiting.append(other)
    return shifts
