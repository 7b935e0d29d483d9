"""What somebody meets who uses the commands for the first time."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refused, run

import ddlsched
from ddlsched.workload.workload_files import is_generator

ROOT = Path(__file__).parents[2]
JOBS = "microsoft-160:scale=0.001"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_simulate_takes_a_generator_whose_jobs_the_seed_makes() -> None:
    done = run("simulate", JOBS, "--seed", 3, "--json")
    expected = ddlsched.simulate(JOBS, seed=3).summary()
    assert json.loads(done.stdout)["average_jct_s"] == expected["average_jct_s"]
    assert expected["average_jct_s"] != ddlsched.simulate(JOBS, seed=4).summary()["average_jct_s"]


@pytest.mark.long
def test_a_run_of_a_generator_is_explained_from_its_file() -> None:
    assert run("simulate", JOBS, "--seed", 3, "--run-out", "run.parquet").exit_code == 0
    done = run("explain", "run.parquet", "147", "--json")
    jobs = ddlsched.simulate(JOBS, seed=3).jobs.set_index("job_id")
    assert sum(json.loads(done.stdout)["phases_s"].values()) == pytest.approx(jobs.loc["147", "jct_s"])


def test_a_file_of_another_kind_is_told_from_a_misspelt_generator() -> None:
    Path("jobs.txt").write_text("")
    refused(run("simulate", "jobs.txt"), "jobs.txt", "the suffix is '.txt'", ".csv")
    refused(run("simulate", "microsft-160"), "'microsft-160'", "'microsoft-160'", "jobs.csv")


@pytest.mark.long
def test_the_result_says_which_policies_and_network_it_is_of() -> None:
    default = run("simulate", JOBS).stdout
    assert "Policies: lwf:kappa=1 + srsf + adadual. Network: star, linear contention." in default
    other = run("simulate", JOBS, "--scheduler", "srsf-2", "--order", "fifo", "--topology", "leaf-spine").stdout
    expected = "Policies: lwf:kappa=1 + fifo + bounded-overlap:limit=2. Network: leaf-spine, linear contention."
    assert expected in other
    assert run("simulate", JOBS, "--run-out", "run.parquet").exit_code == 0
    again = run("simulate", JOBS, "--replay", "run.parquet").stdout
    assert "Policies: replay of run.parquet + srsf + adadual. Network" in again
    failing = ["--failures", "rsc-2", "--checkpoint", "young", "--recovery", "wait", "--health", "repeated-failures"]
    assert "+ adadual + young + wait + repeated-failures. Network" in run("simulate", JOBS, *failing).stdout
    Path("queues.yaml").write_text("queues: [{name: a, gpus: 64}]\n")
    columns = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,queue"
    Path("queued.csv").write_text(f"{columns}\na,0,1,1,1,1,1,1,a\n")
    assert "+ adadual + kueue. Network" in run("simulate", "queued.csv", "--queues", "queues.yaml").stdout


def test_half_a_flag_is_told_the_whole() -> None:
    refused(run("simulate", JOBS, "--gpus", 8), "--gpus", "--gpus-per-server")
    refused(run("simulate", JOBS, "--server", 8), "--server:", "--servers or --server-table")
    refused(run("compare", JOBS, "--gpus=8"), "--gpus", "--gpus-per-server")


def commands() -> list[str]:
    """Return each ``ddlsched simulate ...`` of the documents."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [text for page in pages for text in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)]
    return [line for text in blocks for line in text.splitlines() if re.match(r"ddlsched simulate [^-]", line)]


def test_every_simulate_of_the_documents_names_a_workload_that_it_takes() -> None:
    given = {shlex.split(line.partition(" #")[0].rstrip("\\"))[2] for line in commands()}
    assert {"jobs.csv", "stream:load=1.2,num_jobs=100,scale=0.05"} <= given
    for jobs in given:
        is_generator(jobs)  # raises if it is neither that nor a file of jobs


@pytest.mark.long
def test_a_run_imports_nothing_that_it_does_not_need(tmp_path):
    header = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
    (tmp_path / "jobs.csv").write_text(f"{header}a,0,8,10,0.1,0.1,1e6,100\n")
    program = "import sys; from ddlsched.cli import main\ntry: main()\nfinally: print(*sys.modules)"
    command = [sys.executable, "-c", program, "simulate", "jobs.csv"]
    run("simulate", tmp_path / "jobs.csv")  # which may compile
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    assert "ddlsched.engine.driver" in imported
    heavy = {"matplotlib", "networkx", "numba.np.linalg", "pandas", "pyarrow", "pydantic", "rich", "scipy.linalg"}
    assert heavy.isdisjoint(imported)


def test_a_file_without_a_class_names_its_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mypol.py").write_text("class LAS:\n    def key(self, job, now_s): return 0.0\n")
    refused(run("simulate", "microsoft-160:scale=0.001", "--order", "mypol.py"), "expected mypol.py:CLASS. Known: LAS.")


def test_a_run_is_not_written_over_a_csv(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("mine")
    said = "--run-out jobs.csv: is written as Parquet; expected FILE.parquet"
    refused(run("simulate", "microsoft-160:scale=0.001", "--run-out", "jobs.csv"), said)
    assert Path("jobs.csv").read_text() == "mine"


def test_a_long_error_is_cut_in_its_middle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(",".join(f"column{number}" for number in range(20_000)) + "\n1\n")
    done = run("validate", "jobs.csv")
    assert done.exit_code == 2
    assert 100 < len(done.stderr) < 5000
