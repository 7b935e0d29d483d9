"""One iteration of a job: what a worker of each group of computing workers does when, and what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure
from ddlsched.errors import InputError
from ddlsched.results.slices import compute_slices, transfer_slices
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddlsched.results.result import Result

__all__ = ["step_chart"]

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
        axes.barh(
            bottom,
            (end_ns - start_ns) / 1e6,
            0.4,
            (start_ns - begin_ns) / 1e6,
            align="edge",
            color=colour,
            edgecolor="white" if palette is _COMPUTE else colour,
            linewidth=0.2,
        )
