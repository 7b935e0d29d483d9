"""What ``validate`` says of the wider doors, by hand: groups, kinds, networks, paths and the price of going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run

from ddlsched.cli.validate_command import network_summary
from ddlsched.cluster.cluster import Cluster

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,model\n"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(HEADER + "a,0,2,5,1,1,1e9,1000,r\nb,0,8,5,1,1,1e9,4000,l\n")
    Path("servers.csv").write_text("servers,gpus,gpu_memory_mb,gpu_kind\n3,4,8000,new\n1,4,8000,old\n")
    Path("t.csv").write_text("model,new,old,never\nr,4,1,\nl,3,1.5,2\n")


def found(*words: object) -> dict[str, Any]:
    done = run("validate", *words, "--json")
    assert done.exit_code == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert run("validate", *words).exit_code == 0
    return told


def test_collectives_by_kind_with_their_sizes_and_bytes() -> None:
    groups = {"tensor": [[0, 1], [2, 3]], "data": [[0, 2], [1, 3]], "all": [[0, 1, 2, 3]], "one": [[3]]}
    tasks = [
        {"name": "c", "kind": "compute", "duration_s": 1},
        {"name": "t", "kind": "all-gather", "message_bytes": 5e8, "group": "tensor", "after": ["c"]},
        {"name": "d", "kind": "all-reduce", "message_bytes": 1e9, "group": "data", "after": ["t"]},
        {"name": "e", "kind": "all-reduce", "message_bytes": 2e9, "group": "all", "after": ["d"]},
        {"name": "f", "kind": "broadcast", "message_bytes": 2e9, "group": "one", "after": ["e"]},
    ]
    job = {"job_id": "g", "arrival_s": 0, "gpus": 4, "iterations": 10, "gpu_memory_mb": 1}
    Path("jobs.json").write_text(json.dumps({"jobs": [job | {"tasks": tasks, "groups": groups}]}))
    told = found("jobs.json")
    assert told["jobs_with_groups"] == 1
    # Two tuples of all-gathers in each of 10 iterations; a broadcast to oneself is none.
    assert told["collectives"] == {
        "all-gather": {"tuples": 2, "workers": [2, 2], "message_bytes": 2 * 10 * 5e8},
        "all-reduce": {"tuples": 3, "workers": [2, 4], "message_bytes": 10 * (2 * 1e9 + 2e9)},
    }
    printed = " ".join(run("validate", "jobs.json").stdout.split())
    assert "all-gather 2 over 2 workers, 10 GB in all runs" in printed
    assert "all-reduce 3 over 2 to 4 workers, 40 GB in all runs" in printed


def test_jobs_are_counted_by_their_gpus() -> None:
    sizes = [1, 1, 2, 3, 4, 4, 5, 7, 8, 16]
    Path("jobs.csv").write_text(HEADER + "".join(f"{n},{n},{gpus},5,1,1,1e9,1,r\n" for n, gpus in enumerate(sizes)))
    told = found("jobs.csv")
    assert [told[f"jobs{which}"] for which in ("", "_of_1_gpu", "_of_2_to_4_gpus", "_of_8_or_more_gpus")] == [
        10,
        2,
        4,
        2,
    ]
    assert told["arrivals_s"] == [0.0, 9.0]
    assert told["gpu_hours_of_compute"] == round(sum(sizes) * 5 * 2 / 3600, 3)


def test_a_matrix_of_throughputs_by_itself_and_with_servers() -> None:
    told = found("t.csv")
    assert told["kind"] == "throughputs"
    assert (told["models"], told["kinds"], told["missing_pairs"]) == (2, "new, old, never", 1)
    assert told["throughputs"] == [1.0, 4.0]
    assert found("t.csv", "--server-table", "servers.csv")["kinds_of_the_servers"] == "new, old"
    Path("servers.csv").write_text("gpus,gpu_memory_mb,gpu_kind\n4,8000,other\n")
    refused(run("validate", "t.csv", "--server-table", "servers.csv"), "gpu_kind of server 0 is 'other'", "t.csv")


def test_a_workload_on_kinds_of_gpus() -> None:
    command = ("jobs.csv", "--server-table", "servers.csv", "--throughputs", "t.csv")
    told = found(*command, "--reference-kind", "new")
    # "r" is four times, "l" twice as slow on an old GPU.
    assert (told["models"], told["speeds_by_kind"]) == (2, [0.25, 1.0])
    Path("jobs.csv").write_text(HEADER + "a,0,2,5,1,1,1e9,1000,r\nb,0,8,5,1,1,1e9,4000,vgg\n")
    refused(run("validate", *command), "jobs.csv, row 2: job 'b': t.csv has no throughput in the row of model 'vgg'")
    alone = run("validate", "jobs.csv", "--reference-kind", "new")
    refused(alone, "reference_kind is 'new'; expected throughputs as well")
    refused(run("validate", "jobs.csv", "--throughputs", "t.csv"), "the gpu_kind of server 0 is None")


def test_kinds_of_a_table_of_servers() -> None:
    assert found("servers.csv")["gpu_kinds"] == "new (12 GPUs), old (4 GPUs)"


@pytest.mark.long
def test_links_inside_of_servers_and_paths_between_them() -> None:
    told = found("servers.csv", "--topology", "leaf-spine:servers_per_leaf=2,spines=3")
    # Two leaves and three spines: 6 cables, 2 links each. One path under a leaf, one a spine between leaves.
    names = ("network_cards", "card_gbps", "links_between_switches", "paths_of_a_pair")
    assert [told[name] for name in names] == [4, 10.0, 12, [1, 3.0, 3]]
    rails = "rail-optimised:hosts_per_unit=2,rails=2,spines=3,rail_gbps=400,nvlink_gbps=3600"
    told = found("servers.csv", "--topology", rails)
    assert [told[name] for name in ("network_cards", "ports_of_gpus", "port_gbps")] == [8, 16, 3600.0]
    assert told["paths_of_a_pair"] == [1, 3.0, 3]
    # 16 servers in two racks, 16 spines.
    assert found("jobs.csv", "--topology", "monkeytree")["paths_of_a_pair"] == [1, 16.0, 16]
    assert "paths_of_a_pair" not in found("servers.csv")


def test_of_many_servers_some_pairs_are_looked_at() -> None:
    Path("many.csv").write_text("servers,gpus,gpu_memory_mb\n100,8,8000\n")
    told = found("many.csv", "--topology", "leaf-spine:servers_per_leaf=10,spines=4")
    # Every third server: 34 of them.
    assert told["pairs_looked_at"] == 34 * 33
    assert told["paths_of_a_pair"] == [1, 4.0, 4]


def test_a_topology_whose_route_is_none_is_refused() -> None:
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport networkx as nx\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Apart:\n"
        "    def graph(self, num_servers):\n        graph = nx.Graph()\n"
        "        for s in range(num_servers):\n"
        "            graph.add_edge(s, f'switch {s % 2}', bandwidth_bytes_per_s=1e9, latency_s=0.0)\n"
        "        return graph\n\n"
        "    def route(self, graph, source, target):\n"
        "        return [source, f'switch {source % 2}', f'switch {target % 2}', target]\n"
    )
    said = run("validate", "servers.csv", "--topology", "mine.py:Apart")
    refused(said, "the route from server 0 to 1 goes from 'switch 0' to 'switch 1'; expected a cable of the graph")


@pytest.mark.long
def test_the_price_of_going_on() -> None:
    told = found("jobs.csv", "--restart-s", 30, "--server-table", "servers.csv")
    # 2 GPUs of 1000 MB, and 4 of the 8 that a server holds of 4000 MB, over a card of 1.25e9 B/s.
    assert told["state_mb_of_a_gpu"] == [1000.0, 2500.0, 4000.0]
    assert told["going_on_elsewhere_s"] == [30 + 1.6, 30 + (1.6 + 12.8) / 2, 30 + 12.8]
    assert found("jobs.csv", "--state-mb", 0)["going_on_elsewhere_s"] == [0.0, 0.0, 0.0]
    assert "restart_s" not in found("jobs.csv")


def test_a_comparison_says_its_conditions() -> None:
    Path("c.yaml").write_text(
        "workloads: jobs.csv\nseeds: 1\nserver_table: servers.csv\nthroughputs: t.csv\nexclusive: true\n"
        "policies: [{order: fifo, path: ecmp}, ada-srsf]\ntopology: leaf-spine\n"
    )
    told = found("c.yaml")["conditions"]
    assert "Paths of flows were chosen by ecmp under" in told
    assert "servers exclusive leaf-spine: exclusive, one job a GPU at a time." in told
    assert "(12 new, 4 old), with the throughputs of t.csv; a throughput of 1 means the workload's times." in told


def test_a_network_has_the_cards_of_all_its_servers() -> None:
    cluster = Cluster(num_servers=3, gpus_per_server=4, topology="rail-only")
    assert network_summary(cluster)["network_cards"] == 3 * 8  # whatever GPUs a server has
