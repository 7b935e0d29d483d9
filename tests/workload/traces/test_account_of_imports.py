"""What the report of an import says, and generators' and files' ranges: worked out by hand."""

from __future__ import annotations

import dataclasses
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddlsched.cluster.capacity import CloudInstances
from ddlsched.cluster.idle_trace import expand_hosts, from_sacct, idle_between
from ddlsched.errors import InputError
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.generators.elastic_mix import elastic_mix
from ddlsched.workload.traces import trace_models
from ddlsched.workload.traces.trace_import import ImportedTrace, _account, import_trace
from ddlsched.workload.workload_files import read_workload


def test_a_trace_is_shown_without_its_account() -> None:
    told = {"rows": 3, "refused": {}, "left_out": {}}
    trace = ImportedTrace(jobs=pd.DataFrame(), refused=pd.DataFrame(), report=told)
    assert "rows" not in repr(trace)
    with pytest.raises(InputError, match=r"no job of 3 rows is left \(the files hold no rows\)"):
        trace.refuse_empty()
    told |= {"refused": {"bad": 1_200}, "left_out": {"late": 2}}
    with pytest.raises(InputError, match=r"is left \(1,200 bad; 2 late\); expected at least one"):
        trace.refuse_empty()


def test_the_account_of_an_import() -> None:
    made = pd.DataFrame(
        {
            "alone_s": [10.0, 20.0, 5.0, 101.0, 7.0],
            "iterations": [5, 10, 1, 101, 1],
            "model": ["a", "b", "a", "a", "b"],
            "drawn": [True, False, True, False, True],
            "arrival_s": [0.0, 1.0, 2.0, 9.5, 3.0],
            "gpus": [1, 2, 4, 8, 1],
        }
    )
    traced = pd.DataFrame({"duration_s": [11.0, 19.9, 0.5, 100.0, float("nan")]})
    assert _account(made, traced) == {
        "jobs": 5,
        "models": {"a": 3, "b": 2},
        "models_drawn": 3,
        "span_s": 9.5,
        "gpu_hours": pytest.approx((10 + 40 + 20 + 808 + 7) / 3600),
        "alone_less_duration": {
            "jobs": 4,
            "largest_s": 4.5,
            "largest_iterations": pytest.approx(1.0),  # 1 s of 101 s, in 101 iterations
            "jobs_of_one_iteration": 1,
            "off_by_more_than_1_percent": 2,  # 1 of 11 and 4.5 of 0.5; 1 of 100 is just 1 %
        },
    }


def test_the_account_of_no_job_is_of_zeros() -> None:
    made = pd.DataFrame({name: [] for name in ("alone_s", "iterations", "model", "drawn", "arrival_s", "gpus")})
    account = _account(made.astype({"drawn": bool}), pd.DataFrame({"duration_s": []}))
    assert [account[name] for name in ("jobs", "models", "models_drawn", "span_s", "gpu_hours")] == [0, {}, 0, 0.0, 0.0]
    assert set(account["alone_less_duration"].values()) == {0}


def test_jobs_of_a_file_are_its_rows_without_those_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_s,gpus,duration_s\n0,1,60\n0,0,60\n5,1,0\n5,1,30\n")
    (tmp_path / "b.csv").write_text("arrival_s,gpus,duration_s\n7,1,0\n9,2,30\n")
    trace = import_trace("csv", [tmp_path / "a.csv", tmp_path / "b.csv"])
    assert [(each["rows"], each["jobs"], each["refused"]) for each in trace.report["files"]] == [
        (4, 2, {"0 GPUs": 1, "duration_s is 0": 1}),
        (2, 1, {"duration_s is 0": 1}),
    ]
    assert (trace.report["rows"], trace.report["refused"]) == (6, {"duration_s is 0": 2, "0 GPUs": 1})
    assert trace.refused["line"].tolist() == [3, 4, 2]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": 0}, "gpus is 0; expected"),
        ({"gpus": 1_000_001}, "gpus is 1000001; expected"),
        ({"hours": 0.9e-3}, "hours is 0.0009; expected"),
        ({"hours": 10_000.5}, "hours is 10000.5; expected"),
        ({"work_hours": 0.9e-3}, "work_hours is 0.0009; expected"),
        ({"work_hours": 10_000.5}, "work_hours is 10000.5; expected"),
        ({"category": "balance"}, "elastic-mix: category is 'balance'. Did you mean 'balanced'"),
        ({"arrivals": "lo"}, "elastic-mix: arrivals is 'lo'. Did you mean 'low'"),
    ],
)
def test_an_elastic_mix_out_of_range_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        elastic_mix(**{"seed": 1, "gpus": 1, "hours": 0.01, "work_hours": 100.0} | asked)
    assert said in str(refused.value)


@pytest.mark.parametrize("asked", [{"hours": 1e-3}, {"work_hours": 1e4}, {"work_hours": 1e-3, "hours": 1e-3}])
def test_an_elastic_mix_at_the_ends_of_what_is_allowed_has_a_job(asked: dict[str, float]) -> None:
    assert len(elastic_mix(**{"seed": 1, "gpus": 1, "hours": 0.01, "work_hours": 100.0} | asked)) >= 1


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b1", ["a", "b1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,7]x", ["n08x", "n09x", "n10x", "n7x"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("n[5-5],[1]", ["n5", "1"]),
        ("a[1]b[2]c[3]", ["a1b2c3"]),
    ],
)
def test_a_host_list_stands_for(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["n[3-2]", "n[", "n]", "n[a]", "n[]", "a,,b", "n[1-]", "n[0-1000001]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected names such as nid\[0001-0003,0007\],login1$"):
        expand_hosts(text)


def test_without_a_job_no_node_is_known_to_be_idle() -> None:
    with pytest.raises(InputError, match=r"^idle nodes: no job held a node; expected a log with jobs that ran$"):
        idle_between([], 3)


def test_an_instance_that_lives_to_the_end_does_not_leave(tmp_path: Path) -> None:
    table = tmp_path / "lives.csv"
    table.write_text("lifetime_s\n10\n")
    for until_s, first in ((10.0, (0.0, inf)), (10.5, (0.0, 10.0))):
        presences = CloudInstances(lifetimes=str(table), mean_wait_s=100.0, until_s=until_s).trace(1).presences
        assert (presences[0].join_s, presences[0].leave_s) == first


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        ('{"kind": "throughput", "num_gpus": ["x"], "samples_per_s": [1]}', "column num_gpus: 'x'"),
        ('{"kind": "throughput", "num_gpus": [1], "samples_per_s": ["y"]}', "column samples_per_s: 'y'"),
        ('{"kind": "batch", "gpu_batch": ["x"], "seconds": [1]}', "column gpu_batch: 'x'"),
        ('{"kind": "batch", "gpu_batch": [1], "seconds": ["y"]}', "column seconds: 'y'"),
        ('{"kind": "batch", "gpu_batch": 1, "seconds": [1]}', "field gpu_batch: is 1; expected a list of numbers"),
        ('{"kind": "linear", "fixed_s": "x", "sample_s": 1}', "column fixed_s: 'x'"),
        ('{"kind": "round"}', "its kind is 'round'; expected an object with the kind throughput, batch or linear"),
        ("3", "its kind is 3; expected an object with the kind throughput, batch or linear"),
    ],
)
def test_a_curve_of_a_file_is_refused_by_its_field(tmp_path: Path, curve: str, said: str) -> None:
    path = tmp_path / "w.json"
    path.write_text(
        '{"jobs": [{"job_id": "a", "arrival_s": 0, "samples": 1, "max_gpus": 1, "gpu_batch": 1, "curve": '
        + curve
        + "}]}"
    )
    with pytest.raises(InputError) as refused:
        read_workload(path)
    assert said in str(refused.value)


def test_a_row_of_sacct_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("JobID|Start|End|State|NodeList\n1|2026-01-31T12:00:00|Unknown|RUNNING|n1\n2|Unknown\n")
    with pytest.raises(InputError, match=r"jobs\.txt, line 3: has 2 values; expected 5$"):
        from_sacct(path)


@pytest.mark.parametrize("name", ["required_levels", "preferred_levels", "balanced_level", "queue", "priority"])
def test_an_elastic_job_is_given_no_queue_and_no_levels(name: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(ElasticJob)}
    assert not fields[name].init


def test_the_passes_of_a_row_are_whole_nanoseconds_of_what_it_tells_or_of_its_model() -> None:
    """A duration is of all iterations, and a third of the time of one is forward; never 0."""
    nan = float("nan")
    traced = pd.DataFrame(
        {"iterations": [3, 0, 3, 2], "duration_s": [9.0, 5.0, nan, 1e-9], "compute_s": [nan, nan, 1.5, nan]}
    )
    known = {"forward_s": [7.0, 0.25, 7.0, 7.0], "backward_s": [8.0, 0.5, 8.0, 8.0]}
    forward_s, backward_s = trace_models._passes(traced, pd.DataFrame(known))
    share = trace_models.FORWARD_SHARE
    assert forward_s == pytest.approx([3 * share, 0.25, 1.5 * share, 1e-9], rel=1e-9)
    assert backward_s == pytest.approx([3 * (1 - share), 0.5, 1.5 * (1 - share), 1e-9], rel=1e-9)
