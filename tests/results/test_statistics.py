"""Means, paired changes, intervals and verdicts over seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tiers import tried

from ddlsched.errors import InputError
from ddlsched.results.statistics import (
    CONFIDENCE,
    LEAST_RESAMPLED,
    LEAST_SEEDS,
    Interval,
    by_seed,
    holm,
    log_ratios,
    mean_interval,
    p_value,
    paired_change,
    paired_difference,
    paired_ratio,
    verdict,
)

SAMPLE = [12.0, 15.5, 11.0, 19.0, 14.0, 13.5, 16.0, 12.5]


# ---- Intervals


@pytest.mark.long
def test_interval_is_close_to_students_for_a_normal_sample():
    values = np.random.default_rng(5).normal(100.0, 10.0, size=400)
    interval = mean_interval(values)
    half = 1.966 * values.std(ddof=1) / 20
    assert interval.mean == values.mean()
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1)


def test_interval_is_the_same_each_time():
    values = np.random.default_rng(2).normal(size=20)
    first = mean_interval(values)
    assert mean_interval(values) == first


VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from((-1.0, 0.0, 0.0, 1.0)))  # with ties


@given(st.lists(VALUES, min_size=1, max_size=15))
def test_interval_is_finite_and_holds_the_mean(values):
    interval = mean_interval(values)
    slack = 1e-9 * (1.0 + max(map(abs, values)))
    assert interval.low - slack <= interval.mean <= interval.high + slack
    assert np.isfinite([interval.low, interval.high]).all()
    assert interval.seeds == len(values)
    if len(values) >= LEAST_RESAMPLED:
        assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack


@given(st.lists(VALUES, min_size=1, max_size=15), st.sampled_from((0.5, 4.0, 1024.0)))
def test_interval_scales_with_the_unit(values, factor):
    scaled, interval = mean_interval(np.array(values) * factor), mean_interval(values).scaled(factor)
    slack = 1e-9 * (1.0 + factor * max(map(abs, values)))
    assert (scaled.low, scaled.high) == pytest.approx((interval.low, interval.high), abs=slack)


@given(st.lists(VALUES, min_size=1, max_size=15))
def test_interval_of_the_opposite_is_the_opposite(values):
    interval, opposite = mean_interval(values), mean_interval([-value for value in values])
    slack = 1e-9 * (1.0 + max(map(abs, values)))
    assert (opposite.low, opposite.high) == pytest.approx((-interval.high, -interval.low), abs=slack)


def test_interval_of_few_seeds_is_students():
    """The quantiles of t from 1 to 8 degrees of freedom, as tables have them."""
    quantiles = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31)
    for seeds, t in zip(range(2, LEAST_RESAMPLED), quantiles, strict=True):
        values = np.array([*SAMPLE, 17.0][:seeds])
        interval = mean_interval(values)
        assert interval.high - interval.mean == pytest.approx(t * values.std(ddof=1) / seeds**0.5, rel=2e-3)


@pytest.mark.parametrize("seeds", [2, 5, 10, 30])
def test_intervals_and_p_values_are_those_of_scipy_stats(seeds):
    values = np.random.default_rng(seeds).normal(5.0, 2.0, size=seeds)
    told = stats.ttest_1samp(values, 0.0)
    assert p_value(values) == pytest.approx(told.pvalue, rel=1e-12)
    expected = told.confidence_interval(CONFIDENCE)
    if seeds >= LEAST_RESAMPLED:
        z = np.sqrt(seeds / (seeds - 1)) * stats.t.ppf((1.0 + CONFIDENCE) / 2.0, seeds - 1)
        level, rng = 1.0 - 2.0 * stats.norm.sf(z), np.random.default_rng(0)
        told = stats.bootstrap((values,), np.mean, confidence_level=level, method="percentile", rng=rng)
        expected = told.confidence_interval
    interval = mean_interval(values)
    assert [interval.low, interval.high] == pytest.approx([expected.low, expected.high], rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("seeds", tried([3, 10, 6, 20], lambda place: place < 2))
def test_interval_holds_the_mean_as_often_as_it_says(seeds):
    """Of 300 normal samples at least 92 %: plain percentiles and BCa do not reach that with ten seeds or fewer."""
    samples = np.random.default_rng(seeds).normal(10.0, 3.0, size=(300, seeds))
    intervals = [mean_interval(sample) for sample in samples]
    assert 0.92 <= np.mean([interval.low <= 10.0 <= interval.high for interval in intervals]) <= 0.98


@pytest.mark.parametrize("values", [[7.0], [7.0, 7.0, 7.0]])
def test_interval_without_variation_has_no_width(values):
    assert mean_interval(values) == Interval(7.0, 7.0, 7.0, len(values))


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")], [[1.0], [2.0]]])
def test_interval_refuses_what_is_no_sample(values):
    with pytest.raises(InputError, match="finite number"):
        mean_interval(values)


# ---- Paired


def test_paired_measures_by_hand():
    values, baseline = [110.0, 240.0], [100.0, 200.0]
    assert paired_difference(values, baseline).mean == pytest.approx(25.0)
    assert paired_ratio(values, baseline).mean == pytest.approx((1.1 * 1.2) ** 0.5)
    assert paired_change(values, baseline).mean == pytest.approx((1.1 * 1.2) ** 0.5 - 1.0)


def test_ratio_of_policies_that_only_swap_places_is_one():
    """Arithmetically each would be 25 % worse than the other."""
    values, baseline = [1.0, 2.0] * 10, [2.0, 1.0] * 10
    assert paired_ratio(values, baseline).mean == pytest.approx(1.0)
    assert verdict(paired_change(values, baseline)) == verdict(paired_change(baseline, values)) == "undecided"


PAIRS = st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=15)


@pytest.mark.long
@given(PAIRS)
def test_ratio_of_the_baseline_is_the_inverse(pairs):
    values, baseline = zip(*pairs, strict=True)
    there, back = paired_ratio(values, baseline), paired_ratio(baseline, values)
    inverse = (1 / back.mean, 1 / back.high, 1 / back.low)
    assert (there.mean, there.low, there.high) == pytest.approx(inverse, rel=1e-9)


OPPOSITE = {"better": "worse", "worse": "better", "undecided": "undecided"}


@given(PAIRS)
def test_verdicts_of_the_baseline_are_the_opposite(pairs):
    values, baseline = zip(*pairs, strict=True)
    assert verdict(paired_change(baseline, values)) == OPPOSITE[verdict(paired_change(values, baseline))]


@given(PAIRS, st.sampled_from((1e-3, 60.0)))
def test_ratio_does_not_depend_on_the_unit(pairs, factor):
    values, baseline = np.array(pairs).T
    there, scaled = paired_ratio(values, baseline), paired_ratio(values * factor, baseline * factor)
    assert (scaled.mean, scaled.low, scaled.high) == pytest.approx((there.mean, there.low, there.high), rel=1e-9)


def test_differences_of_rounding_are_none():
    values = np.array(SAMPLE)
    change = paired_change(values * (1 + 2e-16), values)
    assert (change.mean, change.low, change.high) == (0.0, 0.0, 0.0)
    assert p_value(log_ratios(values * (1 + 2e-16), values)) == 1.0


@pytest.mark.parametrize(
    ("values", "baseline"), [([1.0, 0.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, -1.0]), ([1.0, 1.0], [1.0, 0.0])]
)
def test_ratio_refuses_what_is_not_positive(values, baseline):
    with pytest.raises(InputError, match="expected numbers greater than 0"):
        paired_ratio(values, baseline)


def test_pairing_removes_what_the_seeds_have_in_common():
    hard = np.random.default_rng(3).uniform(100.0, 1000.0, size=20)
    change = paired_change(0.97 * hard + 0.1, hard)
    unpaired = mean_interval(hard)
    assert change.high < 0.0
    assert unpaired.high - unpaired.low > 0.1 * unpaired.mean


def test_pairing_refuses_samples_of_different_length():
    with pytest.raises(InputError, match="2 values against 1"):
        paired_difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "smaller_is_better", "expected"),
    [
        (-3.0, -1.0, True, "better"),
        (-3.0, -1.0, False, "worse"),
        (1.0, 3.0, True, "worse"),
        (1.0, 3.0, False, "better"),
        (-1.0, 3.0, True, "undecided"),
        (0.0, 3.0, True, "undecided"),
    ],
)
def test_verdict(low, high, smaller_is_better, expected):
    change = Interval((low + high) / 2, low, high, LEAST_SEEDS)
    assert verdict(change, smaller_is_better=smaller_is_better) == expected


def test_verdict_needs_enough_seeds():
    assert verdict(Interval(-2.0, -3.0, -1.0, LEAST_SEEDS - 1)) == "undecided"
    assert verdict(Interval(-2.0, -3.0, -1.0, LEAST_SEEDS)) == "better"


# ---- Many comparisons


def test_p_value_is_that_of_the_t_test():
    """Mean 1, standard error 0.577, so t = 1.73 with three degrees of freedom."""
    assert p_value([0.0, 2.0, 2.0, 0.0]) == pytest.approx(0.1817, abs=1e-4)
    assert p_value([1.0, -1.0, 2.0, -2.0]) == 1.0


@pytest.mark.parametrize(("values", "expected"), [([3.0], 1.0), ([0.0, 0.0], 1.0), ([2.0, 2.0, 2.0], 0.0)])
def test_p_value_without_variation(values, expected):
    assert p_value(values) == expected


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.6]).tolist() == [0.8, 0.8]
    assert holm([0.05]).tolist() == [0.05]


@pytest.mark.long
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_holm_lies_between_each_alone_and_bonferroni_and_keeps_the_order(p_values, random):
    adjusted, given = holm(p_values), np.array(p_values)
    assert (given <= adjusted).all()
    assert (adjusted <= np.minimum(given * len(given), 1.0)).all()
    assert (np.diff(adjusted[np.argsort(given)]) >= 0.0).all()
    order = random.sample(range(len(given)), len(given))
    assert holm(given[order]).tolist() == pytest.approx(adjusted[order].tolist())


# ---- Tables


def runs(*rows: tuple[str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["policy", "seed", "average_jct_s"])


def test_by_seed_keeps_the_order_of_policies_and_sorts_seeds():
    table = by_seed(runs(("b", 2, 4.0), ("a", 2, 3.0), ("a", 1, 1.0), ("b", 1, 2.0)), "average_jct_s")
    assert list(table.columns) == ["b", "a"]
    assert table.loc[1].tolist() == [2.0, 1.0]
    assert table.index.tolist() == [1, 2]


def test_by_seed_refuses_a_policy_that_lacks_a_seed():
    with pytest.raises(InputError, match=r"'b' has no run of seeds \[2\]"):
        by_seed(runs(("a", 1, 1.0), ("a", 2, 1.0), ("b", 1, 1.0)), "average_jct_s")


def test_by_seed_refuses_a_seed_twice():
    with pytest.raises(InputError, match="two runs of one seed"):
        by_seed(runs(("a", 1, 1.0), ("a", 1, 1.0)), "average_jct_s")


def test_by_seed_keeps_what_could_not_be_measured():
    table = by_seed(runs(("a", 1, 1.0), ("a", 2, float("nan"))), "average_jct_s")
    assert table["a"].isna().tolist() == [False, True]


def test_by_seed_refuses_no_runs():
    with pytest.raises(InputError, match="there are no runs"):
        by_seed(runs(), "average_jct_s")
