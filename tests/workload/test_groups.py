"""Collectives over groups of a job's workers: the data model and its files."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from strategies import grouped_dags

import ddlsched
from ddlsched.errors import InputError
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.groups import is_grouped, parts_of, slices_of
from ddlsched.workload.workload_files import read_workload, write_workload

TENSOR = {"tensor": ((0, 1), (2, 3))}
STAGES = {"first": ((0, 1),), "second": ((2, 3),), "next": ((0, 2), (1, 3))}


def job(dag: IterationDag, gpus: int = 4) -> ddlsched.Job:
    return ddlsched.Job(job_id="a", arrival_s=0.0, num_gpus=gpus, iterations=2, iteration=dag, gpu_memory_mb=1.0)


def pipeline() -> IterationDag:
    """Two stages of two workers each, as long as 3 and 5 ns, with a send from each worker of the first."""
    return IterationDag(
        (
            ComputeTask(name="one", duration_ns=3, group="first"),
            CollectiveTask(name="send", kind="send", message_bytes=8.0, group="next", after=("one",)),
            ComputeTask(name="two", duration_ns=5, group="second", after=("send",)),
            ComputeTask(name="optimiser", duration_ns=1, after=("one", "two")),
        ),
        STAGES,
    )


def test_parts_are_those_of_each_tuple():
    parts = parts_of(pipeline().tasks, STAGES, 5)
    assert [(part.task, part.place, part.workers) for part in parts] == [
        (0, 0, (0, 1)),
        (1, 0, (0, 2)),
        (1, 1, (1, 3)),
        (2, 0, (2, 3)),
        (3, 0, (0, 1, 2, 3, 4)),
    ]


def test_a_collective_counts_once_a_tuple_of_its_group():
    """Three tasks that compute and a send of two pairs; an all-reduce of all is one, and so is a group of one tuple."""
    assert pipeline().num_parts == (5, 2)
    compute, send = pipeline().tasks[0], pipeline().tasks[1]
    assert IterationDag((compute,), STAGES).num_parts == (1, 0)
    everyone = CollectiveTask(name="all", kind="all-reduce", message_bytes=8.0)
    assert IterationDag((compute, everyone), STAGES).num_parts == (2, 1)
    first = CollectiveTask(name="own", kind="all-reduce", message_bytes=8.0, group="first")
    assert IterationDag((compute, send, everyone, first), STAGES).num_parts == (5, 4)


def test_compute_is_that_of_each_workers_own_tasks():
    dag = pipeline()
    assert dag.worker_compute_ns(5) == [4, 4, 6, 6, 1]
    assert dag.compute_ns == 6
    assert job(dag, 5).service_ns == 2 * (4 + 4 + 6 + 6 + 1)


@given(grouped_dags(6))
def test_every_form_and_back_is_the_same(dag):
    assert IterationDag.from_dicts(json.loads(json.dumps(dag.to_dicts())), json.loads(json.dumps(dag.groups))) == dag
    again = IterationDag.from_networkx(dag.to_networkx())
    assert again.groups == dag.groups
    assert again.worker_compute_ns(6) == dag.worker_compute_ns(6)
    assert pickle.loads(pickle.dumps(dag)) == dag


@given(grouped_dags(6))
def test_all_compute_adds_up(dag):
    assert dag.all_compute_ns(6) == sum(dag.worker_compute_ns(6))
    assert dag.compute_ns == max(dag.worker_compute_ns(6))


def test_a_file_keeps_groups(tmp_path):
    workload = ddlsched.Workload.of([job(pipeline())])
    path = tmp_path / "jobs.json"
    write_workload(workload, path)
    assert json.loads(path.read_text())["jobs"][0]["groups"] == {k: [list(t) for t in v] for k, v in STAGES.items()}
    assert read_workload(path) == workload


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        ({"kind": "gather"}, "kind is 'gather'; expected one of compute, all-reduce, all-gather"),
        ({"group": "data"}, r"group is 'data'; expected a group of the job \('tensor', 'three'\)"),
        ({"group": 3}, "group is 3; expected a text"),
        ({"algorithm": ""}, "algorithm is ''; expected a collective's name"),
        ({"kind": "send"}, "a send names no group; expected one whose tuples have two workers"),
        ({"kind": "send", "group": "three"}, r"group 'three' has the tuple \[0, 1, 2\]; expected two workers"),
        ({"root": 1}, "unknown field 'root'; a broadcast task has name, kind, after, message_bytes, group, algorithm"),
    ],
)
def test_bad_collectives_are_refused(task, fault):
    fields = {"name": "t", "kind": "broadcast", "message_bytes": 1.0} | task
    with pytest.raises(InputError, match=f"task 't': .*{fault}"):
        IterationDag.from_dicts([fields], {"tensor": [[0, 1]], "three": [[0, 1, 2]]})


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        ({"algorithm": "rung"}, "no collective is named 'rung'. Did you mean 'ring'"),
        ({"algorithm": "ring:width=2"}, "collective ring: no parameter is named 'width'"),
        (
            {"kind": "send", "group": "tensor", "algorithm": "hierarchical"},
            "collective hierarchical: has no send; expected a task of one of its kinds (all-reduce, all-gather, ",
        ),
        ({"algorithm": "double-binary-tree"}, "collective double-binary-tree: has no broadcast; expected a task of "),
    ],
)
def test_collectives_that_no_algorithm_has_are_refused_in_a_file_and_before_a_run(task, fault, tmp_path):
    fields = {"name": "t", "kind": "broadcast", "message_bytes": 1.0} | task
    found = job(IterationDag.from_dicts([fields], {"tensor": [[0, 1]]}))
    path = tmp_path / "jobs.json"
    write_workload(ddlsched.Workload.of([found]), path)
    with pytest.raises(InputError, match=rf"jobs.json, row 1: {re.escape(fault)}"):
        read_workload(path)
    with pytest.raises(InputError, match=rf"row 1: job '.*': {re.escape(fault)}"):
        ddlsched.simulate(ddlsched.Workload.of([found]), sixteen_gpus())


def sixteen_gpus():
    return ddlsched.Cluster(num_servers=4, gpus_per_server=4)


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([], r"groups is \[\]; expected a name and a list of lists of workers"),
        ({"a": []}, r"group 'a': is \[\]; expected a list of lists of workers"),
        ({"a": [0, 1]}, r"group 'a': is \[0, 1\]; expected a list of lists"),
        ({"a": [[0, 1], []]}, r"group 'a': is \[\[0, 1\], \[\]\]; expected a list of lists"),
        ({"a": [[0, 1], [1, 2]]}, "group 'a': worker 1 occurs twice; expected tuples that share no worker"),
        ({"a": [[0, -1]]}, "group 'a': worker -1; expected a whole number from 0"),
        ({"a": [[0, 0.5]]}, "group 'a': worker 0.5; expected a whole number from 0"),
        ({"": [[0]]}, "group '': the name is no text"),
    ],
)
def test_bad_groups_are_refused(groups, fault):
    with pytest.raises(InputError, match=fault):
        IterationDag((ComputeTask(name="c", duration_ns=1),), groups)


def test_the_documented_job_runs(capsys):
    """Sends take 16 MB / 450 GB/s, all-reduces 64 MB / 450 GB/s; that of the first stage is behind the second's."""
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "CollectiveTask" in text]
    space: dict[str, Any] = {}
    exec(block, space)
    assert "jct_s" in capsys.readouterr().out
    one_s = 0.003 + 16e6 / 450e9 + 0.005 + 64e6 / 450e9
    assert space["result"].jobs["jct_s"].item() == pytest.approx(100 * one_s, rel=1e-4)


def test_a_wait_that_never_takes_place_is_refused():
    one = ComputeTask(name="one", duration_ns=3, group="first")
    two = ComputeTask(name="two", duration_ns=3, group="second", after=("one",))
    with pytest.raises(
        InputError, match="task 'two' comes after 'one', but groups 'second' and 'first' share no worker"
    ):
        IterationDag((one, two), STAGES)


def test_workers_that_are_not_the_jobs_are_refused_with_file_and_row(tmp_path):
    path = tmp_path / "jobs.json"
    row = {"job_id": "a", "arrival_s": 0, "gpus": 3, "iterations": 1, "gpu_memory_mb": 1}
    tasks = [{"name": "r", "kind": "all-gather", "message_bytes": 1, "group": "tensor"}]
    path.write_text(json.dumps({"jobs": [row | {"tasks": tasks, "groups": TENSOR}]}))
    fault = r"jobs.json, row 1: job 'a', field groups: group 'tensor' has worker 3; expected workers of the job's 3"
    with pytest.raises(InputError, match=fault):
        read_workload(path)
    path.write_text(json.dumps({"jobs": [row | {"tasks": tasks, "groups": {"tensor": [[0, 0]]}}]}))
    with pytest.raises(InputError, match=r"jobs.json, row 1, field groups: group 'tensor': worker 0 occurs twice"):
        read_workload(path)


@pytest.mark.parametrize(("group", "grouped"), [(None, False), ("whole", False), ("halves", True)])
def test_a_job_is_one_of_groups_if_a_task_is_not_of_all_workers_together(group: str | None, grouped: bool) -> None:
    groups = {"whole": ((0, 1, 2, 3),), "halves": ((0, 1), (2, 3))}
    assert is_grouped([ComputeTask(name="c", duration_ns=1, group=group)], groups, 4) == grouped


def test_a_part_is_a_groups_name_or_else_the_first_word_of_some() -> None:
    groups = {"tensor": ((0, 1),), "tensor wide": ((0, 1, 2, 3),), "data 0": ((0, 2),), "data 1": ((1, 3),)}
    assert slices_of("tensor", groups, 4) == [(0, 1), (2,), (3,)]
    assert slices_of("data", groups, 4) == [(0, 2), (1, 3)]
