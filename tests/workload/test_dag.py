"""Iteration DAGs, jobs and workloads in memory."""

from __future__ import annotations

import inspect
import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from strategies import general_dags

import ddlsched
from ddlsched.errors import InputError
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag


@given(general_dags())
def test_networkx_and_back_is_the_same(dag):
    graph = dag.to_networkx()
    assert nx.is_directed_acyclic_graph(graph)
    again = IterationDag.from_networkx(graph)
    assert [(t.name, set(t.after)) for t in again.tasks] == [(t.name, set(t.after)) for t in dag.tasks]
    assert again.compute_ns == dag.compute_ns


@given(general_dags())
def test_dictionaries_and_back_is_the_same(dag):
    assert IterationDag.from_dicts(dag.to_dicts()) == dag


@given(general_dags())
def test_a_step_overlaps_where_a_task_that_computes_and_a_collective_do_not_wait_for_each_other(dag):
    graph = nx.transitive_closure_dag(dag.to_networkx())
    computing = {task.name for task in dag.tasks if isinstance(task, ComputeTask)}
    pairs = itertools.product(computing, graph.nodes - computing)
    assert dag.overlaps == any(not graph.has_edge(*pair) and not graph.has_edge(*pair[::-1]) for pair in pairs)


@pytest.mark.parametrize(
    ("after", "overlaps"),
    [
        ({"c0": "", "s0": "c0", "c1": "s0", "s1": "c1"}, False),
        ({"c0": "", "c1": "", "s0": "c0 c1"}, False),
        ({"c0": "", "c1": "c0", "s0": "c1", "s1": "s0", "c2": "s1"}, False),  # of two runs only neighbours wait
        ({"c0": "", "c1": "c0", "s0": "c0"}, True),
        ({"c0": "", "s0": "c0", "s1": "c0", "c1": "s0"}, True),
        ({"s0": "", "c0": ""}, True),
        ({"c0": "", "s0": "c0", "c1": "s0", "s1": "c0", "c2": "s1 c1"}, True),
    ],
)
def test_steps_that_overlap_and_steps_that_do_not(after, overlaps):
    tasks = [
        AllReduceTask(name=name, message_bytes=1.0, after=tuple(before.split()))
        if name.startswith("s")
        else ComputeTask(name=name, duration_ns=1, after=tuple(before.split()))
        for name, before in after.items()
    ]
    assert IterationDag(tuple(tasks)).overlaps == overlaps


def test_buckets_split_backward_and_message():
    dag = DataParallelIteration(forward_s=0.01, backward_s=0.01, message_bytes=90e6, buckets=3).dag()
    compute = [task for task in dag.tasks if isinstance(task, ComputeTask)]
    reduce = [task for task in dag.tasks if isinstance(task, AllReduceTask)]
    # 10 ms in three parts of whole nanoseconds: the remainder is on the last.
    assert [task.duration_ns for task in compute] == [10_000_000, 3_333_333, 3_333_333, 3_333_334]
    assert [task.message_bytes for task in reduce] == [30e6] * 3
    assert reduce[0].after == ("backward-1",)
    assert compute[2].after == ("backward-1",)


def test_an_all_reduce_task_is_always_a_ring_over_all_workers():
    assert [*inspect.signature(AllReduceTask).parameters] == ["name", "message_bytes", "after"]
    task = AllReduceTask(name="a", message_bytes=1)
    assert (task.kind, task.group, task.algorithm) == ("all-reduce", None, "ring")


def test_durations_round_halves_to_even():
    dag = DataParallelIteration(forward_s=2.5e-9, backward_s=3.5e-9, message_bytes=0).dag()
    assert [task.duration_ns for task in dag.tasks if isinstance(task, ComputeTask)] == [2, 4]


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        ((), "at least one task"),
        ((ComputeTask(name="a", duration_ns=1), ComputeTask(name="a", duration_ns=1)), "same name"),
        ((ComputeTask(name="a", duration_ns=1, after=("b",)),), "no task of the iteration"),
        ((ComputeTask(name="a", duration_ns=1, after=("a",)),), "cycle"),
        (
            (
                ComputeTask(name="a", duration_ns=1, after=("b",)),
                AllReduceTask(name="b", message_bytes=1, after=("a",)),
            ),
            "cycle",
        ),
    ],
)
def test_graphs_that_are_none_are_refused(tasks, fault):
    with pytest.raises(InputError, match=fault):
        IterationDag(tasks)


def job(**changes):
    values = {
        "job_id": "a",
        "arrival_s": 0.0,
        "num_gpus": 1,
        "iterations": 1,
        "iteration": DataParallelIteration(forward_s=0.1, backward_s=0.1, message_bytes=1.0),
        "gpu_memory_mb": 1.0,
    }
    return ddlsched.Job(**values | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"arrival_s": -1.0},
        {"arrival_s": float("nan")},
        {"arrival_s": 1e10},
        {"num_gpus": 0},
        {"iterations": 0},
        {"gpu_memory_mb": float("inf")},
        {"iteration": DataParallelIteration(forward_s=-1.0, backward_s=0.1, message_bytes=1.0)},
        {"iteration": DataParallelIteration(forward_s=0.1, backward_s=0.1, message_bytes=float("nan"))},
        {"iteration": DataParallelIteration(forward_s=0.1, backward_s=0.1, message_bytes=1.0, buckets=0)},
        {"iterations": 10**12, "num_gpus": 10**6},
    ],
)
def test_jobs_out_of_range_are_refused(changes):
    with pytest.raises(InputError, match="job 'a'"):
        job(**changes)


def test_two_jobs_of_one_id_are_refused():
    with pytest.raises(InputError, match="job_id 'a' is already that of row 1"):
        ddlsched.Workload.of([job(), job()])


def test_a_duration_is_a_number_of_python() -> None:
    """One of numpy's would overflow in products."""
    duration_ns = ComputeTask(name="c", duration_ns=np.int64(2**62)).duration_ns
    assert type(duration_ns) is int
    assert duration_ns * 4 == 2**64


def test_a_worker_computes_what_all_do_and_what_its_groups_do() -> None:
    """All compute 2 ns; workers 0 and 1 another 3, and 1 and 2 another 5."""
    groups = {"a": ((0, 1),), "b": ((1, 2),)}
    own = (ComputeTask(name="a", duration_ns=3, group="a"), ComputeTask(name="b", duration_ns=5, group="b"))
    alike = ComputeTask(name="all", duration_ns=2)
    with_alike, without = IterationDag((alike, *own), groups), IterationDag(own, groups)
    assert with_alike.worker_compute_ns(4) == [5, 10, 7, 2]
    assert without.worker_compute_ns(4) == [3, 8, 5, 0]
    assert (with_alike.all_compute_ns(4), without.all_compute_ns(4)) == (24, 16)
    assert (IterationDag((alike,)).worker_compute_ns(2), IterationDag((alike,)).all_compute_ns(2)) == ([2, 2], 4)
