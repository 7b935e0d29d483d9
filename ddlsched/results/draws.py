"""What one run is worth: it with lengths that differ by a hair, and how far sampled runs are from exact ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.results.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from ddlsched.results.result import Result

__all__ = ["STATED", "Ensemble", "ensemble_of", "sampled_text", "sampling_class"]


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
    deviations = _deviation(jct_s) if jct_s.size else np.full(1, np.nan)
    return Ensemble(mean_interval(averages_s), float(_deviation(averages_s)), float(np.median(deviations)))


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
    "no transfer held back": SampledError(0.2, 1.2),
    "transfers held back for up to a third of their time": SampledError(0.5, 5.3),
    "transfers held back for more than a third of their time": SampledError(0.7, 9.1),
    "jobs of groups and no transfer held back": SampledError(0.2, 1.7),
    "jobs of groups and transfers held back": SampledError(0.2, 2.1),
}
"""By how much of their time transfers are held back: the worst cluster of
``benchmarks/sampling_error.csv``, rounded up."""


def sampling_class(result: Result) -> str:
    """Return the class of :data:`STATED` that a run is of: of jobs of groups, if these communicate most of the time."""
    each_s = result.jobs["network_wait_s"] + result.jobs["communication_s"]
    share = result.jobs["network_wait_s"].sum() / each_s.sum() if each_s.any() else 0.0
    grouped = each_s[result.finished.state.jobs.grouped > 0].sum() > each_s.sum() / 2
    return list(STATED)[(3 if grouped else 0) + (share >= 0.001) + (share > 1 / 3 and not grouped)]


def sampled_text(result: Result) -> str:
    """Return what a reader of a sampled run's figures must know."""
    contended, computed = result.contended_iterations, result.computed_iterations
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
