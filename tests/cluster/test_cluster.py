"""Clusters of equal and of different servers."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.cluster.cluster import Server
from ddlsched.testing import cluster_view
from topologies.clos import Clos


def mixed(**fields) -> ddlsched.Cluster:
    servers = (Server(gpus=2, gpu_memory_mb=1000.0), Server(gpus=1, gpu_memory_mb=2000.0, **fields))
    return ddlsched.Cluster(servers=servers)


job = functools.partial(data_parallel_job, forward_s=1.0)


def simulated(*jobs, cluster, **options):
    return ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, **{"placement": "first-fit"} | options)


def test_gpus_are_numbered_server_by_server() -> None:
    cluster = mixed(relative_speed=2.0)
    assert (cluster.num_servers, cluster.num_gpus) == (2, 3)
    assert cluster.server_of_gpu.tolist() == [0, 0, 1]
    assert cluster.gpu_memory_bytes.tolist() == [10**9, 10**9, 2 * 10**9]
    assert cluster.relative_speed.tolist() == [1.0, 1.0, 2.0]
    assert cluster.common_multiple == 2


def test_a_job_takes_the_time_of_the_gpus_that_it_is_on() -> None:
    fast = simulated(job(memory_mb=1500.0), cluster=mixed(relative_speed=4.0))
    assert fast.gpus_of("a") == (2,)
    assert fast.jobs.loc[0, "jct_s"] == 0.25
    both = simulated(job(gpus=3), cluster=mixed(relative_speed=4.0))
    assert both.jobs.loc[0, "jct_s"] == 1.0  # of the slowest worker
    assert both.gpus["busy_s"].tolist() == [1.0, 1.0, 0.25]


def test_a_transfer_goes_at_the_pace_of_the_slowest_card_and_a_faster_one_alone_gains_nothing() -> None:
    times_s = [
        simulated(job(gpus=3, message_bytes=1e9), cluster=mixed(nic_gbps=gbps)).jobs.loc[0, "communication_s"]
        for gbps in (None, 10.0, 40.0, 2.5)
    ]
    assert times_s == pytest.approx([0.856, 0.856, 0.856, 4 * 0.856])


def test_two_faster_cards_make_a_transfer_faster() -> None:
    servers = tuple(Server(gpus=1, nic_gbps=gbps) for gbps in (None, 40.0, 40.0))
    big = job(gpus=2, message_bytes=1e9)
    slow = simulated(big, cluster=ddlsched.Cluster(servers=servers))
    fast = simulated(big, cluster=ddlsched.Cluster(servers=servers[1:]))
    assert slow.jobs.loc[0, "communication_s"] == pytest.approx(0.856)
    assert fast.jobs.loc[0, "communication_s"] == pytest.approx(0.856 / 4)


def test_lwf_compares_mean_loads_of_servers_of_different_size() -> None:
    # Mean load of server 0 is 1 s a GPU (two GPUs), of server 1 it is 1.5 s (one GPU, whose sum is the smaller).
    view = cluster_view(num_servers=2, gpus_per_server=1)
    assert view.server_loads_ns() == [0, 0]
    jobs = [job(f"x{n}", memory_mb=800.0) for n in range(2)] + [job("y", memory_mb=1100.0, iterations=2)]
    last = job("z", gpus=2, memory_mb=100.0)
    result = simulated(*jobs, last, cluster=mixed(), placement="lwf:kappa=1", order="fifo")
    assert result.gpus_of("z") == (0, 1)


def test_the_table_of_servers_is_read(tmp_path) -> None:
    path = tmp_path / "servers.csv"
    path.write_text("gpus,gpu_memory_mb,servers,relative_speed,nic_gbps\n4,16000,2,,\n8,80000,,2.5,25\n")
    cluster = ddlsched.read_cluster(path, topology="leaf-spine")
    small, large = (
        Server(gpus=4, gpu_memory_mb=16000.0),
        Server(gpus=8, gpu_memory_mb=80000.0, relative_speed=2.5, nic_gbps=25.0),
    )
    assert cluster.servers == (small, small, large)
    assert cluster.topology == "leaf-spine"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpus\n4\n", "column 'gpu_memory_mb' is missing"),
        ("gpus,gpu_memory_mb\n0,1\n", r"row 1 \(line 2\), column gpus: '0' is out of range"),
        ("gpus,gpu_memory_mb\n4,\n", "column gpu_memory_mb: is empty"),
        ("gpus,gpu_memory_mb,relative_speed\n4,1,0\n", "relative_speed is 0.0; expected a number from 1e-6 to 1e"),
        ("gpus,gpu_memory_mb,nic_gbps\n4,1,fast\n", "column nic_gbps: 'fast' is no number"),
        ("gpus,gpu_memory_mb,servers\n1000,1,10001\n", "10001000 GPUs; expected at most 10000000"),
        ("gpus,gpu_memory_mb,speed\n4,1,2\n", "unknown column 'speed'"),
        ("gpus,gpu_memory_mb\n", "has a header only; expected at least one server"),
    ],
)
def test_a_table_that_cannot_be_is_refused(tmp_path, text, fault) -> None:
    path = tmp_path / "servers.csv"
    path.write_text(text)
    with pytest.raises(ddlsched.InputError, match=fault):
        ddlsched.read_cluster(path)


def test_a_job_that_needs_more_large_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(ddlsched.InputError, match="needs 1500 MB on each of 2 GPUs, so it can never fit"):
        simulated(job(gpus=2, memory_mb=1500.0), cluster=mixed())


def test_a_run_that_is_cut_off_counts_unfinished_jobs_apart() -> None:
    jobs = [job("a"), job("b", iterations=5), job("c", memory_mb=32768.0)]
    cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=2)
    result = simulated(*jobs, cluster=cluster, order="fifo", placement="list-scheduling", until_s=3.5)
    assert result.jobs["state"].tolist() == ["finished", "running", "finished"]
    assert np.isnan(result.jobs.loc[1, "jct_s"])
    assert result.summary()["unfinished_jobs"] == 1
    assert result.summary()["average_jct_s"] == pytest.approx((1.0 + 2.0) / 2)
    assert result.gpus["busy_s"].tolist() == [2.0, 3.5]
    assert result.summary()["gpu_utilisation"] == pytest.approx(5.5 / 7)


def test_the_cut_is_after_what_happens_at_that_instant() -> None:
    result = simulated(job("a"), cluster=mixed(), until_s=1.0)
    assert result.jobs["state"].tolist() == ["finished"]


@pytest.mark.long
def test_jobs_and_computing_of_the_warm_up_are_not_counted() -> None:
    jobs = [job("a", iterations=4), ddlsched.Job(**{**vars_of(job("b")), "arrival_s": 2.0})]
    cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=2)
    result = simulated(*jobs, cluster=cluster, placement="list-scheduling", warmup_s=1.5)
    assert result.jobs["counted"].tolist() == [False, True]
    assert result.summary()["jobs"] == 1
    assert result.summary()["average_jct_s"] == 1.0
    assert result.summary()["gpu_utilisation"] == pytest.approx((2.5 + 1.0) / (2 * 2.5))


def test_a_warm_up_that_outlasts_the_run_leaves_nothing_to_measure() -> None:
    result = simulated(job("a"), cluster=mixed(), warmup_s=100.0)
    summary = result.summary()
    assert summary["jobs"] == 0
    assert np.isnan([summary["average_jct_s"], summary["gpu_utilisation"]]).all()


def vars_of(one: ddlsched.Job) -> dict[str, object]:
    names = ("job_id", "arrival_s", "num_gpus", "iterations", "iteration", "gpu_memory_mb")
    return {name: getattr(one, name) for name in names}


def test_server_loads_beyond_64_bits_are_exact() -> None:
    # Four times 9e9 s are 3.6e19 ns; one second more decides.
    view = cluster_view(num_servers=2, gpus_per_server=4, load_s=[9e9] * 4 + [9e9] * 3 + [9e9 + 1])
    assert view.server_loads_ns() == [36 * 10**18, sum(view.load_ns(gpu) for gpu in range(4, 8))]
    assert view.server_loads_ns()[1] - 36 * 10**18 == pytest.approx(1e9, rel=1e-6)
    assert view.server_ranks(np.array([1, 0, 1])).tolist() == [1, 0, 1]


def test_the_least_loaded_come_first_and_ties_go_to_the_lower_number() -> None:
    view = cluster_view(num_servers=2, gpus_per_server=3, load_s=[3, 1, 2, 1, 0, 2])
    gpus = np.array([0, 1, 2, 3, 5])
    assert view.least_loaded(gpus, 4) == [1, 3, 2, 5]
    assert view.least_loaded(gpus, 2) == [1, 3]
    assert view.least_loaded(gpus, 1) == [1]


def test_levels_of_servers_are_in_place_of_the_topologys(tmp_path) -> None:
    (tmp_path / "s.csv").write_text("gpus,gpu_memory_mb,servers,level rack,level zone\n4,1,2,r0,z\n4,1,1,r1,z\n")
    cluster = ddlsched.read_cluster(tmp_path / "s.csv", topology="clos")
    assert cluster.levels == {"rack": (0, 0, 1), "zone": (0, 0, 0)}
    assert list(cluster.network(Clos()).levels) == ["server", "rack", "zone"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpus,gpu_memory_mb,level rack\n4,1,\n", "column level rack: is ''; expected a unit"),
        ("gpus,gpu_memory_mb,level a b\n4,1,r\n", "without spaces and colons"),
    ],
)
def test_levels_that_cannot_be_are_refused(tmp_path, text: str, fault: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(ddlsched.InputError, match=fault):
        ddlsched.read_cluster(tmp_path / "s.csv")


def test_servers_have_the_same_levels() -> None:
    with pytest.raises(ddlsched.InputError, match="expected the same of each"):
        ddlsched.Cluster(servers=(Server(levels=(("rack", "r"),)), Server()))
