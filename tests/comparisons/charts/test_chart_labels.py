"""How charts call and colour policies, and what they add where a reader would be left alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from ddlsched.comparisons.charts import jct_charts, real_charts, style, training_charts
from ddlsched.results.statistics import Interval


@pytest.mark.parametrize("parameter", ["kappa_", "lwf:kappa=", "κ=", "LWF-", "lwf-"])
def test_the_values_of_a_parameter_go_from_light_to_dark(parameter: str) -> None:
    shades = style.colours([f"{parameter}{number}" for number in (32, 1, 8)])
    assert [shades[f"{parameter}{number}"] for number in (1, 8, 32)] == ["#86c8dc", "#48799c", "#0b2a5b"]
    assert style.colours(["SRSF(1)", "SRSF(2)", "SRSF(3)"])["SRSF(2)"] == style.PALETTE["green"]


def test_a_chart_calls_policies_by_what_tells_them_apart() -> None:
    mine, other = "lwf:kappa=1 + srsf + mine.py:SmallerFirst:limit=3", "lwf:kappa=1 + srsf + adadual"
    assert style.short_labels([mine, other]) == {mine: "SmallerFirst:limit=3", other: "adadual"}
    assert style.short_labels([mine, "ada-srsf"])[mine] == "lwf:kappa=1 + srsf + SmallerFirst:limit=3"
    alike = ["a.py:Mine", "b.py:Mine"]
    assert style.short_labels(alike) == dict(zip(alike, alike, strict=True))


def test_curves_that_coincide_are_followed_by_their_differences() -> None:
    values = np.exp(np.linspace(0, 8, 200))
    assert len(jct_charts.distributions({"a": values, "b": values * 1.001}, axis="JCT (s)").axes) == 2
    assert len(jct_charts.distributions({"a": values, "b": values * 3}, axis="JCT (s)").axes) == 1
    assert jct_charts.share_up_to(np.array([1.0, 2.0, 4.0]), np.array([0.5, 2.0, 9.0])).tolist() == [0, 2 / 3, 1]


def test_a_heat_map_has_a_scale_of_its_shades() -> None:
    shares = pd.DataFrame([[0.0, 0.2], [0.1, 0.05]], index=["a", "b"], columns=["1 GPU", "2-4"])
    _, scale = jct_charts.heat_map(shares, axis="share").axes
    assert [text.get_text() for text in scale.get_xticklabels()] == ["0", "10", "20 %"]


def test_the_columns_of_a_heat_map_stand_apart_beside_long_names() -> None:
    names = ["1 GPU", "2–4 GPUs", "8+ GPUs", "all jobs"]
    shares = pd.DataFrame([[0.1, 0.2, 0.3, 0.2]], index=["whole-servers + volcano"], columns=names)
    figure = jct_charts.heat_map(shares, axis="share")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].get_xticklabels()]
    a_letter = boxes[0].height / 2
    assert all(left.x1 + a_letter < right.x0 for left, right in pairwise(boxes))


@pytest.mark.long
@pytest.mark.parametrize("letters", [18, 20, 22, 24, 26])
def test_a_legend_is_not_cut_off(letters: int) -> None:
    values = np.exp(np.linspace(0, 8, 200))
    names = ["conservative-backfills", "kueue-topology + hierarch", "whole-servers + volcanos"]
    figure = jct_charts.distributions(
        {f"{name:x<26}"[:letters]: values * 3**n for n, name in enumerate(names)}, axis="JCT (s)"
    )
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert max(text.get_window_extent().x1 for text in legend.get_texts()) < figure.bbox.x1


def test_a_legend_shows_the_whole_pattern_of_a_line() -> None:
    values = np.exp(np.linspace(0, 8, 200))
    figure = jct_charts.distributions({f"p{n}": values * 3**n for n in range(len(style.DASHES))}, axis="JCT (s)")
    (legend,) = figure.legends
    points = legend.handlelength * legend.get_texts()[0].get_fontsize()
    patterns = [
        line.get_linewidth() * sum(dash[1])
        for line, dash in zip(legend.get_lines(), style.DASHES, strict=True)
        if dash != "-"
    ]
    assert len(patterns) == len(style.DASHES) - 1
    assert max(patterns) < points


def test_the_changes_of_policies_have_short_names_in_the_legend() -> None:
    measured = {f"lwf:kappa=1 + srsf + {name}": Interval(-1.0, -2.0, 0.0, 10) for name in ("adadual", "mine.py:Mine")}
    (legend,) = jct_charts.changes([jct_charts.Change("JCT", measured)], axis="%").legends
    assert [text.get_text() for text in legend.get_texts()] == ["adadual", "Mine"]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([[20.0, np.nan], [200.0, 2000.0]], ["20", "200", "2000"]),
        ([[3.0, np.nan], [np.nan, 3.0]], ["2.69", "3", "3.35"]),
    ],
)
def test_a_map_of_designs_has_a_scale_of_its_shades(values: list[list[float]], ends: list[str]) -> None:
    names = {
        "rows": ["1", "2"],
        "columns": ["4", "8"],
        "row_axis": "Tensor",
        "column_axis": "Data",
        "title": "Step (s)",
    }
    figure = training_charts.heat_map(np.array(values), **names)
    figure.draw_without_rendering()
    axes, scale = figure.axes
    assert [text.get_text() for text in scale.get_xticklabels()] == ends
    assert [text.get_text() for text in axes.texts] == ["-" if np.isnan(v) else f"{v:.0f}" for v in np.ravel(values)]


@pytest.mark.long
def test_a_model_has_one_colour_in_both_charts_of_fidelity() -> None:
    models = ["max-min", "equal-share", "linear", "size-shares", "connection-shares", "packet-rings", "asked-for"]
    times = {"measured_jct_s": 90.0, "simulated_jct_s": 95.0, "jct_error": 0.05}
    errors = pd.DataFrame([{"model": model, **times} for model in models])
    (curves,) = real_charts.error_distribution(errors).axes
    in_curves = {line.get_label(): line.get_color() for line in curves.lines}
    assert len({in_curves[model] for model in models}) == len(models)
    assert all(line.get_ydata()[-1] == 100 for line in curves.lines)
    for model in models[1:]:
        (points,) = real_charts.measured_against_simulated(errors[errors.model.isin([models[0], model])]).axes
        in_points = {line.get_label(): line.get_color() for line in points.lines}
        assert (in_points[models[0]], in_points[model]) == (in_curves[models[0]], in_curves[model])


def test_measured_against_simulated_times_begin_at_0() -> None:
    errors = pd.DataFrame({"model": ["a", "a"], "measured_jct_s": [90.0, 100.0], "simulated_jct_s": [95.0, 99.0]})
    (axes,) = real_charts.measured_against_simulated(errors).axes
    assert axes.get_xlim() == axes.get_ylim() == (0.0, pytest.approx(110.0))


def test_a_pareto_chart_has_decades_and_names_its_axes() -> None:
    values = np.array([1.0, 10.0, 100.0])
    figure = training_charts.pareto_chart(
        values, values[::-1], np.arange(3), names="abc", time_axis="step (s)", cost_axis="GPUs"
    )
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("GPUs", "step (s)")
