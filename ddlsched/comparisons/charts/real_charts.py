"""Charts of runs on real machines: their fidelity beside simulations, and who held which GPUs when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import legend_below
from ddlsched.comparisons.charts.style import DASHES, INK, PALETTE, colours, in_style, new_figure, shown_figure
from ddlsched.deferred import pd
from ddlsched.io.tables import csv_rows, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "max-min": PALETTE["blue"],
    "equal-share": PALETTE["green"],
    "linear without penalty": PALETTE["sky"],
    "linear": PALETTE["vermillion"],
    "size-shares": PALETTE["purple"],
    "connection-shares": PALETTE["orange"],
    "packet-rings": INK,
}
"""Of contention models, in every chart."""
_MARKERS = "os^DvP"


@in_style()
def measured_against_simulated(errors: pd.DataFrame) -> Figure:
    """Return each job's JCT, simulated over measured, a marker a model; on the line both are the same."""
    figure, axes = new_figure(3.0)
    shade = colours(errors.model.unique().tolist(), _COLOURS)
    for number, (model, part) in enumerate(errors.groupby("model", sort=False)):
        marker, label = _MARKERS[number % len(_MARKERS)], str(model)
        axes.plot(part.measured_jct_s, part.simulated_jct_s, marker, color=shade[label], markersize=2.6, label=label)
    ends = [0.0, 1.1 * errors[["measured_jct_s", "simulated_jct_s"]].to_numpy().max()]
    axes.plot(ends, ends, color=INK, linewidth=0.6)
    axes.set(xlabel="JCT measured (s)", ylabel="JCT simulated (s)", xlim=ends, ylim=ends)
    axes.grid()
    legend_below(figure, [axes])
    return figure


@in_style()
def error_distribution(errors: pd.DataFrame) -> Figure:
    """Return for each model which part of the jobs is at most so far off."""
    figure, axes = new_figure(2.4)
    shade = colours(errors.model.unique().tolist(), _COLOURS)
    for number, (model, part) in enumerate(errors.groupby("model", sort=False)):
        off = np.sort(part.jct_error.abs().to_numpy()) * 100
        shares = np.arange(1, len(off) + 1) / len(off) * 100
        dashes, label = DASHES[number % len(DASHES)], str(model)
        axes.step(
            [0, *off], [0, *shares], where="post", color=shade[label], linestyle=dashes, linewidth=1.0, label=label
        )
    axes.set(xlabel="Error of a job's JCT, at most (%)", ylabel="Jobs (%)", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid()
    legend_below(figure, [axes])
    return figure


_COLUMNS = ("time_s", "what", "job", "step", "nodes", "loss")
_BEGINS = {"started", "regrouped"}
_ENDS = {"finished", "failed", "stopped", "shrunk", "lost a node", "a process died", "a process hangs", "a group broke"}


@in_style()
def live_timeline(path: Path) -> Figure:
    """Return the chart of a ``timeline.csv`` that ``ddlsched live`` wrote.

    Raises
    ------
    InputError
        It is no such file.
    """
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator, NullFormatter

    rows = [row for _, row in readable(path, "a timeline of ddlsched live", lambda p: list(csv_rows(p, _COLUMNS, ())))]
    jobs = sorted({row["job"] for row in rows if row["job"]})
    shade = colours(jobs)
    figure = shown_figure(6.0, 3.6)
    sizes, losses = figure.subplots(2, 1, sharex=True)
    times_s, nodes = _sizes(rows, jobs)
    if jobs:
        sizes.stackplot(times_s, nodes[1:], step="post", colors=[shade[job] for job in jobs], alpha=0.8, linewidth=0)
    sizes.step(times_s, nodes[0], where="post", color=INK, linewidth=0.9, label="idle nodes")
    for job in jobs:
        sizes.fill_between([], [], color=shade[job], alpha=0.8, label=f"job {job}")
        points = [
            (float(row["time_s"]), float(row["loss"])) for row in rows if (row["what"], row["job"]) == ("step", job)
        ]
        if points:
            losses.plot(*zip(*points, strict=True), ".", color=shade[job], markersize=2)
    sizes.set(ylabel="Nodes", xlim=(0, max(times_s[-1], 1e-3)), ylim=(0, None))
    sizes.yaxis.set_major_locator(MaxNLocator(integer=True))
    losses.set(ylabel="Loss of a step", yscale="log", xlabel="Time (s)")
    losses.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    losses.yaxis.set_minor_formatter(NullFormatter())
    sizes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=INK)
    return figure


def _sizes(rows: Sequence[Mapping[str, str]], jobs: Sequence[str]) -> tuple[list[float], list[list[int]]]:
    """Return times, and from each on the number of idle nodes and of each job's nodes, a list each."""
    now = dict.fromkeys(["", *jobs], 0)
    times_s, nodes = [0.0], [list(now.values())]
    for row in rows:
        if row["what"] in {"nodes", *_BEGINS, *_ENDS}:
            now[row["job"]] = 0 if row["what"] in _ENDS else int(row["nodes"])
            times_s.append(float(row["time_s"]))
            nodes.append(list(now.values()))
    end_s = max((float(row["time_s"]) for row in rows), default=0.0)
    return [*times_s, end_s], [list(each) for each in zip(*nodes, nodes[-1], strict=True)]
