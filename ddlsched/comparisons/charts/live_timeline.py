"""A live run as a chart: nodes that were idle, nodes of each job, and its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.comparisons.charts.style import INK, colours, in_style, shown_figure
from ddlsched.io.tables import csv_rows, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["live_timeline"]

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
