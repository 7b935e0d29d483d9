"""Each policy's decisions on views made by hand, without a simulator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from jobs_by_hand import Fixed, data_parallel_job

from algorithms.communication.adadual import AdaDual
from algorithms.communication.bounded_overlap import BoundedOverlap
from algorithms.communication.preemptive import PreemptiveShortestFirst
from algorithms.ordering.fifo import FirstInFirstOut
from algorithms.ordering.history import QuasiShortestServiceFirst
from algorithms.ordering.srsf import ShortestRemainingServiceFirst
from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from algorithms.ordering.themis import FinishTimeFairness
from algorithms.ordering.tiresias import LeastAttainedService, Tiresias
from algorithms.placement.first_fit import FirstFit, ListScheduling
from algorithms.placement.lwf import LeastWorkloadFirst
from algorithms.placement.random_fit import RandomFit
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.results.slices import transfer_slices
from ddlsched.simulation import simulate
from ddlsched.testing import cluster_view, job_view, network_view, transfer_view
from ddlsched.workload.job import Workload

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


@pytest.mark.long
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
    assert ShortestRemainingTimeFirst().key(one, 0.0) == ShortestRemainingTimeFirst().key(other, 0.0) == (10**8, 0.0)
    # 2**60 + 1 ns on 3 GPUs and 2**60 + 4 ns on 3: 1 ns apart, which a float of that size cannot tell.
    keys = []
    for service_ns in (2**60 + 1, 2**60 + 4):
        one._columns.remaining_service_ns[0] = service_ns
        keys.append(ShortestRemainingTimeFirst().key(one, 0.0))
    # 2**60 = 3 x 384307168202282325 + 1.
    assert keys == [(384307168202282325, 2 / 3), (384307168202282326, 2 / 3)]


def communicating(communication_ns, **job):
    """A placed job whose all-reduces of an iteration take so long without contention."""
    view = job_view(servers=(0, 1), **job)
    view._columns.communication_ns[0] = communication_ns
    return view


def test_orders_that_count_communication():
    # 10 iterations of 0.1 s on 3 GPUs, 7 left: 2.1 s of service, 0.7 s a GPU. 20 ms of all-reduces: 0.14 s, x 3 GPUs.
    job = communicating(20_000_000, num_gpus=3, iterations=10, iterations_left=7)
    assert ShortestRemainingServiceFirst().key(job, 9.0) == 2_100_000_000
    assert ShortestRemainingServiceFirst(communication=True).key(job, 9.0) == 2_100_000_000 + 420_000_000
    assert ShortestRemainingTimeFirst().key(job, 9.0) == (700_000_000, 0.0)
    assert ShortestRemainingTimeFirst(communication=True).key(job, 9.0) == (840_000_000, 0.0)
    # One task of 0.1 s more has ended on one of the three workers: 2.0 s, and 666666666 2/3 ns a GPU.
    job._columns.remaining_service_ns[0] -= 100_000_000
    assert ShortestRemainingTimeFirst().key(job, 9.0) == (666_666_666, 2 / 3)
    assert ShortestRemainingTimeFirst(communication=True).key(job, 9.0) == (806_666_666, 2 / 3)
    assert LeastAttainedService().key(job, 9.0) == 1_000_000_000
    # A queued job has none.
    queued = job_view(num_gpus=3, iterations=10)
    assert ShortestRemainingServiceFirst(communication=True).key(queued, 9.0) == 3_000_000_000
    assert FirstInFirstOut().key(job_view(arrival_s=1.5), 9.0) == 1_500_000_000


def test_tiresias_has_queues_by_what_a_job_has_had():
    # 2 GPUs, 0.1 s an iteration: n iterations done are 0.2 n GPU-s. Thresholds 4 and 40 GPU-s; the last queue is open.
    for done, queue in ((0, 0), (19, 0), (20, 1), (199, 1), (200, 2), (900, 2)):
        job = job_view(num_gpus=2, iterations=1000, iterations_left=1000 - done, arrival_s=3.0)
        assert Tiresias(threshold_gpu_s=4.0).key(job, 50.0) == (queue, 3_000_000_000)
        assert Tiresias(threshold_gpu_s=4.0, queues=2).key(job, 50.0)[0] == min(queue, 1)


def test_themis_puts_first_who_is_latest_in_terms_of_its_time_alone():
    # Alone 10 x 0.1 s = 1 s. There since 2 s, all 10 iterations left at 5 s: rho = (3 + 1) / 1.
    assert FinishTimeFairness().key(job_view(iterations=10, arrival_s=2.0), 5.0) == -4.0
    # 10 x (0.1 + 0.15) s = 2.5 s alone, 4 left: 1 s. There for 3 s: rho = (3 + 1) / 2.5.
    job = communicating(150_000_000, iterations=10, iterations_left=4, arrival_s=2.0)
    assert FinishTimeFairness().key(job, 5.0) == -1.6


def test_qssf_predicts_from_finished_jobs_of_the_same_user_and_model():
    order = QuasiShortestServiceFirst().begin(Cluster(), np.random.default_rng(0))

    def job(number, num_gpus, user, attained_s=0.0):
        view = {"number": number, "num_gpus": num_gpus, "user": user, "model": "m", "servers": ()}
        return SimpleNamespace(**view, iterations_left=1, attained_service_ns=attained_s * 1e9)

    first, second, running = job(0, 2, "a"), job(1, 1, "a"), job(2, 1, "b", attained_s=9)
    # Nobody has finished: 1 ns x its GPUs, whatever those that run have had.
    assert [order.key(one, 0.0) for one in (first, second, running)] == [2, 1, 1]
    for ended, attained_s in ((first, 6), (second, 5)):
        ended.iterations_left, ended.attained_service_ns = 0, attained_s * 1e9
    # The mean of 3 and 5 s a GPU; so for those of b, of whom none has finished.
    assert order.key(job(3, 4, "a"), 1.0) == 4 * (1 + 4e9)
    assert order.key(job(4, 1, "b"), 1.0) == 1 + 4e9
    running.iterations_left = 0
    assert order.key(job(5, 1, "b"), 2.0) == 1 + 9e9
    assert order.key(job(6, 1, "c"), 2.0) == 1 + (3e9 + 5e9 + 9e9) / 3


def transfer(number, servers, *, bytes_left=None, message_bytes=100e6, **job):
    return transfer_view(
        job_view(number=number, num_gpus=8, servers=servers, **job), bytes_left=bytes_left, message_bytes=message_bytes
    )


def running_first(transfers, communication):
    """The jobs whose transfers run first, of jobs between the same servers, in a run of 1 GPU on each of them."""
    order = [str(one.job.number) for one in transfers]
    jobs = [
        data_parallel_job(str(one.job.number), 2, iterations=one.job.iterations, backward_s=0.1, message_bytes=1e6)
        for one in transfers
    ]
    gpus = {str(one.job.number): [4 * server + one.job.number for server in one.servers] for one in transfers}
    result = simulate(
        Workload.of(jobs),
        Cluster(num_servers=4, gpus_per_server=4),
        placement=Fixed(gpus=gpus),
        order="fifo",
        communication=communication,
        timeline=True,
    )
    sent = transfer_slices(result)
    first_ns = sent["start_ns"].min()
    assert set(sent["job_id"]) == set(order)
    return {int(job_id) for job_id in sent.loc[sent["start_ns"] == first_ns, "job_id"]}


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


@pytest.mark.long
def test_preemptive_takes_the_smallest_key_and_skips_the_blocked():
    # By service per GPU: 1 goes, 0 and 2 share a server with it, 3 does not.
    transfers = [
        transfer(0, (0, 1), iterations=30),
        transfer(1, (1, 2), iterations=10),
        transfer(2, (2, 3), iterations=20),
        transfer(3, (0, 3), iterations=40),
    ]
    network = network_view(waiting=transfers)
    keys = [PreemptiveShortestFirst(by="service-per-gpu").transfer_key(one, network) for one in transfers]
    # 0.1 s an iteration on each GPU.
    assert keys == [(3_000_000_000, 0.0), (1_000_000_000, 0.0), (2_000_000_000, 0.0), (4_000_000_000, 0.0)]
    # What runs by these keys is the engine's rule; in a run of the same four jobs:
    assert running_first(transfers, "preemptive:by=service-per-gpu") == {1, 3}


def test_preemptive_by_bytes_looks_at_the_bytes_left():
    transfers = [transfer(0, (0, 1), bytes_left=5e6, iterations=99), transfer(1, (0, 1), bytes_left=9e6, iterations=1)]
    network = network_view(waiting=transfers)
    by_bytes, by_service = (
        [PreemptiveShortestFirst(by=by).transfer_key(one, network) for one in transfers] for by in ("bytes", "service")
    )
    assert by_bytes == [5e6, 9e6]
    # 8 GPUs x 0.1 s x 99 iterations, and x 1.
    assert by_service == [79_200_000_000, 800_000_000]


def test_preemptive_by_time_counts_the_all_reduces_to_come():
    # 10 iterations of 0.1 s and 50 ms of all-reduces, and 14 of 0.1 s that hardly communicate.
    sends, computes = (
        transfer_view(communicating(communication_ns, num_gpus=8, iterations=iterations))
        for communication_ns, iterations in ((50_000_000, 10), (1_000, 14))
    )
    keys = [PreemptiveShortestFirst(by="time").transfer_key(one, network_view()) for one in (sends, computes)]
    assert keys == [(1_500_000_000, 0.0), (1_400_014_000, 0.0)]
    keys = [PreemptiveShortestFirst().transfer_key(one, network_view()) for one in (sends, computes)]
    assert keys == [(1_000_000_000, 0.0), (1_400_000_000, 0.0)]


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
