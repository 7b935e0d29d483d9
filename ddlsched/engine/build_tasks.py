"""Builds the engine's arrays of tasks, transfers and workers: what of an iteration runs where, and what waits for what.

A task of the arrays is a part of an iteration: a compute task, or a collective in one tuple of its group. In a job
whose workers all do the same, those are the tasks of its DAG.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ddlsched.engine.records.layout import Records, make_records
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.groups import TaskPart, is_grouped, parts_of
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
    members: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    """Job and task of each transfer."""
    rows: list[Row] = field(default_factory=list)


class Row(NamedTuple):
    """The fields of a task's record: building it takes longer for each record than for a list of all."""

    dag_task: int
    duration_ns: int = 0
    transfer: int = -1
    compute_predecessors: int = 0
    reduce_predecessors: int = 0
    pending: int = 0
    first_member: int = 0
    num_members: int = 0


def count_parts(job: Job) -> tuple[int, int]:
    """Return how many parts an iteration of a job has, and how many of these are collectives."""
    tasks, groups = job.dag.tasks, job.dag.groups
    num_tuples = [
        1 if task.group is None else len(groups[task.group]) for task in tasks if isinstance(task, CollectiveTask)
    ]
    return len(tasks) - len(num_tuples) + sum(num_tuples), sum(num_tuples)


def build_tasks(workload: Workload, jobs: Records, moving: bool) -> TaskArrays:
    """Return the arrays, and fill in the fields of jobs that say where in them each job's part begins.

    If jobs may be stopped or moved, each has behind its collectives the transfers of its state, as many as it has GPUs,
    whose tasks are -1, -2 and so on.
    """
    arrays = TaskArrays(
        make_records("task", int(jobs.num_tasks.sum())),
        make_records("transfer", int((jobs.num_transfers + jobs.num_gpus * moving).sum())),
        _workers(jobs),
    )
    arrays.transfers.step = -1
    arrays.transfers.weight = 1.0
    num_followers: list[int] = []
    first_followers: list[int] = []
    first_sources: list[int] = []
    num_sources: list[int] = []
    alike: dict[int, _Alike] = {}
    for number, job in enumerate(workload):
        dag = job.dag
        if dag.groups and is_grouped(dag.tasks, dag.groups, job.num_gpus):
            followers, sources = _add_grouped(arrays, job, number, jobs[number])
        else:
            known = alike.get(id(dag)) or alike.setdefault(id(dag), _Alike.of(dag))  # many jobs share one
            known.add(arrays, number, job.num_gpus)
            followers, sources = known.followers, known.sources
        for following in followers:
            num_followers.append(len(following))
            first_followers.append(len(arrays.successors))
            arrays.successors += following
        arrays.owners += [(number, -1 - place) for place in range(job.num_gpus * moving)]
        first_sources.append(len(arrays.successors))
        num_sources.append(len(sources))
        arrays.successors += sources
    for name, column in zip(Row._fields, np.array(arrays.rows, np.int64).T, strict=True):
        arrays.tasks[name] = column
    arrays.tasks["num_successors"], arrays.tasks["first_successor"] = num_followers, first_followers
    jobs["first_source"], jobs["num_sources"] = first_sources, num_sources
    if arrays.owners:
        arrays.transfers["job"], arrays.transfers["task"] = np.array(arrays.owners, np.int64).T
    return arrays


def _workers(jobs: Records) -> Records:
    num_workers = int(jobs.num_gpus.sum())
    workers = make_records("worker", num_workers)
    workers.job = np.repeat(np.arange(len(jobs)), jobs.num_gpus)
    workers.gpu = -1
    workers.leader = np.arange(num_workers)
    flags = jobs.num_tasks[workers.job]
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

    def add(self, arrays: TaskArrays, number: int, num_gpus: int) -> None:
        """Add those of a job."""
        first, others = len(arrays.owners), num_gpus - 1
        arrays.owners += [(number, place) for place in self.collectives]
        arrays.rows += [
            Row(place, ns, first + reduce if reduce >= 0 else -1, computes, reduces, computes * others + pending)
            for place, ns, reduce, computes, reduces, pending, _, _ in self.rows
        ]
        arrays.pending += self.before * num_gpus


def _add_grouped(arrays: TaskArrays, job: Job, number: int, record: Records) -> tuple[list[list[int]], list[int]]:
    """Add the parts of a job of groups; return which parts follow each one, and those that begin an iteration."""
    dag = job.dag
    parts = parts_of(dag.tasks, dag.groups, job.num_gpus)
    waits = _Waits.of(dag, parts, job.num_gpus)
    steps = 0
    for place, part in enumerate(parts):
        task = dag.tasks[part.task]
        if isinstance(task, ComputeTask):
            # -1: predecessors differ from worker to worker, see ``needs``
            arrays.rows.append(Row(part.task, task.duration_ns, compute_predecessors=-1))
            steps += len(part.workers)
            continue
        total = int(waits.totals[place])
        arrays.rows.append(
            Row(part.task, 0, len(arrays.owners), 0, total, total, len(arrays.members), len(part.workers))
        )
        arrays.members += part.workers
        arrays.owners.append((number, place))
    record.grouped, record.group_steps, record.first_need = 1, steps, len(arrays.needs)
    arrays.needs += waits.needs.ravel().tolist()
    arrays.pending += np.maximum(waits.needs, 0).ravel().tolist()
    own = arrays.workers[record.first_worker : record.first_worker + job.num_gpus]
    own.spared_ns = dag.compute_ns - np.array(dag.worker_compute_ns(job.num_gpus), np.int64)
    return waits.followers, waits.sources


@dataclass
class _Waits:
    """What waits for what among the parts of an iteration.

    ``needs`` has a row a worker and a column a part: predecessors there of a compute task, 0 for a collective, -1 where
    the worker takes no part; ``totals`` are the predecessors of a collective, a compute task counted for each worker.
    """

    needs: np.ndarray
    totals: np.ndarray
    followers: list[list[int]]
    sources: list[int]

    @classmethod
    def of(cls, dag: IterationDag, parts: list[TaskPart], num_gpus: int) -> _Waits:
        numbers = {task.name: number for number, task in enumerate(dag.tasks)}
        part_on = np.full((len(dag.tasks), num_gpus), -1)
        needs = np.full((num_gpus, len(parts)), -1)
        for place, part in enumerate(parts):
            part_on[part.task, list(part.workers)] = place
            needs[list(part.workers), place] = 0
        totals, followers = np.zeros(len(parts), np.int64), [list[int]() for _ in parts]
        for number, task in enumerate(dag.tasks):
            for before in (numbers[name] for name in task.after):
                meeting = np.flatnonzero((part_on[number] >= 0) & (part_on[before] >= 0))
                pairs = np.stack([part_on[before, meeting], part_on[number, meeting]])
                (earlier, later), counts = np.unique(pairs, axis=1, return_counts=True)
                for first, second in zip(earlier.tolist(), later.tolist(), strict=True):
                    followers[first].append(second)
                if isinstance(task, ComputeTask):
                    needs[meeting, later[0]] += 1
                elif isinstance(dag.tasks[before], ComputeTask):
                    totals[later] += counts
                else:
                    np.add.at(totals, later, 1)
        waiting = np.maximum(totals, np.where(needs < 0, len(parts), needs).min(axis=0))
        return cls(needs, totals, followers, np.flatnonzero(waiting == 0).tolist())
