"""Tables of whole comparisons: pairs by seed, what failed, and what was never random."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest

from ddlsched.comparisons.comparison_tables import compare_classes, compare_everywhere
from ddlsched.results.paired_comparison import compare_runs, readable, with_holm

SEEDS = range(1, 9)


def runs(workload: str = "w", **policies) -> pd.DataFrame:
    """Return runs from each policy's average JCT at each seed; None is a run that failed."""
    rows = [
        {
            "policy": policy,
            "workload": workload,
            "cluster": "16x4",
            "seed": seed,
            "average_jct_s": jct_s,
            "engine_s": seed,
        }
        for policy, jct_of_seeds in policies.items()
        for seed, jct_s in zip(SEEDS, jct_of_seeds, strict=False)
        if jct_s is not None
    ]
    return pd.DataFrame(rows)


def random(mean: float, seed: int) -> list[float]:
    return list(mean + np.random.default_rng(seed).normal(size=len(SEEDS)))


def row(table: pd.DataFrame, policy: str, **where) -> pd.Series:
    chosen = table[(table[["policy", *where]] == [policy, *where.values()]).all(axis=1)]
    assert len(chosen) == 1
    return chosen.iloc[0]


def compared(given: pd.DataFrame, baseline: str = "a") -> pd.DataFrame:
    return compare_everywhere(given, given, baseline)


@pytest.mark.long
def test_each_workload_is_compared_by_itself():
    one, other = runs("w", a=random(10, 1), b=random(12, 2)), runs("v", a=random(30, 3), b=random(20, 4))
    table = compared(pd.concat([one, other], ignore_index=True))
    for name, given in (("w", one), ("v", other)):
        expected = compare_runs(given, baseline="a", metrics=["average_jct_s"])
        found = table[table["workload"] == name].reset_index(drop=True)
        own = expected.columns.drop(["p_holm", "verdict_holm"])
        pd.testing.assert_frame_equal(found[own], expected[own])
    assert row(table, "b", workload="w")["verdict"] == "worse"
    assert row(table, "b", workload="v")["verdict"] == "better"
    assert set(table["seeds_left_out"]) == {0}
    assert table["p_holm"].dropna().tolist() == with_holm(table)["p_holm"].dropna().tolist()
    assert len(table["p_holm"].dropna()) == 2


@pytest.mark.long
def test_a_policy_of_which_runs_failed_has_no_verdict_and_takes_none_from_the_others():
    table = compared(runs(a=random(10, 1), b=[None, *random(12, 2)[1:]], c=random(12, 3)))
    b, c = row(table, "b"), row(table, "c")
    assert (b["seeds"], b["seeds_left_out"], b["verdict"]) == (7, 1, "undecided")
    assert b["change_low"] > 0
    assert (c["seeds"], c["seeds_left_out"], c["verdict"]) == (8, 0, "worse")


def test_a_policy_that_shares_no_seed_with_the_baseline_has_no_change():
    table = compared(runs(a=[None] * 4 + random(12, 1)[4:], b=random(12, 2)[:4]))
    (line,) = (line for line in readable(table, baseline="a").splitlines() if " b " in line)
    assert [cell.strip() for cell in line.split("|")[-3:-1]] == ["-", "undecided"]


def test_a_baseline_of_which_runs_failed():
    table = compared(runs(a=[None, None, *random(10, 1)[2:]], b=random(12, 2)))
    assert (row(table, "a")["seeds"], row(table, "b")["seeds"]) == (6, 6)
    assert row(table, "b")["verdict"] == "undecided"


def test_a_baseline_of_which_all_runs_failed():
    table = compared(runs(a=[], b=random(12, 2)))
    b = row(table, "b")
    assert b["mean"] == pytest.approx(12, abs=1)
    assert b["low"] < b["mean"] < b["high"]
    assert np.isnan(b["change"])
    assert b["verdict"] == "undecided"


def test_seeds_without_overlap_are_no_comparison():
    table = compared(runs(a=[1.0, 2.0, 3.0], b=[None, None, None, 4.0, 5.0]))
    assert np.isnan(row(table, "b")["change"])
    assert row(table, "b")["seeds"] == 2


def test_nothing_finished():
    table = compared(runs(a=[]).reindex(columns=["policy", "workload", "cluster", "seed"]))
    assert table.empty
    assert {"policy", "metric", "mean", "low", "high", "change", "verdict"} <= set(table.columns)


# ---- What is not random


@pytest.mark.long
@pytest.mark.parametrize("seeds", [1, 8])
def test_runs_that_are_the_same_at_all_seeds_are_one_run(seeds):
    table = compared(runs(a=[10.0] * seeds, b=[8.0] * seeds))
    for policy in "ab":
        found = row(table, policy)
        assert (found["seeds"], found["verdict"]) == (1, "undecided")
        assert found[["low", "high", "change_low", "change_high"]].isna().all()
    assert row(table, "b")["change"] == pytest.approx(-0.2)


def test_a_policy_that_draws_is_compared_with_one_that_does_not():
    table = compared(runs(a=[10.0] * 8, b=random(12, 2), c=[9.0] * 8))
    a, b, c = (row(table, policy) for policy in "abc")
    assert np.isnan(a["low"])
    assert (b["seeds"], b["verdict"]) == (8, "worse")
    assert b["low"] < b["mean"] < b["high"]
    assert (c["seeds"], c["verdict"]) == (1, "undecided")
    assert np.isnan(c["change_high"])


def test_against_a_baseline_that_draws_there_is_an_interval():
    table = compared(runs(a=random(12, 2), b=[9.0] * 8))
    b = row(table, "b")
    assert (b["seeds"], b["verdict"]) == (8, "better")
    assert b["change_low"] < b["change"] < b["change_high"]
    assert np.isnan(b["low"])


def test_one_metric_that_is_the_same_makes_no_run_the_same():
    given = runs(a=random(10, 1), b=random(10, 2)).assign(makespan_s=5.0)
    table = compared(given)
    assert row(table, "b", metric="makespan_s")["seeds"] == 8


# ---- Size classes


def test_each_class_is_compared_by_itself():
    whole = runs(a=random(10, 1), b=random(12, 2))
    small, large = (whole.assign(size_class=name) for name in ("1", "8+"))
    large = large.assign(average_jct_s=100 - large["average_jct_s"])
    compare = functools.partial(compare_classes, metrics=["average_jct_s"])
    table = compare_everywhere(whole, pd.concat([small, large]), "a", compare)
    assert row(table, "b", size_class="1")["verdict"] == "worse"
    assert row(table, "b", size_class="8+")["verdict"] == "better"
