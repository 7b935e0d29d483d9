"""Statistics over seeds: means, paired changes against a baseline, bootstrap intervals, and a verdict.

Every policy is run on the same seeds, so policies are compared seed by seed, and what is resampled are
seeds: the jobs of one run share queues and links and are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ddlsched.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CONFIDENCE",
    "LEAST_SEEDS",
    "Interval",
    "Verdict",
    "by_seed",
    "mean_interval",
    "paired_change",
    "paired_difference",
    "paired_ratio",
    "verdict",
]

CONFIDENCE = 0.95
"""Of every interval."""

LEAST_SEEDS = 6
"""With fewer no verdict is given."""

Numbers: TypeAlias = "Sequence[float] | np.ndarray | pd.Series"
Verdict: TypeAlias = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its bootstrap 95 % interval; without width where one seed is all there is.

    Parameters
    ----------
    mean
        In the unit of the values.
    low, high
        Ends of the interval.
    seeds
        How many values the mean is over.
    """

    mean: float
    low: float
    high: float
    seeds: int

    def scaled(self, factor: float) -> Interval:
        """Return the interval in another unit, ``factor`` > 0 times as large a number."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor, self.seeds)


def mean_interval(values: Numbers, *, rng_seed: int = 0) -> Interval:
    """Return the mean of one value a seed, with its bootstrap interval (bias-corrected and accelerated).

    Parameters
    ----------
    values
        One a seed, at least one, finite.
    rng_seed
        Of the resampling; the same values and rng_seed give the same interval.

    References
    ----------
    Efron, "Better bootstrap confidence intervals", J. Am. Stat. Assoc. 82 (1987).
    """
    numbers = _checked(values)
    mean = float(numbers.mean())
    if np.ptp(numbers) <= 1e-12 * abs(mean):  # one seed, or all alike but for rounding: nothing to resample
        return Interval(mean, mean, mean, len(numbers))
    from scipy.stats import bootstrap

    rng = np.random.default_rng(rng_seed)
    low, high = bootstrap((numbers,), np.mean, confidence_level=CONFIDENCE, rng=rng).confidence_interval
    return Interval(mean, float(low), float(high), len(numbers))


def paired_difference(values: Numbers, baseline: Numbers, *, rng_seed: int = 0) -> Interval:
    """Return the mean of value - baseline over seeds; both hold the same seeds in the same order."""
    return _paired(np.subtract, values, baseline, rng_seed)


def paired_ratio(values: Numbers, baseline: Numbers, *, rng_seed: int = 0) -> Interval:
    """Return the mean of value / baseline over seeds: each seed counts the same, however long its jobs."""
    return _paired(np.divide, values, baseline, rng_seed)


def paired_change(values: Numbers, baseline: Numbers, *, rng_seed: int = 0) -> Interval:
    """Return the mean of value / baseline - 1 over seeds."""
    return _paired(lambda value, base: value / base - 1.0, values, baseline, rng_seed)


def verdict(change: Interval, *, smaller_is_better: bool = True) -> Verdict:
    """Return what an interval of a paired difference or change says.

    "undecided" if it holds 0, and with fewer than six seeds: all of five agree by chance one time in sixteen.
    """
    if change.seeds < LEAST_SEEDS or change.low <= 0.0 <= change.high:
        return "undecided"
    return "better" if (change.mean < 0.0) == smaller_is_better else "worse"


def by_seed(runs: pd.DataFrame, metric: str, *, by: str = "policy") -> pd.DataFrame:
    """Return a metric with a row a seed and a column a policy, in the order of their first runs.

    Parameters
    ----------
    runs
        A row a run, with columns ``seed``, ``by`` and ``metric``.
    metric
        Name of the column.
    by
        Name of the column that tells apart what is compared.

    Raises
    ------
    InputError
        One lacks a seed that another has, so that nothing could be paired, or has one twice.
    """
    if runs.duplicated([by, "seed"]).any():
        raise InputError(f"{metric}: a {by} has two runs of one seed; expected one run a seed")
    table = runs.pivot(index="seed", columns=by, values=metric)[list(dict.fromkeys(runs[by]))]
    for label in table.columns[table.isna().any()]:
        missing = table.index[table[label].isna()].tolist()
        raise InputError(f"{metric}: {label!r} has no run of seeds {missing[:5]}; expected every {by} on every seed")
    return table


def _checked(values: Numbers) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"statistics: {numbers.tolist()} given; expected at least one finite number, one a seed")
    return numbers


def _paired(
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray], values: Numbers, baseline: Numbers, rng_seed: int
) -> Interval:
    first, second = _checked(values), _checked(baseline)
    if len(first) != len(second):
        raise InputError(f"statistics: {len(first)} values against {len(second)}; expected the same seeds in both")
    return mean_interval(combine(first, second), rng_seed=rng_seed)
