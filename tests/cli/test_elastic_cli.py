"""Elastic jobs on the command line: simulate, explain, timelines, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster
from ddlsched.simulation import simulate
from ddlsched.workload.generators.elastic_mix import elastic_mix
from ddlsched.workload.workload_files import read_workload, write_workload

CAPACITY = "server,join_s,leave_s\n0,0,\n1,0,2000\n1,2500,\n2,0,3000\n3,1000,\n"
FLAGS = ["--servers", "4", "--allocation", "elastic-scaling:interval_s=300,queue=true"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_workload(elastic_mix(seed=1, gpus=16, hours=0.5, work_hours=0.2), tmp_path / "jobs.json")
    (tmp_path / "servers.csv").write_text(CAPACITY)
    return tmp_path


@pytest.mark.long
def test_a_run_from_files(folder: Path) -> None:
    flags = [*FLAGS, "--rescale-cost", "restart_s=30", "--capacity", str(folder / "servers.csv")]
    files = ["--run-out", str(folder / "run.parquet"), "--timeline", str(folder / "timeline.json")]
    done = run("simulate", str(folder / "jobs.json"), *flags, *files, "--json")
    assert done.exit_code == 0, done.stderr
    expected = simulate(
        read_workload(folder / "jobs.json"),
        Cluster(num_servers=4),
        allocation=FLAGS[-1],
        rescale_cost="restart_s=30",
        capacity=CapacityTrace.read(folder / "servers.csv"),
    )
    assert json.loads(done.stdout)["average_jct_s"] == expected.summary()["average_jct_s"]
    assert len(expected.rescales) > 0
    assert expected.rescales["cost_s"].isin([0.0, 30.0]).all()
    assert json.loads((folder / "timeline.json").read_text())["traceEvents"]
    queued = expected.jobs.loc[expected.jobs["queueing_s"].idxmax(), "job_id"]
    told = run("explain", str(folder / "run.parquet"), queued)
    assert told.exit_code == 0, told.stderr
    assert "the allocation policy gave it no GPUs" in told.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the run has elastic jobs but no allocation=; expected both or neither"),
        (
            ["--allocation", "elastic-scalin"],
            "no allocation is named 'elastic-scalin'. Did you mean 'elastic-scaling'?",
        ),
        (
            ["--rescale-cost", "up_s=3"],
            "--rescale-cost: does nothing alone; expected --allocation or --recovery as well",
        ),
        ([*FLAGS[2:], "--rescale-cost", "up=3"], "rescale cost: 'up=3' names no constant"),
        (
            [*FLAGS[2:], "--servers", "3", "--capacity", "servers.csv"],
            "capacity of server 3: the cluster's servers are 0 to 2",
        ),
        ([*FLAGS[2:], "--capacity", "none.csv"], "none.csv: no such file; expected a capacity trace (CSV)"),
    ],
)
def test_what_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str) -> None:
    monkeypatch.chdir(folder)
    done = run("simulate", "jobs.json", *flags)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_names_of_allocations_are_listed() -> None:
    assert "elastic-scaling" in run("list", "allocation").stdout.split()
