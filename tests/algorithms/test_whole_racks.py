"""Whole racks: best fit of free servers, racks and pods, and rings that leave racks only where cables have room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.placement.whole_servers import WholeRacks, WholeServers
from ddlsched import Cluster, Workload
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view
from ddlsched.workload.generators.microsoft import microsoft_160
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix

RACKS = WholeRacks(servers_per_rack=2)
PODS = WholeRacks(servers_per_rack=2, servers_per_pod=4)


def held(*gpus: int):
    """Eight servers of two GPUs in four racks, of which some GPUs are held."""
    other = job_view(number=9)
    return cluster_view(num_servers=8, gpus_per_server=2, residents={gpu: [other] for gpu in gpus})


def test_up_to_a_rack_it_is_whole_servers():
    for gpus, taken in ((1, (0, 1, 6)), (2, (0, 6)), (4, (0,)), (3, (0,)), (4, (0, 4, 8, 12))):
        expected = WholeServers(servers_per_rack=2).place(job_view(num_gpus=gpus), held(*taken))
        assert RACKS.place(job_view(num_gpus=gpus), held(*taken)) == expected


def test_one_larger_than_a_rack_takes_whole_racks_which_need_not_be_neighbours():
    assert RACKS.place(job_view(num_gpus=8), held(4)) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert RACKS.place(job_view(num_gpus=6), held(0, 4)) == [8, 9, 10, 11, 12, 13]
    assert RACKS.place(job_view(num_gpus=8), held(0, 4, 8)) is None
    assert WholeServers(servers_per_rack=2).place(job_view(num_gpus=8), held(0, 4, 8)) is not None


def test_one_that_fits_in_a_pod_takes_whole_racks_of_the_pod_with_the_fewest():
    assert PODS.place(job_view(num_gpus=8), held(0)) == [*range(8, 16)]
    assert PODS.place(job_view(num_gpus=8), held(0, 8)) is None


def test_the_largest_take_whole_pods():
    assert PODS.place(job_view(num_gpus=12), held()) == [*range(12)]
    assert PODS.place(job_view(num_gpus=12), held(15)) is None
    assert PODS.place(job_view(num_gpus=17), held()) is None


def test_a_job_spans_racks_while_their_cables_have_room():
    """Three jobs of 2 of 3 servers a rack: the third spans both racks if a ring may leave each."""
    jobs = [data_parallel_job(str(n), 2, iterations=5, forward_s=0.1, message_bytes=1e8) for n in range(3)]
    cluster = Cluster(num_servers=6, gpus_per_server=1, exclusive=True)
    starts = {
        rings_up: ddlsched.simulate(
            Workload.of(jobs), cluster, placement=WholeRacks(servers_per_rack=3, rings_up=rings_up), order="fifo"
        ).jobs["start_s"]
        for rings_up in (0, 1)
    }
    assert starts[0].tolist()[:2] == starts[1].tolist()[:2] == [0.0, 0.0]
    assert starts[0][2] > 0.0 == starts[1][2]


@pytest.mark.long
def test_with_perfect_routing_nobody_meets_anybody_on_racks_under_spines():
    """Jobs of up to eight rings; each takes its time alone from its start to its end."""
    jobs = monkeytree_mix(seed=1, jobs=40, gpus=128, load=1.5, scale=0.01)
    cluster = Cluster(
        num_servers=128, topology="monkeytree:racks=2,servers_per_rack=64,spines=16", gpus_per_server=1, exclusive=True
    )
    options = {"order": "fifo", "communication": "bounded-overlap:limit=99", "contention": "max-min", "path": "perfect"}
    found = {
        rings_up: ddlsched.simulate(
            jobs, cluster, placement=WholeRacks(servers_per_rack=64, rings_up=rings_up), **options
        ).jobs
        for rings_up in (0, 16)
    }
    assert found[16]["start_s"].mean() < found[0]["start_s"].mean()
    np.testing.assert_allclose(found[16]["network_wait_s"], 0.0, atol=1e-6)


@pytest.mark.long
def test_on_a_star_it_is_whole_servers_to_the_nanosecond():
    jobs = microsoft_160(seed=3, scale=0.01)
    cluster = Cluster(num_servers=16, gpus_per_server=4, exclusive=True)
    one, other = (ddlsched.simulate(jobs, cluster, placement=p, order="fifo") for p in (WholeRacks(), WholeServers()))
    assert one.jobs["finish_s"].tolist() == other.jobs["finish_s"].tolist()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rings_up": -1}, "rings_up is -1"),
        ({"servers_per_pod": 3}, "servers_per_pod is 3; expected a multiple of servers_per_rack, which is 2"),
        ({"servers_per_rack": 0, "rings_up": 1}, "rings_up is given without servers_per_rack"),
    ],
)
def test_what_is_no_network_is_refused(changes, says):
    with pytest.raises(InputError, match=says):
        replace(RACKS, **changes)


def test_servers_that_are_no_whole_racks_are_refused():
    with pytest.raises(InputError, match="5 servers; expected groups of 2"):
        RACKS.begin(Cluster(num_servers=5, gpus_per_server=2), np.random.default_rng(0))
