"""Gavel: shares of time on each kind of GPU by a linear programme, met in rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from algorithms.allocation.kinds import Kinds
from algorithms.solving import Solver
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.ranges import Checked, ranged

_ROUNDING_S = 1e-6
"""A wake comes at a whole nanosecond, so a round may lack this much."""

_NO_SHARE = 1e-6
_LEFTOVER_WEIGHT = 1e-3


@dataclass(frozen=True, kw_only=True)
class Gavel(Checked, who="gavel"):
    """Max-min fair shares of time, by throughput on each kind; rounds give GPUs to those furthest behind their share.

    A job gets its fewest GPUs or none (state a fixed size as ``min_gpus = max_gpus``), all of one kind, for itself.
    Needs the throughput of each model on each kind (:class:`~ddlsched.cluster.cluster.Throughputs`), not durations.

    Deviations: GPUs that are free within a round, because a job ended or one came, are given out at once. Of optima of
    the programme one with a large sum of throughputs is taken. Left out: pairs of jobs on a GPU, the other objectives
    (finish-time fairness, makespan, cost), weights of jobs.

    Parameters
    ----------
    round_s
        Of a round, seconds; 360 in the paper.
    blind
        Whether all throughputs count as equal, the paper's baseline.
    time_limit_s
        Of one programme; the best found by then is used.

    References
    ----------
    Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
    """

    round_s: float = ranged(360.0, 0.001, 1e9)
    blind: bool = False
    time_limit_s: float = ranged(10.0, 0.0, above=True)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Rounds:
        """Return the rounds of a run."""
        return _Rounds(self)


def max_min_shares(
    speeds: np.ndarray, sizes: Sequence[int], workers: Sequence[int], solver: Solver, now_s: float = 0.0
) -> np.ndarray | None:
    """Return the share of its time that each job should have on each kind, shape (jobs, kinds), or None.

    The least of size x throughput / (throughput with an equal split of every kind) is as large as can be.

    Parameters
    ----------
    speeds
        Throughput of each job (row) on each kind (column), > 0.
    sizes, workers
        GPUs of each job, and of each kind.
    """
    from ortools.math_opt.python import mathopt

    jobs, kinds = speeds.shape
    if not any(workers):
        return np.zeros_like(speeds)
    equal = np.asarray(workers, float) / jobs
    alone = speeds @ (equal / max(equal.sum(), 1.0))
    value = speeds * np.asarray(sizes, float)[:, None] / alone[:, None]
    model = mathopt.Model(name="gavel")
    can = [[sizes[m] <= workers[k] for k in range(kinds)] for m in range(jobs)]
    share = [[model.add_variable(lb=0.0, ub=1.0 if can[m][k] else 0.0) for k in range(kinds)] for m in range(jobs)]
    least = model.add_variable(lb=0.0)
    gain = [mathopt.fast_sum(value[m, k] * share[m][k] for k in range(kinds)) for m in range(jobs)]
    for m in range(jobs):
        model.add_linear_constraint(mathopt.fast_sum(share[m]) <= 1)
        if any(can[m]):
            model.add_linear_constraint(least <= gain[m])
    for k in range(kinds):
        model.add_linear_constraint(mathopt.fast_sum(sizes[m] * share[m][k] for m in range(jobs)) <= workers[k])
    model.maximize(least + _LEFTOVER_WEIGHT / jobs * mathopt.fast_sum(gain))
    values = solver.solve(model, now_s, f"{jobs} jobs", is_whole=False)
    if values is None:
        return None
    return np.array([[values[x] for x in row] for row in share])


class _Rounds:
    def __init__(self, policy: Gavel) -> None:
        self._policy = policy
        self.solver = Solver("allocation gavel", policy.time_limit_s)
        self._shares: dict[int, np.ndarray] = {}
        self._known: tuple[frozenset[int], int] = frozenset(), -1
        self._had_s: dict[tuple[int, int], float] = defaultdict(float)
        self._since_s: dict[int, float] = {}
        self._running: dict[int, int] = {}
        self._then_s, self._round_end_s = 0.0, -inf

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the GPUs of the jobs of this round."""
        self._kinds = Kinds.of(capacity.cluster)
        self._account(jobs, now_s)
        known = frozenset(view.number for view in jobs), capacity.num_gpus
        if known != self._known:
            self._known = known
            self._solve(jobs, capacity, now_s)
        kept = {v.number: v.gpus for v in jobs if v.num_gpus == v.job.min_gpus and not v.lost_gpus}
        if now_s >= self._round_end_s - _ROUNDING_S:
            self._round_end_s = now_s + self._policy.round_s
            chosen = self._chosen(jobs, capacity, {})
        else:
            chosen = self._chosen(jobs, capacity, kept)
        return self._placed(jobs, chosen, kept, capacity)

    def wake_s(self, now_s: float) -> float | None:
        """Return when the round ends."""
        return self._round_end_s if self._known[0] else None

    def _account(self, jobs: Sequence[ElasticJobView], now_s: float) -> None:
        """Add what each job has had of each kind since the last time."""
        for number, kind in self._running.items():
            self._had_s[number, kind] += now_s - self._then_s
        self._then_s = now_s
        for view in jobs:
            self._since_s.setdefault(view.number, now_s)

    def _solve(self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float) -> None:
        if not jobs:
            return
        most = max(self._kinds.in_all)
        for view in jobs:
            if view.job.min_gpus > most:  # it would wait for ever
                raise InputError(
                    f"job {view.job_id!r} needs {view.job.min_gpus} GPUs; expected at most {most}, all of one kind, as "
                    "gavel gives no job several"
                )
        kinds = range(len(self._kinds))
        speeds = np.array([[1.0 if self._policy.blind else self._kinds.speed(v, k) for k in kinds] for v in jobs])
        workers = self._kinds.counts(_usable(jobs, capacity))
        found = max_min_shares(speeds, [view.job.min_gpus for view in jobs], workers, self.solver, now_s)
        if found is not None:
            self._shares = {view.number: row for view, row in zip(jobs, found, strict=True)}

    def _chosen(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, kept: Mapping[int, tuple[int, ...]]
    ) -> dict[int, int]:
        """Return the kind of each job that runs: those kept, then by how far they are behind their share."""
        chosen = {number: self._kinds.of_gpu[gpus[0]] for number, gpus in kept.items()}
        left = self._kinds.counts(_usable(jobs, capacity).difference(*kept.values()))
        all_s = [sum(s for (_, of), s in self._had_s.items() if of == kind) for kind in range(len(left))]
        ranked = sorted(
            (*self._rank(view, kind, all_s[kind]), view.number, kind, view.job.min_gpus)
            for view in jobs
            for kind in range(len(left))
            if view.number not in chosen and view.number in self._shares and self._shares[view.number][kind] > _NO_SHARE
        )
        for *_, number, kind, size in ranked:
            if number not in chosen and size <= left[kind]:
                chosen[number] = kind
                left[kind] -= size
        return chosen

    def _rank(self, view: ElasticJobView, kind: int, all_s: float) -> tuple[float, float, float]:
        """Return minus (share / part of the kind's time had, deficit, share)."""
        share, had_s = float(self._shares[view.number][kind]), self._had_s[view.number, kind]
        priority = share / (had_s / all_s) if had_s else inf
        return -priority, -(share * (self._then_s - self._since_s[view.number]) - had_s), -share

    def _placed(
        self,
        jobs: Sequence[ElasticJobView],
        chosen: Mapping[int, int],
        kept: Mapping[int, tuple[int, ...]],
        capacity: CapacityView,
    ) -> dict[str, Allocation]:
        """Return the GPUs of those chosen: those that stay on a kind keep theirs, then the largest first."""
        stay = {n for n in kept if n in chosen and self._kinds.of_gpu[kept[n][0]] == chosen[n]}
        free = _usable(jobs, capacity).difference(*(kept[number] for number in stay))
        answer = {}
        for view in sorted(jobs, key=lambda view: (-view.job.min_gpus, view.number)):
            if view.number in chosen:
                size, kind = view.job.min_gpus, chosen[view.number]
                gpus = kept[view.number] if view.number in stay else self._kinds.take(free, kind, size)
                answer[view.job_id] = Allocation(size, gpus=gpus)
        self._running = dict(chosen)
        return answer


def _usable(jobs: Sequence[ElasticJobView], capacity: CapacityView) -> set[int]:
    """Return the GPUs that elastic jobs can have."""
    return set(capacity.free_gpus).union(*(view.gpus for view in jobs))
