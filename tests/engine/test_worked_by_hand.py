"""The examples that docs/semantics.md works out by hand: each collective, and each rule for paths."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import Fixed
from runs_of_settings import run_engine
from strategies import Setting, settings
from tiers import examples

import ddlsched
from ddlsched.results.slices import transfer_slices
from ddlsched.workload.tasks import KINDS
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

PAGE = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text(encoding="utf-8")


def rows(first_column: str) -> list[list[str]]:
    """Return the rows of the table whose header begins so."""
    (table,) = re.findall(
        rf"^\| {re.escape(first_column)}.* ms \|\n(?:\|.*\n)+|^\| {re.escape(first_column)}.*JCT \(s\) \|\n(?:\|.*\n)+",
        PAGE,
        re.M,
    )
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


COLLECTIVES = rows("kind | algorithm | servers x GPUs")
PATHS = rows("`--path`")
NETWORKS = {
    "star": Star(nic_gbps=8.0, nvlink_gbps=32.0),
    "4 rails": RailOptimised(rails=4, rail_gbps=8.0, nvlink_gbps=32.0),
}


def test_every_kind_and_every_rule_has_an_example() -> None:
    assert {row[0] for row in COLLECTIVES} == set(KINDS)
    assert {row[0].partition(":")[0] for row in PATHS} == {"route", "ecmp", "least-congested", "sglb"}
    assert len({tuple(row[:4]) for row in COLLECTIVES}) == len(COLLECTIVES) >= 17


@pytest.mark.parametrize("row", COLLECTIVES, ids=lambda row: " ".join(row[:4]))
def test_a_collective_takes_as_long_as_by_hand(row: list[str]) -> None:
    kind, algorithm, shape, network, _, expected_ms = row
    servers, gpus = map(int, shape.split(" x "))
    workers = [list(range(servers * gpus))]
    task = ddlsched.CollectiveTask(name="c", kind=kind, algorithm=algorithm, message_bytes=8e6, group="all")
    dag = ddlsched.IterationDag((task,), {"all": workers})
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=servers * gpus, iterations=1, iteration=dag, gpu_memory_mb=1)
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=4, topology=NETWORKS[network])
    placed = Fixed(gpus={"a": [4 * server + gpu for server in range(servers) for gpu in range(gpus)]})
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement=placed, contention="max-min")
    assert 1000 * result.jobs["jct_s"].item() == pytest.approx(float(expected_ms), abs=1e-5)


@pytest.mark.parametrize("row", PATHS, ids=lambda row: row[0])
def test_flows_take_the_paths_that_the_rule_gives_by_hand(row: list[str]) -> None:
    path, *spines, _, expected_s = row
    iteration = ddlsched.DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=1e9)
    jobs = [
        ddlsched.Job(job_id=name, arrival_s=0, num_gpus=2, iterations=2, iteration=iteration, gpu_memory_mb=1)
        for name in "ab"
    ]
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(
            num_servers=4, gpus_per_server=1, topology="leaf-spine:servers_per_leaf=2,spines=2,nic_gbps=8"
        ),
        placement=Fixed(gpus={"a": [0, 2], "b": [1, 3]}),
        order="fifo",
        communication="bounded-overlap:limit=9",
        contention="max-min",
        path=path,
        timeline=True,
    )
    assert result.jobs["jct_s"].tolist() == pytest.approx([float(expected_s)] * 2)
    names = [link.name for link in result.finished.network.links]
    wanted = {"a": spines[:2], "b": spines[2:]}
    transfers = transfer_slices(result)
    assert set(transfers["job_id"]) == set(wanted)
    for transfer in transfers.itertuples():
        there, back = wanted[transfer.job_id]
        crossed = {names[link] for link in transfer.links if " to " in names[link]}
        assert crossed == {
            f"leaf 0 to spine {there}",
            f"spine {there} to leaf 1",
            f"leaf 1 to spine {back}",
            f"spine {back} to leaf 0",
        }


def test_the_hashes_are_those_of_the_page() -> None:
    """By the definition on the page, once more."""

    def mix(bits: int) -> int:
        bits ^= bits >> 16
        bits = bits * 0x7FEB352D % 2**32
        bits ^= bits >> 15
        bits = bits * 0x45D9F3B % 2**32
        return bits ^ bits >> 16

    def hashed(seed: int, *numbers: int) -> int:
        for number in numbers:
            seed = mix((seed + number) % 2**32)
        return seed

    for row in PATHS:
        if found := re.search(r"hashes ([\d, ]+\d)", row[5]):
            seed = int(row[0].partition("seed=")[2])
            flows = ((0, 0, 2), (0, 2, 0), (1, 1, 3), (1, 3, 1))
            hashes = [hashed(seed, *flow) for flow in flows]
            assert [int(text) for text in found[1].split(", ")] == hashes
            assert [str(each % 2) for each in hashes] == row[1:5]


# ---- Bytes, whatever the path


@pytest.mark.long
@given(
    settings(disturbed=False, grouped=True), st.sampled_from(("ecmp:seed=3", "least-congested", "sglb:best=2,seed=5"))
)
@hypothesis_settings(max_examples=examples(8))
def test_cards_and_ports_carry_the_same_on_any_path_and_switches_keep_nothing(setting: Setting, path: str) -> None:
    on_routes, on_paths = (run_engine(replace(setting, path=each)) for each in (None, path))
    network = on_paths.finished.network
    ends = network.ports.stop
    if on_routes.placements[["job_id", "gpu"]].equals(on_paths.placements[["job_id", "gpu"]]):
        same = on_routes.links["bytes"][:ends].tolist()
        assert on_paths.links["bytes"][:ends].tolist() == pytest.approx(same, rel=1e-9, abs=1e-3)
    entering: dict[str, float] = {}
    leaving: dict[str, float] = {}
    for link, carried in zip(network.links[ends:], on_paths.links["bytes"][ends:], strict=True):
        source, target = link.name.split(" to ")
        leaving[source] = leaving.get(source, 0.0) + carried
        entering[target] = entering.get(target, 0.0) + carried
    graph = setting.topology.graph(setting.cluster.num_servers)
    beside_servers = {str(switch) for node in graph if graph.degree(node) == 1 for switch in graph.adj[node]}
    for switch in (entering.keys() | leaving.keys()) - beside_servers:
        assert entering.get(switch, 0.0) == pytest.approx(leaving.get(switch, 0.0), rel=1e-9, abs=1e-3)
