"""Elastic scaling: an exact optimum over GPUs and batches at intervals, by how fast each job would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from algorithms.allocation.sharing import counts_of, filled_knapsack
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import DROP, Allocation, Drop
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView, free_by_server, take_nearest
from ddlsched.ranges import Checked, ranged
from ddlsched.workload.elastic_job import ElasticJob


def best_counts(values: np.ndarray, num_gpus: int, preferred: Sequence[int] | None = None) -> list[int] | None:
    """Return the number of GPUs of each job in an optimum, or None if there is no way to give every job one.

    Here sums are of floats and ties are broken job by job; :func:`algorithms.allocation.count_programme.best_counts`
    makes the fewest changes in all, in whole numbers, because it has to equal a MILP in which changes cost.

    GPUs may stay unused.

    Parameters
    ----------
    values
        Of each job (row) with 0, 1, 2, ... GPUs (column); -inf where it cannot have as many.
    num_gpus
        In all.
    preferred
        Where several numbers give a job's row the same sum, this one of each job if it is among them (-1: none), or
        else the smallest.

    References
    ----------
    Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", arXiv 2006.13878 (MASCOTS 2020).
    """
    best, chosen = filled_knapsack(values, num_gpus, -np.inf, preferred)
    return None if best[num_gpus] == -np.inf else counts_of(chosen, num_gpus)


_BATCHES = 24
"""How many batches are tried at each number of GPUs."""


@dataclass(frozen=True)
class Scalability:
    """A job's speed by its number of GPUs.

    Attributes
    ----------
    batch
        The best batch with 0, 1, 2, ... GPUs; 0 where the job cannot run.
    samples_per_s
        The rate with that batch; 0 where the job cannot run.
    """

    batch: np.ndarray
    samples_per_s: np.ndarray

    @property
    def speedup(self) -> np.ndarray:
        """Rate over that of one GPU; -inf where the job cannot run.

        A job that needs several GPUs to run at all is taken to be as fast on one as on those, shared out.
        """
        rates = self.samples_per_s
        least = int(np.argmax(rates > 0))
        return np.where(rates > 0, rates / (rates[least] / least), -np.inf)


def analyse(
    job: ElasticJob, most_gpus: int, communication_s: Callable[[int], float], batch: int | None = None
) -> Scalability:
    """Estimate a job's rate on every number of GPUs from the time of one GPU and that of an all-reduce.

    An iteration takes ``job.curve.iteration_s(k, B) + communication_s(k)``; the rate is B over that. For each k the
    best of some two dozen batches B that the job allows is kept.

    Parameters
    ----------
    job
        Its curve is asked; it may be measured (a table of throughputs) or come from the
        training-time model (:mod:`ddlsched.training.estimate.estimated_jobs`).
    most_gpus
        The largest number of GPUs to look at (k_max).
    communication_s
        From a number of GPUs to the time of an iteration's all-reduce, seconds.
    batch
        Instead of the best one, the only one; then the job runs on those numbers of GPUs that have room for it.

    Raises
    ------
    InputError
        The job can run on no number of GPUs up to ``most_gpus``.
    """
    most = min(most_gpus, job.max_gpus)
    batches, rates = np.zeros(most_gpus + 1, np.int64), np.zeros(most_gpus + 1)
    for num_gpus in range(job.min_gpus, most + 1):
        wait_s = communication_s(num_gpus)
        for tried in _batches(job, num_gpus, batch):
            rate = tried / (job.curve.iteration_s(num_gpus, tried) + wait_s)
            if rate > rates[num_gpus]:
                batches[num_gpus], rates[num_gpus] = tried, rate
    if not rates.any():
        what = f"from {job.min_gpus} GPUs on" + ("" if batch is None else f", with a batch of {batch}")
        raise InputError(f"job {job.job_id!r}: runs {what}, and gets at most {most_gpus}; expected more")
    return Scalability(batches, rates)


def _batches(job: ElasticJob, num_gpus: int, batch: int | None) -> list[int]:
    """Return the batches to try, from smallest to largest, in equal ratios and in whole shares of the GPUs."""
    smallest, largest = job.smallest_batch(num_gpus), job.largest_batch(num_gpus)
    if batch is not None:
        return [batch] if smallest <= batch <= largest else []
    spread = np.geomspace(smallest, largest, _BATCHES)
    shares = np.unique(np.ceil(spread / num_gpus).astype(np.int64) * num_gpus)
    inside = shares[(shares >= smallest) & (shares <= largest)].tolist()
    return sorted({smallest, *inside, largest})


def packed(
    sizes: Mapping[str, Allocation], jobs: Sequence[ElasticJobView], capacity: CapacityView
) -> dict[str, Allocation]:
    """Return the allocations with GPUs named.

    Jobs that change are placed anew, those with most GPUs first, each on as few servers as the free GPUs allow. One
    that does not change keeps its GPUs, unless it can move to fewer servers afterwards.

    Parameters
    ----------
    sizes
        GPUs and batch of each job that is to have some.
    jobs
        All elastic jobs.
    capacity
        The GPUs.
    """
    views = {view.job_id: view for view in jobs}
    stay = [job_id for job_id, size in sizes.items() if _is_as_now(size, views[job_id])]
    answer = {job_id: replace(sizes[job_id], gpus=views[job_id].gpus) for job_id in stay}
    usable = {*capacity.free_gpus, *(gpu for view in jobs for gpu in view.gpus)}
    pool = free_by_server(usable.difference(*(views[job_id].gpus for job_id in stay)), capacity.server_of)
    start = [job_id for job_id in sizes if job_id not in answer]
    for job_id in sorted(start, key=lambda job_id: (-sizes[job_id].num_gpus, views[job_id].number)):
        gpus = take_nearest(pool, sizes[job_id].num_gpus, (), capacity.server_of)
        answer[job_id] = replace(sizes[job_id], gpus=tuple(gpus))
    for job_id in stay:
        answer[job_id] = replace(sizes[job_id], gpus=_gathered(views[job_id].gpus, pool, capacity))
    return answer


def _is_as_now(size: Allocation, view: ElasticJobView) -> bool:
    return (size.num_gpus, size.batch, 0) == (view.num_gpus, view.batch, view.lost_gpus)


def _gathered(gpus: tuple[int, ...], pool: dict[int, list[int]], capacity: CapacityView) -> tuple[int, ...]:
    """Return the GPUs of a job, or others on fewer servers if they are free."""
    servers = {capacity.server_of(gpu) for gpu in gpus}
    if len(servers) == 1:
        return gpus
    free = [gpu for here in pool.values() for gpu in here]
    wider = free_by_server([*free, *gpus], capacity.server_of)
    nearer = take_nearest(wider, len(gpus), (), capacity.server_of)
    if len({capacity.server_of(gpu) for gpu in nearer}) >= len(servers):
        return gpus
    pool.clear()
    pool.update(wider)
    return tuple(nearer)


@dataclass(frozen=True, kw_only=True)
class ElasticScaling(Checked, who="elastic-scaling"):
    """The GPUs and batches with the largest sum of speed-ups, decided every ``interval_s``.

    At each interval the jobs that wait are taken on, first come first served, each only if every job taken on can
    still have the fewest GPUs that it runs on; the others are dropped, or wait on with ``queue``. Then GPUs are shared
    out by the exact dynamic programme over the speed-ups that the job scalability analyser expects. Jobs whose GPUs or
    batch change are stopped and started again at the run's rescale cost. Between intervals nothing changes, but for
    jobs that lost a server: then GPUs are shared out anew at once.

    Parameters
    ----------
    interval_s
        Seconds between decisions.
    queue
        Whether a job that finds no room waits; otherwise it is dropped.
    most_gpus
        The most GPUs that any one job gets (k_max).
    batch
        ``best``: for each number of GPUs the best that the job allows. The baselines keep one batch a job, whatever its
        GPUs: the smallest that it allows (``min``), the largest (``max``), or one drawn between them (``random``).

    References
    ----------
    Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", arXiv 2006.13878 (MASCOTS 2020).
    """

    interval_s: float = ranged(600.0, 0.001, 1e9)
    queue: bool = False
    most_gpus: int = ranged(10, 1, 100_000)
    batch: Literal["best", "min", "max", "random"] = "best"

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Autoscaler:
        """Return the autoscaler of a run."""
        return _Autoscaler(self, rng)


class _Autoscaler:
    def __init__(self, policy: ElasticScaling, rng: np.random.Generator) -> None:
        self._policy = policy
        self._rng = rng
        self._known: dict[str, Scalability] = {}
        self._taken_on: set[str] = set()
        self._next: int | None = None  # number of the next interval

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation | Drop]:
        passed = now_s / self._policy.interval_s
        if self._next is None:
            self._next = ceil(passed)
        due = passed >= self._next - 1e-9
        if not due and not any(view.lost_gpus for view in jobs):
            return {view.job_id: Allocation(view.num_gpus, view.batch, view.gpus) for view in jobs if view.gpus}
        refused: dict[str, Drop] = {}
        if due:
            self._next = int(passed + 1e-9) + 1
            refused = self._take_on(jobs, capacity)
        return refused | self._share_out(jobs, capacity)

    def wake_s(self, now_s: float) -> float | None:
        return None if self._next is None else self._next * self._policy.interval_s

    def _take_on(self, jobs: Sequence[ElasticJobView], capacity: CapacityView) -> dict[str, Drop]:
        """Take on what there is room for; return those that are dropped."""
        self._taken_on.intersection_update(view.job_id for view in jobs)
        needed = sum(self._least(view, capacity) for view in jobs if view.job_id in self._taken_on)
        refused: dict[str, Drop] = {}
        for view in jobs:
            if view.job_id in self._taken_on:
                continue
            least = self._least(view, capacity)
            if needed + least <= capacity.num_gpus:
                self._taken_on.add(view.job_id)
                needed += least
            elif not self._policy.queue:
                refused[view.job_id] = DROP
        return refused

    def _share_out(self, there: Sequence[ElasticJobView], capacity: CapacityView) -> dict[str, Allocation]:
        """Share the GPUs out; if servers left, the jobs taken on last may have to stop."""
        jobs = [view for view in there if view.job_id in self._taken_on]
        while sum(self._least(view, capacity) for view in jobs) > capacity.num_gpus:
            jobs = jobs[:-1]
        if not jobs:
            return {}
        known = [self._analysed(view, capacity) for view in jobs]
        now = [view.num_gpus for view in jobs]
        counts = best_counts(np.array([found.speedup for found in known]), capacity.num_gpus, preferred=now)
        assert counts is not None  # the fewest of each fit
        sized = {
            view.job_id: Allocation(count, int(found.batch[count]))
            for view, found, count in zip(jobs, known, counts, strict=True)
        }
        return packed(sized, there, capacity)

    def _least(self, view: ElasticJobView, capacity: CapacityView) -> int:
        return int(np.argmax(self._analysed(view, capacity).samples_per_s > 0))

    def _analysed(self, view: ElasticJobView, capacity: CapacityView) -> Scalability:
        if view.job_id not in self._known:
            job, per_server = view.job, capacity.cluster.gpus_per_server
            wait_s = lambda k: capacity.all_reduce_s(job.message_bytes, ceil(k / per_server))  # noqa: E731
            most = self._policy.most_gpus
            self._known[view.job_id] = analyse(job, most, wait_s, self._fixed_batch(view, most))
        return self._known[view.job_id]

    def _fixed_batch(self, view: ElasticJobView, most_gpus: int) -> int | None:
        """Return a baseline's batch of a job."""
        job = view.job
        smallest, largest = job.smallest_batch(job.min_gpus), job.largest_batch(min(job.max_gpus, most_gpus))
        drawn = int(self._rng.integers(smallest, largest, endpoint=True))
        return {"best": None, "min": smallest, "max": largest, "random": drawn}[self._policy.batch]
