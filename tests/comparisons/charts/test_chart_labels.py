"""How charts call and colour policies, and what they add where a reader would be left alone."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddlsched.comparisons.charts import jct_charts, style


def test_the_values_of_a_parameter_go_from_light_to_dark() -> None:
    shades = style.colours([f"kappa_{number}" for number in (32, 1, 8)])
    lightness = [style._luminance(shades[f"kappa_{number}"]) for number in (1, 8, 32)]
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(lightness)) == 3
    assert style.colours(["SRSF(1)", "SRSF(2)", "SRSF(3)"])["SRSF(2)"] == style.PALETTE["green"]


def test_a_chart_calls_policies_by_what_tells_them_apart() -> None:
    mine, other = "lwf:kappa=1 + srsf + mine.py:SmallerFirst:limit=3", "lwf:kappa=1 + srsf + adadual"
    assert style.short_labels([mine, other]) == {mine: "SmallerFirst:limit=3", other: "adadual"}
    assert style.short_labels([mine, "ada-srsf"])[mine] == "lwf:kappa=1 + srsf + SmallerFirst:limit=3"
    alike = ["a.py:Mine", "b.py:Mine"]
    assert style.short_labels(alike) == dict(zip(alike, alike, strict=True))


def test_a_number_keeps_its_unit() -> None:
    assert style.unbroken("on 64 GPUs at 10 GbE") == "on 64\N{NO-BREAK SPACE}GPUs at 10\N{NO-BREAK SPACE}GbE"


def test_curves_that_coincide_are_followed_by_their_differences() -> None:
    values = np.exp(np.linspace(0, 8, 200))
    assert len(jct_charts.distributions({"a": values, "b": values * 1.001}, axis="JCT (s)").axes) == 2
    assert len(jct_charts.distributions({"a": values, "b": values * 3}, axis="JCT (s)").axes) == 1
    assert jct_charts.share_up_to(np.array([1.0, 2.0, 4.0]), np.array([0.5, 2.0, 9.0])).tolist() == [0, 2 / 3, 1]


def test_a_heat_map_has_a_scale_of_its_shades() -> None:
    shares = pd.DataFrame([[0.0, 0.2], [0.1, 0.05]], index=["a", "b"], columns=["1 GPU", "2-4"])
    _, scale = jct_charts.heat_map(shares, axis="share").axes
    assert [text.get_text() for text in scale.get_xticklabels()] == ["0", "10", "20 %"]
