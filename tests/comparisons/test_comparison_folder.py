"""A comparison's folder: read as it was written, and refused in one line if anything is wrong with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from comparison_folders import SMALL

import ddlsched
from ddlsched.comparisons.report.reported import ComparedSetting, Reported

POLICIES = [{"name": "SRSF(1)", "scheduler": "srsf-1"}, {"name": "NA", "scheduler": "srsf-2"}]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "comparison"
    return ddlsched.compare(SMALL, POLICIES, seeds=2, folder=folder, processes=1).folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "comparison"))


def run_file(folder: Path, number: int = 1) -> Path:
    return folder / str(pd.read_csv(folder / "runs.csv")["file"][number])


@pytest.mark.long
def test_a_folder_is_read_as_it_was_written(written):
    opened = Reported.open(written)
    assert opened.policies == ["SRSF(1)", "NA"]
    assert opened.settings == [ComparedSetting(SMALL, "16x4")]
    assert opened.servers("16x4") == [4] * 16
    assert opened.comparison.failures.empty
    (setting,) = opened.settings
    first, second = opened.jobs(setting, "NA")
    runs = opened.comparison.runs
    expected = runs[runs["policy"] == "NA"]["average_jct_s"].tolist()
    assert [first["jct_s"].mean(), second["jct_s"].mean()] == pytest.approx(expected)
    assert opened.placements("NA")["to_s"].max() == pytest.approx(runs["makespan_s"].iloc[1])
    assert opened.comparison.kept("timeline", "NA") is None


@pytest.mark.long
def test_only_finished_jobs_that_count_are_read(folder):
    path = run_file(folder, 0)
    table = pq.read_table(path)
    jobs = table.to_pandas()
    jobs.loc[0, "counted"] = False
    jobs.loc[1, "finish_s"] = float("nan")
    pq.write_table(pa.Table.from_pandas(jobs).replace_schema_metadata(table.schema.metadata), path)
    opened = Reported.open(folder)
    assert [len(own) for own in opened.jobs(opened.settings[0], "SRSF(1)")] == [158, 160]


@pytest.mark.long
def test_a_run_that_stands_for_several_seeds_is_read_once(folder):
    runs = pd.read_csv(folder / "runs.csv", keep_default_na=False)
    runs.loc[2, "file"] = runs.loc[0, "file"]
    runs.to_csv(folder / "runs.csv", index=False)
    opened = Reported.open(folder)
    assert len(opened.samples(opened.settings[0], "SRSF(1)")) == 1


def rewrite_asked(folder: Path, **fields: object) -> None:
    asked = json.loads((folder / "comparison.json").read_text())
    asked.update(fields)
    (folder / "comparison.json").write_text(json.dumps({name: value for name, value in asked.items() if value != "-"}))


def replace(name: str, old: str, new: str):
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def rewrite_cells(folder: Path, name: str, **cells: str) -> None:
    table = pd.read_csv(folder / name, keep_default_na=False, dtype=str)
    table.assign(**cells).to_csv(folder / name, index=False)


def rewrite_run(folder: Path, described: object, drop: str = "user") -> None:
    path = run_file(folder)
    table = pq.read_table(path).drop_columns([drop] if drop in pq.read_schema(path).names else [])
    metadata = {} if described is None else {b"ddlsched": json.dumps(described)}
    pq.write_table(table.replace_schema_metadata(metadata), path)


FAULTS = {
    "no folder": (shutil.rmtree, "is no folder"),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("")), "is no folder"),
    "another folder": (lambda f: (f / "comparison.json").unlink(), "has no comparison.json"),
    "no JSON": (lambda f: (f / "comparison.json").write_text("{"), "comparison.json: cannot be read as JSON"),
    "no text": (lambda f: (f / "comparison.json").write_bytes(b"\xff\xfe\x00"), "comparison.json: cannot be read"),
    "no object": (lambda f: (f / "comparison.json").write_text("[]"), "comparison.json: the whole"),
    "a field missing": (lambda f: rewrite_asked(f, seeds="-"), "comparison.json: seeds: Field required"),
    "a field wrong": (lambda f: rewrite_asked(f, command="ls"), "command: Input should be a valid list; found 'ls'"),
    "a strange baseline": (lambda f: rewrite_asked(f, baseline="X"), "baseline: is 'X'; expected one of SRSF(1), NA"),
    "a cluster without GPUs": (
        lambda f: rewrite_asked(f, clusters={"16x4": {"gpus": [4, 0]}}),
        "clusters.16x4.gpus.1: Input should be greater than 0; found 0",
    ),
    "a table missing": (lambda f: (f / "classes.csv").unlink(), "classes.csv: is not there"),
    "an empty table": (lambda f: (f / "runs.csv").write_text(""), "runs.csv: cannot be read as CSV"),
    "no run": (lambda f: (f / "runs.csv").write_text("policy,workload,cluster,seed,file\n"), "runs.csv: has no run"),
    "no CSV": (
        lambda f: (f / "comparison.csv").write_bytes(b"\x00\xff,\n\xfe"),
        "comparison.csv: cannot be read as CSV",
    ),
    "a column missing": (replace("comparison.csv", "verdict", "word"), "comparison.csv: has no column 'verdict'"),
    "no number": (replace("runs.csv", "16x4,2,", "16x4,two,"), "runs.csv: line 4: seed: is 'two'; expected a number"),
    "no number of jobs": (
        lambda f: rewrite_cells(f, "runs.csv", most_jobs_on_a_gpu="many"),
        "runs.csv: line 2: most_jobs_on_a_gpu: is 'many'; expected a number",
    ),
    "endless seeds": (
        lambda f: rewrite_cells(f, "comparison.csv", seeds="inf"),
        "comparison.csv: line 2: seeds: is inf; expected a whole number",
    ),
    "no list of workloads": (lambda f: rewrite_asked(f, drawn_workloads=1), "drawn_workloads: Input should be a valid"),
    "a strange policy": (replace("runs.csv", "NA,", "XY,"), "runs.csv: line 3: policy: is 'XY'; expected one of"),
    "a run missing": (lambda f: run_file(f).unlink(), "parquet: no such file; expected a run's file"),
    "no Parquet": (lambda f: run_file(f).write_text("x"), "parquet: is no run's file (Parquet file size is 1 bytes"),
    "a strange run": (lambda f: rewrite_run(f, None), "parquet: is no run's file"),
    "no samples": (lambda f: rewrite_run(f, {"summary": {}}), "parquet: is no run's file (samples: "),
    "samples of text": (
        lambda f: rewrite_run(f, {"samples": {"time_s": ["x"], "busy_gpus": [1.0]}}),
        "parquet: is no run's file (samples: ",
    ),
    "uneven samples": (
        lambda f: rewrite_run(f, {"samples": {"time_s": [1.0, 2.0], "busy_gpus": [1.0]}}),
        "parquet: is no run's file (samples: ",
    ),
    "half the samples": (
        lambda f: rewrite_run(f, {"samples": {"time_s": [1.0]}}),
        "parquet: has no column 'busy_gpus'",
    ),
    "jobs without a column": (
        lambda f: rewrite_run(f, {"samples": {}}, drop="size_class"),
        "parquet: has no column 'size_class'",
    ),
    "no placements": (
        lambda f: (f / "placements" / "na.parquet").write_text("x"),
        "na.parquet: is no run's file",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_refused_in_one_line(fault, folder):
    spoil, message = FAULTS[fault]
    spoil(folder)
    done = run("report", folder)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert str(folder) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "report.html").exists()
    assert not (folder / "charts").exists()
