"""Means, paired changes, intervals and verdicts over seeds, and the tables made of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.errors import InputError
from ddlsched.results.comparison import METRICS, compare_runs, interval_of, interval_text, markdown
from ddlsched.results.statistics import (
    LEAST_SEEDS,
    Interval,
    by_seed,
    mean_interval,
    paired_change,
    paired_difference,
    paired_ratio,
    verdict,
)

SAMPLE = [12.0, 15.5, 11.0, 19.0, 14.0, 13.5, 16.0, 12.5]


# ---- Intervals


def test_interval_is_close_to_students_for_a_normal_sample():
    values = np.random.default_rng(5).normal(100.0, 10.0, size=400)
    interval = mean_interval(values)
    half = 1.966 * values.std(ddof=1) / 20
    assert interval.mean == values.mean()
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1)


def test_interval_is_the_same_each_time():
    assert mean_interval(SAMPLE) == mean_interval(SAMPLE)
    assert mean_interval(SAMPLE) != mean_interval(SAMPLE, rng_seed=1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_interval_is_finite_and_lies_within_the_values(values):
    interval = mean_interval(values)
    slack = 1e-9 * (1.0 + max(map(abs, values)))
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack
    assert interval.seeds == len(values)


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
    assert paired_ratio(values, baseline).mean == pytest.approx(1.15)
    assert paired_change(values, baseline).mean == pytest.approx(0.15)


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


def many_runs() -> pd.DataFrame:
    rows = []
    for policy, factor in (("base", 1.0), ("fast", 0.5)):
        for seed, value in enumerate(SAMPLE):
            metrics = dict.fromkeys(METRICS, value * factor) | {"gpu_utilisation": 0.2 / factor, "misses": 0.0}
            rows.append({"policy": policy, "seed": seed} | metrics)
    return pd.DataFrame(rows)


def test_compare_runs_says_which_way_a_metric_is_good():
    comparison = compare_runs(many_runs(), baseline="base").set_index(["policy", "metric"])
    assert comparison.loc[("fast", "average_jct_s"), "change"] == pytest.approx(-0.5)
    assert comparison.loc[("fast", "gpu_utilisation"), "change"] == pytest.approx(1.0)
    assert set(comparison.loc["fast", "verdict"]) == {"better"}
    assert set(comparison.loc["base", "verdict"]) == {"undecided"}
    assert set(comparison["seeds"]) == {len(SAMPLE)}


def test_compare_runs_gives_no_change_against_zero():
    comparison = compare_runs(many_runs(), baseline="base", metrics=["misses"])
    assert comparison["change"].isna().all()
    assert set(comparison["verdict"]) == {"undecided"}


def test_interval_of_finds_means_and_changes():
    comparison = compare_runs(many_runs(), baseline="base")
    assert interval_of(comparison, "base", "makespan_s") == mean_interval(SAMPLE)
    assert interval_of(comparison, "fast", "makespan_s", change=True).scaled(100.0).mean == pytest.approx(-50.0)


def test_text_of_an_interval():
    interval = Interval(1.25, -0.5, 3.0, 9)
    assert interval_text(interval, decimals=2) == "1.25 [-0.50, 3.00]"
    assert interval_text(interval, decimals=1, sign=True) == "+1.2 [-0.5, +3.0]"


def test_markdown_lines_up():
    text = markdown([{"policy": "a", "s": "1"}, {"policy": "long name", "s": "22"}])
    assert text.splitlines() == [
        "| policy    | s  |",
        "| --------- | -- |",
        "| a         | 1  |",
        "| long name | 22 |",
    ]
