"""Each policy's decisions on views made by hand, without a simulator."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from algorithms.communication.adadual import AdaDual
from algorithms.communication.bounded_overlap import BoundedOverlap
from algorithms.communication.preemptive import PreemptiveShortestFirst
from algorithms.ordering.fifo import FirstInFirstOut
from algorithms.ordering.las import LeastAttainedService
from algorithms.ordering.srsf import ShortestRemainingServiceFirst
from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from algorithms.placement.first_fit import FirstFit
from algorithms.placement.list_scheduling import ListScheduling
from algorithms.placement.lwf import LeastWorkloadFirst
from algorithms.placement.random_fit import RandomFit
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view, network_view, transfer_view

# Two servers of three GPUs; server 1 is the less loaded on average, GPU 0 the least loaded of all.
LOADS_S = (1.0, 30.0, 20.0, 9.0, 7.0, 8.0)


def loaded_cluster(**changes):
    return cluster_view(**{"num_servers": 2, "gpus_per_server": 3, "load_s": LOADS_S} | changes)


def test_first_fit_skips_full_gpus():
    cluster = loaded_cluster(free_memory_mb=(500, 4000, 4000, 500, 4000, 4000))
    assert FirstFit().place(job_view(num_gpus=3), cluster) == [1, 2, 4]
    assert FirstFit().place(job_view(num_gpus=5), cluster) is None


def test_list_scheduling_takes_the_least_loaded_anywhere():
    assert ListScheduling().place(job_view(num_gpus=4), loaded_cluster()) == [0, 4, 5, 3]


def test_lwf_spreads_small_jobs_and_consolidates_large_ones():
    assert LeastWorkloadFirst(kappa=1).place(job_view(num_gpus=1), loaded_cluster()) == [0]
    assert LeastWorkloadFirst(kappa=1).place(job_view(num_gpus=2), loaded_cluster()) == [4, 5]
    assert LeastWorkloadFirst(kappa=2).place(job_view(num_gpus=2), loaded_cluster()) == [0, 4]
    assert LeastWorkloadFirst(kappa=1).place(job_view(num_gpus=4), loaded_cluster()) == [4, 5, 3, 0]


def test_lwf_counts_gpus_without_memory_in_a_servers_load():
    # Server 1's mean stays 8 s though its two least-loaded GPUs are full; server 0's is 17 s.
    cluster = loaded_cluster(free_memory_mb=(4000, 4000, 4000, 4000, 500, 500))
    assert LeastWorkloadFirst(kappa=1).place(job_view(num_gpus=2), cluster) == [3, 0]


def test_lwf_breaks_ties_by_server_then_gpu():
    assert LeastWorkloadFirst(kappa=1).place(job_view(num_gpus=4), loaded_cluster(load_s=5.0)) == [0, 1, 2, 3]


def test_random_fit_is_uniform_over_eligible_gpus():
    rng = np.random.default_rng(0)
    policy = RandomFit().begin(Cluster(), rng)
    cluster = loaded_cluster(free_memory_mb=(500, 4000, 4000, 500, 4000, 4000))
    counts = np.zeros(6)
    for _ in range(2000):
        counts[policy.place(job_view(num_gpus=2), cluster)] += 1
    assert counts[[0, 3]].sum() == 0
    # Each of four GPUs is in half of the pairs: 1000 with a standard deviation of 22.
    assert np.all(np.abs(counts[[1, 2, 4, 5]] - 1000) < 100)


def test_orders_sort_as_they_say():
    short_wide = job_view(number=0, num_gpus=8, iterations=10, arrival_s=3.0)  # 8 s of service, 1 s a GPU
    long_narrow = job_view(number=1, num_gpus=1, iterations=50, arrival_s=1.0)  # 5 s
    nearly_done = job_view(
        number=2, num_gpus=2, iterations=100, iterations_left=10, arrival_s=2.0
    )  # 2 s, 18 s attained
    jobs = [short_wide, long_narrow, nearly_done]

    def ranked(policy):
        return [job.number for job in sorted(jobs, key=lambda job: policy.key(job, 5.0))]

    assert ranked(ShortestRemainingServiceFirst()) == [2, 1, 0]
    assert ranked(ShortestRemainingTimeFirst()) == [0, 2, 1]
    assert ranked(FirstInFirstOut()) == [1, 2, 0]
    assert ranked(LeastAttainedService())[-1] == 2


def test_srtf_is_exact_where_floats_are_not():
    one, other = job_view(num_gpus=3, iterations=1, compute_s=0.1), job_view(num_gpus=7, iterations=1, compute_s=0.1)
    assert ShortestRemainingTimeFirst().key(one, 0.0) == ShortestRemainingTimeFirst().key(other, 0.0) == 100_000_000
    assert isinstance(ShortestRemainingTimeFirst().key(one, 0.0), Fraction)


def transfer(number, servers, *, bytes_left=None, message_bytes=100e6, **job):
    return transfer_view(
        job_view(number=number, num_gpus=8, servers=servers, **job), bytes_left=bytes_left, message_bytes=message_bytes
    )


@pytest.mark.parametrize(("limit", "admitted"), [(1, False), (2, False), (3, True)])
def test_bounded_overlap_counts_the_busiest_link(limit, admitted):
    network = network_view(active=[transfer(0, (0, 1)), transfer(1, (0, 2))])
    assert BoundedOverlap(limit=limit).admit(transfer(2, (0, 3)), network) is admitted


def test_bounded_overlap_ignores_other_links():
    network = network_view(active=[transfer(0, (0, 1))])
    assert BoundedOverlap(limit=1).admit(transfer(2, (2, 3)), network)


def test_adadual_overlaps_exactly_up_to_its_threshold():
    # b / (2 (b + η)) = 1 / (2 (1 + 1)) = 1/4 of the bytes that the other has left.
    for message_bytes, admitted in ((25e6, True), (25e6 + 1, False)):
        new, old = transfer(1, (0, 1), message_bytes=message_bytes), transfer(0, (1, 2), bytes_left=100e6)
        network = network_view(active=[old], waiting=[new], per_byte_s=1e-9, penalty_per_byte_s=1e-9)
        assert AdaDual().admit(new, network) is admitted


def test_adadual_asks_every_transfer_it_would_meet():
    new = transfer(2, (0, 1), message_bytes=25e6)
    large, small = transfer(0, (0, 2), bytes_left=100e6), transfer(1, (1, 3), bytes_left=99e6)
    ns = {"waiting": [new], "per_byte_s": 1e-9, "penalty_per_byte_s": 1e-9}
    assert AdaDual().admit(new, network_view(active=[large], **ns))
    assert not AdaDual().admit(new, network_view(active=[large, small], **ns))


def test_adadual_never_makes_three():
    network = network_view(active=[transfer(0, (0, 1)), transfer(1, (0, 2))])
    assert not AdaDual().admit(transfer(2, (0, 3), message_bytes=1.0), network)


def test_preemptive_takes_the_smallest_key_and_skips_the_blocked():
    # By service per GPU: 1 goes, 0 and 2 share a server with it, 3 does not.
    transfers = [
        transfer(0, (0, 1), iterations=30),
        transfer(1, (1, 2), iterations=10),
        transfer(2, (2, 3), iterations=20),
        transfer(3, (0, 3), iterations=40),
    ]
    selected = PreemptiveShortestFirst(by="service-per-gpu").select(transfers, network_view(waiting=transfers))
    assert [chosen.number for chosen in selected] == [1, 3]


def test_preemptive_by_bytes_looks_at_the_bytes_left():
    transfers = [transfer(0, (0, 1), bytes_left=5e6, iterations=99), transfer(1, (0, 1), bytes_left=9e6, iterations=1)]
    by_bytes, by_service = (
        PreemptiveShortestFirst(by=by).select(transfers, network_view()) for by in ("bytes", "service")
    )
    assert [chosen.number for chosen in by_bytes] == [0]
    assert [chosen.number for chosen in by_service] == [1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: LeastWorkloadFirst(kappa=-1),
        lambda: BoundedOverlap(limit=0),
        lambda: PreemptiveShortestFirst(by="byte"),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(InputError):
        make()
