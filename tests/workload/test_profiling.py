from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from algorithms.allocation.count_programme import CountProgramme, SurvivalAware, SurvivalRun
from algorithms.allocation.malletrain import MalleTrain
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.simulation import simulate
from ddlsched.testing.handmade import elastic_job_view
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, ThroughputCurve
from ddlsched.workload.job import Workload
from ddlsched.workload.profiling import (
    Candidate,
    JobMonitor,
    ProfiledAllocator,
    ProfilingAdvisor,
    extrapolated,
)
from ddlsched.workload.trainers import Survival


def tell(monitor: JobMonitor, nodes: int, begin_s: float, first: int, count: int, step_s: float) -> None:
    for k in range(count):
        step, time_s = first + k, begin_s + k * step_s
        monitor.progress("a", time_s=time_s, step=step, samples=64.0 * step, nodes=nodes)


def test_the_monitor_drops_the_warm_up_and_what_is_too_short() -> None:
    monitor = JobMonitor(warm_up_steps=10, least_steps=10)
    monitor.progress("a", time_s=0.0, step=1, samples=64, nodes=4)
    tell(monitor, 4, 50.0, 2, 9, 5.0)  # slow first steps
    tell(monitor, 4, 100.0, 11, 10, 0.5)
    assert monitor.rates("a") == {}
    tell(monitor, 4, 105.0, 21, 5, 0.5)
    assert monitor.rates("a") == {4: pytest.approx(128.0)}


def test_the_monitor_drops_ten_steps_and_takes_ten() -> None:
    monitor = JobMonitor()
    tell(monitor, 4, 0.0, 0, 11, 5.0)
    tell(monitor, 4, 50.0 + 0.5, 11, 9, 0.5)
    assert monitor.rates("a") == {}
    tell(monitor, 4, 55.0, 20, 1, 0.5)
    assert monitor.rates("a") == {4: pytest.approx(128.0)}


def test_the_monitor_measures_what_a_change_costs() -> None:
    monitor = JobMonitor(warm_up_steps=0, least_steps=5)
    tell(monitor, 2, 0.0, 0, 20, 1.0)  # the last at 19
    tell(monitor, 4, 19.0 + 18.0 + 0.5, 20, 20, 0.5)
    tell(monitor, 3, 47.0 + 12.0 + 0.75, 40, 20, 0.75)
    assert monitor.rates("a") == {2: 64.0, 4: 128.0, 3: pytest.approx(64 / 0.75)}
    assert monitor.rescale_s("a", (1.0, 2.0)) == (pytest.approx(18.0), pytest.approx(12.0))
    assert monitor.rescale_s("b", (1.0, 2.0)) == (1.0, 2.0)
    monitor.forget("a")
    assert monitor.rates("a") == {}


@pytest.mark.parametrize(("gap_s", "cost_s"), [(0.75, 0.25), (0.5, 0.0), (0.25, 0.0)])
def test_item_27_a_change_costs_what_its_step_took_longer_and_never_less_than_nothing(
    gap_s: float, cost_s: float
) -> None:
    monitor = JobMonitor(warm_up_steps=0, least_steps=5)
    tell(monitor, 2, 0.0, 0, 20, 1.0)
    tell(monitor, 4, 19.0 + gap_s, 20, 20, 0.5)
    assert monitor.rescale_s("a", (7.0, 8.0)) == (cost_s, 8.0)


def test_a_stop_does_not_count_as_training_at_the_same_size() -> None:
    monitor = JobMonitor(warm_up_steps=0, least_steps=5)
    tell(monitor, 2, 0.0, 0, 20, 1.0)
    monitor.interrupted("a")
    tell(monitor, 2, 60.0, 20, 20, 1.0)
    assert monitor.rates("a") == {2: 64.0}


def job(name: str, nodes: int, measured=(), *, settled: bool = True, most: int = 8) -> Candidate:
    return Candidate(
        job_id=name, nodes=nodes, min_nodes=1, max_nodes=most, measured=frozenset(measured), settled=settled
    )


def test_sizes_are_profiled_largest_first_and_each_is_held() -> None:
    advisor, sizes = ProfilingAdvisor(hold_s=20.0), []
    nodes, measured, now_s = 0, set(), 0.0
    for _ in range(20):
        pinned = advisor.advise([job("a", nodes, measured)], 8, now_s)
        if not pinned:
            break
        sizes += [pinned["a"]] if not sizes or sizes[-1] != pinned["a"] else []
        if nodes == pinned["a"]:
            assert advisor.wake_s() == now_s + 20.0 or now_s == advisor.wake_s()
            assert advisor.advise([job("a", nodes, measured)], 8, max(now_s, advisor.wake_s() - 1.0)) == pinned
            measured.add(nodes)
            now_s = advisor.wake_s()
        nodes = pinned["a"]
    assert sizes == [4, 3, 2, 1]
    assert advisor.is_done(job("a", 1, measured))


def test_no_running_job_is_stopped_for_a_profile() -> None:
    advisor = ProfilingAdvisor()
    others = [job(name, 2, (1, 2, 3, 4)) for name in "bcd"]
    assert advisor.advise([*others, job("a", 0)], 7, 0.0) == {"a": 4}
    advisor = ProfilingAdvisor()
    assert advisor.advise([*others, job("a", 0)], 5, 0.0) == {"a": 2}
    advisor = ProfilingAdvisor()
    assert advisor.advise([*others, job("a", 0)], 3, 0.0) == {}


def test_a_profile_ends_when_its_size_no_longer_fits_or_its_job_has_gone() -> None:
    advisor = ProfilingAdvisor()
    assert advisor.advise([job("a", 0)], 4, 0.0) == {"a": 4}
    assert advisor.advise([job("a", 3)], 3, 1.0) == {"a": 3}
    assert advisor.advise([job("b", 1, (1, 2, 3, 4))], 3, 2.0) == {}


def test_one_job_is_profiled_at_a_time() -> None:
    advisor = ProfilingAdvisor()
    assert advisor.advise([job("a", 0), job("b", 0)], 100, 0.0) == {"a": 4}
    assert advisor.advise([job("a", 4, settled=False), job("b", 1)], 100, 1.0) == {"a": 4}


def test_allocation_around_a_profile_keeps_every_running_job() -> None:
    sharer = ProfiledAllocator(CountProgramme(lookahead_s=100), ProfilingAdvisor(), JobMonitor(), (18.0, 12.0))
    counts = sharer.counts([job("a", 0), job("b", 3), job("c", 1)], 6, 0.0)
    assert counts[0] == 4
    assert min(counts) >= 1


def test_a_job_that_is_measured_may_wait_for_others() -> None:
    monitor = JobMonitor(warm_up_steps=0, least_steps=5)
    tell(monitor, 1, 0.0, 0, 20, 1.0)
    sharer = ProfiledAllocator(CountProgramme(lookahead_s=100), ProfilingAdvisor(), monitor, (18.0, 12.0))
    assert sharer._trainer(job("a", 0, (1, 2, 3, 4)), 1.0, {}).least == 0


def test_beyond_what_is_measured_a_power_law_goes_on() -> None:
    rates = extrapolated({1: 10.0, 2: 10.0 * 2**0.5, 4: 20.0}, 16)
    np.testing.assert_allclose(rates[[0, 1, 2, 4, 16]], [0, 10, 10 * 2**0.5, 20, 40])
    np.testing.assert_allclose(extrapolated({3: 6.0}, 5), [0, 2, 4, 6, 8, 10])
    assert extrapolated({1: 10.0, 2: 5.0}, 4)[4] == 5.0  # never falling further


def test_measured_speeds_end_up_being_the_truth_in_a_run() -> None:
    curve = ThroughputCurve(num_gpus=(1, 2, 3, 4, 8), samples_per_s=(100.0, 180.0, 250.0, 310.0, 400.0))
    cost = ConstantRescaleCost(up_s=18.0, down_s=12.0)
    jobs = [ElasticJob(job_id="a", arrival_s=0.0, samples=90_000, curve=curve, gpu_batch=50, max_gpus=8)]
    policy = MalleTrain(lookahead_s=100)
    seen = {}

    class Watching:
        def begin(self, cluster, rng):
            seen["run"] = policy.begin(cluster, rng)
            return seen["run"]

    result = simulate(
        Workload(jobs), Cluster(num_servers=6, gpus_per_server=1), allocation=Watching(), rescale_cost=cost
    )
    assert result.summary()["unfinished_jobs"] == 0
    rates = seen["run"].profiled.monitor.rates("a")
    for nodes, rate in rates.items():
        assert rate == pytest.approx(curve.throughput(nodes), rel=0.02)
    assert {1, 2, 3, 4} <= rates.keys()
    assert seen["run"].profiled.monitor.rescale_s("a", (0.0, 0.0))[1] == pytest.approx(12.0, abs=0.1)


def test_survival_is_that_of_the_stays_that_were_seen() -> None:
    survival = Survival()
    rng = np.random.default_rng(1)
    stays = rng.exponential(600.0, 20_000)
    for stay_s in stays:
        survival.saw(stay_s)
    for age_s in (0.0, 300.0, 1200.0):
        further = stays[stays > age_s] - age_s
        assert survival.survives(age_s) == pytest.approx((stays > age_s).mean(), abs=0.02)
        assert survival.useful_s(age_s, 240.0) == pytest.approx(np.minimum(further, 240.0).mean(), rel=0.05)


@pytest.mark.parametrize(
    ("left_s", "lost", "up_s", "down_s"),
    [(0.0, 0, 18.0, 12.0), (5.0, 0, 13.0, 7.0), (15.0, 0, 3.0, 0.0), (99.0, 0, 0.0, 0.0), (0.0, 1, 6.0, 0.0)],
)
def test_a_change_costs_no_more_than_what_a_job_does_not_stand_still_for_anyway(
    left_s: float, lost: int, up_s: float, down_s: float
) -> None:
    view = replace(elastic_job_view(gpus=range(2), lost_gpus=lost), rescaling_left_s=left_s)
    trainer = SurvivalRun(SurvivalAware(), Survival())._trainer(view)
    assert (trainer.scale_up_s, trainer.scale_down_s) == (up_s, down_s)


def test_nodes_that_have_stayed_go_to_the_largest_job() -> None:
    curve = ThroughputCurve(num_gpus=(1, 8), samples_per_s=(100.0, 800.0))
    jobs = [ElasticJob(job_id=n, arrival_s=0.0, samples=4000, curve=curve, gpu_batch=10, max_gpus=8) for n in "ab"]
    capacity = CapacityTrace.of([(n, 0.0, 1e6) for n in range(4)] + [(n, 20.0, 60.0) for n in range(4, 6)])
    result = simulate(
        Workload(jobs), Cluster(num_servers=6, gpus_per_server=1), allocation=SurvivalAware(), capacity=capacity
    )
    assert result.summary()["unfinished_jobs"] == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ProfilingAdvisor(scales=()), "scales are"),
        (lambda: ProfilingAdvisor(hold_s=0), "hold_s is 0"),
        (lambda: MalleTrain(most_scale=0), "scales are"),
        (lambda: SurvivalAware(horizon_s=-1), "horizon_s is -1"),
    ],
)
def test_what_cannot_be_is_refused(make, said) -> None:
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize("times_s", list(itertools.permutations([-1e308, 0.0, 1e308, 1e-320])))
@pytest.mark.parametrize("samples", [[0, 0, 0, 0], [0, 9, 0, 9], [0, 2**63 - 1, 0, 1]])
def test_times_and_samples_that_cannot_be_true_give_no_speed_and_no_cost(times_s, samples) -> None:
    """A change of size that took an endless time ended the live manager once."""
    monitor = JobMonitor(warm_up_steps=0, least_steps=1)
    for step, (time_s, count) in enumerate(zip(times_s * 2, samples * 2, strict=True)):
        for nodes in (1, 2):
            monitor.progress("a", time_s=time_s, step=2 * step + nodes, samples=count, nodes=nodes)
            monitor.progress("a", time_s=-time_s, step=2 * step + nodes + 1, samples=count, nodes=nodes)
    assert all(0 < rate < float("inf") for rate in monitor.rates("a").values())
    assert all(0 <= cost_s < float("inf") for cost_s in monitor.rescale_s("a", (1.0, 1.0)))


def test_a_job_whose_user_says_how_it_scales_is_believed_and_not_profiled() -> None:
    monitor = JobMonitor(warm_up_steps=0, least_steps=1, supplied={"a": {1: 10.0, 2: 11.0, 3: 11.5}})
    for step in range(5):
        monitor.progress("a", time_s=float(step), step=step, samples=1000.0 * step, nodes=1)
    assert monitor.rates("a") == {1: 10.0, 2: 11.0, 3: 11.5}
    advisor = ProfilingAdvisor(scales=(3, 2, 1))
    sharer = ProfiledAllocator(CountProgramme(lookahead_s=100.0), advisor, monitor, (0.0, 0.0))
    jobs = [
        Candidate(
            job_id=name,
            nodes=0,
            min_nodes=1,
            max_nodes=3,
            measured=frozenset(monitor.rates(name)),
            settled=True,
        )
        for name in ("a", "b")
    ]
    counts = sharer.counts(jobs, 4, 0.0)
    assert advisor.pinned == ("b", 3)
    assert counts == [1, 3]
