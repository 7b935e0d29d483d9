"""Sia: a configuration (kind, GPUs) for each elastic job, the best in all by a binary programme, round by round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from algorithms.allocation.kinds import Kinds, iteration_s, servers_for
from algorithms.solving import Solver
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import GpuId
from ddlsched.ranges import check_fields, ranged

_ROUNDING_S = 1e-6
"""A wake comes at a whole nanosecond, so a round may lack this much."""


class Configuration(NamedTuple):
    """So many GPUs of a kind."""

    kind: int
    num_gpus: int


@dataclass(frozen=True, kw_only=True)
class Sia:
    """Each job one configuration: 1, 2, 4, ... GPUs in a server, or whole servers; the sum of normalised goodputs^p.

    Goodput is samples a second by the job's curve and an all-reduce alone on the links, over that of the job's worst
    configuration. One other than the present counts (age - restarts x restart_s) / (age + restart_s) of it. Jobs that
    restart keep what they have. A job is on the fewest servers; if that takes it, smaller ones move.

    Deviations: OR-Tools' CP-SAT in place of the authors' solver. Goodput is throughput: how a larger batch learns less
    from a sample is not modelled, nor does it change batches. Curves and throughputs are given, not learnt while a
    job runs. Jobs of a fixed size (``min_gpus = max_gpus``) have that size in any shape. Nothing changes within a
    round; a job that came has to wait for the next, unless nobody runs.

    Parameters
    ----------
    round_s
        Of a round, seconds.
    power
        p, not 0: the fairness of the sum; below 0 the sum is minimised.
    queue_price
        λ of a job without GPUs; 1.1 in the paper.
    restart_s
        What a restart is thought to take, seconds; 30 in the paper where a model is not measured.
    time_limit_s
        Of one programme; the best found by then is used.

    References
    ----------
    Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023.
    """

    round_s: float = ranged(60.0, 0.001, 1e9)
    power: float = ranged(-0.5, -10.0, 10.0)
    queue_price: float = ranged(1.1, 0.0)
    restart_s: float = ranged(30.0, 0.0)
    time_limit_s: float = ranged(10.0, 0.0, above=True)

    def __post_init__(self) -> None:
        check_fields(self, "sia")
        if self.power == 0:
            raise InputError("sia: power is 0; expected another number from -10 to 10")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Rounds:
        """Return the rounds of a run."""
        return _Rounds(self)


def configurations(servers: int, gpus_per_server: int) -> list[int]:
    """Return the numbers of GPUs of one kind that a job may have: powers of two in a server, then whole servers."""
    inside = [2**k for k in range(gpus_per_server.bit_length()) if 2**k < gpus_per_server]
    return inside + [gpus_per_server * count for count in range(1, servers + 1)]


def restart_factor(age_s: float, restarts: int, restart_s: float) -> float:
    """Return which part of its goodput a job is thought to keep if it restarts now; 1 while it is young."""
    if age_s <= restart_s:
        return 1.0
    return max((age_s - restarts * restart_s) / (age_s + restart_s), 0.01)


def normalised(
    raw: Mapping[Configuration, float], present: Configuration | None, factor: float
) -> dict[Configuration, float]:
    """Return goodputs over the least of them, those of another configuration than the present times a factor."""
    least = min(raw.values(), default=1.0)
    return {c: value / least * (1.0 if present in (None, c) else factor) for c, value in raw.items()}


def best_configurations(
    goodputs: Sequence[Mapping[Configuration, float]],
    workers: Sequence[int],
    *,
    power: float,
    queue_price: float,
    solver: Solver,
    now_s: float = 0.0,
    keep: Collection[int] = (),
) -> list[Configuration | None] | None:
    """Return the configuration of each job, None for those that get nothing; or None if the solver found nothing.

    Parameters
    ----------
    goodputs
        Of each job, the normalised goodput of each configuration that it may have, > 0.
    workers
        GPUs of each kind.
    keep
        Places of the jobs that must have one.
    """
    from ortools.math_opt.python import mathopt

    model = mathopt.Model(name="sia")
    picks = [{c: model.add_binary_variable() for c in of_job} for of_job in goodputs]
    for place, of_job in enumerate(picks):
        model.add_linear_constraint(lb=float(place in keep), ub=1.0, expr=mathopt.fast_sum(of_job.values()))
    for kind, count in enumerate(workers):
        used = [c.num_gpus * x for of_job in picks for c, x in of_job.items() if c.kind == kind]
        model.add_linear_constraint(mathopt.fast_sum(used) <= count)
    sign = 1.0 if power < 0 else -1.0
    value = [
        (sign * round(goodput**power, 2) - queue_price) * picks[j][c]
        for j, of_job in enumerate(goodputs)
        for c, goodput in of_job.items()
    ]
    model.minimize(mathopt.fast_sum(value))
    values = solver.solve(model, now_s, f"{len(goodputs)} jobs", is_whole=True)
    if values is None:
        return None
    return [next((c for c, x in of_job.items() if values[x] > 0.5), None) for of_job in picks]


@dataclass
class _History:
    since_s: float
    restarts: int = 0
    held: tuple[int, ...] = ()


class _Rounds:
    def __init__(self, policy: Sia) -> None:
        self._policy = policy
        self.solver = Solver("allocation sia", policy.time_limit_s)
        self._history: dict[int, _History] = {}
        self._round_end_s = -inf
        self._there = False

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the GPUs of each job of this round."""
        self._kinds = Kinds.of(capacity.cluster)
        self._there = bool(jobs)
        for view in jobs:
            self._history.setdefault(view.number, _History(now_s))
        runs = any(view.gpus for view in jobs)
        keeps = {view.job_id: Allocation(view.num_gpus, view.batch, view.gpus) for view in jobs if _can_stay(view)}
        if now_s < self._round_end_s - _ROUNDING_S and runs:
            return keeps
        self._round_end_s = now_s + self._policy.round_s
        found = self._solve(jobs, capacity, now_s) if jobs else None
        return keeps if found is None else self._placed(jobs, found, capacity)

    def wake_s(self, now_s: float) -> float | None:
        """Return when the round ends."""
        return self._round_end_s if self._there else None

    def _solve(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> list[Configuration | None] | None:
        usable = set(capacity.free_gpus).union(*(view.gpus for view in jobs))
        return best_configurations(
            [self._goodputs(view, capacity, now_s) for view in jobs],
            self._kinds.counts(usable),
            power=self._policy.power,
            queue_price=self._policy.queue_price,
            solver=self.solver,
            now_s=now_s,
            keep={place for place, view in enumerate(jobs) if _restarts(view)},
        )

    def _goodputs(self, view: ElasticJobView, capacity: CapacityView, now_s: float) -> dict[Configuration, float]:
        """Return the normalised goodput of each configuration of a job."""
        now = _present(view, self._kinds)
        if now is not None and _restarts(view):
            return {now: 1.0}
        raw = {c: self._samples_per_s(view, c, capacity) for c in self._configurations(view)}
        history = self._history[view.number]
        return normalised(raw, now, restart_factor(now_s - history.since_s, history.restarts, self._policy.restart_s))

    def _configurations(self, view: ElasticJobView) -> list[Configuration]:
        job, found = view.job, []
        for kind, (most, count) in enumerate(zip(self._kinds.gpus_per_server, self._kinds.in_all, strict=True)):
            sizes = [job.min_gpus] if _is_fixed(view) else configurations(count // most, most)
            found += [Configuration(kind, n) for n in sizes if job.min_gpus <= n <= min(job.max_gpus, count)]
        if not found:  # it would wait for ever
            raise InputError(
                f"job {view.job_id!r} runs on {job.min_gpus} to {job.max_gpus} GPUs, of which sia gives none; expected "
                "1, 2, 4, ... of a server or whole servers of one kind among them"
            )
        return found

    def _samples_per_s(self, view: ElasticJobView, c: Configuration, capacity: CapacityView) -> float:
        speed, most = self._kinds.speed(view, c.kind), self._kinds.gpus_per_server[c.kind]
        return view.job.largest_batch(c.num_gpus) / iteration_s(view, c.num_gpus, speed, capacity, most)

    def _placed(
        self, jobs: Sequence[ElasticJobView], found: Sequence[Configuration | None], capacity: CapacityView
    ) -> dict[str, Allocation]:
        """Return the GPUs of each job, and count who restarts."""
        given = {view.number: c for view, c in zip(jobs, found, strict=True) if c is not None}
        views = {view.number: view for view in jobs}
        stay = {
            n: views[n].gpus for n, c in given.items() if _can_stay(views[n]) and c == _present(views[n], self._kinds)
        }
        usable = set(capacity.free_gpus).union(*(view.gpus for view in jobs))
        tied = {n for n in stay if _restarts(views[n]) or _is_fixed(views[n])}
        in_any_shape = {n for n in given if _is_fixed(views[n])}
        answer = {}
        for number, gpus in placed(given, stay, usable, self._kinds, tied, in_any_shape).items():
            history = self._history[number]
            history.restarts += bool(history.held) and history.held != gpus
            history.held = gpus
            answer[views[number].job_id] = Allocation(len(gpus), gpus=gpus)
        return answer


def placed(
    given: Mapping[int, Configuration],
    stay: Mapping[int, tuple[GpuId, ...]],
    usable: Collection[GpuId],
    kinds: Kinds,
    tied: Collection[int] = (),
    in_any_shape: Collection[int] = (),
) -> dict[int, tuple[GpuId, ...]]:
    """Return the GPUs of each job, by its number: on the fewest servers that have so many.

    Jobs of an unchanged configuration keep theirs, and the others are placed after them, the largest first. If one
    does not get the fewest servers so, the smallest of its kind that stays is placed anew, too, and so on; if that does
    not help, nobody is.

    Parameters
    ----------
    given, stay
        Of each job its configuration; the GPUs of those whose configuration is unchanged.
    usable
        GPUs that are there.
    tied
        Jobs that are not placed anew.
    in_any_shape
        Jobs that may be on more servers.
    """
    staying, first = dict(stay), None
    while True:
        found = _taken(given, staying, set(usable), kinds)
        first = first or found
        split = {c.kind for n, c in given.items() if n not in in_any_shape and _is_split(found[n], c, kinds)}
        movable = [n for n in staying if n not in tied and given[n].kind in split]
        if not movable:
            return first if split else found
        del staying[min(movable, key=lambda n: (given[n].num_gpus, n))]


def _taken(
    given: Mapping[int, Configuration], staying: Mapping[int, tuple[GpuId, ...]], usable: set[GpuId], kinds: Kinds
) -> dict[int, tuple[GpuId, ...]]:
    free, found = usable.difference(*staying.values()), dict(staying)
    for number, c in sorted(given.items(), key=lambda item: (-item[1].num_gpus, item[0])):
        if number not in staying:
            found[number] = kinds.take(free, c.kind, c.num_gpus)
    return found


def _is_split(gpus: Sequence[GpuId], c: Configuration, kinds: Kinds) -> bool:
    fewest = servers_for(c.num_gpus, kinds.gpus_per_server[c.kind])
    return len(set(map(kinds.server_of, gpus))) > fewest


def _is_fixed(view: ElasticJobView) -> bool:
    return view.job.min_gpus == view.job.max_gpus


def _can_stay(view: ElasticJobView) -> bool:
    return bool(view.gpus) and not view.lost_gpus


def _restarts(view: ElasticJobView) -> bool:
    return _can_stay(view) and view.rescaling_left_s > 0


def _present(view: ElasticJobView, kinds: Kinds) -> Configuration | None:
    return Configuration(kinds.of_gpu[view.gpus[0]], view.num_gpus) if view.gpus else None
