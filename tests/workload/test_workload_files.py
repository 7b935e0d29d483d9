"""Workload files: what is read and written, and one clear line for everything that cannot be."""

from __future__ import annotations

import codecs
import csv
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Run, run
from hypothesis import given

from ddlsched import (
    AllReduceTask,
    ComputeTask,
    DataParallelIteration,
    InputError,
    IterationDag,
    Job,
    Workload,
    read_workload,
    write_workload,
)

COLUMNS = ["job_id", "arrival_s", "gpus", "iterations", "forward_s", "backward_s", "message_bytes", "gpu_memory_mb"]
GOOD: dict[str, Any] = {
    "job_id": "a",
    "arrival_s": 1.5,
    "gpus": 2,
    "iterations": 10,
    "forward_s": 0.025,
    "backward_s": 0.0375,
    "message_bytes": 99.2e6,
    "gpu_memory_mb": 3213.5,
}
JOB = Job(
    job_id="a",
    arrival_s=1.5,
    num_gpus=2,
    iterations=10,
    iteration=DataParallelIteration(forward_s=0.025, backward_s=0.0375, message_bytes=99.2e6),
    gpu_memory_mb=3213.5,
)
TASKS: list[dict[str, Any]] = [
    {"name": "f", "kind": "compute", "duration_s": 0.01},
    {"name": "b", "kind": "compute", "duration_s": 0.02, "after": ["f"]},
    {"name": "r", "kind": "all-reduce", "message_bytes": 1e6, "after": ["b"]},
]
DAG_FIELDS = ("job_id", "arrival_s", "gpus", "iterations", "gpu_memory_mb")
WHOLE = ("gpus", "iterations")
REAL = [column for column in COLUMNS[1:] if column not in WHOLE]

pytestmark = pytest.mark.usefixtures("in_a_new_folder")


def write_csv(*rows: dict[str, Any], columns: list[str] | None = None) -> Path:
    path = Path("jobs.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns or [*GOOD, *(name for name in rows[0] if name not in GOOD)])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(*rows: Any) -> Path:
    path = Path("jobs.json")
    path.write_text(json.dumps({"jobs": list(rows)}))
    return path


def write_parquet(*rows: dict[str, Any]) -> Path:
    path = Path("jobs.parquet")
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_text(text: str) -> Path:
    path = Path("jobs.csv")
    path.write_bytes(text.encode())
    return path


def dag_row(tasks: Any = None, **more: Any) -> dict[str, Any]:
    return {name: GOOD[name] for name in DAG_FIELDS} | {"tasks": TASKS if tasks is None else tasks} | more


def refused(path: Path, *parts: str) -> None:
    """Check that the file is refused with these parts in one line, by the library and by the command line."""
    with pytest.raises(InputError) as caught:
        read_workload(path)
    message = str(caught.value)
    for part in (str(path), *parts):
        assert part in message
    assert "\n" not in message
    assert len(message) < 400
    assert run("simulate", path) == Run(exit_code=2, stdout="", stderr=f"ddlsched: error: {message}\n")


# ---- Files that hold no table


def test_a_missing_file() -> None:
    refused(Path("nothing.csv"), "no such file", "expected a workload file")


def test_a_folder() -> None:
    Path("folder.csv").mkdir()
    refused(Path("folder.csv"), "is a folder")


@pytest.mark.parametrize("name", ["jobs.txt", "jobs", "jobs.csv.gz"])
def test_an_unknown_suffix(name: str) -> None:
    refused(Path(name), f"{Path(name).suffix!r}", ".csv, .parquet, .json")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("x.csv", b"", ["is empty", "header row", *COLUMNS]),
        ("x.csv", b"\n\r\n\n", ["is empty"]),
        ("x.csv", codecs.BOM_UTF8, ["is empty"]),
        ("x.csv", ",".join(COLUMNS).encode(), ["header only", "at least one job"]),
        ("x.csv", b"job_id,arrival_s\n\xff\xfe1,2\n", ["line 2", "byte 0xff is no text", "UTF-8"]),
        ("x.csv", b"x" * 70_000 + b"\n\n\xe9\n", ["line 3", "byte 0xe9"]),
        ("x.csv", "job_id\n".encode("utf-16"), ["line 1", "byte 0xff"]),
        ("x.csv", "job_id\n".encode("utf-16-le"), ["line 1", "byte 0x00"]),
        ("x.csv", ",".join(COLUMNS).encode() + b"\na,1,1,1,1,1,1,1\n\x00,1,1,1,1,1,1,1\n", ["line 3", "byte 0x00"]),
        ("x.csv", ",".join(COLUMNS).encode() + b'\n"a,1,1,1,1,1,1,1\n', ["line 2", "is no CSV"]),
        ("x.csv", ",".join(COLUMNS).encode() + b'\n"a"b,1,1,1,1,1,1,1\n', ["line 2", "is no CSV"]),
        ("x.csv", ",".join(COLUMNS).encode() + b"\n" + b"9" * 200_000, ["line 2", "is no CSV", "limit"]),
        ("x.parquet", b"", ["is no Parquet file"]),
        ("x.parquet", b"job_id,arrival_s\n" * 10, ["is no Parquet file"]),
        ("x.json", b"", ["is no JSON"]),
        ("x.json", b"{", ["is no JSON"]),
        ("x.json", b"[" * 100_000, ["is no JSON"]),
        ("x.json", b'{"jobs": [{"gpus": ' + b"9" * 5_000 + b"}]}", ["is no JSON", "digits"]),
        ("x.json", b'{"jobs": [{"gpus": 1, "gpus": 2}]}', ["'gpus' occurs twice"]),
        ("x.json", b'{"jobs": "\xff"}', ["line 1", "byte 0xff"]),
        ("x.json", b"[]", ["holds no jobs"]),
        ("x.json", b"3", ["holds no jobs"]),
        ("x.json", b'{"jobs": []}', ["holds no jobs", "at least one job"]),
        ("x.json", b'{"jobs": {"a": 1}}', ["holds no jobs"]),
    ],
)
def test_a_file_that_holds_no_table(name: str, content: bytes, parts: list[str]) -> None:
    Path(name).write_bytes(content)
    refused(Path(name), *parts)


def test_a_damaged_parquet_file() -> None:
    path = write_parquet(GOOD)
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    refused(path)


def test_a_parquet_file_without_rows() -> None:
    pq.write_table(pa.Table.from_pylist([GOOD]).slice(0, 0), "jobs.parquet")
    refused(Path("jobs.parquet"), "header only")


def test_parquet_text_that_is_no_utf8() -> None:
    table = pa.Table.from_pylist([GOOD])
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(table.set_column(0, "job_id", bad), "jobs.parquet")
    refused(Path("jobs.parquet"), "is no Parquet file")


# ---- Columns


@pytest.mark.parametrize("missing", COLUMNS)
def test_a_missing_column(missing: str) -> None:
    row = {name: value for name, value in GOOD.items() if name != missing}
    expected = (repr(missing), "is missing", ", ".join(COLUMNS))
    refused(write_csv(row, columns=list(row)), "column", *expected)
    refused(write_parquet(row), "column", *expected)
    refused(write_json(GOOD, row), "row 2", "field", *expected)


def test_an_unknown_column_suggests_the_nearest() -> None:
    for path in (
        write_csv(GOOD | {"bucket": 2}),
        write_parquet(GOOD | {"bucket": 2}),
        write_json(GOOD | {"bucket": 2}),
    ):
        refused(path, "unknown", "'bucket'", "Did you mean 'buckets'?")


def test_a_column_twice() -> None:
    refused(write_text(",".join([*COLUMNS, "gpus"]) + "\n"), "column 'gpus' occurs 2 times")
    table = pa.Table.from_arrays([pa.array([1])] * 9, names=[*COLUMNS, "gpus"])
    pq.write_table(table, "jobs.parquet")
    refused(Path("jobs.parquet"), "column 'gpus' occurs 2 times")


@pytest.mark.parametrize(("cells", "count"), [("a,1,1", 3), ("a,1,1,1,1,1,1,1,1", 9), ("a;1;1;1;1;1;1;1", 1)])
def test_a_row_with_too_few_or_too_many_values(cells: str, count: int) -> None:
    refused(write_text(f"{','.join(COLUMNS)}\n\n{cells}\n"), "row 1 (line 3)", f"has {count} values", "expected 8")


# ---- Values


@pytest.mark.parametrize(
    ("column", "value", "parts"),
    [
        *(
            (column, value, [repr(value), "expected a finite number >= 0"])
            for column in REAL
            for value in ("nan", "inf")
        ),
        *((column, value, [repr(value), "whole number from 1"]) for column in WHOLE for value in ("nan", "inf", "-1")),
        *((column, "1e400", ["'1e400'", "out of range"]) for column in COLUMNS[1:]),
        *((column, "-1", ["'-1'", "out of range"]) for column in COLUMNS[1:]),
        *((column, "", ["is empty"]) for column in COLUMNS),
        *((column, "  ", ["is empty"]) for column in COLUMNS),
        *((column, "four", ["'four' is no number"]) for column in COLUMNS[1:]),
        *((column, "1_000", ["'1_000' is no number"]) for column in COLUMNS[1:]),
        *((column, "1e300", ["too large for the clock", "9.22337e+09 s"]) for column in ("arrival_s", "forward_s")),
        ("backward_s", "9223372036.854775807", ["too large for the clock"]),
        *((column, "0", ["'0'", "whole number from 1"]) for column in ("gpus", "iterations", "buckets")),
        *((column, "1.5", ["'1.5'", "whole number from 1"]) for column in ("gpus", "iterations", "buckets")),
        *((column, "1e30", ["'1e30'", "whole number from 1"]) for column in ("gpus", "iterations", "buckets")),
        ("buckets", "10001", ["'10001'", "from 1 to 10000"]),
        ("arrival_s", "0x10", ["'0x10' is no number"]),
        ("arrival_s", "1,5", ["'1,5' is no number"]),
        ("arrival_s", "2020-01-01", ["is no number"]),
        ("gpus", "9" * 5000, ["out of range", "999..."]),
        ("gpus", "True", ["'True' is no number"]),
    ],
)
def test_a_bad_value_in_csv(column: str, value: str, parts: list[str]) -> None:
    path = write_csv(GOOD | {column: "1"}, GOOD | {"job_id": "b", column: value})
    refused(path, "row 2 (line 3)", f"column {column}: ", *parts)


@pytest.mark.parametrize(
    ("column", "value", "parts"),
    [
        *((column, None, ["is empty"]) for column in COLUMNS),
        *((column, math.nan, ["nan"]) for column in COLUMNS[1:]),
        ("job_id", math.nan, ["is empty"]),
        ("arrival_s", math.inf, ["inf", "out of range"]),
        ("arrival_s", -0.5, ["-0.5"]),
        ("gpus", True, ["True is no number"]),
        ("gpus", 0, ["0"]),
        ("gpus", 2.5, ["2.5", "whole number from 1"]),
        ("iterations", 2**63, [str(2**63), "whole number from 1"]),
        ("iterations", 10**400, ["no number", "000..."]),
        ("gpus", [2], ["[2] is no number"]),
        ("forward_s", {"s": 1}, ["{'s': 1} is no number"]),
        ("job_id", ["a"], ["['a'] is no text"]),
        ("job_id", False, ["False is no text"]),
        ("job_id", " ", ["is empty"]),
        ("model", {"name": "VGG"}, ["{'name': 'VGG'} is no text"]),
        ("user", True, ["True is no text"]),
    ],
)
def test_a_bad_value_in_json(column: str, value: Any, parts: list[str]) -> None:
    refused(write_json(GOOD, GOOD | {"job_id": "b", column: value}), "row 2, ", f"column {column}: ", *parts)


@pytest.mark.parametrize(
    ("column", "value", "parts"),
    [
        ("arrival_s", None, ["is empty"]),
        ("arrival_s", math.nan, ["nan"]),
        ("gpus", b"2", ["b'2' is no number"]),
        ("gpus", 2.5, ["2.5"]),
        ("gpus", pd.Timestamp(0), ["is no number"]),
        ("gpus", True, ["True is no number"]),
        ("job_id", b"a", ["b'a' is no text"]),
        ("job_id", None, ["is empty"]),
    ],
)
def test_a_bad_value_in_parquet(column: str, value: Any, parts: list[str]) -> None:
    refused(write_parquet(GOOD | {column: value}), "row 1, ", f"column {column}: ", *parts)


@pytest.mark.parametrize("column", ["job_id", "model", "user"])
@pytest.mark.parametrize("text", ["a\tb", "a\nb", "a\rb", "a\x1b[31m", "a\x9bb"])
def test_a_control_character_in_a_text(column: str, text: str) -> None:
    for path in (
        write_csv(GOOD | {column: text}),
        write_json(GOOD | {column: text}),
        write_parquet(GOOD | {column: text}),
    ):
        refused(path, "row 1", column, repr(text), "without control characters")


def test_a_surrogate_in_an_id() -> None:
    refused(write_json(GOOD | {"job_id": "a\ud800"}), "row 1", "job_id", r"a\ud800")


def test_an_id_twice() -> None:
    for write in (write_csv, write_json, write_parquet):
        path = write(GOOD, GOOD | {"job_id": "b"}, GOOD)
        refused(path, "row 3", "job_id 'a'", "row 1", "expected a unique id")


def test_ids_are_the_same_that_differ_in_space_around_them() -> None:
    refused(write_json(GOOD, GOOD | {"job_id": " a "}), "row 2", "job_id 'a'")


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        ("gpu_memory_mb", "1e300", ["row 1 (line 2)", "gpu_memory_mb is 1e+300"]),
        ("iterations", "1000000000000000000", ["row 1 (line 2)", "job 'a'", "compute time x iterations x GPUs"]),
    ],
)
def test_more_than_the_clock_or_memory_holds(field: str, value: str, parts: list[str]) -> None:
    refused(write_csv(GOOD | {field: value}), *parts, "expected")


@pytest.mark.parametrize(
    ("column", "value", "parts"),
    [
        ("gpus", 65, ["column gpus", "'a' needs 65 GPUs", "never fit", "the cluster's 64"]),
        (
            "gpu_memory_mb",
            32768.5,
            ["column gpu_memory_mb", "'a' needs 32768.5 MB", "never fit", "the cluster's 32768"],
        ),
    ],
)
def test_a_job_that_can_never_fit(column: str, value: float, parts: list[str]) -> None:
    path = write_csv(GOOD | {"job_id": "b"}, GOOD | {column: value})
    result = run("simulate", path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    for part in ("jobs.csv, row 2", *parts):
        assert part in result.stderr


# ---- General DAGs


def test_a_dag() -> None:
    (job,) = read_workload(write_json(dag_row(model="VGG")))
    assert (job.model, job.service_ns) == ("VGG", 30_000_000 * 10 * 2)
    assert [task.name for task in job.dag.tasks] == ["f", "b", "r"]


@pytest.mark.parametrize(
    ("tasks", "parts"),
    [
        ([], ["at least one task"]),
        ("f", ["'f'", "list of objects"]),
        ([3], ["[3]", "list of objects"]),
        ([TASKS[0] | {"after": ["r"]}, *TASKS[1:]], ["cycle", "'f'"]),
        ([TASKS[0] | {"after": ["f"]}], ["cycle", "'f'"]),
        ([TASKS[0] | {"after": ["x"]}], ["'f'", "'x'", "no task"]),
        ([TASKS[0], TASKS[1] | {"after": ["f", "f"]}], ["'b'", "twice"]),
        ([TASKS[0], TASKS[0]], ["same name"]),
        ([TASKS[0] | {"after": "f"}], ["after is 'f'", "list"]),
        ([TASKS[0] | {"after": [1]}], ["after is [1]"]),
        ([TASKS[0] | {"kind": "gpu"}], ["'f'", "kind is 'gpu'", "expected one of compute, all-reduce"]),
        ([TASKS[0] | {"kind": ["compute"]}], ["kind"]),
        ([TASKS[0] | {"kind": None}], ["kind is None"]),
        ([TASKS[0] | {"name": ""}], ["name is ''"]),
        ([TASKS[0] | {"name": 7}], ["name is 7"]),
        ([TASKS[0] | {"duration_s": -1}], ["'f'", "duration_s is -1"]),
        ([TASKS[0] | {"duration_s": math.nan}], ["duration_s is nan"]),
        ([TASKS[0] | {"duration_s": "1"}], ["duration_s is '1'"]),
        ([TASKS[0] | {"duration_s": True}], ["duration_s is True"]),
        ([TASKS[0] | {"duration_s": 1e10}], ["'f'", "duration"]),
        ([TASKS[0] | {"message_bytes": 1}], ["unknown field 'message_bytes'"]),
        ([TASKS[2] | {"after": [], "message_bytes": math.inf}], ["message_bytes is inf"]),
        ([{"name": "r", "kind": "all-reduce"}], ["message_bytes is None"]),
    ],
)
def test_a_bad_dag(tasks: Any, parts: list[str]) -> None:
    refused(write_json(dag_row(job_id="b"), dag_row(tasks)), "row 2", "tasks", *parts)


@pytest.mark.parametrize("name", DAG_FIELDS)
def test_a_dag_that_lacks_a_field(name: str) -> None:
    path = write_json({key: value for key, value in dag_row().items() if key != name})
    refused(path, "row 1", f"field {name!r} is missing")


@pytest.mark.parametrize("name", ["forward_s", "buckets", "task"])
def test_a_dag_with_a_field_that_it_would_ignore(name: str) -> None:
    refused(write_json(dag_row(**{name: 1})), "row 1", f"unknown field {name!r}")


def test_a_json_row_that_is_no_object() -> None:
    refused(write_json(GOOD, ["a", 1]), "row 2", "['a', 1]", "expected an object", "job_id")


# ---- What is accepted


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("gpus", "4.0", 4),
        ("gpus", "1e1", 10),
        ("iterations", "9007199254740993", 9007199254740993),
        ("arrival_s", "-0.0", 0.0),
        ("arrival_s", "1e-400", 0.0),
        ("arrival_s", "  7  ", 7.0),
        ("arrival_s", "+.5e1", 5.0),
        ("message_bytes", "5.264e8", 526.4e6),
        ("gpu_memory_mb", "0.5", 0.5),
    ],
)
def test_numbers_in_other_forms(column: str, text: str, value: float) -> None:
    row = GOOD | {"gpus": 1, "forward_s": 1e-9, "backward_s": 0}
    given_text = read_workload(write_csv(row | {column: text}))
    given_number = read_workload(write_json(row | {column: value}))
    assert given_text == given_number
    assert math.copysign(1.0, given_text[0].arrival_s) == 1.0


def test_whole_numbers_are_read_exactly() -> None:
    row = GOOD | {"gpus": 1, "forward_s": 1e-9, "backward_s": 0, "iterations": 9007199254740993}
    for path in (write_csv(row), write_json(row), write_parquet(row)):
        assert read_workload(path)[0].iterations == 9007199254740993


@pytest.mark.parametrize(
    "text",
    [
        "{header}\r\n{row}\r\n",
        "{header}\r{row}\r",
        "\n\n{header}\n\n{row}\n\n\n",
        "\ufeff{header}\n{row}",
        "  " + "{header}\n{row}".replace(",", " , "),
        "{reversed_header}\n{reversed_row}\n",
        "{quoted_header}\n{quoted_row}\n",
    ],
)
def test_csv_in_other_forms(text: str) -> None:
    cells = [str(value) for value in GOOD.values()]
    text = text.format(
        header=",".join(COLUMNS),
        row=",".join(cells),
        reversed_header=",".join(COLUMNS[::-1]),
        reversed_row=",".join(cells[::-1]),
        quoted_header=",".join(f'"{name}"' for name in COLUMNS),
        quoted_row=",".join(f'"{cell}"' for cell in cells),
    )
    assert read_workload(write_text(text)).jobs == (JOB,)


def test_an_upper_case_suffix() -> None:
    write_workload(Workload.of([JOB]), "JOBS.CSV")
    assert read_workload("JOBS.CSV").jobs == (JOB,)


def test_ids_with_commas_quotes_and_other_scripts() -> None:
    ids = ["a,b", 'say "hi"', "''", "作业 1", "é😀", "#1", "nan", "None", "-1", "01", "=1+1"]
    workload = Workload.of([replace(JOB, job_id=name) for name in ids])
    for name in ("w.csv", "w.json", "w.parquet"):
        write_workload(workload, name)
        assert [job.job_id for job in read_workload(name)] == ids


def test_a_number_as_an_id() -> None:
    for write in (write_json, write_parquet):
        assert read_workload(write(GOOD | {"job_id": 17}))[0].job_id == "17"


def test_optional_columns() -> None:
    path = write_csv(GOOD | {"model": "VGG-16", "user": "", "buckets": ""}, GOOD | {"job_id": "b", "buckets": 4})
    first, second = read_workload(path)
    assert (first.model, first.user, second.model) == ("VGG-16", None, None)
    buckets = [job.iteration.buckets for job in (first, second) if isinstance(job.iteration, DataParallelIteration)]
    assert buckets == [1, 4]


def test_a_time_limit_is_read_and_written_where_a_job_has_one() -> None:
    limited = replace(JOB, time_limit_s=3600.5)
    for write in (write_csv, write_json, write_parquet):
        assert read_workload(write(GOOD | {"time_limit_s": 3600.5})).jobs == (limited,)
    write_workload(Workload.of([limited, replace(JOB, job_id="b")]), "w.csv")
    assert Path("w.csv").read_text().splitlines()[0].split(",")[8:] == ["time_limit_s"]
    assert read_workload("w.csv").jobs == (limited, replace(JOB, job_id="b"))


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (0, ["time_limit_s is 0.0", "expected seconds above 0"]),
        (-1, ["column time_limit_s: ", "-1"]),
        ("an hour", ["column time_limit_s: ", "'an hour'"]),
    ],
)
def test_a_bad_time_limit(value: Any, parts: list[str]) -> None:
    refused(write_csv(GOOD | {"time_limit_s": 1}, GOOD | {"job_id": "b", "time_limit_s": value}), "row 2", *parts)
    refused(write_json(GOOD, GOOD | {"job_id": "b", "time_limit_s": value}), "row 2", *parts)


def test_parquet_types_that_other_tools_write() -> None:
    frame = pd.DataFrame([GOOD, GOOD | {"job_id": "b"}])
    frame = frame.astype({"gpus": "int8", "iterations": "uint32", "arrival_s": "float32", "job_id": "category"})
    frame["model"] = pd.Series([None, "VGG"], dtype="category")
    frame["user"] = [math.nan, math.nan]
    frame.to_parquet("jobs.parquet")
    jobs = read_workload("jobs.parquet").jobs
    assert jobs == (JOB, replace(JOB, job_id="b", model="VGG"))


def test_a_parquet_file_in_a_folder_that_looks_like_a_partition() -> None:
    Path("year=2020").mkdir()
    write_workload(Workload.of([JOB]), "year=2020/jobs.parquet")
    assert read_workload("year=2020/jobs.parquet").jobs == (JOB,)


def test_the_source_is_named_in_later_errors() -> None:
    assert read_workload(write_csv(GOOD)).where(0) == "jobs.csv, row 1"
    assert Workload.of([JOB]).where(0) == "workload, row 1"


# ---- Writing


def test_csv_is_what_one_would_write_by_hand() -> None:
    write_workload(Workload.of([JOB]), "w.csv")
    text = ",".join(COLUMNS) + "\na,1.5,2,10,0.025,0.0375,99200000.0,3213.5\n"
    assert Path("w.csv").read_bytes() == text.encode()


def test_optional_columns_are_written_only_where_used() -> None:
    write_workload(Workload.of([JOB, replace(JOB, job_id="b", user="eve")]), "w.csv")
    assert Path("w.csv").read_text().splitlines()[0].split(",")[8:] == ["user"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("w.txt", ["'.txt'", ".csv, .parquet, .json"]),
        ("missing/w.csv", ["missing/w.csv", "cannot be written"]),
        ("missing/w.json", ["missing/w.json", "cannot be written"]),
        ("missing/w.parquet", ["missing/w.parquet", "cannot be written"]),
        (".csv", [".csv: the suffix is ''"]),
    ],
)
def test_a_file_that_cannot_be_written(name: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        write_workload(Workload.of([JOB]), name)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["w.csv", "w.parquet"])
def test_a_table_cannot_hold_a_dag(name: str) -> None:
    workload = read_workload(write_json(dag_row()))
    with pytest.raises(InputError, match=r"job 'a' has a general DAG.*\.json"):
        write_workload(workload, name)
    assert not Path(name).exists()


# ---- Jobs and workloads that never were in a file


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", ""),
        ("job_id", " a"),
        ("job_id", "a\nb"),
        ("job_id", 3),
        ("model", ""),
        ("user", "a\x00"),
        ("num_gpus", 0),
        ("num_gpus", 1.5),
        ("num_gpus", 2.0),
        ("num_gpus", True),
        ("num_gpus", math.nan),
        ("iterations", -1),
        ("iterations", 2**63),
        ("arrival_s", -1e-9),
        ("arrival_s", math.nan),
        ("arrival_s", math.inf),
        ("gpu_memory_mb", math.nan),
    ],
)
def test_a_bad_job(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^job .*: {field} is .*; expected "):
        replace(JOB, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("forward_s", math.nan), ("backward_s", -1.0), ("message_bytes", math.inf), ("buckets", 0), ("buckets", 1.5)],
)
def test_a_bad_iteration(field: str, value: Any) -> None:
    assert isinstance(JOB.iteration, DataParallelIteration)
    with pytest.raises(InputError, match=f"job 'a': {field} is {value}; expected "):
        replace(JOB, iteration=replace(JOB.iteration, **{field: value}))


def test_counts_of_numpy_do_not_overflow() -> None:
    with pytest.raises(InputError, match="compute time x iterations x GPUs"):
        replace(JOB, num_gpus=np.int64(4), iterations=np.int64(2**62))
    write_workload(Workload.of([replace(JOB, num_gpus=np.int32(4), gpu_memory_mb=np.int64(7))]), "w.json")
    assert read_workload("w.json")[0] == replace(JOB, num_gpus=4, gpu_memory_mb=7.0)


def test_a_workload_without_jobs() -> None:
    with pytest.raises(InputError, match="workload: holds no jobs"):
        Workload.of([])


# ---- Round trips


texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
texts = texts.map(str.strip).filter(bool)
seconds = st.floats(0, 1e6)
data_parallel = st.builds(
    DataParallelIteration,
    forward_s=seconds,
    backward_s=seconds,
    message_bytes=st.floats(0, 1e18),
    buckets=st.integers(1, 4),
)


@st.composite
def dags(draw: st.DrawFn) -> IterationDag:
    count = draw(st.integers(1, 5))
    tasks = []
    for number in range(count):
        after = tuple(draw(st.lists(st.sampled_from(range(number)), unique=True)) if number else [])
        common: dict[str, Any] = {"name": f"task {number}", "after": tuple(f"task {a}" for a in after)}
        # Up to 104 days, beyond which seconds in a float have no nanoseconds.
        compute = st.builds(
            ComputeTask, duration_ns=st.integers(0, 2**50), **{k: st.just(v) for k, v in common.items()}
        )
        reduce = st.builds(
            AllReduceTask, message_bytes=st.floats(0, 1e18), **{k: st.just(v) for k, v in common.items()}
        )
        tasks.append(draw(compute | reduce))
    return IterationDag(tuple(tasks))


def workloads(iterations: st.SearchStrategy[Any]) -> st.SearchStrategy[Workload]:
    jobs = st.builds(
        Job,
        job_id=texts,
        arrival_s=st.floats(0, 9e9),
        num_gpus=st.integers(1, 8),
        iterations=st.integers(1, 100),
        iteration=iterations,
        gpu_memory_mb=st.floats(0, 1e6),
        model=st.none() | texts,
        user=st.none() | texts,
        time_limit_s=st.none() | st.floats(1e-9, 1e6),
    )
    return st.lists(jobs, min_size=1, max_size=4, unique_by=lambda job: job.job_id).map(Workload.of)


def read_back(workload: Workload, suffix: str) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"w.{suffix}")
        write_workload(workload, path)
        return read_workload(path)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
@given(workload=workloads(data_parallel))
def test_round_trip_of_data_parallel_jobs(workload: Workload, suffix: str) -> None:
    assert read_back(workload, suffix) == workload


@pytest.mark.long
@given(workload=workloads(data_parallel | dags()))
def test_round_trip_of_dags(workload: Workload) -> None:
    assert read_back(workload, "json") == workload


@pytest.mark.long
@given(cells=st.lists(st.text(max_size=12) | st.floats().map(str), min_size=8, max_size=8))
def test_any_row_is_read_or_refused_in_one_line(cells: list[str]) -> None:
    check_any(lambda folder: csv_of(folder, cells))


def csv_of(folder: Path, cells: list[str]) -> Path:
    path = folder / "w.csv"
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        csv.writer(file).writerows([COLUMNS, cells])
    return path


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


@pytest.mark.long
@given(row=st.fixed_dictionaries({name: st.just(GOOD[name]) | json_values for name in COLUMNS}))
def test_any_json_row_is_read_or_refused_in_one_line(row: dict[str, Any]) -> None:
    check_any(lambda folder: json_of(folder, row))


task_fields = st.fixed_dictionaries(
    {"name": st.sampled_from("abc") | json_values, "kind": st.sampled_from(["compute", "all-reduce"]) | json_values},
    optional={
        "duration_s": json_values,
        "message_bytes": json_values,
        "after": st.lists(st.sampled_from("abc")) | json_values,
    },
)


@pytest.mark.long
@given(tasks=st.lists(task_fields, max_size=3) | json_values)
def test_any_dag_is_read_or_refused_in_one_line(tasks: Any) -> None:
    check_any(lambda folder: json_of(folder, dag_row(tasks) | {"tasks": tasks}))


def json_of(folder: Path, row: Any) -> Path:
    path = folder / "w.json"
    path.write_text(json.dumps({"jobs": [row]}))
    return path


def check_any(write: Callable[[Path], Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder))
        message = error_of(path)
        assert message is None or (str(path) in message and len(message.splitlines()) == 1)


def error_of(path: Path) -> str | None:
    try:
        read_workload(path)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.long
def test_a_header_of_very_many_columns_is_refused_in_a_short_line(tmp_path):
    path, needed = tmp_path / "wide.csv", COLUMNS
    for header in (",".join(f"column{n}" for n in range(300_000)), ",".join([*needed, *map(str, range(300_000))])):
        path.write_text(f"{header}\n")
        with pytest.raises(InputError) as refused:
            read_workload(path)
        assert len(str(refused.value)) < 1000
    path.write_text(",".join([*needed, "x" * 100_000]) + "\n")
    with pytest.raises(InputError, match="unknown column 'xxx") as refused:
        read_workload(path)
    assert len(str(refused.value)) < 1000
