"""Charts of training steps: what runs when, and predicted times beside measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, new_figure, plain_ticks, short
from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.results.slices import compute_slices, transfer_slices
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from ddlsched.results.result import Result

_COMPUTE = ("blue", "sky", "teal", "grey", "indigo", "forest")
_SEND = ("orange", "vermillion", "purple", "olive", "rose", "sand")
_ROW_INCHES = 0.34


@in_style()
def step_chart(result: Result, job_id: str, *, iteration: int = 0) -> Figure:
    """Return the picture of an iteration.

    A row a worker, the first of each group that computes tasks of its own (of a pipeline: of each stage), or of the
    job: computation above, collectives that the worker takes part in below. Tasks are coloured by the first word of
    their names, collectives by their kind and the first word of their groups.

    Parameters
    ----------
    result
        A recorded run.
    job_id
        The job.
    iteration
        Which one, from 0.

    Raises
    ------
    InputError
        The run was not recorded, or not when the job was in this iteration.
    """
    job = result.workload[result.number_of(job_id)]
    both = compute_slices(result), transfer_slices(result)
    computed, sent = (_of_iteration(table, job_id, iteration) for table in both)
    if computed.empty and sent.empty:
        raise InputError(f"job {job_id!r}: iteration {iteration} is not in the run's timeline; expected one that is")
    begin_ns = min(table["start_ns"].min() for table in (computed, sent) if len(table))
    workers, gpus = _shown(job.dag), result.gpus_of(job_id)
    figure, axes = new_figure(_ROW_INCHES * 2 * len(workers) + 1.3, width_inches=7.0)
    labels: dict[str, str] = {}
    for row, worker in enumerate(workers):
        here = computed[computed["gpu"] == gpus[worker]]
        _draw(axes, here, row - 0.42, [name.split()[0] for name in here["task"]], _COMPUTE, labels, begin_ns)
        mine = sent[sent["task"].isin(_collectives_of(job.dag, worker))]
        kinds = _kinds(job.dag)
        _draw(axes, mine, row + 0.02, [kinds[name] for name in mine["task"]], _SEND, labels, begin_ns)
    axes.set_yticks(range(len(workers)), [f"worker {worker}" for worker in workers])
    axes.set_ylim(len(workers) - 0.45, -0.55)
    axes.set_xlabel("time of the iteration (ms)")
    handles = [axes.barh([0], [0], color=colour, label=name) for name, colour in labels.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _of_iteration(table: pd.DataFrame, job_id: str, iteration: int) -> pd.DataFrame:
    return table[(table["job_id"] == job_id) & (table["iteration"] == iteration)]


def _shown(dag: IterationDag) -> list[int]:
    """Return the first worker of each group that computes."""
    groups = {task.group for task in dag.tasks if isinstance(task, ComputeTask)}
    return sorted({0 if name is None else min(map(min, dag.groups[name])) for name in groups} or {0})


def _kinds(dag: IterationDag) -> dict[str, str]:
    """Return for each part that is a collective its kind, and of what group."""
    kinds: dict[str, str] = {}
    for task in dag.tasks:
        if isinstance(task, CollectiveTask):
            what = task.kind if task.group is None or task.kind == "send" else f"{task.kind}, {task.group.split()[0]}"
            kinds |= dict.fromkeys(dag.names_of(task), what)
    return kinds


def _collectives_of(dag: IterationDag, worker: int) -> set[str]:
    """Return the names of the collectives in whose tuples a worker is."""
    names: set[str] = set()
    for task in dag.tasks:
        if isinstance(task, CollectiveTask):
            tuples = ((worker,),) if task.group is None else dag.groups[task.group]
            names |= {name for name, members in zip(dag.names_of(task), tuples, strict=True) if worker in members}
    return names


def _draw(
    axes: Axes,
    slices: pd.DataFrame,
    bottom: float,
    names: list[str],
    palette: tuple[str, ...],
    labels: dict[str, str],
    begin_ns: int,
) -> None:
    """Draw bars of one row, each name in a colour of its own; ``labels`` gets those that are new."""
    for name, start_ns, end_ns in zip(names, slices["start_ns"], slices["end_ns"], strict=True):
        used = [colour for colour in labels.values() if colour in {PALETTE[own] for own in palette}]
        colour = labels.setdefault(name, PALETTE[palette[len(used) % len(palette)]])
        begin_ms, length_ms = (start_ns - begin_ns) / 1e6, (end_ns - start_ns) / 1e6
        edge = "white" if palette is _COMPUTE else colour
        axes.barh(bottom, length_ms, 0.4, begin_ms, align="edge", color=colour, edgecolor=edge, linewidth=0.2)


@in_style()
def heat_map(
    values: np.ndarray, *, rows: Sequence[str], columns: Sequence[str], row_axis: str, column_axis: str, title: str
) -> Figure:
    """Return a table of values as shades, each written in its cell; NaN (nothing fits) stays empty.

    Parameters
    ----------
    values
        A row a row of the map, the first at the bottom.
    rows, columns
        Labels.
    row_axis, column_axis, title
        What is varied, and what is shown, with units.
    """
    figure, axes = new_figure(max(2.3, 1.4 + 0.26 * len(rows)), width_inches=max(3.5, 1.0 + 0.42 * len(columns)))
    shades = np.log10(values)
    image = axes.imshow(shades, origin="lower", cmap="cividis_r", aspect="auto")
    middle = np.nanmean([np.nanmin(shades), np.nanmax(shades)])
    for (row, column), value in np.ndenumerate(values):
        text, dark = ("-", False) if np.isnan(value) else (short(value), bool(shades[row, column] > middle))
        axes.text(column, row, text, ha="center", va="center", fontsize=6.2, color="white" if dark else INK)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=column_axis, ylabel=row_axis)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(title, loc="left")
    _scale(figure, axes, image)
    return figure


def _scale(figure: Figure, axes: Axes, image: AxesImage) -> None:
    """Put the scale of the shades, which are of logarithms, under a heat map: its ends and its middle."""
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, pad=0.02)
    ends = np.array(image.get_clim())
    bar.set_ticks([ends[0], ends.mean(), ends[1]])
    bar.ax.xaxis.set_major_formatter(lambda shade, _: short(10**shade))
    bar.outline.set_visible(False)


@in_style()
def pareto_chart(
    times: np.ndarray, costs: np.ndarray, front: np.ndarray, *, names: Sequence[str], time_axis: str, cost_axis: str
) -> Figure:
    """Return all configurations as points and those on the front joined by a line; the names of its ends above."""
    figure, axes = new_figure(2.6)
    axes.plot(costs, times, ".", color=MUTED, markersize=2.5, alpha=0.4, rasterized=True, label="all that fit")
    order = front[np.argsort(costs[front])]
    look: dict[str, Any] = {"color": PALETTE["vermillion"], "markersize": 3.5, "drawstyle": "steps-post"}
    axes.plot(costs[order], times[order], "o-", label="Pareto front", **look)
    ends = f"Fastest: {names[order[-1]]}", f"Cheapest: {names[order[0]]}"
    axes.set_title("\n".join(end if len(end) <= 44 else f"{end[:41]}..." for end in ends), loc="left")
    axes.set(xscale="log", yscale="log", xlabel=cost_axis, ylabel=time_axis)
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    axes.legend(loc="lower right")
    axes.grid()
    return figure
