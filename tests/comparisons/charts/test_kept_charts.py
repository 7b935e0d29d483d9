"""What charts draw, as it was: every line, box, text and axis, where no font decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from kept_numbers import assert_kept, digest, short
from matplotlib import collections, colors, lines, patches, text
from matplotlib.figure import Figure
from mixed_jobs import FAILING, GROUND, TENANTS, jobs

from ddlsched import simulate
from ddlsched.comparisons.charts import jct_charts, real_charts, run_charts, training_charts
from ddlsched.comparisons.charts.placement_map import placement_map
from ddlsched.results.statistics import Interval

DRAWN_BY = 3, 11
INTERVALS = {
    "srsf": Interval(mean=3.0, low=2.5, high=3.25, seeds=4),
    "lwf:kappa=4 + las": Interval(mean=4.0, low=4.0, high=4.0, seeds=1),
    "a policy of a long name + hierarchical": Interval(mean=1234.5, low=1000.0, high=1500.0, seeds=4),
}
ERRORS = pd.DataFrame(
    [
        {"model": model, "measured_jct_s": 10.0 * nth, "simulated_jct_s": 9.0 * nth + at, "jct_error": nth / 90 - 0.04}
        for at, model in enumerate(("max-min", "linear", "its own"))
        for nth in range(1, 7)
    ]
)  # fmt: skip
LIVE = """time_s,what,job,step,nodes,loss
0.5,nodes,,0,2,None
0.6,started,a,0,1,None
0.7,started,b,0,1,None
1.0,step,a,1,1,0.5
1.5,step,a,2,1,0.25
2.2,regrouped,b,0,3,None
3.0,finished,a,0,0,None
"""
VALUES = np.exp(np.linspace(0, 6, 50))
SAMPLES = [
    pd.DataFrame({"time_s": [10.0, 30.0, 90.0], "busy_gpus": [4.0, most, 1.0]}) for most in (8.0, 6.0, 5.0)
]  # fmt: skip
PLACEMENTS = pd.DataFrame(
    [(job, gpu, gpu // 4, from_s, from_s + 5.0) for job, gpus, from_s in (
        ("a", (0, 1, 2), 0.0), ("b", (3, 4), 1.0), ("c", (2, 3, 5), 4.0), ("d", (0, 1), 5.0), ("a", (4, 5), 8.5),
    ) for gpu in gpus],
    columns=["job_id", "gpu", "server", "from_s", "to_s"],
)  # fmt: skip
CHARTS: dict[str, Callable[[], Figure]] = {
    "bars": lambda: jct_charts.bars(INTERVALS, axis="Average JCT (s)"),
    "grouped bars": lambda: jct_charts.grouped_bars(
        {"small": INTERVALS, "large": {"srsf": INTERVALS["srsf"]}}, axis="JCT (s)", colour={"srsf": "#123456"}
    ),
    "heat map": lambda: jct_charts.heat_map(
        pd.DataFrame([[0.0, 0.2], [np.nan, 0.05]], index=["a", "b"], columns=["1 GPU", "2-4"]), axis="share"
    ),
    "distributions": lambda: jct_charts.distributions({"a": VALUES, "b": VALUES * 3}, axis="JCT (s)"),
    "close distributions": lambda: jct_charts.distributions({"a": VALUES, "b": VALUES * 1.001}, axis="JCT (s)"),
    "utilisation": lambda: run_charts.utilisation(
        run_charts.utilisation_bands({"many": SAMPLES, "one": SAMPLES[1:2]}, num_gpus=8)
    ),
    "design": lambda: training_charts.heat_map(
        np.array([[1.0, 20.0], [np.nan, 3.0]]),
        rows=["1", "2"],
        columns=["4", "8"],
        row_axis="tensor",
        column_axis="pipeline",
        title="Step (s)",
    ),
    "changes": lambda: jct_charts.changes(
        [
            jct_charts.Change("average", {"srsf": INTERVALS["srsf"], "las": Interval(-3.0, -4.0, 1.0, 4)}, claimed=2.5),
            jct_charts.Change("a label that is so long that it has lines", {"las": Interval(1.0, 0.5, 2.0, 4)}),
        ],
        axis="Change (%)",
        colour={"las": "#654321"},
    ),
    "map": lambda: placement_map(PLACEMENTS, [4, 2], title="A map"),
    "measured": lambda: real_charts.measured_against_simulated(ERRORS),
    "errors": lambda: real_charts.error_distribution(ERRORS),
    "pareto": lambda: training_charts.pareto_chart(
        np.array([1.0, 2.0, 4.0, 4.0]),
        np.array([9.0, 5.0, 1.0, 8.0]),
        np.array([0, 1, 2]),
        names=["fast", "middle", "cheap", "bad"],
        time_axis="Step (s)",
        cost_axis="Cost",
    ),
}


def drawn(figure: Figure) -> Iterator[Any]:
    yield short(*figure.get_size_inches())
    for axes in figure.axes:
        yield short(*axes.get_xlim(), *axes.get_ylim()), axes.get_xscale(), axes.get_yscale()
        yield axes.get_xlabel(), axes.get_ylabel(), axes.get_title(), axes.get_title(loc="left")
        yield [tick.get_text() for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        yield [spine.get_visible() for spine in axes.spines.values()]
    for artist in figure.findobj():
        if isinstance(artist, lines.Line2D):
            places = np.ravel(artist.get_xydata())
            yield short(*places), colors.to_hex(artist.get_color()), artist.get_linestyle(), artist.get_linewidth()
            yield artist.get_marker(), artist.get_markersize(), artist.get_visible()
        elif isinstance(artist, patches.Rectangle) and artist.axes:
            yield short(*artist.get_bbox().bounds), colors.to_hex(artist.get_facecolor()), artist.get_linewidth()
        elif isinstance(artist, patches.StepPatch):
            yield short(*np.ravel(artist.get_path().vertices)), artist.get_fill(), colors.to_hex(artist.get_facecolor())
        elif isinstance(artist, collections.Collection):
            yield [short(*np.ravel(path.vertices)) for path in artist.get_paths()]
            yield [colors.to_hex(colour, keep_alpha=True) for colour in artist.get_facecolor()]
        elif isinstance(artist, text.Text):
            yield artist.get_text(), artist.get_fontsize(), artist.get_ha(), artist.get_va(), artist.get_color()


@pytest.mark.long
@pytest.mark.skipif(matplotlib.__version_info__[:2] != DRAWN_BY, reason="another matplotlib chooses other ticks")
def test_charts_are_what_they_were(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    (live := tmp_path / "timeline.csv").write_text(LIVE)
    told = {"placement": "first-fit", "queues": TENANTS, "admission": "kueue", "disturbances": FAILING, "seed": 3}
    run = simulate(jobs(tiers=False), GROUND, **told).plot
    of_runs = (run.jct, run.phases, run.placements, run.tenants, run.tenant_jobs, run.fragmentation, run.waterfall)
    charts = {f"run, {chart.__name__}": chart for chart in (*of_runs, run.utilisation)}
    for name, chart in (CHARTS | charts | {"live": lambda: real_charts.live_timeline(live)}).items():
        figure = chart()
        figure.draw_without_rendering()
        parts = list(drawn(figure))
        found[name] = f"{len(parts)} {digest(parts)}"
    assert_kept("charts", found)


def test_the_band_of_one_run_is_that_run() -> None:
    band = run_charts.utilisation_bands({"one": SAMPLES[:1]}, num_gpus=8)["one"]
    assert band.low.tolist() == band.mean.tolist() == band.high.tolist()
    assert (band.mean[0], band.mean[-1]) == pytest.approx((4 / 8, 1 / 8))
