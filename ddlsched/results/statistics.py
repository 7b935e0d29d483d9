"""Statistics over seeds: means, paired changes against a baseline, bootstrap intervals, and a verdict.

Every policy is run on the same seeds, so policies are compared seed by seed, and what is resampled are
seeds: the jobs of one run share queues and links and are not independent. How often the intervals hold what
they should, and how often verdicts err, is printed by ``benchmarks/interval_coverage.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, log10, nan
from typing import Any, Literal, TypeAlias

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError

CONFIDENCE = 0.95
"""Of every interval."""

LEAST_SEEDS = 6
"""With fewer no verdict is given."""

_RESAMPLES = 9999

LEAST_RESAMPLED = 10
"""With fewer seeds intervals are Student's: resamples of so few values differ too little from each other."""

_ROUNDING = 1e-12
"""Relative differences below this are none."""

Numbers: TypeAlias = "Sequence[float] | np.ndarray | pd.Series"
Verdict: TypeAlias = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval; without width where one seed is all there is.

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


NO_SEED = Interval(nan, nan, nan, 0)


def decimals_of(largest: float) -> int:
    """Return how many decimals show three digits of the largest of some numbers."""
    return min(max(2 - floor(log10(largest)), 0), 4) if largest > 0.0 else 0


def mean_interval(values: Numbers, least: float = -inf, most: float = inf) -> Interval:
    """Return the mean of one value a seed, with its bootstrap interval (expanded percentiles).

    Percentiles of resampled means, bias-corrected or not, are too narrow for few seeds: resampling measures
    the spread with n where n - 1 is right, and does not know that it is itself estimated. So they are taken at
    the level at which they would be Student's interval if the values were normal. With fewer than ten seeds
    the interval is Student's own.

    Parameters
    ----------
    values
        One a seed, at least one, finite.
    least, most
        Where the interval ends at the latest, as no value is beyond: no time is below 0, no share above 1.

    References
    ----------
    Hesterberg, "What teachers should know about the bootstrap: resampling in the undergraduate statistics
    curriculum", The American Statistician 69 (2015): the expanded percentile interval.
    """
    numbers = _checked(values)
    mean, seeds = float(numbers.mean()), len(numbers)
    if _alike(numbers):
        return Interval(mean, mean, mean, seeds)
    low, high = _students(numbers) if seeds < LEAST_RESAMPLED else _expanded_percentiles(numbers)
    return Interval(mean, max(low, least), min(high, most), seeds)


# To import scipy.stats takes longer than many comparisons; a test holds what follows against it.
def _standard_error(numbers: np.ndarray) -> float:
    seeds = len(numbers)
    return float(np.sqrt(np.mean((numbers - numbers.mean()) ** 2) * (seeds / (seeds - 1)) / seeds))


def _students(numbers: np.ndarray) -> tuple[float, float]:
    from scipy.special import stdtrit

    tail = (1.0 - CONFIDENCE) / 2.0
    ends = stdtrit(len(numbers) - 1, [tail, 1.0 - tail]) * _standard_error(numbers) + numbers.mean()
    return float(ends[0]), float(ends[1])


def _expanded_percentiles(numbers: np.ndarray) -> tuple[float, float]:
    """Return percentiles of resampled means, at the level at which they are Student's for normal values."""
    from scipy.special import ndtr, stdtrit

    seeds = len(numbers)
    z = np.sqrt(seeds / (seeds - 1)) * stdtrit(seeds - 1, (1.0 + CONFIDENCE) / 2.0)
    level = 1.0 - 2.0 * ndtr(-z)
    tail = (1.0 - level) / 2.0
    means = np.sort(numbers[_resampled(seeds)].mean(axis=1))
    low, high = (_quantile(means, share) for share in (tail, 1.0 - tail))
    return low, high


@functools.lru_cache(maxsize=1)
def _resampled(seeds: int) -> np.ndarray:
    """Return which seeds each resampled mean is of; to draw them takes longer than all else of an interval."""
    return np.random.default_rng(0).integers(0, seeds, (_RESAMPLES, seeds))


def _quantile(ordered: np.ndarray, share: float) -> float:
    """Return the quantile between ordered values, rounded as scipy's is (numpy's differs in the last digit)."""
    place, part = divmod(share * len(ordered) + (1.0 - share) - 1.0, 1)
    below, above = ordered[int(place) : int(place) + 2]
    return float((1.0 - part) * below + part * above)


def _alike(numbers: np.ndarray) -> bool:
    """Return whether there is one seed, or all are alike but for rounding: nothing to resample."""
    return bool(np.ptp(numbers) <= _ROUNDING * abs(numbers.mean()))


def p_value(differences: Numbers) -> float:
    """Return how likely paired differences with a mean this far from 0 would be if it were 0 (paired t-test).

    Not less than 0 and not more than 1; 1 for one seed. Only to adjust verdicts for many comparisons by
    :func:`holm`: bootstrap percentiles cannot resolve the small probabilities that this needs.
    """
    numbers = _checked(differences)
    if _alike(numbers):
        return 1.0 if len(numbers) == 1 or not numbers.any() else 0.0
    from scipy.special import stdtr

    return float(2.0 * stdtr(len(numbers) - 1, -abs(numbers.mean() / _standard_error(numbers))))


def holm(p_values: Numbers) -> np.ndarray:
    """Return p-values adjusted for being so many.

    Whoever calls those of at most 0.05 a difference errs in any of them with a probability of at most 0.05,
    however the comparisons depend on each other.

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statistics 6 (1979).
    """
    numbers = _checked(p_values)
    order = np.argsort(numbers, kind="stable")
    adjusted = np.empty(len(numbers))
    factors = len(numbers) - np.arange(len(numbers))
    adjusted[order] = np.minimum(np.maximum.accumulate(numbers[order] * factors), 1.0)
    return adjusted


def paired_difference(values: Numbers, baseline: Numbers) -> Interval:
    """Return the mean of value - baseline over seeds; both hold the same seeds in the same order."""
    first, second = _pairs(values, baseline)
    return mean_interval(first - second)


def paired_ratio(values: Numbers, baseline: Numbers) -> Interval:
    """Return the geometric mean of value / baseline over seeds: each seed counts the same, however long its jobs.

    Geometric, because then a against b is 1 / (b against a). The arithmetic mean of ratios is above 1 even
    where a and b only swap places from seed to seed, so each would seem worse than the other.

    Parameters
    ----------
    values, baseline
        The same seeds in the same order, greater than 0.

    References
    ----------
    Fleming, Wallace, "How not to lie with statistics: the correct way to summarize benchmark results",
    Commun. ACM 29 (1986).
    """
    logarithm = mean_interval(log_ratios(values, baseline))
    mean, low, high = np.exp([logarithm.mean, logarithm.low, logarithm.high]).tolist()
    return Interval(mean, low, high, logarithm.seeds)


def paired_change(values: Numbers, baseline: Numbers) -> Interval:
    """Return :func:`paired_ratio` - 1."""
    ratio = paired_ratio(values, baseline)
    return Interval(ratio.mean - 1.0, ratio.low - 1.0, ratio.high - 1.0, ratio.seeds)


def log_ratios(values: Numbers, baseline: Numbers) -> np.ndarray:
    """Return the logarithm of value / baseline of each seed; 0 where they differ by rounding alone.

    Raises
    ------
    InputError
        A value is not greater than 0, or the two are of different seeds.
    """
    first, second = _pairs(values, baseline)
    if not ((first > 0.0) & (second > 0.0)).all():
        smallest = min(first.min(), second.min())
        raise InputError(f"statistics: {smallest} cannot enter a ratio; expected numbers greater than 0, one a seed")
    logarithms = np.log(first / second)
    return np.where(np.abs(logarithms) < _ROUNDING, 0.0, logarithms)


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
        Name of the column; NaN (a run in which there was nothing to measure) stays NaN.
    by
        Name of the column that tells apart what is compared.

    Raises
    ------
    InputError
        One lacks a seed that another has, so that nothing could be paired, or has one twice.
    """
    return metrics_by_seed(runs, [metric], by=by)[metric]


def metrics_by_seed(runs: pd.DataFrame, metrics: Sequence[str], *, by: str = "policy") -> dict[str, pd.DataFrame]:
    """Return :func:`by_seed` of each of some metrics."""
    if not metrics:
        return {}
    what = metrics[0]
    if runs.empty:
        raise InputError(f"{what}: there are no runs; expected at least one")
    if runs.duplicated([by, "seed"]).any():
        raise InputError(f"{what}: a {by} has two runs of one seed; expected one run a seed")
    labels, seeds = list(dict.fromkeys(runs[by])), set(runs["seed"])
    if len(runs) < len(labels) * len(seeds):
        lacking = {label: sorted(seeds - set(runs.loc[runs[by] == label, "seed"])) for label in labels}
        label, missing = next(each for each in lacking.items() if each[1])
        raise InputError(f"{what}: {label!r} has no run of seeds {missing[:5]}; expected every {by} on every seed")
    tables: Any = runs.pivot(index="seed", columns=by, values=list(dict.fromkeys(metrics)))
    return {metric: tables[metric][labels] for metric in metrics}


def _checked(values: Numbers) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"statistics: {numbers.tolist()} given; expected at least one finite number, one a seed")
    return numbers


def _pairs(values: Numbers, baseline: Numbers) -> tuple[np.ndarray, np.ndarray]:
    first, second = _checked(values), _checked(baseline)
    if len(first) != len(second):
        raise InputError(f"statistics: {len(first)} values against {len(second)}; expected the same seeds in both")
    return first, second
