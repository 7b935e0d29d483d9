"""Builds the engine's arrays of tasks, transfers and workers: what of an iteration runs where, and what waits for what.

A task of the arrays is a part of an iteration: a compute task, or a collective in one tuple of its group. In a job
whose workers all do the same, those are the tasks of its DAG.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ddlsched.engine.records.layout import Columns, Records, make_records
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload

__all__ = ["TaskArrays", "build_tasks", "count_parts"]


@dataclass
class TaskArrays:
    """What the engine keeps of tasks; the fields are those of :class:`~ddlsched.engine.records.layout.State`.

    ``tasks`` are there once :func:`build_tasks` is through, from ``rows``.
    """

    tasks: Records
    transfers: Records
    workers: Records
    pending: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    owners: list[tuple[int, int, int]] = field(default_factory=list)
    """Transfers, and the job and the task of each."""
    rows: list[Row] = field(default_factory=list)


class Row(NamedTuple):
    """The fields of a task's record: building it takes longer for each record than for a list of all."""

    dag_task: int
    duration_ns: int = 0
    transfer: int = -1
    compute_predecessors: int = 0
    reduce_predecessors: int = 0
    pending: int = 0
    part: int = 0


def count_parts(job: Job) -> tuple[int, int]:
    """Return how many parts an iteration of a job has, and how many of these are collectives."""
    tasks, groups = job.dag.tasks, job.dag.groups
    num_tuples = [
        1 if task.group is None else len(groups[task.group]) for task in tasks if isinstance(task, CollectiveTask)
    ]
    return len(tasks) - len(num_tuples) + sum(num_tuples), sum(num_tuples)


def build_tasks(workload: Workload, jobs: Records, moving: bool) -> TaskArrays:
    """Return the arrays, and fill in the fields of jobs that say where in them each job's part begins.

    A job of groups gets its tasks with its GPUs; here is room for the transfers that it may come to have.
    If jobs may be stopped or moved, each has behind its collectives the transfers of its state, as many as it has GPUs,
    whose tasks are -1, -2 and so on.
    """
    arrays = TaskArrays(
        make_records("task", int(jobs.num_tasks[jobs.grouped == 0].sum())),
        make_records("transfer", int((jobs.num_transfers + jobs.num_gpus * moving).sum())),
        _workers(jobs),
    )
    num_followers: list[int] = []
    first_followers: list[int] = []
    first_sources: list[int] = []
    num_sources: list[int] = []
    alike: dict[int, _Alike] = {}
    columns = Columns(jobs)
    for number, job in enumerate(workload):
        dag, first_flow = job.dag, columns.first_flow.item(number)
        arrays.owners += [(first_flow + place, number, -1 - place) for place in range(job.num_gpus * moving)]
        if columns.grouped.item(number):
            own = arrays.workers[columns.first_worker.item(number) :][: job.num_gpus]
            own.spared_ns = dag.compute_ns - np.array(dag.worker_compute_ns(job.num_gpus), np.int64)
            first_sources.append(0)
            num_sources.append(0)
            continue
        known = alike.get(id(dag)) or alike.setdefault(id(dag), _Alike.of(dag))  # many jobs share one
        known.add(arrays, number, columns.first_transfer.item(number), columns.num_gpus.item(number))
        for following in known.followers:
            num_followers.append(len(following))
            first_followers.append(len(arrays.successors))
            arrays.successors += following
        first_sources.append(len(arrays.successors))
        num_sources.append(len(known.sources))
        arrays.successors += known.sources
    for name, column in zip(Row._fields, np.array(arrays.rows, np.int64).reshape(-1, len(Row._fields)).T, strict=True):
        arrays.tasks[name] = column
    arrays.tasks["num_successors"], arrays.tasks["first_successor"] = num_followers, first_followers
    jobs["first_source"], jobs["num_sources"] = first_sources, num_sources
    if arrays.owners:
        owned, owners, tasks = np.array(arrays.owners, np.int64).T
        arrays.transfers["job"][owned], arrays.transfers["task"][owned], arrays.transfers["step"][owned] = (
            owners,
            tasks,
            -1,
        )
    return arrays


def _workers(jobs: Records) -> Records:
    num_workers = int(jobs.num_gpus.sum())
    workers = make_records("worker", num_workers)
    workers.job = np.repeat(np.arange(len(jobs)), jobs.num_gpus)
    workers.gpu = -1
    workers.leader = workers.stands_for = np.arange(num_workers)
    flags = np.where(jobs.grouped, 0, jobs.num_tasks)[workers.job]
    workers.first_flag = np.cumsum(flags) - flags
    return workers


@dataclass(frozen=True)
class _Alike:
    """The tasks of jobs that share a DAG and whose workers all do the same.

    ``rows`` are those of the first job, if it has one GPU; ``before`` are the predecessors of each task.
    """

    rows: list[Row]
    before: list[int]
    collectives: list[int]
    followers: list[list[int]]
    sources: list[int]

    @classmethod
    def of(cls, dag: IterationDag) -> _Alike:
        computes = {task.name for task in dag.tasks if isinstance(task, ComputeTask)}
        rows: list[Row] = []
        collectives: list[int] = []
        for place, task in enumerate(dag.tasks):
            before, after_computes = len(task.after), len(computes.intersection(task.after))
            row = Row(place, 0, -1, after_computes, before - after_computes, before)
            if isinstance(task, ComputeTask):
                rows.append(row._replace(duration_ns=task.duration_ns))
            else:
                rows.append(row._replace(transfer=len(collectives)))
                collectives.append(place)
        return cls(
            rows=rows,
            before=[len(task.after) for task in dag.tasks],
            collectives=collectives,
            followers=dag.successors(),
            sources=[place for place, task in enumerate(dag.tasks) if not task.after],
        )

    def add(self, arrays: TaskArrays, number: int, first: int, num_gpus: int) -> None:
        """Add those of a job, the ``first`` transfer and those after it."""
        others = num_gpus - 1
        arrays.owners += [(transfer, number, place) for transfer, place in enumerate(self.collectives, first)]
        arrays.rows += [
            Row(place, ns, first + reduce if reduce >= 0 else -1, computes, reduces, computes * others + pending, place)
            for place, ns, reduce, computes, reduces, pending, _ in self.rows
        ]
        arrays.pending += self.before * num_gpus
