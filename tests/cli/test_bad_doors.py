"""What the wider doors refuse, from the command line: a line with file, row and field, or policy, time and job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,model\n"
MINE = '''
from dataclasses import dataclass

import networkx as nx

from ddlsched.network.contention import MaxMin


@dataclass(frozen=True, kw_only=True)
class Seventh:
    def path(self, flow, network):
        return 7


@dataclass(frozen=True, kw_only=True)
class Weightless(MaxMin):
    def weight(self, transfer):
        return 0.0 if transfer.job.number == 1 else 1.0


@dataclass(frozen=True, kw_only=True)
class Onto:
    """First fit; every job is to move to the last GPU of all, however full that is."""

    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

    def moves(self, running, cluster):
        return [(running[0], [cluster.num_gpus - 1])] if len(running) > 1 else []


@dataclass(frozen=True, kw_only=True)
class Islands:
    def graph(self, num_servers):
        graph = nx.Graph()
        for server in range(num_servers):
            graph.add_edge(server, f"switch {server // 2}", bandwidth_bytes_per_s=1e9, latency_s=0.0)
        return graph

    def route(self, graph, source, target):
        return [source, *dict.fromkeys([f"switch {source // 2}", f"switch {target // 2}"]), target]
'''
FOUR = ("--servers", 4, "--gpus-per-server", 1)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("jobs.csv").write_text(HEADER + "a,0,3,2,1,1,1e9,8000,r\nb,0,3,2,1,1,1e9,8000,l\n")


def refused_with(exit_code: int, *said: str, of: tuple[object, ...]) -> None:
    done = run("simulate", *of)
    lines = done.stderr.splitlines()
    assert (done.exit_code, done.stdout, len(lines)) == (exit_code, "", 1), done.stderr
    for words in said:
        assert words in lines[0]


@pytest.mark.long
def test_a_path_that_is_none() -> None:
    network = ("--topology", "leaf-spine:servers_per_leaf=2,spines=2", "--path", "mine.py:Seventh")
    said = "path Seventh() at 0.0 s, job 'a': path answered 7 for the flow from server 0 to 1"
    refused_with(1, said, "expected a whole number from 0 to 0", of=("jobs.csv", *FOUR, *network))


def test_a_group_of_workers_that_are_not_the_jobs() -> None:
    job = {"job_id": "a", "arrival_s": 0, "gpus": 3, "iterations": 1, "gpu_memory_mb": 1}
    tasks = [{"name": "r", "kind": "all-gather", "message_bytes": 1, "group": "tensor"}]
    document = {"jobs": [job | {"tasks": tasks, "groups": {"tensor": [[0, 3]]}}]}
    Path("jobs.json").write_text(json.dumps(document))
    said = "jobs.json, row 1: job 'a', field groups: group 'tensor' has worker 3; expected workers of the job's 3 GPUs"
    refused_with(2, said, of=("jobs.json",))


@pytest.mark.long
def test_a_weight_of_0_from_compiled_code() -> None:
    done = run("simulate", "jobs.csv", *FOUR, "--contention", "mine.py:Weightless")
    assert (done.exit_code, done.stdout) == (1, "")
    told, fault = done.stderr.splitlines()
    assert "contention Weightless(latency_s=0.0, per_byte_s=8e-10) raised" in told  # which compiled code tells first
    assert "at 4.0 s, job 'b': weight answered 0.0; expected a finite number > 0" in fault


def test_a_matrix_with_a_missing_pair() -> None:
    Path("servers.csv").write_text("gpus,gpu_memory_mb,gpu_kind\n2,32000,v100\n2,32000,k80\n")
    Path("t.csv").write_text("model,v100,k80\nr,40,10\nl,30,\n")
    said = (
        "jobs.csv, row 2: job 'b': t.csv has no throughput in the row of model 'l', column 'k80'; expected a number > 0"
    )
    refused_with(2, said, of=("jobs.csv", "--server-table", "servers.csv", "--throughputs", "t.csv"))


@pytest.mark.long
def test_a_move_to_a_gpu_without_memory() -> None:
    Path("jobs.csv").write_text(HEADER + "a,0,1,2,1,1,0,8000,r\nb,0,1,2,1,1,0,8000,l\n")
    cluster = ("--servers", 1, "--gpus-per-server", 2, "--gpu-memory-mb", 10000)
    said = "job 'a': moves answered GPU 1, which has 2000 MB free; expected at least 8000 MB"
    refused_with(1, "placement Onto() at 0.0 s", said, of=("jobs.csv", *cluster, "--placement", "mine.py:Onto"))


@pytest.mark.long
def test_a_network_whose_routes_are_not_connected() -> None:
    said = "topology mine.py:Islands: the route from server 1 to 2 goes from 'switch 0' to 'switch 1'; expected a cable"
    for path in ((), ("--path", "ecmp")):
        refused_with(2, said, of=("jobs.csv", *FOUR, "--topology", "mine.py:Islands", *path))
