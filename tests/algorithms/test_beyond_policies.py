"""Aligned blocks, delay scheduling, sharing where it pays, and the neighbours' orders, by hand."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job
from tiers import tried

import ddlsched
from algorithms.ordering.themis import FinishTimeFairness
from algorithms.ordering.tiresias import Tiresias
from algorithms.placement.blocks import AlignedBlocks
from algorithms.placement.delay import DelayScheduling
from algorithms.placement.sjf_bsbf import BestSharingBenefitFirst
from ddlsched import Cluster, Job, Workload
from ddlsched.errors import InputError
from ddlsched.network.contention import Linear
from ddlsched.testing import cluster_view, job_view

SMALL = Cluster(num_servers=4, gpus_per_server=2)

job = functools.partial(data_parallel_job, forward_s=0.5, backward_s=0.5, message_bytes=1e9)


def gpus_of(jobs: list[Job], placement: object, **options: object) -> dict[str, tuple[int, ...]]:
    result = ddlsched.simulate(
        Workload.of(jobs),
        SMALL,
        placement=placement,
        order="srtf",
        communication="preemptive:by=time",
        contention=Linear(per_byte_s=1e-9),
        **options,
    )
    return {one.job_id: tuple(sorted(result.gpus_of(one.job_id))) for one in jobs}


@pytest.mark.long
def test_a_job_that_fits_on_a_server_never_spans():
    found = gpus_of([job("one", 1), job("two", 2), job("three", 1)], AlignedBlocks())
    assert found == {"one": (0,), "two": (2, 3), "three": (1,)}


@pytest.mark.long
def test_spanning_jobs_take_aligned_blocks_and_keep_apart():
    assert gpus_of([job("a", 4), job("b", 3)], AlignedBlocks()) == {"a": (0, 1, 2, 3), "b": (4, 5, 6)}


@pytest.mark.long
def test_blocks_nest_where_neighbouring_runs_cross():
    jobs = [job("a", 3), job("late", 4, arrival_s=0.1, iterations=3), job("b", 4, arrival_s=0.2, iterations=9)]
    found = gpus_of(jobs, AlignedBlocks())
    assert all(min(gpus) % 4 == 0 for gpus in found.values())


@pytest.mark.long
def test_one_server_jobs_overlook_spanning_ones_unless_told_to_count_them():
    jobs = [job("wide", 4, iterations=50), job("own", 1, arrival_s=0.1, iterations=2), job("next", 1, arrival_s=0.2)]
    assert gpus_of(jobs, AlignedBlocks())["next"][0] != gpus_of(jobs, AlignedBlocks())["own"][0]
    counted = gpus_of(jobs, AlignedBlocks(spanning_weight=1.0))
    assert counted["own"][0] >= 4
    assert counted["next"][0] >= 4


@pytest.mark.long
def test_a_long_spanning_job_joins_the_block_where_fewer_are_ahead():
    """Ahead of the third job: 2 iterations in the first block, 20 in the second, of which all are shorter."""
    jobs = [job("short", 4, iterations=2), job("long", 4, iterations=20), job("third", 4, iterations=30, arrival_s=0.1)]
    assert gpus_of(jobs, AlignedBlocks())["third"] == (0, 1, 2, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", tried([1, 2, 3], lambda place: place == 0))
def test_it_beats_the_papers_schedulers_at_a_hundredth(seed):
    workload = ddlsched.microsoft_160(seed=seed, scale=0.01)
    jct = {name: ddlsched.simulate(workload, scheduler=name).jobs["jct_s"].mean() for name in ("block-srtf", "srsf-1")}
    assert jct["block-srtf"] < 0.8 * jct["srsf-1"]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AlignedBlocks(spanning_weight=2.0), "spanning_weight"),
        (lambda: AlignedBlocks(price="free"), "price"),
        (lambda: AlignedBlocks(per_byte_s=-1.0), "per_byte_s"),
        (lambda: DelayScheduling(server_s=-1.0), "server_s"),
        (lambda: DelayScheduling(servers_per_rack=0), "servers_per_rack"),
        (lambda: BestSharingBenefitFirst(slowdown=0.5), "slowdown"),
        (lambda: Tiresias(threshold_gpu_s=0.0), "threshold_gpu_s"),
        (lambda: Tiresias(queues=0), "queues"),
    ],
)
def test_bad_parameters_are_named(make, named):
    with pytest.raises(InputError, match=named):
        make()


def test_delay_ends_with_its_timer():
    """A job of one GPU on each of the two servers: the pair waits for a whole server until its timer ends."""
    jobs = [job("a", 1, iterations=50), job("f", 1, iterations=1), job("b", 1, iterations=50)]
    pair = job("pair", 2, arrival_s=0.5)
    placement = DelayScheduling(server_s=4.0, rack_s=0.0, servers_per_rack=2)
    cluster = Cluster(num_servers=2, gpus_per_server=2)
    result = ddlsched.simulate(Workload.of([*jobs, pair]), cluster, placement=placement, order="fifo")
    found = result.jobs.set_index("job_id").loc["pair"]
    assert (found["start_s"], found["servers"]) == (4.5, 2)


def test_a_job_that_waits_is_asked_about_when_its_timers_end_and_at_no_other_time():
    """It came at 5 s, and waits 60 s for a server and 20 s more for a rack."""
    cluster = cluster_view(num_servers=2, gpus_per_server=2, free_memory_mb=[2000.0, 0.0, 2000.0, 0.0], now_s=5.0)
    placing: Any = DelayScheduling(server_s=60.0, rack_s=20.0).begin(SMALL, np.random.default_rng(0))
    assert placing.wake_s(5.0) is None
    assert placing.place(job_view(num_gpus=2, arrival_s=5.0), cluster) is None
    assert [placing.wake_s(now_s) for now_s in (5.0, 64.9, 65.0, 84.9, 85.0)] == [65.0, 65.0, 85.0, 85.0, None]


def test_sharing_pays_only_with_a_job_that_is_not_much_shorter():
    """Two jobs of 5 s: together they end at 5 s x ξ on average, one after the other at 7.5 s."""
    policy = BestSharingBenefitFirst(slowdown=1.0)
    found = gpus_of([job(str(i), 2, iterations=5) for i in range(5)], policy)
    assert len(found["4"]) == 2
    for slowdown, shares in ((1.0, True), (3.0, False)):
        result = ddlsched.simulate(
            Workload.of([job("a", 2, iterations=5), job("b", 2, iterations=5)]),
            Cluster(num_servers=1, gpus_per_server=2),
            placement=BestSharingBenefitFirst(slowdown=slowdown),
        )
        assert (result.jobs["start_s"].tolist() == [0.0, 0.0]) == shares


def test_never_more_than_two_share():
    jobs = [job(str(i), 1, iterations=5) for i in range(3)]
    cluster = Cluster(num_servers=1, gpus_per_server=1)
    result = ddlsched.simulate(Workload.of(jobs), cluster, placement=BestSharingBenefitFirst(slowdown=1.0))
    assert result.jobs["start_s"].iloc[2] > 0


def ran(order: object) -> list[float]:
    """Return the finishes (s) of a long job and a later short one on one GPU."""
    jobs = [job("long", 1, iterations=10), job("short", 1, iterations=2, arrival_s=2.75)]
    return ddlsched.simulate(Workload.of(jobs), Cluster(num_servers=1, gpus_per_server=1), order=order).jobs[
        "finish_s"
    ].tolist()  # fmt: skip


@pytest.mark.long
def test_tiresias_lets_a_new_job_pass_one_beyond_the_threshold():
    assert ran(Tiresias(threshold_gpu_s=2.5, queues=2)) == [12.0, 5.0]
    assert ran(Tiresias(threshold_gpu_s=100.0, queues=2)) == [10.0, 12.0]


@pytest.mark.long
def test_finish_time_fairness_serves_the_one_that_waits_in_terms_of_its_own_time():
    assert ran(FinishTimeFairness())[1] < 12.0
