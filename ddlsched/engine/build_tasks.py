"""Builds the engine's arrays of tasks, transfers and workers: what of an iteration runs where, and what waits for what.

A task of the arrays is a part of an iteration: a compute task, or a collective in one tuple of its group. In a job
whose workers all do the same, those are the tasks of its DAG.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, chain

import numpy as np

from ddlsched.engine.loop.layout import Records, make_records
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.groups import Part, is_grouped, parts_of
from ddlsched.workload.job import Job, Workload

__all__ = ["TaskArrays", "build_tasks", "count_parts"]


@dataclass
class TaskArrays:
    """What the engine keeps of tasks; the fields are those of :class:`~ddlsched.engine.loop.layout.State`."""

    tasks: Records
    transfers: Records
    workers: Records
    pending: list[np.ndarray] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    """Job and task of each transfer."""


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
    arrays.tasks.transfer = arrays.transfers.step = -1
    arrays.transfers.weight = 1.0
    for number, job in enumerate(workload):
        record = jobs[number]
        tasks = arrays.tasks[record.first_task : record.first_task + record.num_tasks]
        if job.dag.groups and is_grouped(job.dag.tasks, job.dag.groups, job.num_gpus):
            followers, sources = _add_grouped(arrays, job, number, record, tasks)
        else:
            followers = job.dag.successors()
            sources = [place for place, task in enumerate(job.dag.tasks) if not task.after]
            _add_alike(arrays, job, number, tasks)
        counts = [len(following) for following in followers]
        tasks["num_successors"] = counts
        tasks["first_successor"] = [*accumulate(counts, initial=len(arrays.successors))][:-1]
        arrays.successors += chain.from_iterable(followers)
        arrays.owners += [(number, -1 - place) for place in range(job.num_gpus * moving)]
        record.first_source, record.num_sources = len(arrays.successors), len(sources)
        arrays.successors += sources
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


def _add_alike(arrays: TaskArrays, job: Job, number: int, tasks: Records) -> None:
    """Fill in the tasks of a job whose workers all do the same."""
    dag, first = job.dag.tasks, len(arrays.owners)
    computes = {task.name: isinstance(task, ComputeTask) for task in dag}
    collectives = [place for place, task in enumerate(dag) if not computes[task.name]]
    tasks["dag_task"] = range(len(dag))
    tasks["duration_ns"] = [task.duration_ns if isinstance(task, ComputeTask) else 0 for task in dag]
    tasks["transfer"][collectives] = range(first, first + len(collectives))
    arrays.owners += [(number, place) for place in collectives]
    after_computes = np.array([sum(computes[name] for name in task.after) for task in dag], np.int64)
    predecessors = np.array([len(task.after) for task in dag], np.int64)
    tasks["compute_predecessors"], tasks["reduce_predecessors"] = after_computes, predecessors - after_computes
    tasks["pending"] = after_computes * (job.num_gpus - 1) + predecessors
    arrays.pending.append(np.tile(predecessors, job.num_gpus))


def _add_grouped(
    arrays: TaskArrays, job: Job, number: int, record: Records, tasks: Records
) -> tuple[list[list[int]], list[int]]:
    """Fill in the parts of a job of groups; return which parts follow each one, and those that begin an iteration."""
    dag = job.dag
    parts = parts_of(dag.tasks, dag.groups, job.num_gpus)
    waits = _Waits.of(dag, parts, job.num_gpus)
    steps = 0
    for place, (part, known) in enumerate(zip(parts, tasks, strict=True)):
        task = dag.tasks[part.task]
        known.dag_task = part.task
        if isinstance(task, ComputeTask):
            known.duration_ns = task.duration_ns
            known.compute_predecessors = -1  # they differ from worker to worker: see ``needs``
            steps += len(part.workers)
            continue
        known.first_member, known.num_members = len(arrays.members), len(part.workers)
        arrays.members += part.workers
        known.transfer = len(arrays.owners)
        arrays.owners.append((number, place))
        known.reduce_predecessors = known.pending = waits.totals[place]
    record.grouped, record.group_steps, record.first_need = 1, steps, len(arrays.needs)
    arrays.needs += waits.needs.ravel().tolist()
    arrays.pending.append(np.maximum(waits.needs, 0).ravel())
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
    def of(cls, dag: IterationDag, parts: list[Part], num_gpus: int) -> _Waits:
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
