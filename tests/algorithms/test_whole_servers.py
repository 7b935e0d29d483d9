"""Whole servers: best fit in GPUs of a server and in free servers of a rack, and nobody meets anybody on a card."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_by_hand import data_parallel_job
from tiers import examples

import ddlsched
from algorithms.placement.whole_servers import WholeServers
from ddlsched import Cluster, Workload
from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view

RACKS = WholeServers(servers_per_rack=2)


def held(*gpus: int, **changes):
    """Eight servers of two GPUs in four racks, of which some GPUs are held."""
    other = job_view(number=9)
    shape = {"num_servers": 8, "gpus_per_server": 2} | changes
    return cluster_view(**shape, residents={gpu: [other] for gpu in gpus})


def test_a_job_that_fits_on_a_server_goes_where_the_fewest_gpus_are_free():
    assert RACKS.place(job_view(num_gpus=1), held(0, 1, 6)) == [7]
    assert RACKS.place(job_view(num_gpus=2), held(0, 6)) == [2, 3]
    assert RACKS.place(job_view(num_gpus=2), held(*range(0, 16, 2))) is None


def test_a_larger_one_takes_whole_servers_of_the_rack_with_the_fewest():
    assert RACKS.place(job_view(num_gpus=4), held(0)) == [4, 5, 6, 7]
    assert WholeServers(servers_per_rack=4).place(job_view(num_gpus=4), held(8, 10)) == [12, 13, 14, 15]
    assert RACKS.place(job_view(num_gpus=3), held(0)) == [4, 5, 6]


def test_one_that_a_rack_could_hold_waits_for_it():
    assert RACKS.place(job_view(num_gpus=4), held(0, 4, 8, 12)) is None
    assert WholeServers().place(job_view(num_gpus=4), held(0, 4, 8, 12)) == [2, 3, 6, 7]


def test_one_larger_than_a_rack_takes_as_few_racks_as_it_can():
    assert RACKS.place(job_view(num_gpus=8), held(0, 4)) == [*range(8, 16)]
    assert RACKS.place(job_view(num_gpus=6), held(0)) == [4, 5, 6, 7, 2, 3]
    assert RACKS.place(job_view(num_gpus=16), held(0)) is None


PODS = WholeServers(servers_per_rack=2, servers_per_pod=4)


def test_one_larger_than_a_rack_stays_in_the_pod_with_the_fewest_that_suffice():
    assert PODS.place(job_view(num_gpus=6), held(8)) == [12, 13, 14, 15, 10, 11]
    assert PODS.place(job_view(num_gpus=6), held(8, 12)) == [0, 1, 2, 3, 4, 5]
    assert RACKS.place(job_view(num_gpus=6), held(2, 8)) == [4, 5, 6, 7, 0, 1]


def test_one_that_a_pod_could_hold_waits_for_it():
    assert PODS.place(job_view(num_gpus=8), held(0, 8)) is None
    assert RACKS.place(job_view(num_gpus=8), held(0, 8)) == [4, 5, 6, 7, 12, 13, 14, 15]


def test_one_larger_than_a_pod_takes_as_few_pods_and_racks_as_it_can():
    assert PODS.place(job_view(num_gpus=12), held(0)) == [*range(8, 16), 4, 5, 6, 7]


def test_one_that_fits_in_a_rack_goes_to_one_of_any_pod():
    assert PODS.place(job_view(num_gpus=3), held(0)) == [4, 5, 6]


@pytest.mark.parametrize("policy", [WholeServers(), RACKS, PODS])
def test_one_larger_than_the_cluster_waits(policy):
    assert policy.place(job_view(num_gpus=17), held()) is None


def test_the_last_servers_may_be_a_smaller_rack():
    assert WholeServers(servers_per_rack=3).place(job_view(num_gpus=4), held(0, 2, 6, 8)) == [12, 13, 14, 15]


def test_gpus_of_others_are_not_shared():
    assert WholeServers().place(job_view(num_gpus=2), held(0, 1, num_servers=1)) is None


def test_a_rack_of_less_than_no_server_is_refused():
    with pytest.raises(InputError, match="servers_per_rack is -1"):
        WholeServers(servers_per_rack=-1)


@pytest.mark.parametrize("racks", [0, 3])
def test_pods_that_are_not_of_racks_are_refused(racks):
    with pytest.raises(InputError, match=f"servers_per_pod is 8; expected a multiple of servers_per_rack, .* {racks}"):
        WholeServers(servers_per_rack=racks, servers_per_pod=8)


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=8))
@settings(max_examples=examples(20, by_default=6), deadline=None)
def test_on_a_star_no_transfer_meets_another(jobs):
    """So each job takes its time alone from its start to its end."""
    made = Workload.of(
        [
            data_parallel_job(str(number), gpus, iterations=count, forward_s=0.1, message_bytes=1e8)
            for number, (gpus, count) in enumerate(jobs)
        ]
    )
    cluster = Cluster(num_servers=6, gpus_per_server=2, exclusive=True)
    options = {"order": "fifo", "communication": "bounded-overlap:limit=9", "contention": "max-min"}
    found = ddlsched.simulate(made, cluster, placement=WholeServers(), **options).jobs
    np.testing.assert_allclose(found["network_wait_s"], 0.0)
    alone = alone_s(made, cluster, "max-min")
    np.testing.assert_allclose(found["finish_s"] - found["start_s"], alone, rtol=1e-6)
