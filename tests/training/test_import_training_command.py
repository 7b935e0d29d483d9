"""``ddlsched import-training``: a job, a summary and a picture, or a line that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chakra_files import COLLECTIVE, COMPUTE, chakra_node, write_chakra
from command_line import refused, run

from ddlsched.workload.workload_files import read_workload

NODES = [
    chakra_node(0, COMPUTE, duration_us=400),
    chakra_node(1, COMPUTE, after=[0], duration_us=900),
    chakra_node(2, COLLECTIVE, after=[1], attributes={"comm_type": 0, "comm_size": 48 << 20}),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_chakra(tmp_path / "job.0.et", NODES)


@pytest.mark.long
def test_job_summary_and_picture_are_written(tmp_path: Path, trace: Path) -> None:
    out, chart = tmp_path / "job.json", tmp_path / "picture"
    arguments = ("--gpus", 4, "--iterations", 7, "--gbps", 8, "--chart", chart, "--out", out)
    done = run("import-training", trace, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["collectives"] == [{"kind": "all-reduce", "group": "all ranks", "count": 1, "bytes": 48 << 20}]
    assert found["iteration_alone_s"] == pytest.approx(0.0013 + 1.5 * (48 << 20) / 1e9)
    (job,) = read_workload(out)
    assert (job.num_gpus, job.iterations, job.compute_ns) == (4, 7, 1_300_000)
    assert chart.with_suffix(".png").stat().st_size > 5000
    assert chart.with_suffix(".svg").exists()
    text = run("import-training", trace, *arguments)
    assert "exposed communication                 98.3 % of the iteration" in text.stdout
    assert run("validate", out).exit_code == 0


def test_nodes_that_take_no_time_are_kept_and_counted(tmp_path: Path) -> None:
    more = [chakra_node(3, COMPUTE, after=[1]), chakra_node(4, COMPUTE, after=[3], duration_us=0)]
    trace, out = write_chakra(tmp_path / "job.0.et", [*NODES, *more]), tmp_path / "job.json"
    done = run("import-training", trace, "--gpus", 4, "--out", out, "--json")
    what = "nodes of computation or memory that take 0 us, kept"
    assert json.loads(done.stdout)["notes"] == {what: 2}
    assert json.loads(done.stdout)["nodes"] == 5
    assert f"2 {what}\n" in done.stderr
    assert json.loads(run("validate", trace, "--json").stdout)[what] == 2
    assert read_workload(out)[0].compute_ns == 1_300_000


def test_a_node_of_less_than_no_time_is_refused_with_file_node_and_field(tmp_path: Path) -> None:
    trace = write_chakra(tmp_path / "job.0.et", [chakra_node(0, COMPUTE, duration_us=-1), *NODES[1:]])
    done = run("import-training", trace, "--gpus", 4, "--out", tmp_path / "job.json")
    refused(done, str(trace), "node 0", "field duration_micros: is -1; expected microseconds from 0")
    assert not (tmp_path / "job.json").exists()


def test_validate_says_what_is_in_a_trace(trace: Path) -> None:
    done = run("validate", trace, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    expected = {"kind": "training trace", "rank": 0, "ranks": "not told", "nodes": 3, "steps": 1, "collectives": 1}
    assert expected | {"bytes_of_them": 48 << 20, "computing_s": [0.0013] * 3} == {
        name: found[name] for name in [*expected, "bytes_of_them", "computing_s"]
    }
    assert "ranks                       not told" in run("validate", trace).stdout
    kineto = trace.parent / "trace.json"
    kineto.write_text('{"schemaVersion": 1, "traceEvents": []}')
    refused(run("validate", kineto), str(kineto), "holds no operators or kernels")
    trace.write_bytes(trace.read_bytes()[:-1])
    refused(run("validate", trace), str(trace), "the last record is cut off")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--out", "job.csv"), ("the suffix is '.csv'", "expected .json")),
        (("--out", "/dev/null"), ("the suffix is ''",)),
        (("--out", "job.json", "--gbps", "0"), ("gbps is 0.0", "expected a number > 0")),
        (("--out", "job.json"), ("does not tell how many ranks",)),
        (("--out", "job.json", "--gpus", "2", "--groups", "none.json"), ("none.json: no such file",)),
        (("--out", "no/where/job.json", "--gpus", "2"), ("there is no folder",)),
    ],
)
def test_bad_arguments_are_refused_in_a_line(
    trace: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(trace.parent)
    refused(run("import-training", trace, *arguments), *parts)
