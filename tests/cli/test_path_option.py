"""``--path`` of ``simulate`` and ``compare``: a run knows its path policy, and what is none is refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import refused, run

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
NETWORK = ("--servers", 4, "--gpus-per-server", 1, "--topology", "leaf-spine:servers_per_leaf=2,spines=2")
POLICY = '''
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Same:
    """One path for all."""
    number: int = 0

    def path(self, flow, network):
        return min(self.number, len(flow.paths) - 1) if self.number < 2 else self.number


@dataclass(frozen=True, kw_only=True)
class Across:
    """Job "a" on the first server of both leaves, any other on the second."""

    def place(self, job, cluster):
        return [0, 2] if job.job_id == "a" else [1, 3]
'''


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Two jobs on one server of each leaf, and a file with a policy."""
    (tmp_path / "mine.py").write_text(POLICY)
    file = tmp_path / "jobs.csv"
    file.write_text(HEADER + "a,0,2,4,0.01,0.01,1e9,20000\nb,0,2,4,0.01,0.01,1e9,20000\n")
    return file


def average_jct_s(jobs: Path, *path: object) -> float:
    across = f"{jobs.parent / 'mine.py'}:Across"
    shared = ("--communication", "bounded-overlap:limit=9")
    command = ("simulate", jobs, *NETWORK, "--placement", across, *shared, "--contention", "max-min", "--json", *path)
    finished = run(*command)
    assert finished.exit_code == 0, finished.stderr
    return float(json.loads(finished.stdout)["average_jct_s"])


@pytest.mark.long
def test_a_path_policy_by_name_and_of_a_file(jobs: Path) -> None:
    mine = jobs.parent / "mine.py"
    assert average_jct_s(jobs) == average_jct_s(jobs, "--path", "route")
    # 1e9 bytes of each job at 10 Gbit/s take 0.8 s between two computations of 0.02 s; on one path, twice as long.
    apart_s, together_s = 4 * (0.02 + 0.8), 4 * (0.02 + 1.6)
    assert average_jct_s(jobs, "--path", "least-congested") == pytest.approx(apart_s)
    assert average_jct_s(jobs, "--path", f"{mine}:Same:number=1") == pytest.approx(together_s)
    for path in ("ecmp:seed=1", "sglb:best=2,seed=1"):
        assert apart_s - 1e-6 <= average_jct_s(jobs, "--path", path) <= together_s + 1e-6


def test_what_is_no_path_policy_is_refused(jobs: Path) -> None:
    command = ("simulate", jobs, *NETWORK, "--placement", "list-scheduling", "--path")
    refused(run(*command, "ecpm"), "no path is named 'ecpm'. Did you mean 'ecmp'?")
    refused(run(*command, "ecmp:seed=x"), "path ecmp, parameter seed: 'x' is not a whole number")
    none = run(*command, f"{jobs.parent / 'mine.py'}:Same:number=7")
    refused(none, "path answered 7 for the flow from server 0 to", "expected a whole number from 0 to", exit_code=1)


@pytest.mark.long
def test_compare_takes_several(jobs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    paths = ("--path", "route", "--path", "least-congested")
    finished = run("compare", jobs, *NETWORK, *paths, "--seeds", 1, "--processes", 1, "--out", out, "--json")
    assert finished.exit_code == 0, finished.stderr
    assert "least-congested" in finished.stdout
    assert (out / "runs.csv").read_text().count("least-congested") >= 1
