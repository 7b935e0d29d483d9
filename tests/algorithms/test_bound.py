"""The lower bound of the average JCT: below exact optima and every policy, at any prices; what makes it large."""

from __future__ import annotations

import numpy as np
import pytest
from experiment_scripts import scripts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_by_hand import data_parallel_job
from tiers import examples, tried

import ddlsched
from algorithms.bound import (
    Phases,
    Prices,
    _bounds_of_intervals,
    average_jct_bound_s,
    dual_value_s,
    jct_bound,
    least_mean_busy_s,
)
from ddlsched import Cluster, DataParallelIteration, Workload
from ddlsched.cluster.cluster import Server
from ddlsched.errors import InputError
from ddlsched.network.contention import Linear, MaxMin
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve

(exact,) = scripts_of("beyond_ada_srsf", "exact")
optimum = exact.optimum
UNIT_S = 0.01
MODEL = Linear(per_byte_s=1e-9, penalty_per_byte_s=0.3e-9)
TWO = Cluster(num_servers=2, gpus_per_server=2)
ONE_GPU = Cluster(num_servers=1, gpus_per_server=1, exclusive=True)
POLICIES = (
    {"scheduler": "block-srtf"},
    {"placement": "lwf:kappa=1", "order": "stopping-srtf", "communication": "bounded-overlap:limit=2"},
    {"placement": "hived", "order": "stopping-tiresias:interval_s=0.05", "communication": "adadual"},
)


def job(name: str, gpus: int, iterations: int, units: tuple[int, int, int], arrival: int = 0, memory_mb: float = 1.0):
    forward, backward, transfer = (unit * UNIT_S for unit in units)
    return data_parallel_job(
        name,
        gpus,
        arrival_s=arrival * UNIT_S,
        iterations=iterations,
        forward_s=forward,
        backward_s=backward,
        message_bytes=transfer * 1e9,
        memory_mb=memory_mb,
    )


@st.composite
def workloads(draw, most_jobs: int, most_gpus: int) -> Workload:
    unit, small = st.integers(1, 3), st.integers(1, 4)
    fields = st.tuples(st.integers(1, most_gpus), small, st.tuples(unit, unit, st.integers(0, 6)), st.integers(0, 12))
    jobs = draw(st.lists(fields, min_size=1, max_size=most_jobs))
    return Workload.of([job(str(number), *one) for number, one in enumerate(jobs)])


@pytest.mark.long
@given(workloads(most_jobs=3, most_gpus=4))
@settings(max_examples=examples(12, by_default=5), deadline=None)
def test_it_is_below_the_exact_optimum(workload):
    found = optimum(workload, TWO, contention=MODEL, unit_s=UNIT_S)
    assert found.proven  # the slowest of 40 took 0.2 s of CPU
    assert average_jct_bound_s(workload, TWO, MODEL, intervals=40) <= found.average_jct_s + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.get("scheduler", policy.get("order")))
@pytest.mark.parametrize(("topology", "contention"), [("star", MODEL), ("leaf-spine:servers_per_leaf=2", MaxMin())])
@given(workloads(most_jobs=8, most_gpus=8))
@settings(max_examples=examples(8, by_default=3), deadline=None)
def test_it_is_below_every_policy(policy, exclusive, topology, contention, workload):
    if not exclusive and policy["placement" if "placement" in policy else "scheduler"] == "hived":
        return  # needs exclusive GPUs
    cluster = Cluster(num_servers=4, gpus_per_server=2, gpu_memory_mb=2.0, topology=topology, exclusive=exclusive)
    run = ddlsched.simulate(workload, cluster, contention=contention, **policy)
    assert average_jct_bound_s(workload, cluster, contention, intervals=30) <= run.jobs["jct_s"].mean() + 1e-9


def phases_of(draw_seed: int) -> Phases:
    rng = np.random.default_rng(draw_seed)
    work_s = rng.uniform(0.5, 3.0, (4, 2)) * (rng.random((4, 2)) < 0.8)
    return Phases(
        rng.uniform(0, 4, 4), work_s, rng.uniform(0, 2, (2, 4, 2)), rng.uniform(1, 3, 2), rng.uniform(0.1, 1, 4)
    )


@pytest.mark.parametrize("seed", range(8))
def test_any_prices_give_a_value_below_that_of_the_optimal_ones(seed):
    """So the bound holds whatever a solver returns; with 400 intervals its own are within 1 % of the best."""
    rng, phases = np.random.default_rng([seed, 1]), phases_of(seed)
    best = least_mean_busy_s(phases, 400)
    bounds_s = np.append(np.sort(rng.uniform(0, 12, 7)), np.inf)
    resource = np.append(rng.exponential(0.3, (2, 6)), np.zeros((2, 1)), axis=1)
    order = np.append(rng.normal(0, 1, (4, 6)) * phases.has.all(axis=1)[:, None], np.zeros((4, 1)), axis=1)
    prices = Prices(resource, rng.exponential(2.0, (4, 2)) * phases.has, order)
    assert dual_value_s(phases, bounds_s, prices) <= best * 1.01


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_jobs_are_told_does_not_matter(seed):
    told = phases_of(seed)
    backwards = Phases(told.arrival_s[::-1], told.work_s[::-1], told.needs[:, ::-1], told.capacity, told.lag[::-1])
    assert least_mean_busy_s(backwards, 30) == pytest.approx(least_mean_busy_s(told, 30), rel=1e-6)


def test_time_is_cut_into_as_many_intervals_as_are_asked_and_one_without_end() -> None:
    bounds_s, finer_s = (_bounds_of_intervals(phases_of(0), count) for count in (6, 24))
    assert len(bounds_s) == 8
    assert bounds_s[-1] == np.inf
    assert (bounds_s[0], bounds_s[-2]) == pytest.approx((finer_s[0], finer_s[-2]))


def test_one_job_takes_its_time_alone():
    alone = Workload.of([job("a", 4, 2, (1, 2, 3))])
    assert average_jct_bound_s(alone, TWO, MODEL) == pytest.approx(2 * 6 * UNIT_S, rel=1e-6)


def test_jobs_that_need_the_same_gpu_wait_for_each_other_by_smiths_rule():
    """Times of 1, 2 and 3 units on one GPU: ends at 1, 3 and 6."""
    jobs = Workload.of([job("a", 1, 1, (1, 0, 0)), job("b", 1, 1, (1, 1, 0)), job("c", 1, 1, (1, 2, 0))])
    assert average_jct_bound_s(jobs, ONE_GPU, MODEL) == pytest.approx(10 / 3 * UNIT_S, rel=2e-3)


def test_two_jobs_that_must_cross_the_network_share_its_cards():
    """Compute of 1 unit on shared GPUs, a transfer of 20: the second one ends 20 later than the first at best."""
    jobs = Workload.of([job(name, 4, 1, (1, 0, 20)) for name in "ab"])
    found = jct_bound(jobs, TWO, MODEL, intervals=400)
    assert found.alone_s.mean() == pytest.approx(21 * UNIT_S)
    assert 0.94 * 31 * UNIT_S < found.programme_s <= 31 * UNIT_S
    apart = Cluster(num_servers=4, gpus_per_server=2)
    assert average_jct_bound_s(jobs, apart, MODEL) == pytest.approx(21 * UNIT_S, rel=1e-6)


def test_memory_and_exclusive_gpus_make_it_larger():
    """Each computes 1 and sends 1, on 4 cards of which it needs two: on shared GPUs with memory both go at once."""
    cards = Cluster(num_servers=4, gpus_per_server=1, gpu_memory_mb=1.0)
    free, full = (
        Workload.of([job(name, 4, 20, (1, 0, 1), memory_mb=memory_mb) for name in "ab"]) for memory_mb in (0.5, 1.0)
    )
    both, one, exclusive = (
        average_jct_bound_s(free, cards, MODEL),
        average_jct_bound_s(full, cards, MODEL),
        average_jct_bound_s(free, Cluster(num_servers=4, gpus_per_server=1, exclusive=True), MODEL),
    )
    assert both < 0.85 * one
    assert one == pytest.approx(exclusive, rel=1e-3) == pytest.approx(60 * UNIT_S, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize(
    ("exclusive", "scheduler", "factor"),
    tried([(True, "hived", 1.45), (False, "block-srtf", 1.6)], lambda place: place == 0),
)
def test_on_the_64_gpu_mix_it_is_near_the_best_policies(exclusive, scheduler, factor):
    workload, cluster = ddlsched.microsoft_160(seed=1, scale=0.01), Cluster(exclusive=exclusive)
    policy = {"placement": "hived", "order": "fifo"} if exclusive else {"scheduler": scheduler}
    run = ddlsched.simulate(workload, cluster, **policy)
    bound_s = average_jct_bound_s(workload, cluster, Linear(per_byte_s=8.56e-10))
    assert bound_s <= run.jobs["jct_s"].mean() <= factor * bound_s


def test_faster_gpus_and_cards_lower_it():
    jobs = Workload.of([job("a", 3, 2, (1, 1, 2))])
    slow = Cluster(servers=(Server(gpus=2), Server(gpus=2)))
    fast = Cluster(servers=(Server(gpus=2, relative_speed=2.0, nic_gbps=20.0), Server(gpus=2)))
    assert average_jct_bound_s(jobs, slow, MODEL) == pytest.approx(8 * UNIT_S)
    assert average_jct_bound_s(jobs, fast, MODEL) == pytest.approx(4 * UNIT_S)


def test_overlapping_buckets_count_their_compute_only():
    overlapping = DataParallelIteration(forward_s=0.01, backward_s=0.01, message_bytes=1e9, buckets=4)
    alone = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=4, iterations=3, iteration=overlapping, gpu_memory_mb=1.0)
    jobs = Workload.of([alone])
    assert average_jct_bound_s(jobs, TWO, MODEL) == pytest.approx(0.06)


class Published(Linear):
    conserves_bytes = False


class Unshared(Linear):
    """No transfer slows another, as in experiments/datacentre_traces."""

    exceeds_links = True


ELASTIC = ElasticJob(
    job_id="a",
    arrival_s=0,
    samples=4,
    curve=LinearCurve(fixed_s=1.0, sample_s=0.0),
    gpu_batch=1,
    min_gpus=1,
    max_gpus=1,
    message_bytes=0.0,
    gpu_memory_mb=1.0,
)


@pytest.mark.parametrize(
    ("jobs", "cluster", "contention", "intervals", "named"),
    [
        (ELASTIC, TWO, MODEL, 10, "elastic"),
        (job("a", 1, 1, (1, 1, 1)), TWO, MODEL, 0, "intervals is 0"),
        (job("a", 1, 1, (1, 1, 1)), TWO, Published(), 10, "does not conserve bytes"),
        (job("a", 1, 1, (1, 1, 1)), TWO, Unshared(), 10, "links carry more than they can"),
        (
            job("a", 1, 1, (1, 1, 1)),
            Cluster(num_servers=4, gpus_per_server=8, topology="rail-optimised:nvlink_gbps=1000"),
            MODEL,
            10,
            "inside of servers",
        ),
    ],
)
def test_what_it_does_not_cover_is_refused(jobs, cluster, contention, intervals, named):
    with pytest.raises(InputError, match=named):
        jct_bound(Workload.of([jobs]), cluster, contention, intervals=intervals)
