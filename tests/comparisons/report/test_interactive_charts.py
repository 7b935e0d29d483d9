"""What the interactive charts of a report are given: by hand where it is data, and kept where it is only looks."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_numbers import assert_kept, digest

from ddlsched.comparisons.charts.run_charts import Band
from ddlsched.comparisons.report import figures
from ddlsched.results.statistics import Interval

LONG = "a-policy-of-a-long-name:kappa=4 + another-of-a-long-name"
NUMBER = {"b": 0, "p": 1, LONG: 2}
MANY, ONE = Interval(10.0, 8.0, 13.0, 4), Interval(2.5, 2.5, 2.5, 1)
STAYS = pd.DataFrame(
    [("a", 0, 0, 0.0, 4.0), ("a", 1, 0, 0.0, 4.0), ("b", 1, 0, 2.0, 6.0), ("c", 2, 1, 0.0, 4.0)],
    columns=["job_id", "gpu", "server", "from_s", "to_s"],
)
BAND = Band(np.array([0.0, 10.0, 30.0]), np.array([0.5, 0.25]), np.array([0.25, 0.0]), np.array([0.75, 0.5]), 3)
CHARTS: dict[str, Any] = {
    "changes": lambda: figures._changes(
        {"average_jct_s": {"b": ONE, LONG: MANY}, "p95_jct_s": {LONG: ONE}}, NUMBER, "p"
    ),
    "average": lambda: figures._average({"b": MANY, LONG: ONE}, NUMBER),
    "classes": lambda: figures._by_class({"1": {"b": MANY, "p": ONE}, "8+": {"p": MANY}}, NUMBER),
    "distributions": lambda: figures._distributions({"b": np.array([4.0, 1.0]), LONG: np.arange(1.0, 300.0)}, NUMBER),
    "network": lambda: figures._network(
        pd.DataFrame([[0.25, np.nan], [0.125, 0.0]], index=["p", LONG], columns=["1 GPU", "2-4 GPUs"]), NUMBER
    ),
    "utilisation": lambda: figures._utilisation({"p": BAND}, NUMBER),
    "placement": lambda: figures.placement_chart(STAYS, [2, 1], "p"),
}


def test_what_is_drawn_is_what_it_was() -> None:
    found = {}
    for name, chart in CHARTS.items():
        made = chart()
        told = json.dumps([made.title, made.note, made.height, made.traces, made.layout, made.placement])
        found[name] = f"{made.title}, {made.height}, {len(made.traces)}, {digest([told])}"
    assert_kept("interactive", found)


def test_whiskers_go_from_the_mean_to_the_ends() -> None:
    assert figures._estimates([MANY, ONE], "x") == {
        "x": [10.0, 2.5],
        "error_x": {
            "type": "data", "symmetric": False, "array": [3.0, 0.0], "arrayminus": [2.0, 0.0], "thickness": 1.5,
            "width": 4,
        },
    }  # fmt: skip


@pytest.mark.parametrize(("interval", "said"), [(MANY, "10 s [8, 13]"), (ONE, "2.5 s")])
def test_seconds_have_an_interval_where_there_are_several_seeds(interval: Interval, said: str) -> None:
    assert figures._seconds(interval) == said


def test_changes_have_a_trace_a_policy_of_the_metrics_that_it_has() -> None:
    one, several = CHARTS["changes"]().traces
    assert (one["y"], one["x"], one["customdata"]) == (["Average JCT"], [2.5], [[2.5, 2.5]])
    assert (several["y"], several["x"]) == (["Average JCT", "95th percentile JCT"], [10.0, 2.5])
    assert several["customdata"] == [[8.0, 13.0], [2.5, 2.5]]
    assert (one["hovertemplate"], several["hovertemplate"]) == (
        "%{y}: %{x:+.1f} %", "%{y}: %{x:+.1f} % [%{customdata[0]:+.1f}, %{customdata[1]:+.1f}]",
    )  # fmt: skip
    assert [trace["meta"]["policy"] for trace in (one, several)] == [0, 2]


def test_classes_stand_side_by_side_each_with_axes_of_its_own() -> None:
    chart = CHARTS["classes"]()
    assert chart.layout["xaxis"]["domain"] == [0.0, 0.5]
    assert chart.layout["xaxis2"]["domain"] == [0.59, 1.0]
    axes = [(trace["xaxis"], trace["yaxis"], trace["showlegend"], trace["meta"]["policy"]) for trace in chart.traces]
    assert axes == [("x", "y", True, 0), ("x", "y", True, 1), ("x2", "y2", False, 1)]
    assert chart.layout["xaxis2"]["categoryarray"] == ["b", "p"]
    assert "title" not in chart.layout["yaxis2"]


def test_a_distribution_of_many_values_has_their_quantiles() -> None:
    few, many = CHARTS["distributions"]().traces
    assert (few["x"], few["y"]) == ([1.0, 4.0], [0.5, 1.0])
    assert (len(many["x"]), many["x"][0], many["x"][100], many["x"][-1]) == (201, 1.0, 150.0, 299.0)
    assert (many["y"][0], many["y"][100], many["y"][-1]) == (0.0, 0.5, 1.0)


def test_cells_are_per_cent_or_empty() -> None:
    (table,) = CHARTS["network"]().traces
    assert (table["z"], table["x"], table["meta"]) == (
        [[25.0, None], [12.5, 0.0]],
        ["1 GPU", "2-4 GPUs"],
        {"rows": [1, 2]},
    )
    assert CHARTS["network"]().layout["coloraxis"]["cmax"] == 25.0
    empty = figures._network(pd.DataFrame([[np.nan, 0.0]], index=["p"]), NUMBER)
    assert empty.layout["coloraxis"]["cmax"] == 1.0


def test_a_band_goes_there_along_its_top_and_back_along_its_bottom() -> None:
    area, mean = CHARTS["utilisation"]().traces
    assert (area["x"], area["y"]) == ([5.0, 20.0, 20.0, 5.0], [75.0, 50.0, 0.0, 25.0])
    assert (mean["x"], mean["y"]) == ([5.0, 20.0], [50.0, 25.0])
    assert [trace["showlegend"] for trace in (area, mean)] == [False, True]


def test_rectangles_of_a_map_are_whole_numbers() -> None:
    """Each is its stay, from when, to when, first GPU, GPUs, and its place among how many."""
    placement = CHARTS["placement"]().placement
    assert placement["times_s"] == [0.0, 2.0, 4.0, 6.0]
    stays = {tuple(stay[:3]): place for place, stay in enumerate(placement["stays"])}
    a, b, c = stays["a", 0, 2], stays["b", 1, 3], stays["c", 0, 2]
    expected = [
        [a, 0, 2, 0, 1, 0, 1], [a, 0, 1, 1, 1, 0, 1], [a, 1, 2, 1, 1, 0, 2], [b, 1, 2, 1, 1, 1, 2],
        [b, 2, 3, 1, 1, 0, 1], [c, 0, 2, 2, 1, 0, 1],
    ]  # fmt: skip
    assert sorted(placement["boxes"]) == sorted(expected)
    assert placement["servers"] == [2, 1]
    colours = {stay[0]: stay[3] for stay in placement["stays"]}
    assert len(set(colours.values())) == 3


@pytest.mark.parametrize(
    ("most", "boxes", "said"),
    [(6, 6, "share its row"), (5, 5, "the first is shown"), (4, None, "")],
)
def test_a_map_of_too_many_rectangles_shows_one_job_a_gpu_or_nothing(
    most: int, boxes: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_MOST_BOXES", most)
    chart = figures.placement_chart(STAYS, [2, 1], "p")
    if boxes is None:
        assert chart is None
        return
    assert chart is not None
    assert chart.placement is not None
    assert (len(chart.placement["boxes"]), said in chart.note) == (boxes, True)
    shared = {(0, 1), (0, 2), (1, 2)}
    assert {tuple(box[5:]) for box in chart.placement["boxes"]} == (shared if most == 6 else {(0, 1)})


@pytest.mark.parametrize(("gpus", "height"), [(13, 240), (14, 244), (70, 860), (71, 860)])
def test_a_map_is_as_high_as_its_gpus_within_bounds(gpus: int, height: int) -> None:
    chart = figures.placement_chart(STAYS, [gpus], "p")
    assert chart is not None
    assert chart.height == height


def test_charts_come_where_there_is_something_to_show() -> None:
    none: Any = SimpleNamespace(
        policies=["p"],
        comparison=SimpleNamespace(baseline="b"),
        **{name: lambda *_: {} for name in ("changes", "intervals", "class_intervals", "jct_s", "bands")},
    )
    titles = [chart.title for chart in figures.interactive_charts(none, None)]  # type: ignore[arg-type]
    assert titles == ["Utilisation over time"]
    shares = pd.DataFrame([[0.5]], index=["p"], columns=["1 GPU"])
    some: Any = SimpleNamespace(
        policies=["b", "p"],
        comparison=SimpleNamespace(baseline="b"),
        changes=lambda _: {"average_jct_s": {"p": MANY}},
        intervals=lambda _, metric: {"p": MANY} if metric == "average_jct_s" else {},
        class_intervals=lambda _: {"1": {"p": MANY}},
        jct_s=lambda _: {"p": np.array([1.0])},
        network_shares=lambda _: shares,
        bands=lambda _: {"p": BAND},
    )
    assert [chart.title for chart in figures.interactive_charts(some, None)] == [  # type: ignore[arg-type]
        "Change against the baseline", "Average JCT", "Average JCT by job size", "Distribution of JCT",
        "Network's share of JCT", "Utilisation over time",
    ]  # fmt: skip
