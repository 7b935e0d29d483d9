"""Comparisons of policies over seeds: their numbers, their verdicts, and how they read."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from ddlsched.errors import InputError
from ddlsched.results.paired_comparison import (
    ALL_METRICS,
    METRICS,
    SHARES,
    _zeros,
    compare_runs,
    interval_of,
    interval_text,
    markdown,
    readable,
    with_holm,
)
from ddlsched.results.statistics import LEAST_SEEDS, Interval, mean_interval

# What a test before left open is told when memory is collected, which may be during one of these.
pytestmark = pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")

SAMPLE = [12.0, 15.5, 11.0, 19.0, 14.0, 13.5, 16.0, 12.5]


def many_runs() -> pd.DataFrame:
    rows = []
    for policy, factor in (("base", 1.0), ("fast", 0.5)):
        for seed, value in enumerate(SAMPLE):
            metrics = dict.fromkeys(METRICS, value * factor) | {
                "gpu_utilisation": 0.2 / factor,
                "average_slowdown": 0.0,
            }
            rows.append({"policy": policy, "seed": seed} | metrics)
    return pd.DataFrame(rows)


def test_compare_runs_says_which_way_a_metric_is_good():
    comparison = compare_runs(many_runs(), baseline="base").set_index(["policy", "metric"])
    assert comparison.loc[("fast", "average_jct_s"), "change"] == pytest.approx(-0.5)
    assert comparison.loc[("fast", "gpu_utilisation"), "change"] == pytest.approx(1.0)
    assert set(comparison.loc["fast", "verdict"]) == {"better"}
    assert set(comparison.loc["base", "verdict"]) == {"undecided"}
    assert set(comparison["seeds"]) == {len(SAMPLE)}


def test_compare_runs_gives_the_difference_where_a_ratio_would_be_one_to_zero():
    comparison = compare_runs(many_runs(), baseline="base", metrics=["average_slowdown"])
    assert comparison["change"].isna().all()
    assert set(comparison["verdict"]) == {"undecided"}
    slowed = many_runs().assign(average_slowdown=lambda runs: (runs["policy"] == "fast") * runs["average_jct_s"])
    fast = compare_runs(slowed, baseline="base", metrics=["average_slowdown"]).set_index("policy").loc["fast"]
    assert np.isnan(fast["change"])
    assert fast["difference"] == pytest.approx(np.mean(SAMPLE) / 2)
    assert fast["verdict"] == "worse"


def test_a_metric_that_is_asked_for_twice_is_compared_once() -> None:
    once, twice = (compare_runs(many_runs(), baseline="base", metrics=["average_jct_s"] * times) for times in (1, 2))
    assert once.equals(twice)


def test_shares_and_unknown_metrics_are_compared_but_not_judged():
    runs = many_runs().assign(
        queueing_share=lambda runs: 0.01 * runs["average_jct_s"], mine=lambda runs: runs["makespan_s"]
    )
    comparison = compare_runs(runs, baseline="base", metrics=["queueing_share", "mine", "average_jct_s"])
    fast = comparison[comparison["policy"] == "fast"].set_index("metric")
    assert fast.loc["queueing_share", "difference_high"] < 0.0
    assert fast.loc["mine", "change"] == pytest.approx(-0.5)
    assert fast["verdict"].tolist() == fast["verdict_holm"].tolist() == ["not judged", "not judged", "better"]
    assert fast["p_value"].isna().tolist() == [True, True, False]


def test_a_seed_without_a_value_is_left_out_for_all_and_takes_the_verdict():
    runs = many_runs()
    runs.loc[(runs["policy"] == "fast") & (runs["seed"] == 3), "average_jct_s"] = np.nan
    comparison = compare_runs(runs, baseline="base", metrics=["average_jct_s", "makespan_s"])
    jct = comparison[comparison["metric"] == "average_jct_s"].set_index("policy")
    assert jct["seeds"].tolist() == [7, 7]
    assert jct["seeds_left_out"].tolist() == [1, 1]
    assert jct.loc["base", "mean"] == pytest.approx(np.mean(SAMPLE[:3] + SAMPLE[4:]))
    assert jct.loc["fast", "change"] == pytest.approx(-0.5)
    assert comparison["verdict"].tolist() == ["undecided", "undecided", "undecided", "better"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "bas"}, "no policy 'bas'. Did you mean 'base'"),
        ({"baseline": "base", "metrics": ["averge_jct_s"]}, "no metric 'averge_jct_s'. Did you mean 'average_jct_s'"),
    ],
)
def test_unknown_names_are_refused(options, message):
    with pytest.raises(InputError) as caught:
        compare_runs(many_runs(), **options)
    assert message in str(caught.value)


def test_comparison_survives_a_csv_file():
    comparison = compare_runs(many_runs(), baseline="base", metrics=["average_jct_s", "average_slowdown"])
    read = pd.read_csv(io.StringIO(comparison.to_csv(index=False)))
    pd.testing.assert_frame_equal(read, comparison, check_dtype=False)
    assert readable(read, baseline="base") == readable(comparison, baseline="base")


@pytest.mark.long
@settings(max_examples=examples(25, by_default=6))
@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0)), min_size=1, max_size=15),
    st.sampled_from(["average_jct_s", "jain_index", "unfair_fraction", "average_slowdown"]),
)
def test_of_two_policies_at_most_one_is_better_than_the_other(pairs, metric):
    opposite = {"better": "worse", "worse": "better", "undecided": "undecided"}
    rows = [
        {"policy": policy, "seed": seed, metric: pair[policy]} for seed, pair in enumerate(pairs) for policy in (0, 1)
    ]
    forth, back = (
        compare_runs(pd.DataFrame(rows), baseline=baseline, metrics=[metric]).set_index("policy") for baseline in (0, 1)
    )
    assert forth.loc[1, "verdict"] == opposite[back.loc[0, "verdict"]]
    assert forth.loc[1, "difference"] == pytest.approx(-back.loc[0, "difference"])
    assert forth.loc[1, "p_value"] == pytest.approx(back.loc[0, "p_value"])


@pytest.mark.long
@settings(max_examples=examples(25, by_default=6))
@given(st.randoms(use_true_random=False))
def test_comparison_does_not_depend_on_the_order_of_runs(random):
    runs = many_runs()
    shuffled = runs.iloc[random.sample(range(len(runs)), len(runs))]
    usual, other = (
        compare_runs(table, baseline="base", metrics=["average_jct_s"]).set_index("policy")
        for table in (runs, shuffled)
    )
    pd.testing.assert_frame_equal(usual, other.loc[usual.index])


# ---- Many comparisons


def many_policies(*, policies: int = 12, effect: float = 0.0) -> pd.DataFrame:
    """Return a baseline and policies that differ from it by chance, and the last also by an effect."""
    rng = np.random.default_rng(7)
    rows = [{"policy": "base", "seed": seed, "average_jct_s": 100.0} for seed in range(10)]
    for policy in range(policies):
        shift = effect * (policy == policies - 1)
        rows += [
            {"policy": f"p{policy}", "seed": seed, "average_jct_s": 100.0 * rng.lognormal(shift, 0.05)}
            for seed in range(10)
        ]
    return pd.DataFrame(rows)


def test_what_chance_makes_better_does_not_stand_among_many():
    comparison = compare_runs(many_policies(effect=-0.2), baseline="base", metrics=["average_jct_s"]).set_index(
        "policy"
    )
    decided = comparison["verdict"] != "undecided"
    assert decided.sum() > 1
    assert comparison.index[comparison["verdict_holm"] != "undecided"].tolist() == ["p11"]
    assert comparison.loc["p11", "verdict_holm"] == "better"
    assert np.isnan(comparison.loc["base", "p_holm"])


@pytest.mark.long
def test_more_comparisons_are_stricter():
    one = compare_runs(many_policies(effect=-0.05), baseline="base", metrics=["average_jct_s"])
    both = with_holm(pd.concat([one, one], ignore_index=True))
    tested = one["p_value"].notna()
    assert (both["p_holm"][: len(one)][tested] >= one["p_holm"][tested]).all()
    assert both["verdict"].tolist() == [*one["verdict"], *one["verdict"]]


def test_fewer_seeds_than_six_give_no_verdict_however_large_the_effect():
    runs = many_runs()
    comparison = compare_runs(runs[runs["seed"] < LEAST_SEEDS - 1], baseline="base")
    assert set(comparison["verdict"]) == set(comparison["verdict_holm"]) == {"undecided"}


# ---- Texts


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


def test_readable_by_hand():
    runs = many_runs().assign(unfair_fraction=lambda runs: 0.25 * (runs["policy"] == "fast"), unfinished_jobs=0)
    metrics = ["average_jct_s", "gpu_utilisation", "unfair_fraction", "unfinished_jobs"]
    text = readable(compare_runs(runs, baseline="base", metrics=metrics), baseline="base")
    assert text.splitlines() == [
        "| metric              | policy | mean [95 %]       | against base                | verdict |",
        "| ------------------- | ------ | ----------------- | --------------------------- | ------- |",
        "| Average JCT (s)     | base   | 14.2 [12.0, 16.3] |                             |         |",
        "|                     | fast   | 7.09 [6.02, 8.17] | -50.0 [-50.0, -50.0] %      | better  |",
        "| GPU utilisation (%) | base   | 20.0 [20.0, 20.0] |                             |         |",
        "|                     | fast   | 40.0 [40.0, 40.0] | +100.0 [+100.0, +100.0] %   | better  |",
        "| Jobs with ρ > 1 (%) | base   | 0 [0, 0]          |                             |         |",
        "|                     | fast   | 25.0 [25.0, 25.0] | +25.0 [+25.0, +25.0] points | worse   |",
        "",
        "Means over 8 seeds with 95 % intervals; changes are paired by seed.",
        "",
        "Not shown, being 0 everywhere: Unfinished jobs.",
    ]


@pytest.mark.long
def test_readable_marks_what_does_not_stand_among_all():
    text = readable(
        compare_runs(many_policies(effect=-0.2), baseline="base", metrics=["average_jct_s"]), baseline="base"
    )
    assert sum(line.rstrip(" |").endswith("?") for line in text.splitlines()) >= 1
    assert "?: so by itself, but not among all comparisons together (Holm, 5 %)." in text


def test_readable_says_what_is_easily_overlooked():
    runs = many_runs().assign(unfinished_jobs=lambda runs: runs["seed"])
    few = runs[runs["seed"] < 3]
    text = readable(compare_runs(few, baseline="base", metrics=["average_jct_s", "unfinished_jobs"]), baseline="base")
    assert "Some jobs did not finish" in text
    one = compare_runs(runs[runs["seed"] == 1], baseline="base", metrics=["average_jct_s", "unfinished_jobs"])
    assert "One run: no interval and no verdict.\n\nSome jobs did not finish" in readable(one, baseline="base")


def test_readable_of_one_run():
    runs = many_runs()
    text = readable(compare_runs(runs[runs["seed"] == 0], baseline="base", metrics=["average_jct_s"]), baseline="base")
    assert text.splitlines() == [
        "| metric          | policy | mean [95 %] | against base | verdict |",
        "| --------------- | ------ | ----------- | ------------ | ------- |",
        "| Average JCT (s) | base   | 12.0        |              |         |",
        "|                 | fast   | 6.00        | -50.0 %      | one run |",
        "",
        "One run: no interval and no verdict.",
    ]


def test_readable_of_nothing_but_zeros():
    text = readable(compare_runs(many_runs(), baseline="base", metrics=["average_slowdown"]), baseline="base")
    assert "| Average slowdown | base   | 0 [0, 0]    |" in text


def test_shares_and_metrics_in_percent_say_so():
    assert all("(%" in ALL_METRICS[name] for name in (*SHARES, "gpu_utilisation", "unfair_fraction"))


def test_metrics_that_are_not_shown_are_named_in_their_order():
    table = pd.DataFrame({"metric": ["z", "z", "b", "b", "a", "a"], "mean": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]})
    assert _zeros(table) == ["z", "a"]
    assert _zeros(table[table["metric"] != "b"]) == []
