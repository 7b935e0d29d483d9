"""The timeline as one table: all of both kinds, the same in a Parquet file, and what SQL says about it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import run
from golden_cases import FOLDER

import ddlsched
from ddlsched.errors import InputError
from ddlsched.results.result import Result
from ddlsched.results.slices import compute_slices, transfer_slices

JOBS = "microsoft-160:scale=0.001"


@pytest.fixture(scope="module")
def recorded() -> Result:
    return ddlsched.simulate(JOBS, scheduler="srsf-2", seed=1, timeline=True)


@pytest.mark.long
def test_it_has_all_tasks_and_transfers_sorted_by_start(recorded: Result) -> None:
    table, computing, sending = recorded.timeline, compute_slices(recorded), transfer_slices(recorded)
    assert table["start_ns"].is_monotonic_increasing
    tasks, transfers = table[table["kind"] == "compute"], table[table["kind"] == "transfer"]
    assert len(tasks) == len(computing) > 0
    assert len(transfers) == len(sending) > 0
    busy_ns = (tasks["end_ns"] - tasks["start_ns"]).groupby(tasks["gpu"]).sum()
    expected_ns = (computing["end_ns"] - computing["start_ns"]).groupby(computing["gpu"]).sum()
    assert busy_ns.tolist() == expected_ns.tolist()
    assert sorted(map(tuple, transfers["links"])) == sorted(sending["links"])
    assert tasks["links"].isna().all()
    assert transfers["gpu"].isna().all()


@pytest.mark.long
def test_a_parquet_file_has_the_table(recorded: Result, tmp_path: Path) -> None:
    ddlsched.write_timeline(recorded, tmp_path / "run.parquet")
    stored = pq.read_table(tmp_path / "run.parquet").to_pylist()
    for row, other in zip(stored, recorded.timeline.to_dict("records"), strict=True):
        assert all(row[name] == other[name] for name in ("kind", "job_id", "task", "iteration", "start_ns", "end_ns"))
        assert row["links"] == (other["links"] if row["kind"] == "transfer" else None)


def test_the_command_line_writes_it_too(tmp_path: Path) -> None:
    path = tmp_path / "run.Parquet"
    assert run("simulate", str(FOLDER / "case1.csv"), "--timeline", str(path)).exit_code == 0
    assert "compute" in pq.read_table(path)["kind"].to_pylist()


@pytest.mark.long
def test_duckdb_finds_what_the_tables_say(recorded: Result, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "run.parquet"
    ddlsched.write_timeline(recorded, path)
    query = f"SELECT gpu, sum(end_ns - start_ns) FROM '{path}' WHERE kind = 'compute' GROUP BY gpu ORDER BY gpu"
    found = {gpu: int(busy_ns) for gpu, busy_ns in duckdb.sql(query).fetchall()}
    busy_s = recorded.gpus["busy_s"]
    assert found == {gpu: round(busy_s[gpu] * 1e9) for gpu in busy_s.index if busy_s[gpu] > 0}


def test_a_run_that_was_not_recorded_has_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no timeline"):
        ddlsched.write_timeline(ddlsched.simulate(JOBS, seed=1), tmp_path / "run.parquet")
    assert not list(tmp_path.iterdir())
