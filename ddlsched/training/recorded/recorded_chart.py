"""A recorded iteration as a picture: its tasks and what they wait for, and above them what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, shown_figure
from ddlsched.training.recorded.alone import AloneIteration
from ddlsched.training.recorded.rank_steps import MarkKind, RankStep
from ddlsched.workload.dag import CollectiveTask, ComputeTask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "forward": PALETTE["sky"],
    "backward": PALETTE["blue"],
    "optimizer": PALETTE["teal"],
    "compute": PALETTE["blue"],
    "all-reduce": PALETTE["orange"],
    "all-gather": PALETTE["green"],
    "reduce-scatter": PALETTE["vermillion"],
    "all-to-all": PALETTE["purple"],
    "broadcast": PALETTE["olive"],
    "send": PALETTE["rose"],
}
_MOST_ROWS = 24
_MOST_ARROWS = 400
_NS_PER_MS = 1e6


@in_style()
def recorded_chart(alone: AloneIteration, measured: RankStep | None = None) -> Figure:
    """Return the tasks of an iteration on a line of time, a row for each class of ranks and each group.

    Thin lines are what a task waits for; those of the critical path are dark. ``measured`` is a step of a rank as its
    trace has it, for a second pair of axes on the same scale.
    """
    rows = _rows(alone)
    has_measured = measured is not None and measured.wall_ns is not None
    heights = [2.0, max(2, len(rows))] if has_measured else [max(2, len(rows))]
    figure = shown_figure(7.0, 0.9 + 0.32 * sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    if measured is not None and has_measured:
        _draw_measured(panels[0], measured)
    _draw_tasks(panels[-1], alone, rows)
    panels[-1].set_xlabel("Time since the iteration began (ms)")
    return figure


def _rows(alone: AloneIteration) -> dict[str, int]:
    """Return the row of each class and group, classes first, those beyond the last row left out."""
    computes_first = sorted(alone.dag.tasks, key=lambda task: isinstance(task, CollectiveTask))
    return {name: row for row, name in enumerate(dict.fromkeys(map(_row_name, computes_first))) if row < _MOST_ROWS}


def _row_name(task: ComputeTask | CollectiveTask) -> str:
    return task.group or "compute" if isinstance(task, ComputeTask) else f"{task.group or 'all ranks'} (network)"


def _kind(task: ComputeTask | CollectiveTask) -> str:
    """Return what a task is drawn as: its phase, or its kind of collective."""
    return task.name.split("-")[0] if isinstance(task, ComputeTask) else task.kind


def _draw_tasks(axes: Axes, alone: AloneIteration, rows: dict[str, int]) -> None:
    places, tasks = {}, alone.dag.tasks
    for number, task in enumerate(tasks):
        name = _row_name(task)
        if name not in rows:
            continue
        begin, end = alone.begins_ns[number] / _NS_PER_MS, alone.ends_ns[number] / _NS_PER_MS
        _draw_span(axes, rows[name], alone.begins_ns[number], alone.ends_ns[number], _kind(task))
        places[task.name] = (begin, end, rows[name])
    on_way = {(tasks[a].name, tasks[b].name) for a, b in pairwise(alone.critical)}
    arrows = [
        (before, task.name) for task in tasks for before in task.after if before in places and task.name in places
    ]
    for before, name in arrows[:_MOST_ARROWS]:
        _, end, row = places[before]
        begin, _, to_row = places[name]
        is_critical = (before, name) in on_way
        axes.plot(
            [end, begin], [row, to_row], color=INK if is_critical else MUTED, linewidth=0.8 if is_critical else 0.4
        )
    axes.set_yticks(list(rows.values()), list(rows))
    axes.invert_yaxis()
    _legend(axes, tasks)


def _draw_measured(axes: Axes, measured: RankStep) -> None:
    """Draw a step as the trace has it: computation by phase without its waits, and each communication."""
    for begin, end, phase in _computed(measured):
        _draw_span(axes, 0, begin, end, phase)
    for each in measured.communications:
        if each.measured_ns is not None:
            _draw_span(axes, 1, *each.measured_ns, each.kind)
    axes.set_yticks([0, 1], ["measured: compute", "measured: network"])
    axes.invert_yaxis()


def _computed(step: RankStep) -> list[tuple[int, int, str]]:
    """Return from when until when a rank computed, nanoseconds since its step began, and in which phase."""
    phases = [(mark.at_ns, str(mark.what)) for mark in step.marks if mark.kind is MarkKind.PHASE]
    begins = [*phases] if phases and phases[0][0] == 0 else [(0, "compute"), *phases]
    found, at, stood_still = [], 0, 0
    for begin, end in [*step.stalls_ns, (step.wall_ns or 0, 0)]:
        for (since, phase), (until, _) in pairwise([*begins, (step.compute_ns, "")]):
            cut = max(at, since + stood_still), min(begin, until + stood_still)
            if cut[0] < cut[1]:
                found.append((*cut, phase))
        at, stood_still = end, stood_still + end - begin
    return found


def _draw_span(axes: Axes, row: int, begin_ns: float, end_ns: float, kind: str) -> None:
    axes.barh(
        row,
        (end_ns - begin_ns) / _NS_PER_MS,
        left=begin_ns / _NS_PER_MS,
        height=0.6,
        color=_COLOURS.get(kind, MUTED),
        edgecolor="white",
        linewidth=0.3,
    )


def _legend(axes: Axes, tasks: Sequence[ComputeTask | CollectiveTask]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_COLOURS.get(kind, MUTED), label=kind) for kind in dict.fromkeys(map(_kind, tasks))]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=INK)
