"""One page: predicted against measured steps, a panel a GPU, and where kept-out rows are off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ddlsched.comparisons.charts.style import PALETTE, in_style, save, shown_figure

_GPUS = ("a100-40", "a100-80", "h100", "h100-96", "b200", "b300", "gb200", "gb300")
BY = {"model": "By model", "gpus": "By GPUs", "sequence": "By sequence (tokens)"}


def draw(held: pd.DataFrame, seen: pd.DataFrame, by: Mapping[str, pd.DataFrame], stem: Path) -> None:
    """Draw predicted against measured steps, a panel a GPU, and errors of kept-out rows by model, GPUs and sequence."""
    points = held.groupby(["gpu", "program", "setting", "measured_step_s"], as_index=False)["error"].mean()
    with in_style():
        figure = shown_figure(7.2, 8.6)
        grid = figure.add_gridspec(4, 12, height_ratios=(1, 1, 0.25, 1.5))
        for place, gpu in enumerate(gpu for gpu in _GPUS if gpu in set(seen["gpu"])):
            row, column = divmod(place, 4)
            axes = figure.add_subplot(grid[row, 3 * column : 3 * column + 3])
            _draw_gpu(axes, points[points["gpu"] == gpu], seen[seen["gpu"] == gpu])
            axes.set(title=gpu, xlabel="Measured step (s)" if row else "")
            axes.set_ylabel("" if column else "Predicted step (s)")
        marks = [
            Line2D([], [], marker=".", linestyle="", color=PALETTE["blue"], label="Kept out of the fit, mean"),
            Line2D([], [], marker="o", linestyle="", mfc="none", color=PALETTE["grey"], label="Fitted to all rows"),
        ]
        legend = figure.add_subplot(grid[2, :])
        legend.axis("off")
        legend.legend(handles=marks, loc="center", ncols=2, frameon=False)
        for place, (column, what) in enumerate(BY.items()):
            axes = figure.add_subplot(grid[3, 4 * place : 4 * place + 4])
            table = by[column]
            axes.barh([str(one) for one in table[column]], 100 * table["mean"], color=PALETTE["blue"])
            axes.set(xlabel="Error of kept-out rows (%)" if place == 1 else "", title=what)
            axes.tick_params(axis="y", labelsize=5.5)
            axes.invert_yaxis()
        save(figure, stem)


def _draw_gpu(axes: Axes, kept_out: pd.DataFrame, seen: pd.DataFrame) -> None:
    """Draw a GPU's rows around the diagonal, with 15 % at both sides."""
    for table, look in (
        (seen, {"marker": "o", "mfc": "none", "color": PALETTE["grey"], "markersize": 5}),
        (kept_out, {"marker": ".", "color": PALETTE["blue"], "markersize": 4}),
    ):
        measured_s = table["measured_step_s"]
        axes.plot(measured_s, measured_s * (1 + table["error"]), linestyle="", **look)  # type: ignore[arg-type]
    ends_s = np.array([seen["measured_step_s"].min() / 1.5, seen["measured_step_s"].max() * 1.5])
    axes.plot(ends_s, ends_s, color=PALETTE["grey"], linewidth=0.8, zorder=0)
    axes.fill_between(ends_s, ends_s / 1.15, ends_s * 1.15, color=PALETTE["grey"], alpha=0.2, linewidth=0, zorder=0)
    axes.set(xscale="log", yscale="log")
    told = (1, 2, 5) if ends_s[1] < 100 * ends_s[0] else (1,)  # of each decade: two labels or more an axis
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=told))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
