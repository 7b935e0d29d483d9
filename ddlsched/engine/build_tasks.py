"""Builds the engine's arrays of tasks, transfers and workers: what of an iteration runs where, and what waits for what.

A task of the arrays is a part of an iteration: a compute task, or a collective in one tuple of its group. In a job
whose workers all do the same, those are the tasks of its DAG. What the arrays take is known from counts alone, so that
a run that is too large ends before it takes the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.engine.records import Columns, Records, make_records
from ddlsched.errors import InputError
from ddlsched.workload.dag import ComputeTask, IterationDag
from ddlsched.workload.job import Workload


class Row(NamedTuple):
    """The fields of a task's record, in a job of one GPU that is the first of all."""

    dag_task: int
    part: int
    duration_ns: int
    transfer: int
    compute_predecessors: int
    reduce_predecessors: int
    pending: int
    num_successors: int
    first_successor: int


def spans(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers from each of some first ones on, so many of each."""
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))


def build_tasks(workload: Workload, jobs: Records, moving: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Return arrays of the state, by name, and the transfers that belong to a job before it is placed.

    Fill in the fields of jobs that say where in the arrays each job's part begins.
    A job of groups gets its tasks with its GPUs; here is room for the transfers that it may come to have.
    If jobs may be stopped or moved, each has behind its collectives the transfers of its state, as many as it has GPUs,
    whose tasks are -1, -2 and so on.
    """
    columns, workers = Columns(jobs), _workers(jobs)
    for number in np.flatnonzero(jobs.grouped).tolist():
        job = workload[number]
        own = workers[columns.first_worker.item(number) :][: job.num_gpus]
        own.spared_ns = job.dag.compute_ns - np.array(job.dag.worker_compute_ns(job.num_gpus), np.int64)
    plain = np.flatnonzero(jobs.grouped == 0)
    dags = [workload[number].dag for number in plain.tolist()]
    alike = {id(dag): dag for dag in dags}  # many jobs share one
    places = {dag: place for place, dag in enumerate(alike)}
    graph = np.array([places[id(dag)] for dag in dags], np.int64)
    parts = [*map(_alike, alike.values())]
    rows, num_rows = _taken([own for own, _, _ in parts], graph)
    successors, num_successors = _taken([own for _, own, _ in parts], graph)
    first_successor, owner = np.cumsum(num_successors) - num_successors, np.repeat(plain, num_rows)
    tasks = make_records("task", len(rows))
    for name, column in zip(Row._fields, rows.reshape(-1, len(Row._fields)).T, strict=True):
        tasks[name] = column
    tasks.first_successor += np.repeat(first_successor, num_rows)
    tasks.pending += tasks.compute_predecessors * (columns.num_gpus[owner] - 1)
    collectives = np.flatnonzero(tasks.transfer >= 0)
    tasks.transfer[collectives] += columns.first_transfer[owner[collectives]]
    columns.num_sources[plain] = num_sources = np.array([count for _, _, count in parts], np.int64)[graph]
    columns.first_source[plain] = first_successor + num_successors - num_sources
    transfers = make_records("transfer", int((jobs.num_transfers + jobs.num_gpus * moving).sum()))
    counts = columns.num_gpus * moving
    flows, owned = spans(columns.first_flow, counts), tasks.transfer[collectives]
    transfers.job[owned], transfers.task[owned] = owner[collectives], tasks.dag_task[collectives]
    transfers.job[flows] = np.repeat(np.arange(len(jobs)), counts)
    transfers.task[flows] = np.repeat(columns.first_flow, counts) - flows - 1
    owned = np.concatenate([owned, flows])
    transfers.step[owned] = -1
    pending, _ = _taken([[row.pending for row in own] for own, _, _ in parts], np.repeat(graph, jobs.num_gpus[plain]))
    arrays = {"tasks": tasks, "transfers": transfers, "workers": workers, "pending": pending, "successors": successors}
    return arrays, owned


def _taken(pieces: Sequence[Sequence[Any]], numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of these numbers one behind the other, and the length of each."""
    counts = np.array([len(piece) for piece in pieces], np.int64)
    places = spans((np.cumsum(counts) - counts)[numbers], counts[numbers])
    return np.array([*chain.from_iterable(pieces)], np.int64)[places], counts[numbers]


def _workers(jobs: Records) -> Records:
    num_workers = int(jobs.num_gpus.sum())
    workers = make_records("worker", num_workers)
    workers.job = np.repeat(np.arange(len(jobs)), jobs.num_gpus)
    workers.gpu = -1
    workers.leader = workers.stands_for = np.arange(num_workers)
    flags = np.where(jobs.grouped, 0, jobs.num_tasks)[workers.job]
    workers.first_flag = np.cumsum(flags) - flags
    return workers


def _alike(dag: IterationDag) -> tuple[list[Row], list[int], int]:
    """Return a graph's tasks, the followers of each, behind which are its sources, and how many these are."""
    computes = {task.name for task in dag.tasks if isinstance(task, ComputeTask)}
    sources = [place for place, task in enumerate(dag.tasks) if not task.after]
    rows: list[Row] = []
    successors: list[int] = []
    collectives = 0
    for place, (task, following) in enumerate(zip(dag.tasks, dag.successors(), strict=True)):
        before, after_computes = len(task.after), len(computes.intersection(task.after))
        duration_ns, transfer = (task.duration_ns, -1) if isinstance(task, ComputeTask) else (0, collectives)
        collectives += transfer >= 0
        own = after_computes, before - after_computes, before, len(following), len(successors)
        rows.append(Row(place, place, duration_ns, transfer, *own))
        successors += following
    return rows, successors + sources, len(sources)


_MEMORY = Path("/proc/meminfo")
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_GROUP_FILES = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By the controllers of a hierarchy of control groups, version 2 and 1: where its groups lie, and the names in them."""
_OF_A_FLAG = 25
"""Bytes that a task takes of each worker of a job whose workers do the same: in a list, in an array, and a flag."""
_OF_A_PART = 3
"""How many tasks' memory a part of a job of groups takes: its followers are noted, and arrays that grow are twice."""
_SLACK_BYTES = 1 << 28
"""What runs take besides; smaller ones are not looked at."""


def free_memory_bytes() -> int | None:
    """Return how much memory this program can still get, None where the system does not tell as Linux does."""
    if not _MEMORY.exists():
        return None
    lines = _MEMORY.read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return min([int(kilobytes) * 1024, *_left_of_groups()])


def _left_of_groups() -> Iterator[int]:
    """Yield how much memory each control group that this program is in, and those above it, may still take."""
    with suppress(OSError):
        for line in _OWN_GROUPS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            below, limit, usage, cache = _GROUP_FILES.get(controllers, ("", "", "", ""))
            for group in [Path(path), *Path(path).parents] if limit else []:
                # A group without a limit says "max"; of that outside a container there is no folder in it.
                with suppress(OSError, ValueError):
                    folder = _GROUPS / below / str(group).lstrip("/")
                    stat = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
                    used = int((folder / usage).read_text()) - int(stat.get(cache, 0))
                    yield int((folder / limit).read_text()) - used


def needed_bytes(jobs: Records) -> np.ndarray:
    """Return what each job's workers, tasks and transfers take, if each is simulated by itself."""
    kinds = ("worker", "task", "transfer")
    worker, task, transfer = (make_records(kind, 0).dtype.itemsize for kind in kinds)
    tasks = np.where(jobs.grouped == 1, _OF_A_PART * (jobs.num_transfers + jobs.group_steps), jobs.num_tasks)
    flags = np.where(jobs.grouped == 1, 0, jobs.num_gpus * jobs.num_tasks)
    found: np.ndarray = jobs.num_gpus * worker + tasks * task + jobs.num_transfers * transfer + flags * _OF_A_FLAG
    return found


def refuse_too_large(workload: Workload, jobs: Records) -> None:
    """Raise InputError if the records of all jobs take more memory than is free; it names the largest job."""
    needed = needed_bytes(jobs)
    total = int(needed.sum())
    if total < _SLACK_BYTES or (free := free_memory_bytes()) is None or total <= free:
        return
    largest = int(needed.argmax())
    raise InputError(
        f"{workload.where(largest)}: the run's records take {total / 1e9:.1f} GB, {needed[largest] / 1e9:.1f} GB of "
        f"them for job {workload[largest].job_id!r} with {jobs.num_gpus[largest]:,} GPUs, and {free / 1e9:.1f} GB are "
        "free; expected fewer jobs, GPUs or tasks, or more memory"
    )
