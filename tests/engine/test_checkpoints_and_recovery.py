"""Jobs save their state at a cost, and go on after failures: by hand, and what must hold of any run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from jobs_by_hand import ServiceSeen, data_parallel_job, elastic_job
from tiers import tried

import ddlsched
from algorithms.placement.first_fit import FirstFit
from algorithms.reliability.health import RepeatedFailures
from algorithms.reliability.intervals import Daly, Young
from algorithms.reliability.recovery import Shrink, Spares
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.cluster.reliability_doors import WAIT, CheckpointedJob, CheckpointStore, StoppedJob
from ddlsched.errors import InputError, InvalidDecisionError, PluginError
from ddlsched.results.explanation import stays_of
from ddlsched.results.reliability import GPU_TIME_PARTS, failure_costs_of, failures_of, gpu_time_of

GB = 1000.0  # MB


def run(
    job,
    *,
    servers=2,
    gpus=2,
    topology="star",
    until_s=None,
    jobs=(),
    seed=0,
    order="fifo",
    exclusive=False,
    rescale_cost=None,
    **given,
):
    return ddlsched.simulate(
        ddlsched.Workload.of([job, *jobs]),
        ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus, topology=topology, exclusive=exclusive),
        placement="first-fit",
        order=order,
        communication="bounded-overlap:limit=9",
        contention="max-min",
        disturbances=Disturbances(**given),
        until_s=until_s,
        seed=seed,
        rescale_cost=rescale_cost,
    )


@dataclass(frozen=True, kw_only=True)
class ToTheLastServer(FirstFit):
    """First fit; what runs on server 0 moves to the last GPUs."""

    def moves(self, running, cluster):
        there = range(cluster.num_gpus - 1, -1, -1)
        return [(job, list(there[: job.num_gpus])) for job in running if job.servers == (0,)]


@pytest.mark.long
def test_a_job_that_saves_at_no_cost_waits_for_its_state_without_a_look_each_nanosecond() -> None:
    """It moves at 1 s to where its checkpoints go, where 2 x 1.25 GB come in 2 s, and then saves each iteration."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    saved = {"checkpoint": "young", "checkpoint_to": "storage", "state_mb": 1.25 * GB}
    failures = [FailureCause(cause="never", per="server", mtbf_s=1e12)]
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2),
        placement=ToTheLastServer(),
        contention="max-min",
        disturbances=Disturbances(failures=failures, **saved),
    )
    assert result.jobs["finish_s"].tolist() == [12.0]
    assert [stay.from_ns / 1e9 for stay in result.finished.stays if stay.saved] == [*range(4, 12)]


@pytest.mark.parametrize("order", ["fifo", "stopping-srtf"])
def test_a_job_saves_its_state_on_disk(order) -> None:
    """10 s of work, saved after every 4 s; 2 GB on each of 2 GPUs take 4 s at 1 GB/s: at 4 to 8 s and 12 to 16 s."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=3.5", "checkpoint_to": "disk:gb_per_s=1", "state_mb": 2 * GB}
    result = run(job, order=order, **saved)
    row = result.jobs.iloc[0]
    assert (row["jct_s"], row["restarts"], row["lost_s"]) == (18.0, 0, 0)
    (times,) = gpu_time_of(result).to_dict("records")
    assert times["checkpoints"] == 2 * 8
    assert times["training"] == 2 * 10
    assert times["restart"] == 0


def test_an_interval_lasts_to_the_end_of_an_iteration() -> None:
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    result = run(job, checkpoint="fixed:every_s=3.5", checkpoint_to="disk:gb_per_s=1", state_mb=2 * GB)
    assert [stay.from_ns / 1e9 for stay in result.finished.stays] == [0, 4, 12]


def test_a_failure_takes_a_job_back_to_what_it_saved_and_reads_it() -> None:
    """Saved at 4 to 8 s; the server is down from 11 to 20 s; 1.5 s to start, 0.5 s for 2 GPUs, 4 s to read."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=3.5", "checkpoint_to": "disk:gb_per_s=1", "state_mb": 2 * GB}
    outage = Outage(server=0, from_s=11, to_s=20)
    result = run(job, servers=1, outages=(outage,), restart_s=1.5, restart_gpu_s=0.25, **saved)
    row = result.jobs.iloc[0]
    assert (row["lost_s"], row["restarts"], row["queueing_s"]) == (3.0, 1, 9.0)
    assert row["jct_s"] == 20 + 6 + 6 + 4  # 6 s of work left, of which 4 s before another checkpoint
    (cost,) = failure_costs_of(result, "a").to_dict("records")
    assert cost == {
        "time_s": 11.0,
        "cause": "",
        "lost_s": 3.0,
        "detection_s": 0.0,
        "without_gpus_s": 9.0,
        "starting_s": 6.0,
    }
    assert stays_of(result, "a")["to_s"].tolist() == [11.0, 36.0]


def test_every_gpu_of_a_job_computed_until_its_server_failed() -> None:
    # Three iterations of 3 s, of which 1.5 s are lost; the server is away for 1 s.
    result = ddlsched.simulate(
        ddlsched.Workload.of([data_parallel_job(gpus=2, iterations=3, forward_s=1.0, backward_s=2.0)]),
        ddlsched.Cluster(num_servers=1, gpus_per_server=2),
        placement="first-fit",
        disturbances=Disturbances(outages=(Outage(server=0, from_s=4.5, to_s=5.5),)),
    )
    assert result.gpus["busy_s"].tolist() == [10.5, 10.5]
    samples = result.samples
    assert (samples["busy_gpus"] * np.diff(samples["time_s"], prepend=0.0)).sum() == pytest.approx(21.0)


@pytest.mark.parametrize("seed", range(6))
def test_a_gpu_that_becomes_slow_in_an_iteration_holds_up_what_is_left_of_it(seed: int) -> None:
    slow = FailureCause(cause="slow", per="gpu", mtbf_s=8000.0, noticed_s=inf, slowdown=1.7)
    result = ddlsched.simulate(
        ddlsched.Workload.of([data_parallel_job(gpus=4, forward_s=1000.0, backward_s=1000.0)]),
        ddlsched.Cluster(num_servers=1, gpus_per_server=4),
        placement="first-fit",
        disturbances=Disturbances(failures=(slow,)),
        seed=seed,
    )
    slow_by_then = any(failure.time_ns < 1000e9 for failure in result.finished.failures)
    assert result.jobs["finish_s"].tolist() == [2700.0 if slow_by_then else 2000.0]


def test_a_job_that_starts_again_warms_up_for_some_iterations() -> None:
    """Down from 11 to 20 s, 1 s to start, 2.5 iterations of 2 s lost; the iteration under way is, too."""
    job = data_parallel_job("a", gpus=2, iterations=10, forward_s=0.5, backward_s=1.5)
    outage = Outage(server=0, from_s=11, to_s=20)
    row = run(job, servers=1, outages=(outage,), restart_s=1.0, restart_iterations=2.5).jobs.iloc[0]
    assert (row["restart_s"], row["lost_s"], row["jct_s"]) == (6.0, 1.0, 20 + 6 + 10)


def test_a_checkpoint_that_a_failure_cuts_short_is_worth_nothing() -> None:
    """Of the checkpoint at 4 to 8 s nothing is left at 7 s."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=3.5", "checkpoint_to": "disk:gb_per_s=1", "state_mb": 2 * GB}
    result = run(job, servers=1, outages=(Outage(server=0, from_s=7, to_s=9),), **saved)
    assert result.jobs["lost_s"].tolist() == [4.0]
    assert result.jobs["jct_s"].tolist() == [9 + 4 + 18]


def test_a_checkpoint_in_the_background_takes_its_share_and_is_safe_later() -> None:
    """4 s to write at half of the compute: held up for 2 s at 5 s, safe at 9 s: lost at 8.5 s, not at 9.5 s."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    saved = {
        "checkpoint": "fixed:every_s=4.5",
        "checkpoint_to": CheckpointStore(gb_per_s=1, background_share=0.5),
        "state_mb": 2 * GB,
    }
    assert run(job, **saved).jobs["jct_s"].tolist() == [12.0]
    for from_s, lost_s in ((8.5, 6.5), (9.5, 2.5)):
        result = run(job, servers=1, outages=(Outage(server=0, from_s=from_s, to_s=10),), **saved)
        assert result.jobs["lost_s"].tolist() == [lost_s]


@pytest.mark.parametrize(("to", "seconds"), [("peer", 2.0), ("storage:servers=1", 2.0)])
def test_state_crosses_the_network(to, seconds) -> None:
    """1.25 GB from each of two servers, twice over each card, or over storage's, at 10 Gbit/s."""
    job = data_parallel_job("a", gpus=2, iterations=4, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=1.5", "checkpoint_to": to, "state_mb": 1.25 * GB}
    result = run(job, servers=3, gpus=1, **saved)
    begin_s = [(stay.from_ns / 1e9, stay.begin_ns / 1e9) for stay in result.finished.stays]
    assert begin_s[1] == pytest.approx((2.0, 2.0 + seconds), abs=1e-3)


def test_checkpoints_meet_on_the_way_to_storage() -> None:
    job = data_parallel_job("a", gpus=1, iterations=4, backward_s=1.0)
    other = data_parallel_job("b", gpus=1, iterations=4, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=1.5", "checkpoint_to": "storage", "state_mb": 1.25 * GB}
    alone = run(job, servers=3, gpus=1, **saved)
    both = run(job, servers=3, gpus=1, jobs=[other], exclusive=True, **saved)
    assert alone.jobs["jct_s"].iloc[0] == pytest.approx(5.0, abs=1e-3)
    assert both.jobs["jct_s"].tolist() == pytest.approx([6.0, 6.0], abs=1e-3)


def test_state_is_read_from_the_peer_that_has_it() -> None:
    """Server 0 fails; of its state server 1 has a copy, from where server 2 reads it in 1 s."""
    job = data_parallel_job("a", gpus=2, iterations=4, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=1.5", "checkpoint_to": "peer", "state_mb": 1.25 * GB}
    result = run(job, servers=3, gpus=1, outages=(Outage(server=0, from_s=4.5),), **saved)
    last = [stay for stay in result.finished.stays if not stay.saved][-1]
    assert last.gpus == (1, 2)
    assert (last.begin_ns - last.from_ns) / 1e9 == pytest.approx(1.0, abs=1e-3)


def test_a_job_waits_for_its_server_and_nobody_takes_its_others() -> None:
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    other = data_parallel_job("b", gpus=2, iterations=1, backward_s=1.0, arrival_s=6.0)
    outage = Outage(server=0, from_s=5, to_s=20)
    kept = run(job, jobs=[other], outages=(outage,), recovery="wait", order="srsf")
    full = ddlsched.simulate(
        ddlsched.Workload.of([job, other]),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2, exclusive=True),
        placement="first-fit",
        disturbances=Disturbances(outages=(outage,), recovery="wait"),
    )
    assert kept.jobs["jct_s"].tolist() == [25.0, 1.0]  # memory of both fits on a GPU
    assert full.jobs["jct_s"].tolist() == [25.0, 20.0]
    assert kept.finished.stays[-1].gpus == (0, 1, 2, 3)


@pytest.mark.parametrize(("start_s", "jct_s"), [(0.0, 10.0), (3.0, 13.0)])
def test_a_spare_takes_the_place_of_a_server(start_s, jct_s) -> None:
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    outage = Outage(server=0, from_s=5, to_s=8)
    spare = f"spares:count=1,start_s={start_s:g}"
    result = run(job, servers=3, outages=(outage,), recovery=spare)
    assert result.jobs["jct_s"].tolist() == [jct_s]
    assert [stay.gpus for stay in result.finished.stays] == [(0, 1, 2, 3), (4, 5, 2, 3)]


def test_a_repaired_server_is_the_next_spare() -> None:
    job = data_parallel_job("a", gpus=4, iterations=20, backward_s=1.0)
    outages = (Outage(server=0, from_s=5, to_s=8), Outage(server=1, from_s=10, to_s=12))
    result = run(job, servers=3, outages=outages, recovery="spares")
    assert [stay.gpus for stay in result.finished.stays][-1] == (4, 5, 0, 1)
    assert result.jobs["jct_s"].tolist() == [20.0]


def test_spares_of_a_rack_and_of_anywhere() -> None:
    racks = [[0, 1, 2], [3, 4, 5]]
    assert list(Spares(count=3).spares(6, racks)) == [2, 5, 1]
    lost = {"job_id": "a", "num_gpus": 4, "servers": (0, 1), "lost": {0: 2}, "racks": racks, "now_s": 0.0}
    far = StoppedJob(spares={5: 2}, **lost)
    assert Spares().recover(far) == {0: 5}
    assert Spares(where="rack").recover(far) is None
    assert Spares(where="rack", otherwise="wait").recover(far) is WAIT
    assert Spares().recover(StoppedJob(spares={5: 2, 2: 2}, **lost)) == {0: 2}
    assert Spares().recover(StoppedJob(spares={5: 1}, **lost)) is None


def test_corruption_that_is_found_late_costs_an_older_checkpoint() -> None:
    """Hit once at some time; the check at the next multiple of 10 s takes the job back to before that."""
    cause = FailureCause(cause="silent", per="job", mtbf_s=25.0, takes="job", noticed_s=inf)
    job = data_parallel_job("a", gpus=2, iterations=40, backward_s=1.0)
    saved = {"checkpoint": "fixed:every_s=1.5", "checkpoint_to": "disk:gb_per_s=1000", "state_mb": 1.0}
    health = RepeatedFailures(check_s=10.0)
    result = run(job, failures=(cause,), health=health, until_s=300.0, **saved)
    failures = result.finished.failures
    assert failures
    found_s = [10 * (failure.time_ns // 10_000_000_000 + 1) for failure in failures]
    lost_s = [failure.lost_ns / 1e9 for failure in failures]
    first, since_s = lost_s[0], found_s[0] - failures[0].time_ns / 1e9
    assert since_s <= first <= since_s + 3.0
    assert result.jobs["lost_s"].iloc[0] == pytest.approx(sum(lost_s))
    assert {stay.hold_ns for stay in result.finished.stays[1:]} == {2_000}  # to save or read 1 MB; it does not hang


def test_a_replaced_lemon_fails_as_rarely_as_others() -> None:
    cause = FailureCause(cause="node", per="server", mtbf_s=1000.0, repair_s=1.0, lemon_share=0.1, lemon_times=30.0)
    job = data_parallel_job("a", gpus=1, iterations=20_000, backward_s=1.0)

    def outages(**given: str) -> list[int]:
        found = run(job, servers=40, gpus=1, failures=(cause,), until_s=20_000.0, seed=3, **given)
        return [server for server, *_ in found.finished.outages]

    lemons = set(np.flatnonzero(np.bincount(outages()) > 100))
    left = np.bincount(outages(health="repeated-failures:count=3,within_days=0.02"), minlength=40)
    assert lemons
    assert max(left[list(lemons)]) < 30


def test_as_many_failures_as_told_within_so_many_days_replace_a_server() -> None:
    health, day_s = RepeatedFailures(count=2, within_days=2.0), 86_400.0
    assert [health.replaces([at_s, 9 * day_s]) for at_s in (6.9 * day_s, 7 * day_s)] == [False, True]
    assert not health.replaces([9 * day_s])


def test_youngs_and_dalys_intervals() -> None:
    job = CheckpointedJob(job_id="a", num_gpus=1, write_s=60.0, restart_s=0.0, time_to_failure_s=30_000.0, now_s=0.0)
    assert Young().interval_s(job) == pytest.approx(1897.4, abs=0.1)
    assert Daly().interval_s(job) == pytest.approx(1897.4 * (1 + 0.0316228 / 3 + 0.001 / 9) - 60, abs=0.1)


WRITTEN_TO = (
    *("disk:gb_per_s=1", "peer", "storage"),
    *("disk:gb_per_s=1,background_share=0.1", "storage:background_share=0.1"),
)
RECOVERIES = (None, "wait", "spares:count=1,otherwise=wait", "spares:count=1,where=rack")


@pytest.mark.parametrize(
    ("to", "recovery"),
    tried(product(WRITTEN_TO, RECOVERIES), lambda place: sum(divmod(place, 4)) % 2 == 0),
)
def test_every_iteration_is_trained_and_time_adds_up(to, recovery) -> None:
    causes = (
        FailureCause(cause="hang", per="gpu", mtbf_s=300.0, noticed_s=3.0, repair_s=4.0),
        FailureCause(cause="software", per="job", mtbf_s=90.0, takes="job", noticed_s=2.0),
        FailureCause(cause="node", per="server", mtbf_s=100.0, repair_s=5.0),
        FailureCause(cause="silent", per="server", mtbf_s=100.0, takes="job", noticed_s=inf),
    )
    jobs = [
        data_parallel_job(f"j{n}", gpus=n % 4 + 1, iterations=30, arrival_s=n, backward_s=0.5, message_bytes=1e8)
        for n in range(5)
    ]
    order = ServiceSeen()
    result = run(
        jobs[0],
        jobs=jobs[1:],
        servers=4,
        topology="leaf-spine:servers_per_leaf=2,spines=1",
        order=order,
        failures=causes,
        checkpoint="young",
        checkpoint_to=to,
        recovery=recovery,
        health=RepeatedFailures(check_s=5.0),
        restart_s=1.0,
        state_mb=200.0,
    )
    assert len(result.finished.failures) > 5
    falls = [np.diff(each, axis=0).min(axis=0) for each in order.seen.values()]  # of service attained, and used
    assert np.min(falls, axis=0)[0] < 0 <= np.min(falls, axis=0)[1]
    times, lost = gpu_time_of(result), failures_of(result).groupby("job_id")["lost_s"].sum()
    np.testing.assert_allclose(times[list(GPU_TIME_PARTS)].sum(axis=1), times["held"], rtol=1e-9)
    assert (times[list(GPU_TIME_PARTS)] >= -1e-6).all(axis=None)
    np.testing.assert_allclose(lost.reindex(times["job_id"], fill_value=0.0), result.jobs["lost_s"], atol=1e-9)
    costs = [failure_costs_of(result, job.job_id) for job in jobs]
    idle_s = np.array([cost[["without_gpus_s", "starting_s"]].sum() for cost in costs])
    assert (idle_s >= 0).all()
    parts = (times["detection"] + times["restart"] + times["requeueing"]) / times["gpus"]
    told_s = idle_s.sum(axis=1) + [cost["detection_s"].sum() for cost in costs]
    np.testing.assert_allclose(told_s, parts, atol=1e-6)
    for number, job in enumerate(jobs):
        stays = [stay for stay in result.finished.stays if stay.job == number]
        assert sum(stay.worked_ns for stay in stays if not stay.lost) / 1e9 >= 0.5 * job.iterations - 1e-9
        held = [(stay.from_ns, stay.to_ns) for stay in stays]
        assert all(before[1] <= after[0] for before, after in pairwise(held))
    for gpu in range(8):  # nobody computes on a server that is down
        for server, from_ns, to_ns in result.finished.outages:
            on = [stay for stay in result.finished.stays if gpu in stay.gpus and gpu // 2 == server]
            assert not any(stay.from_ns < to_ns and from_ns < stay.to_ns for stay in on)


class Silly:
    start_s = 0.0

    def spares(self, num_servers, racks):
        return [2]

    def recover(self, stopped):
        return {0: 1}


class Never:
    def __init__(self, answer):
        self.answer = answer

    def interval_s(self, job):
        return self.answer


def test_answers_that_are_none_are_refused() -> None:
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    outage = Outage(server=0, from_s=5, to_s=8)
    with pytest.raises(InvalidDecisionError, match=r"recovery Silly answered \{0: 1\} for job 'a'"):
        run(job, servers=3, outages=(outage,), recovery=Silly())
    for answer in (-1.0, 0.0):
        with pytest.raises(PluginError, match=rf"interval_s answered {answer} for job 'a'"):
            run(job, checkpoint=Never(answer))


@pytest.mark.parametrize("order", ["fifo", "stopping-srtf"])
@pytest.mark.parametrize(("price", "jct_s"), [(None, 4 + 3 * 2 + 3), ("down_s=4,up_s=7", 4 + 4 + 2 + 7 + 5)])
def test_a_job_shrinks_and_grows_again(price, jct_s, order) -> None:
    """Iterations of 1 s on 4 GPUs, of 2 s on the 2 left from 4 s on; back at 9 s, all 4 go on at 10 s."""
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    outage = Outage(server=0, from_s=4, to_s=9)
    result = run(job, order=order, outages=(outage,), recovery="shrink", rescale_cost=price)
    assert [stay.gpus for stay in result.finished.stays] == [(0, 1, 2, 3), (2, 3), (0, 1, 2, 3)]
    assert result.jobs["jct_s"].tolist() == [jct_s]
    (times,) = gpu_time_of(result).to_dict("records")
    held = sum(len(stay.gpus) * (stay.to_ns - stay.from_ns) / 1e9 for stay in result.finished.stays)
    assert times["held"] == pytest.approx(held)
    assert times["training"] == pytest.approx(40.0)


def test_a_shrunk_job_waits_within_its_iterations_for_what_is_sent() -> None:
    """As above, of an iteration that ends once the gradients are there: 8 bytes take no time."""
    dag = ddlsched.IterationDag(
        (
            ddlsched.ComputeTask(name="backward", duration_ns=500_000_000),
            ddlsched.AllReduceTask(name="norm", message_bytes=8.0, after=("backward",)),
            ddlsched.AllReduceTask(name="gradients", message_bytes=8.0, after=("backward", "norm")),
            ddlsched.ComputeTask(name="update", duration_ns=500_000_000, after=("gradients",)),
        )
    )
    job = replace(data_parallel_job("a", gpus=4, iterations=10), iteration=dag)
    result = run(job, outages=(Outage(server=0, from_s=4.1, to_s=9),), recovery="shrink")
    assert [stay.gpus for stay in result.finished.stays] == [(0, 1, 2, 3), (2, 3), (0, 1, 2, 3)]
    assert result.jobs["jct_s"].tolist() == pytest.approx([4.1 + 3 * 2 + 3], abs=1e-3)


class ShrinkThenSpare:
    start_s = 0.0

    def spares(self, num_servers, racks):
        return [3]

    def recover(self, stopped):
        return 2 if 0 in stopped.lost else {1: 3}


def test_item_27_a_shrunk_job_that_has_got_a_spare_grows_on_that() -> None:
    """It lacks server 0 from 4 to 19 s; the spare in place of server 1, which fails at 8 s, belongs to its whole."""
    job = data_parallel_job("a", gpus=3, iterations=30, backward_s=1.0)
    outages = (Outage(server=0, from_s=4, to_s=19), Outage(server=1, from_s=8, to_s=90))
    result = run(job, servers=4, gpus=1, outages=outages, recovery=ShrinkThenSpare())
    stays = [(stay.gpus, stay.from_ns // 10**9) for stay in result.finished.stays]
    assert stays == [((0, 1, 2), 0), ((1, 2), 4), ((3, 2), 8), ((0, 3, 2), 20)]


def test_a_shrunk_job_that_was_stopped_sends_its_state_to_the_workers_it_gets_back() -> None:
    """From 20 s on server 1, which has the state of 2 workers, sends 2 GB to each of the 2 on server 0: 3.2 s."""
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    short = data_parallel_job("b", gpus=2, iterations=1, backward_s=1.0, arrival_s=5.0)
    outage = Outage(server=0, from_s=4, to_s=20)
    stopping = {"order": "stopping-srtf", "exclusive": True}
    result = run(job, jobs=[short], outages=(outage,), recovery="shrink", state_mb=2 * GB, **stopping)
    stays = [stay for stay in result.finished.stays if stay.job == 0]
    assert [stay.gpus for stay in stays] == [(0, 1, 2, 3), (2, 3), (0, 1, 2, 3)]
    assert stays[-1].from_ns == 20e9
    assert result.links.set_index("link")["bytes"].max() == 4e9


def test_what_is_left_of_a_shrunk_job_is_kept_for_it() -> None:
    """Of 3 GPUs left it takes 2 with replicas of 2; another job gets neither the third nor those that come back."""
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    other = data_parallel_job("b", gpus=1, iterations=1, backward_s=1.0, arrival_s=5.0)
    outage = Outage(server=0, from_s=4, to_s=9)
    shrink = "shrink:replica_gpus=2"
    result = run(job, jobs=[other], servers=4, gpus=1, outages=(outage,), recovery=shrink, exclusive=True)
    assert [stay.gpus for stay in result.finished.stays if stay.job == 0] == [(0, 1, 2, 3), (1, 2), (0, 1, 2, 3)]
    assert result.jobs["start_s"].tolist() == [0.0, 13.0]


def test_a_job_with_too_few_gpus_left_does_not_shrink() -> None:
    lost = {"job_id": "a", "num_gpus": 8, "servers": (0, 1), "spares": {}, "racks": (), "now_s": 0.0}
    assert Shrink().recover(StoppedJob(lost={0: 4}, can_shrink=True, **lost)) == 4
    assert Shrink().recover(StoppedJob(lost={0: 4}, can_shrink=False, **lost)) is None
    assert Shrink(otherwise="wait").recover(StoppedJob(lost={0: 5}, can_shrink=True, **lost)) is WAIT
    assert Shrink(replica_gpus=3, least_share=0.0).recover(StoppedJob(lost={0: 3}, can_shrink=True, **lost)) == 3


def test_a_job_that_has_waited_long_gives_way() -> None:
    """It keeps two GPUs from 5 s to 9 s, then the other job has them."""
    job = data_parallel_job("a", gpus=4, iterations=10, backward_s=1.0)
    other = data_parallel_job("b", gpus=2, iterations=3, backward_s=1.0, arrival_s=6.0)
    outage = Outage(server=0, from_s=5, to_s=20)
    result = run(job, jobs=[other], outages=(outage,), recovery="wait:patience_s=4", exclusive=True)
    assert result.jobs["start_s"].tolist() == [0.0, 9.0]
    assert result.jobs["finish_s"].tolist() == [25.0, 12.0]


def test_jobs_recover_beside_elastic_jobs() -> None:
    """The elastic job is kept off the GPUs that another waits for, and hangs with its own."""
    fixed = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    result = ddlsched.simulate(
        ddlsched.Workload.of([fixed, elastic_job("b", arrival_s=1.0)]),
        ddlsched.Cluster(num_servers=3, gpus_per_server=1),
        placement="first-fit",
        allocation="elastic-scaling",
        disturbances=Disturbances(outages=(Outage(server=0, from_s=5, to_s=20),), recovery="wait"),
    )
    stays = [stay for stay in result.finished.stays if stay.job == 0]
    assert [(stay.gpus, stay.from_ns, stay.to_ns) for stay in stays] == [
        ((0, 1), 0, 5_000_000_000),
        ((0, 1), 20_000_000_000, 25_000_000_000),
    ]
    assert not any({0, 1}.intersection(stay.gpus) and stay.from_ns < 20e9 for stay in result.finished.stays if stay.job)


def test_elastic_jobs_hang() -> None:
    cause = FailureCause(cause="software", per="job", mtbf_s=30.0, takes="job", noticed_s=5.0)
    result = ddlsched.simulate(
        ddlsched.Workload.of([elastic_job(samples=40_000)]),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2),
        allocation="elastic-scaling",
        disturbances=Disturbances(failures=(cause,), checkpoint="fixed:every_s=9"),
        until_s=1000.0,
    )
    assert result.finished.failures
    assert result.jobs["restart_s"].iloc[0] >= 5.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"checkpoint": "young", "checkpoint_iterations": 3}, "expected one of them"),
        ({"checkpoint_to": "peer"}, "expected checkpoint as well"),
        ({"checkpoint": "yong"}, "young"),
        ({"checkpoint": "young", "checkpoint_to": "tape"}, "one of disk, peer, storage"),
        ({"recovery": "spares:count=0"}, "count is 0"),
        ({"health": RepeatedFailures(check_s=60.0)}, "check_s"),
    ],
)
def test_what_does_not_go_together_is_refused(given, said) -> None:
    with pytest.raises((InputError, ddlsched.errors.UnknownNameError), match=said):
        Disturbances(**given)
