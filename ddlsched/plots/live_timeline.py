"""A live run as a chart: nodes that were idle, nodes of each job, and its loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.plots.style import INK, MUTED, colours, in_style
from ddlsched.tables import csv_rows, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["live_timeline"]

_COLUMNS = ("time_s", "what", "job", "step", "nodes", "loss")
_ENDS = {"finished", "failed", "stopped", "lost a node", "a process died"}


@in_style()
def live_timeline(path: Path) -> Figure:
    """Return the chart of a ``timeline.csv`` that ``ddlsched live`` wrote.

    Raises
    ------
    InputError
        It is no such file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, NullFormatter

    rows = [row for _, row in readable(path, "a timeline of ddlsched live", lambda p: list(csv_rows(p, _COLUMNS, ())))]
    jobs = sorted({row["job"] for row in rows if row["job"]})
    shade = colours(jobs)
    figure = Figure(figsize=(6.0, 3.4), layout="constrained")
    sizes, losses = figure.subplots(2, 1, sharex=True)
    end_s = max((float(row["time_s"]) for row in rows), default=0.0)
    idle = [(float(row["time_s"]), int(row["nodes"])) for row in rows if row["what"] == "nodes"]
    _steps(sizes, [*idle, (end_s, idle[-1][1] if idle else 0)], "idle nodes", MUTED, filled=True)
    for job in jobs:
        own = [row for row in rows if row["job"] == job]
        changes = [
            (float(row["time_s"]), 0 if row["what"] in _ENDS else int(row["nodes"]))
            for row in own
            if row["what"] == "started" or row["what"] in _ENDS
        ]
        changes += [(end_s, changes[-1][1])] if changes and changes[-1][1] else []
        _steps(sizes, changes, f"job {job}", shade[job], filled=False)
        points = [(float(row["time_s"]), float(row["loss"])) for row in own if row["what"] == "step"]
        if points:
            losses.plot(*zip(*points, strict=True), ".", color=shade[job], markersize=2)
    sizes.set_ylabel("Nodes")
    losses.set_ylabel("Loss")
    losses.set_yscale("log")
    losses.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    losses.yaxis.set_minor_formatter(NullFormatter())
    losses.set_xlabel("Time (s)")
    sizes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=INK)
    return figure


def _steps(axes: Axes, changes: list[tuple[float, int]], label: str, colour: str, *, filled: bool) -> None:
    times_s, nodes = zip(*changes, strict=True) if changes else ((), ())
    axes.step(times_s, nodes, where="post", color=colour, label=label, linewidth=1.0)
    if filled:
        axes.fill_between(times_s, nodes, step="post", color=colour, alpha=0.15)
