"""What a run's jobs are measured by (slowdown, fairness, where the time went), and how much one run says.

The same run with lengths that differ by a hair has other times, and sampled runs are off from exact ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.deferred import pd
from ddlsched.results.result import PHASES, averages
from ddlsched.results.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from ddlsched.results.result import Result


def average_contention(arrival_s: np.ndarray, finish_s: np.ndarray) -> np.ndarray:
    """Return how many jobs were in the system, itself included, on average over each job's life.

    Parameters
    ----------
    arrival_s, finish_s
        Of all jobs, seconds; a finish of NaN is after all others.

    Returns
    -------
    ndarray
        At least 1; 1 for a job that finished as it arrived; NaN for one that did not finish. By sorting and
        prefix sums, in O(n log n).
    """
    finished = ~np.isnan(finish_s)
    arrivals, finishes = np.sort(arrival_s), np.sort(finish_s[finished])
    times = np.sort(np.concatenate([arrivals, finishes]))
    present = np.searchsorted(arrivals, times, side="right") - np.searchsorted(finishes, times, side="right")
    job_seconds = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])
    begin, end = arrival_s[finished], finish_s[finished]
    during = job_seconds[np.searchsorted(times, end)] - job_seconds[np.searchsorted(times, begin)]
    life_s = end - begin
    contention = np.full(len(arrival_s), np.nan)
    contention[finished] = np.maximum(np.divide(during, life_s, out=np.ones(len(end)), where=life_s > 0.0), 1.0)
    return contention


def finish_time_fairness(
    arrival_s: np.ndarray, finish_s: np.ndarray, alone_s: np.ndarray, gpus: np.ndarray, num_gpus: int
) -> np.ndarray:
    """Return ρ of each job: its time in the shared cluster / its time in a fair share of it.

    With N jobs in the system on average over the job's life, a fair share is G / N of the cluster's G GPUs.
    A job that asks for n of them runs there as fast as alone if n <= G / N, else n N / G times as long:

        ρ = (finish - arrival) / (alone_s * max(1, n * N / G))

    ρ > 1: the job would have been better off with its share to itself.

    Parameters
    ----------
    arrival_s, finish_s, alone_s
        Of all jobs, seconds; a finish of NaN is after all others.
    gpus
        What each job asks for.
    num_gpus
        Of the cluster.

    Returns
    -------
    ndarray
        NaN for a job that did not finish, and for one that has no work (alone_s is 0).

    References
    ----------
    ρ, and its time in a 1/N share: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling",
    NSDI 2020. N as the average over the job's life, and the time of a job with a fixed number of GPUs in a
    smaller share: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
    scheduling", SOSP 2023, as in ``ftf_simulator.py`` of its artifact (github.com/siasosp23/artifacts). Worst
    ρ and the share of jobs with ρ > 1 as measures of a policy: Zheng et al., "Shockwave: Fair and Efficient
    Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023.
    """
    share_s = alone_s * np.maximum(1.0, gpus * average_contention(arrival_s, finish_s) / num_gpus)
    rho = np.full(len(share_s), np.nan)
    np.divide(finish_s - arrival_s, share_s, out=rho, where=share_s > 0.0)
    return rho


def jain_index(values: np.ndarray) -> float:
    """Return Jain's fairness index (sum x)^2 / (n sum x^2): 1 if all are alike, 1 / n if one has all.

    Parameters
    ----------
    values
        Not negative. NaN is returned of none, and of nothing but zeros: there is nothing to be divided fairly.

    References
    ----------
    Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems", DEC TR-301, 1984.
    """
    if not values.any():
        return float("nan")
    scaled = values / values.max()  # so that no square overflows or vanishes
    return float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()))


SIZE_CLASSES = {1: "1", 2: "2-4", 5: "5-7", 8: "8+"}
"""Names of classes of jobs by the least number of GPUs of each."""

ON_NETWORK = ("communication", "network_wait")
"""Phases of a job's time that the network decides."""

_NETWORK_BOUND = 0.9
_UNFAIR = 1.0 + 1e-9
"""What ρ must pass to be called more than 1, whatever the rounding of sums."""


def size_class(gpus: np.ndarray) -> np.ndarray:
    """Return the name of each job's size class, from its number of GPUs."""
    names = np.array(list(SIZE_CLASSES.values()), dtype=object)
    return names[np.searchsorted(list(SIZE_CLASSES), gpus, side="right") - 1]


def counted(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs that enter averages if they finish: those that arrived, after the warm-up, before the end."""
    return jobs[jobs["counted"].to_numpy(bool) & (jobs["state"] != "future").to_numpy()]


def network_remark(queueing: float, communication: float, network_wait: float) -> str | None:
    """Return that the network is saturated, from parts of jobs' time, or None if jobs on their GPUs also compute."""
    on_gpus = 1.0 - queueing
    if not on_gpus > 0.0 or (share := (communication + network_wait) / on_gpus) < _NETWORK_BOUND:
        return None
    return f"the network is saturated, jobs on their GPUs communicate, or wait to, for {100 * share:.0f} % of the time."


def run_metrics(jobs: pd.DataFrame) -> dict[str, float]:
    """Return the metrics of a run beyond those of :meth:`Result.summary`.

    From the table of :func:`ddlsched.comparisons.alone.job_metrics`. ``jobs`` and ``unfinished_jobs`` count those of
    :func:`counted` and how many of them did not finish; all else is of those that did. ``average_slowdown``,
    ``median_slowdown``, ``p95_slowdown`` (numpy's linear rule); ``worst_finish_time_fairness`` and
    ``unfair_fraction``, the largest ρ and the share of jobs with ρ > 1; ``jain_index`` of 1 / slowdown, the speed
    that each job was given as a part of what it would have had alone; and for each phase of a job's time
    ``queueing_share`` and so on, the sum over jobs / the sum of their JCT. NaN where there is nothing to measure: no
    job with work finished, or for shares, none that took any time.
    """
    arrived = counted(jobs)
    finished = arrived[arrived["finish_s"].notna()]
    with_work = finished[finished["alone_s"] > 0.0]
    slowdown, rho = (with_work[name].to_numpy() for name in ("slowdown", "finish_time_fairness"))
    jct_s = finished["jct_s"].sum()
    return {
        "jobs": len(arrived),
        "unfinished_jobs": len(arrived) - len(finished),
        **averages(slowdown, "slowdown"),
        "worst_finish_time_fairness": float(rho.max()) if len(rho) else np.nan,
        "unfair_fraction": float((rho > _UNFAIR).mean()) if len(rho) else np.nan,
        "jain_index": jain_index(1.0 / slowdown[slowdown > 0.0]),
        **{
            f"{phase.removesuffix('_s')}_share": float(finished[phase].sum() / jct_s) if jct_s else np.nan
            for phase in PHASES
        },
    }


@dataclass(frozen=True)
class Ensemble:
    """Runs of one trace whose jobs' lengths differ by a hair.

    Attributes
    ----------
    average_jct_s
        Mean over the runs, with its 95 % interval.
    run_deviation, job_deviation
        How chaotic the case is: the standard deviation of a run's average JCT over the mean, and the median over
        jobs of that of a job's JCT. Lengths alone, of 0.1 %, would make about 0.0006 of both.
    """

    average_jct_s: Interval
    run_deviation: float
    job_deviation: float

    def metrics(self) -> dict[str, float]:
        """Return all as numbers by name."""
        mean_s = self.average_jct_s
        return {
            "draws": mean_s.seeds,
            "draws_average_jct_s": mean_s.mean,
            "draws_average_jct_low_s": mean_s.low,
            "draws_average_jct_high_s": mean_s.high,
            "draws_run_deviation": self.run_deviation,
            "draws_job_deviation": self.job_deviation,
        }


def ensemble_of(results: Sequence[Result]) -> Ensemble:
    """Return what several draws of one run tell together; jobs that did not finish in all of them are left out of it.

    The average JCT of a run is :meth:`Result.summary`'s, over the jobs that count there.
    """
    averages_s = np.array([result.summary()["average_jct_s"] for result in results])
    jct_s = np.array([result.jobs["jct_s"].where(result.jobs["counted"]) for result in results])
    jct_s = jct_s[:, ~np.isnan(jct_s).any(axis=0)]
    deviations = _deviation(jct_s) if jct_s.size else np.array([np.nan])
    return Ensemble(mean_interval(averages_s, 0.0), float(_deviation(averages_s)), float(np.median(deviations)))


def _deviation(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation over the mean, of each column."""
    means = values.mean(axis=0)
    deviation: np.ndarray = values.std(axis=0, ddof=1) / np.where(means > 0.0, means, 1.0)
    return deviation


@dataclass(frozen=True)
class SampledError:
    """The measured error of a class of runs, in %: the average JCT's (rms), and what 95 % of jobs are within.

    ``benchmarks/sampling_error.py`` measures it, on seeds that chose nothing in the method.
    """

    average_percent: float
    jobs_percent: float


STATED = {
    "no transfer held back": SampledError(0.3, 2.2),
    "transfers held back for up to a third of their time": SampledError(0.5, 5.3),
    "transfers held back for more than a third of their time": SampledError(0.9, 12.6),
    "jobs of groups and no transfer held back": SampledError(0.1, 0.9),
    "jobs of groups and transfers held back": SampledError(0.2, 2.1),
}
"""By how much of their time transfers are held back: the worst cluster of
``benchmarks/sampling_error.csv`` or of the further seeds of ``docs/statistics.md``, rounded up; of more than a third
SRSF(1)'s worst, which is worse than the class's."""


def sampling_class(result: Result) -> str:
    """Return the class of :data:`STATED` that a run is of: of jobs of groups, if these communicate most of the time."""
    each_s = result.jobs["network_wait_s"] + result.jobs["communication_s"]
    share = result.jobs["network_wait_s"].sum() / each_s.sum() if each_s.any() else 0.0
    grouped = each_s[result.finished.state.jobs.grouped > 0].sum() > each_s.sum() / 2
    return list(STATED)[(3 if grouped else 0) + (share >= 0.001) + (share > 1 / 3 and not grouped)]


def sampled_text(result: Result) -> str:
    """Return what a reader of a sampled run's figures must know."""
    contended, computed = result.contended_iterations, result.computed_iterations
    if not contended:
        return "Sampled: but no jobs share GPUs or links, so that all iterations are exact."
    if not result.leapt_iterations:
        why = f": {result.finished.unsampled}" if result.finished.unsampled else ""
        return f"Sampled: but all {contended:,} iterations of jobs that share GPUs or links are exact{why}."
    kind, share = sampling_class(result), 100 * computed / contended
    stated = STATED[kind]
    return (
        f"Sampled: of {contended:,} iterations of jobs that share GPUs or links {share:.2f} % were computed. At given "
        f"GPUs and starts, with {kind}, the average JCT is off by {stated.average_percent:g} % (rms) and 95 % of jobs "
        f"by at most {stated.jobs_percent:g} %; whole runs vary more (--draws)."
    )
