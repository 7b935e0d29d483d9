"""Who had which node when: the main queue's jobs, and training on the nodes that it left idle."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, shown_figure

_SHADES = {"main": MUTED, "idle": PALETTE["blue"]}
_NAMES = {"main": "main queue", "idle": "training"}


@in_style()
def nodes_chart(path: Path) -> Figure:
    """Return the chart of a table with the columns time_s, node, partition, job, a row a node that somebody has."""
    seen = pd.read_csv(path)
    names = sorted(seen["node"].unique(), key=lambda name: int(name.removeprefix("n")))
    figure = shown_figure(6.0, 2.4)
    axes = figure.subplots()
    times_s = sorted(seen["time_s"].unique())
    ends_s = dict(zip(times_s, [*times_s[1:], times_s[-1]], strict=True))
    for (node, _, partition), rows in seen.dropna().groupby(["node", "job", "partition"]):
        begin_s, end_s = rows["time_s"].min(), ends_s[rows["time_s"].max()]
        place, shade = names.index(node), _SHADES[partition]
        axes.barh(place, end_s - begin_s, left=begin_s, height=0.8, color=shade, edgecolor="white", linewidth=0.4)
    axes.set(xlabel="Time (s)", yticks=range(len(names)), yticklabels=names, xlim=(0, times_s[-1]))
    axes.invert_yaxis()
    handles = [Patch(color=_SHADES[partition], label=_NAMES[partition]) for partition in _SHADES]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=INK)
    return figure
