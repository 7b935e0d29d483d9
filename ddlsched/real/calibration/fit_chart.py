"""The chart of a calibration: measured times and the fitted model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import legend_below
from ddlsched.comparisons.charts.style import DASHES, PALETTE, in_style, new_figure, short
from ddlsched.real.calibration.fit import ModelFit, predicted_s
from ddlsched.real.calibration.measurements import Measurements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["fit_chart"]

_COLOURS = ("blue", "orange", "green", "vermillion", "purple")
_MARKERS = "os^Dv"


@in_style()
def fit_chart(rows: Measurements, fit: ModelFit) -> Figure:
    """Return measured times (points) and the model's (lines) over the number of concurrent jobs.

    Of more than five message sizes five are drawn, evenly spread; servers as in the size's first row.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    figure, axes = new_figure(2.6)
    sizes = np.unique(rows.message_bytes)
    shown = sizes[np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), len(_COLOURS))).round().astype(int))]
    for number, size in enumerate(shown):
        own = rows.rows(rows.message_bytes == size)
        colour, label = PALETTE[_COLOURS[number]], f"{short(size / 1e6)} MB"
        axes.plot(own.jobs, own.seconds, _MARKERS[number], color=colour, markersize=3.2, label=label)
        jobs = np.linspace(own.jobs.min(), own.jobs.max(), 50)
        servers = None if own.servers is None else np.full(50, own.servers[0])
        line = predicted_s(fit.form, fit.values, Measurements(jobs, np.full(50, size), np.ones(50), servers))
        axes.plot(jobs, line, color=colour, linestyle=DASHES[number], linewidth=1.0)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="All-reduces at a time (points measured, lines fitted)", ylabel="Time of one (s)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    error = f"{100 * fit.tested_error.value:.1f} % off on rows not fitted"
    figure.suptitle(f"{fit.form.name}: {error}", x=0.01, ha="left", fontsize=8.5)
    legend_below(figure, [axes])
    return figure
