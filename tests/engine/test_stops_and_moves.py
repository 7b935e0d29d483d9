"""Orders that stop running jobs and placements that move them: cases by hand, refused answers, what always holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from command_line import run as run_command
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from jobs_by_hand import data_parallel_job
from test_stops_and_moves_reference import MovingSetting, moving_settings, run_moving
from tiers import examples

from algorithms.communication.bounded_overlap import BoundedOverlap
from algorithms.ordering.fifo import FirstInFirstOut
from algorithms.ordering.srtf import StoppingShortestRemainingTimeFirst
from algorithms.ordering.tiresias import StoppingTiresias
from algorithms.placement.first_fit import FirstFit
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.errors import InputError, InvalidDecisionError, PluginError, SimulationError
from ddlsched.network.contention import MaxMin, ring_bytes
from ddlsched.policies.stopping import StopsByKey
from ddlsched.results.explanation import explain, transfers_of
from ddlsched.results.slices import transfer_slices
from ddlsched.results.timeline import write_timeline
from ddlsched.simulation import simulate
from ddlsched.testing import cluster_view, job_view
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import write_workload

SRTF = StoppingShortestRemainingTimeFirst()
ONE_SERVER = Cluster(num_servers=1, gpus_per_server=4, exclusive=True)


def job(job_id: str, gpus: int, iterations: int, *, arrival_s: float = 0.0, message_bytes: float = 0.0) -> Job:
    """Return a job with iterations of 1 s and 1000 MB on each GPU."""
    return data_parallel_job(
        job_id,
        gpus,
        forward_s=1.0,
        iterations=iterations,
        arrival_s=arrival_s,
        message_bytes=message_bytes,
        memory_mb=1000,
    )


def run(*jobs: Job, cluster: Cluster = ONE_SERVER, restart_s: float = 0.0, **options: Any) -> Any:
    """Run on a star of 10 Gbit/s, shared max-min; nothing keeps a transfer from starting."""
    given = {"placement": "first-fit", "order": "fifo", "communication": BoundedOverlap(limit=100)} | options
    disturbances = given.pop("disturbances", Disturbances(restart_s=restart_s))
    return simulate(Workload(jobs), cluster, contention=MaxMin(), disturbances=disturbances, **given)


def column(result: Any, name: str) -> dict[str, Any]:
    return dict(zip(result.jobs["job_id"], result.jobs[name], strict=True))


# ---- Stops


LONG, SHORT = job("long", 4, 10), job("short", 2, 3, arrival_s=2.5)


def test_a_shorter_job_takes_the_gpus_of_a_longer_one_which_loses_its_iteration_and_goes_on_behind_it():
    result = run(LONG, SHORT, order=SRTF, restart_s=1.25)
    # Two iterations have ended; half a second is lost. From 5.5 s it restarts, and 8 iterations are left.
    assert column(result, "finish_s") == {"long": 5.5 + 1.25 + 8, "short": 5.5}
    assert column(result, "lost_s") == {"long": 0.5, "short": 0.0}
    assert column(result, "restart_s") == {"long": 1.25, "short": 0.0}
    assert column(result, "queueing_s") == {"long": 3.0, "short": 0.0}
    assert column(result, "restarts") == {"long": 1, "short": 0}


def test_the_same_order_without_stops_waits():
    assert column(run(LONG, SHORT, order="srtf"), "finish_s") == {"long": 10, "short": 13}


def test_a_job_with_as_much_left_is_not_stopped_for_one_that_comes_later():
    assert column(run(job("a", 4, 5), job("b", 4, 3, arrival_s=2.0), order=SRTF), "finish_s") == {"a": 5, "b": 8}


@pytest.mark.parametrize(("least_gain_s", "stops"), [(4.999, 1), (5.0, 0), (100.0, 0)])
def test_a_job_stops_only_where_that_gains_more_than_is_asked_for(least_gain_s: float, stops: int):
    # At 2.5 s "long" has 8 s of iterations left that have not ended, "short" 3 s.
    order = StoppingShortestRemainingTimeFirst(least_gain_s=least_gain_s)
    for jobs in ((LONG, SHORT), (SHORT, LONG)):  # whichever has the lower number
        assert column(run(*jobs, order=order), "restarts") == {"long": stops, "short": 0}


def test_without_a_least_gain_the_lower_number_goes_before_one_with_as_much_left():
    late, early = job("late", 4, 3, arrival_s=2.0), job("early", 4, 5)
    assert column(run(late, early, order=SRTF), "restarts") == {"late": 0, "early": 1}
    least = StoppingShortestRemainingTimeFirst(least_gain_s=1e-9)
    assert column(run(late, early, order=least), "restarts") == {"late": 0, "early": 0}


def test_with_what_going_on_costs_as_the_least_gain_jobs_end_sooner_on_average():
    jobs = job("a", 4, 10), job("b", 4, 9, arrival_s=0.5)
    prices = (
        run(*jobs, order=SRTF, restart_s=3.0),
        run(*jobs, order=StoppingShortestRemainingTimeFirst(least_gain_s=3.0), restart_s=3.0),
    )
    # Stopped at 0.5 s, "a" loses that, waits for 9 s and restarts for 3 s; "b" gains 10 s on it.
    assert [column(result, "finish_s") for result in prices] == [{"a": 22.5, "b": 9.5}, {"a": 10, "b": 19}]
    assert sum(prices[1].jobs["jct_s"]) < sum(prices[0].jobs["jct_s"])


@pytest.mark.parametrize("least_gain_s", [-1.0, float("nan"), 1e10])
def test_a_least_gain_is_seconds(least_gain_s: float):
    with pytest.raises(InputError, match=r"stopping-srtf: least_gain_s is .*; expected seconds from 0 to 1e9"):
        StoppingShortestRemainingTimeFirst(least_gain_s=least_gain_s)


def test_the_jobs_with_most_left_stop_first_and_no_more_than_are_needed():
    jobs = job("a", 1, 9), job("b", 2, 12), job("c", 1, 8), job("new", 2, 3, arrival_s=1.0)
    assert column(run(*jobs, order=SRTF), "restarts") == {"a": 0, "b": 1, "c": 0, "new": 0}


def test_nobody_stops_for_a_job_that_would_have_too_few_gpus_even_so():
    jobs = job("wide", 3, 2), job("narrow", 1, 20), job("all", 4, 5, arrival_s=0.5)
    assert column(run(*jobs, order=SRTF), "finish_s") == {"wide": 2, "narrow": 25, "all": 7}
    # Until 2 s "wide" has less left than "all", so that stopping "narrow" would not help; then it does.
    assert column(run(*jobs, order=SRTF), "start_s")["all"] == 2


def test_gpus_that_one_job_of_the_queue_needs_are_not_counted_on_by_the_next():
    jobs = (
        job("long", 4, 20),
        job("x", 2, 3, arrival_s=1.0),
        job("y", 2, 4, arrival_s=1.0),
        job("z", 2, 5, arrival_s=1.0),
    )
    assert column(run(*jobs, order=SRTF), "start_s") == {"long": 0, "x": 1, "y": 1, "z": 4}


def test_where_jobs_share_gpus_one_stops_only_if_memory_lacks():
    cluster = Cluster(num_servers=1, gpus_per_server=1, gpu_memory_mb=2000)
    jobs = job("a", 1, 10), job("b", 1, 9), job("c", 1, 1, arrival_s=0.5)
    assert column(run(*jobs, cluster=cluster, order=SRTF), "restarts") == {"a": 1, "b": 0, "c": 0}


@pytest.mark.long
def test_tiresias_takes_gpus_from_a_job_that_has_gone_down_a_queue_by_the_next_interval():
    order = StoppingTiresias(threshold_gpu_s=8.0, queues=2, interval_s=1.75)
    # "old" has had 8 GPU-seconds at 2 s, which is seen at 3.5 s.
    result = run(job("old", 4, 10), job("new", 4, 1, arrival_s=0.5), order=order)
    assert column(result, "start_s") == {"old": 0, "new": 3.5}
    assert column(result, "finish_s") == {"old": 11.5, "new": 4.5}


def test_tiresias_looks_again_at_the_next_multiple_of_its_interval():
    assert StoppingTiresias().wake_s(60.0) == 120.0
    assert StoppingTiresias(interval_s=0.1).wake_s(0.3) == pytest.approx(0.4)  # 0.3 / 0.1 is a little less than 3
    with pytest.raises(InputError, match=r"interval_s is 0\.0"):
        StoppingTiresias(interval_s=0.0)


class Waking:
    """First come, first served; it counts how often it is asked when to look again, and goes by that."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    def key(self, job, now_s):
        return job.arrival_ns

    def stops(self, running, queue, cluster):
        return []

    def wake_s(self, now_s):
        self.asked_s.append(now_s)
        return now_s + 0.5 * len(self.asked_s)


class WakingInPython(Waking):
    compiled = False


def test_an_order_that_stops_jobs_is_asked_when_to_wake_at_the_same_times_in_both_forms():
    jobs = [job(str(n), 2 + n % 3, 3 + n, arrival_s=0.3 * n, message_bytes=1e8) for n in range(6)]
    asked_s = []
    for order in (Waking(), WakingInPython()):
        run(*jobs, cluster=Cluster(num_servers=2, gpus_per_server=4), order=order)
        asked_s.append(order.asked_s)
    assert len(asked_s[0]) > 3
    assert asked_s[0] == asked_s[1]


class Remembering:
    """A key that counts how often it is asked, which its ``stops`` would have to see."""

    compiled = True

    def __init__(self) -> None:
        self.times = 0

    def key(self, job, now_s):
        self.times += 1
        return self.times

    def stops(self, running, queue, cluster):
        return []


@pytest.mark.long
def test_an_order_that_stops_jobs_by_what_its_key_remembers_is_not_compiled():
    with pytest.raises(PluginError, match="stops: would not see what the key remembers"):
        run(job("a", 1, 1), order=Remembering())


def test_a_policy_that_stops_jobs_is_compiled_nevertheless(capsys):
    run(LONG, SHORT, order=StoppingTiresias())
    assert "in Python" not in capsys.readouterr().err


# ---- What going on elsewhere costs


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """First fit; at a time moves a job to GPUs."""

    at_s: float
    job_id: str
    gpus: tuple[int, ...]
    seen: list[Any] = field(default_factory=list, compare=False)

    def place(self, job: Any, cluster: Any) -> Any:
        return FirstFit().place(job, cluster)

    def wake_s(self, now_s: float) -> float | None:
        return self.at_s

    def moves(self, running: Any, cluster: Any) -> Any:
        self.seen.append((cluster.now_s, [each.job_id for each in running]))
        return [(each, self.gpus) for each in running if cluster.now_s == self.at_s and each.job_id == self.job_id]


THREE_SERVERS = Cluster(num_servers=3, gpus_per_server=2, exclusive=True)


def test_a_job_moves_at_the_end_of_its_iteration_and_its_state_crosses_the_links_between():
    placement = Scripted(at_s=2.5, job_id="a", gpus=(4, 5))
    result = run(job("a", 2, 5), cluster=THREE_SERVERS, placement=placement, restart_s=0.25)
    # 2 x 1000 MB at 1.25e9 B/s from 3 s on: both cross one way, as one transfer. Then the restart, and 2 iterations.
    assert column(result, "finish_s") == {"a": 3 + 1.6 + 0.25 + 2}
    assert (column(result, "communication_s"), column(result, "restart_s")) == ({"a": 1.6}, {"a": 0.25})
    assert column(result, "lost_s") == {"a": 0}
    assert result.links["bytes"].tolist() == [2e9, 0, 2e9]
    assert [stay.state_bytes for stay in result.finished.stays] == [0, 2_000_000_000]
    assert result.gpus_of("a") == (4, 5)


def test_only_workers_that_change_servers_take_state_along():
    placement = Scripted(at_s=0.5, job_id="a", gpus=(3, 1, 4))
    result = run(job("a", 3, 2), cluster=THREE_SERVERS, placement=placement)
    # From servers 0, 0, 1 to 1, 0, 2: one worker of server 0 goes to server 2.
    assert result.links["bytes"].tolist() == [1e9, 0, 1e9]


def test_state_shares_links_with_all_reduces_as_any_transfer_does():
    # "b" all-reduces 1.25e9 B over servers 0 and 1 for a second from 1 s on; "a" sends 1e9 B from server 1 to 2.
    b = job("b", 3, 1, message_bytes=1.25e9)
    b = replace(b, iteration=replace(b.iteration, forward_s=1.0))
    placement = Scripted(at_s=0.5, job_id="a", gpus=(4,))
    result = run(b, job("a", 1, 2), cluster=THREE_SERVERS, placement=placement)
    alone_s = 1.25e9 * ring_bytes(MaxMin(), 1.0, 2) / 1.25e9
    # They share server 1's card: half the speed each until the shorter, with less bytes, has sent them.
    shorter, longer = sorted([alone_s, 0.8])
    ends = sorted([1 + 2 * shorter, 1 + shorter + longer])
    found = sorted([column(result, "finish_s")["b"], column(result, "finish_s")["a"] - 1.0])
    assert found == pytest.approx(ends, abs=1e-8)


@pytest.mark.parametrize(("state_mb", "state_s"), [(0.0, 0.0), (500.0, 0.4), (None, 0.8)])
def test_the_state_is_what_is_stated_or_all_the_memory(state_mb, state_s):
    disturbances = Disturbances(state_mb=state_mb)
    placement = Scripted(at_s=0.5, job_id="a", gpus=(2,))
    result = run(job("a", 1, 3), cluster=THREE_SERVERS, placement=placement, disturbances=disturbances)
    assert column(result, "finish_s") == {"a": 3 + state_s}


def test_a_stopped_job_finds_its_state_on_its_server_and_gets_it_from_there_elsewhere():
    cluster = Cluster(num_servers=2, gpus_per_server=1, exclusive=True)
    # At 1.5 s "short" takes GPU 1, as "long" has most left; at 3 s GPU 0 is free first, on the other server.
    jobs = job("middle", 1, 3), job("long", 1, 10), job("short", 1, 1, arrival_s=1.5)
    result = run(*jobs, cluster=cluster, order=SRTF)
    assert column(result, "start_s") == {"middle": 0, "long": 0, "short": 1.5}
    assert result.links["bytes"].tolist() == [0, 0]  # "short" ends at 2.5 s, and "long" goes on where it was
    jobs = job("middle", 1, 2), job("long", 1, 10), job("short", 1, 1, arrival_s=1.5)
    result = run(*jobs, cluster=cluster, order=SRTF)
    assert result.links["bytes"].tolist() == [1e9, 1e9]  # here at 2 s on server 0
    assert column(result, "finish_s")["long"] == 2 + 0.8 + 9


def test_a_server_that_is_absent_sends_no_state():
    cluster = Cluster(num_servers=2, gpus_per_server=1, exclusive=True)
    jobs = job("middle", 1, 2), job("long", 1, 10), job("short", 1, 1, arrival_s=1.5)
    disturbances = Disturbances(outages=(Outage(server=1, from_s=1.75, to_s=50.0),))
    result = run(*jobs, cluster=cluster, order=SRTF, disturbances=disturbances)
    assert result.links["bytes"].tolist() == [0, 0]


def test_gpus_are_kept_for_a_job_until_it_has_moved_there():
    placement = Scripted(at_s=0.5, job_id="a", gpus=(2, 3))
    jobs = job("a", 2, 3), job("b", 4, 1, arrival_s=0.5)
    # At 0.5 s "b" is placed before moves are asked; a job that comes later finds GPUs 2 and 3 kept.
    late = job("late", 3, 1, arrival_s=0.75)
    result = run(jobs[0], late, cluster=THREE_SERVERS, placement=placement)
    assert column(result, "start_s") == {"a": 0, "late": 1}
    assert result.gpus_of("late") == (0, 1, 4)


@pytest.mark.long
def test_a_move_to_a_server_that_fails_before_it_is_dropped():
    placement = Scripted(at_s=0.5, job_id="a", gpus=(4,))
    disturbances = Disturbances(outages=(Outage(server=2, from_s=0.75, to_s=5.0),))
    result = run(job("a", 1, 3), cluster=THREE_SERVERS, placement=placement, disturbances=disturbances)
    assert (column(result, "finish_s"), column(result, "restarts"), result.gpus_of("a")) == ({"a": 3}, {"a": 0}, (0,))


def test_moves_are_asked_when_a_job_leaves_and_nobody_waits():
    placement = Scripted(at_s=9.0, job_id="a", gpus=(4,))
    run(job("a", 1, 3), job("b", 1, 1), cluster=THREE_SERVERS, placement=placement)
    assert (1.0, ["a"]) in placement.seen


def test_a_job_that_ends_with_the_iteration_after_which_it_was_to_move_is_done_and_leaves_nothing_reserved():
    placement = Scripted(at_s=0.5, job_id="a", gpus=(4, 5))
    result = run(job("a", 2, 1), job("b", 6, 1, arrival_s=0.75), cluster=THREE_SERVERS, placement=placement)
    assert column(result, "start_s") == {"a": 0, "b": 1}


# ---- What holds for every run


@pytest.mark.long
@given(moving_settings())
@hypothesis_settings(max_examples=examples(10, by_default=4))
def test_no_gpu_holds_more_than_its_memory_and_an_exclusive_one_no_two_jobs(moving: MovingSetting) -> None:
    result = run_moving(moving)
    cluster, stays = moving.setting.cluster, result.finished.stays
    for time_ns in {stay.from_ns for stay in stays}:
        taken = np.zeros(cluster.num_gpus, np.int64)
        jobs = np.zeros(cluster.num_gpus, np.int64)
        for stay in stays:
            if stay.from_ns <= time_ns < stay.to_ns:
                assert len(set(stay.gpus)) == len(stay.gpus) == moving.setting.workload[stay.job].num_gpus
                taken[list(stay.gpus)] += moving.setting.workload[stay.job].gpu_memory_bytes
                jobs[list(stay.gpus)] += 1
        assert (taken <= cluster.gpu_memory_bytes).all()
        assert jobs.max(initial=0) <= 1 or not cluster.exclusive


@pytest.mark.long
@given(moving_settings())
@hypothesis_settings(max_examples=examples(10, by_default=4))
def test_the_bytes_of_moves_are_conserved(moving: MovingSetting) -> None:
    """What is booked on links is what transfers sent by their recorded rates; without latency, in which none goes."""
    setting = moving.setting
    contention, topology = replace(setting.contention, latency_s=0.0), replace(setting.topology, latency_s=0.0)
    result = run_moving(
        replace(moving, setting=replace(setting, contention=contention, topology=topology)), timeline=True
    )
    slices = transfer_slices(result)
    carried = np.zeros(len(result.links))
    columns = ("links", "start_ns", "end_ns", "rate_bytes_per_s")
    for links, begin, end, rate in zip(*(slices[name] for name in columns), strict=True):
        np.add.at(carried, list(links), (end - begin) * rate / 1e9)
    np.testing.assert_allclose(carried, result.links["bytes"], rtol=1e-6, atol=2.0 * (len(slices) + 1))


@pytest.mark.long
@given(moving_settings())
@hypothesis_settings(max_examples=examples(10, by_default=4))
def test_explanations_add_up_to_the_phases(moving: MovingSetting) -> None:
    result = run_moving(moving, timeline=True)
    for row in result.jobs.itertuples():
        if row.state in ("future",):
            continue
        said = explain(result, row.job_id).groupby("phase")["seconds"].sum()
        for phase in ("queueing", "gpu_wait", "network_wait"):
            assert said.get(phase, 0.0) == pytest.approx(getattr(row, f"{phase}_s"), abs=1e-6)


# ---- Timeline


def test_the_timeline_shows_state_on_its_way_and_says_why_a_job_left_its_gpus(tmp_path):
    placement = Scripted(at_s=2.5, job_id="a", gpus=(4, 5))
    result = run(job("a", 2, 5), cluster=THREE_SERVERS, placement=placement, timeline=True)
    sent = transfer_slices(result)
    assert sent[["job_id", "task"]].to_numpy().tolist() == [["a", "state"]]
    assert sent["links"].tolist() == [(0, 2)]
    state = transfers_of(result, "a").iloc[0]
    assert (state["task"], state["tuples"]) == ("state", 1)
    assert state["seconds"] == pytest.approx((sent["end_ns"] - sent["start_ns"]).sum() / 1e9)
    write_timeline(result, tmp_path / "t.json")
    names = [event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
    assert "job a moved" in names
    assert "job a state, iteration 3" in names
    result = run(LONG, SHORT, order=SRTF, timeline=True)
    write_timeline(result, tmp_path / "s.json")
    names = [event["name"] for event in json.loads((tmp_path / "s.json").read_text())["traceEvents"]]
    assert "job long stopped by the order" in names
    assert "job long forward, iteration 2, cut by the order" in names


@pytest.mark.long
def test_explain_says_who_stopped_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_workload(Workload((LONG, SHORT)), "w.csv")
    (tmp_path / "mine.py").write_text(
        "from algorithms.ordering.srtf import StoppingShortestRemainingTimeFirst as Mine\n"
    )
    options = [
        "--servers",
        "1",
        "--exclusive",
        "--order",
        "mine.py:Mine",
        "--restart-s",
        "1.25",
        "--run-out",
        "run.parquet",
    ]
    said = run_command("simulate", "w.csv", *options, "--run-out", "run.parquet")
    assert said.exit_code == 0, said.stderr
    said = run_command("explain", "run.parquet", "long")
    assert "Stopped by a policy 1 time: 0.500 s on its GPUs were for nothing" in said.stdout


# ---- Bad answers and bad prices


@dataclass(frozen=True, kw_only=True)
class Stops(FirstInFirstOut):
    """Stops whatever it is given."""

    what: Any

    def stops(self, running: Any, queue: Any, cluster: Any) -> Any:
        return self.what(running, queue)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            lambda running, queue: queue,
            r"order .* at 2.5 s: stops answered job 'short', which does not run; expected some",
        ),
        (lambda running, queue: running * 2, "stops answered job 'long' twice; expected each job once"),
        (lambda running, queue: ["long"], "stops answered 'long'; expected some of the running jobs that it was given"),
    ],
)
def test_stops_of_a_job_that_does_not_run_are_refused(what, says):
    with pytest.raises(InvalidDecisionError, match=says):
        run(LONG, SHORT, order=Stops(what=what))


def test_stops_that_are_no_list_or_that_raise_are_the_orders_fault():
    with pytest.raises(PluginError, match=r"order .* raised TypeError at 2.5 s, 1 running jobs: 'int'"):
        run(LONG, SHORT, order=Stops(what=lambda running, queue: 7))


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ((2, 3), "at 0.5 s, job 'a': moves answered GPU 2, which has 0 MB free; expected at least 1000 MB"),
        ((4,), r"job 'a': moves answered 1 GPUs \[4\]; expected 2"),
        ((4, 6), "job 'a': moves answered GPU 6; expected whole numbers from 0 to 5"),
        ((4, 4), "job 'a': moves answered GPU 4 twice; expected 2 different ones"),
        ((1, 0), r"job 'a': moves answered the GPUs \[0, 1\] that the job has; expected others"),
        (7, "job 'a': moves answered 7; expected 2 GPU numbers"),
    ],
)
def test_a_move_to_gpus_that_are_none_is_refused_with_policy_time_and_job(gpus, says):
    cluster = replace(THREE_SERVERS, exclusive=False, gpu_memory_mb=1000.0)
    with pytest.raises(InvalidDecisionError, match=r"placement Scripted\(.*" + says):
        run(job("a", 2, 3), job("b", 2, 3), cluster=cluster, placement=Scripted(at_s=0.5, job_id="a", gpus=gpus))


def test_a_move_to_a_gpu_with_a_job_is_refused_where_gpus_are_exclusive():
    says = "job 'a': moves answered GPU 2, which has a job; expected a free one, as the cluster is exclusive"
    placement = Scripted(at_s=0.5, job_id="a", gpus=(2, 3))
    with pytest.raises(InvalidDecisionError, match=says):
        run(job("a", 2, 3), job("b", 2, 3), cluster=THREE_SERVERS, placement=placement)


@dataclass(frozen=True, kw_only=True)
class MovesTwice(Scripted):
    def moves(self, running: Any, cluster: Any) -> Any:
        return [*super().moves(running, cluster), *super().moves(running, cluster)]


def test_a_job_that_moves_twice_at_once_is_refused():
    with pytest.raises(InvalidDecisionError, match="job 'a': moves answered a job that it was not given, or twice"):
        run(job("a", 1, 3), cluster=THREE_SERVERS, placement=MovesTwice(at_s=0.5, job_id="a", gpus=(4,)))


@pytest.mark.parametrize(
    ("name", "value"), [("restart_s", -1.0), ("state_mb", -1.0), ("state_mb", 1e300), ("state_share", 1.5)]
)
def test_a_negative_price_is_refused(name, value, tmp_path):
    with pytest.raises(InputError, match=rf"disturbances: {name} is .*; expected"):
        Disturbances(**{name: value})
    write_workload(Workload((LONG,)), tmp_path / "w.csv")
    said = run_command("simulate", str(tmp_path / "w.csv"), f"--{name.replace('_', '-')}", str(value))
    assert (said.exit_code, "expected" in said.stderr, "Traceback" in said.stderr) == (2, True, False)


@dataclass(frozen=True, kw_only=True)
class StopsForEver(FirstInFirstOut):
    def stops(self, running: Any, queue: Any, cluster: Any) -> Any:
        return running

    def wake_s(self, now_s: float) -> float:
        return now_s + 0.25


@pytest.mark.long
def test_a_job_that_is_stopped_again_and_again_ends_the_run_with_an_error():
    with pytest.raises(
        SimulationError, match=r"order StopsForEver\(\) stopped job 'long' 1000 times in a row before it"
    ):
        run(LONG, replace(SHORT, num_gpus=4), order=StopsForEver())


@pytest.mark.long
def test_what_a_stop_cuts_off_counts_as_service_that_a_job_has_had():
    # Its compute puts job a behind the other; it is stopped in its all-reduce at 1.5 s and stays behind, until at 3 s
    # the other, which comes after it, has had as much. Each then has 3 iterations of 1 s and 0.8 s before it.
    jobs = (job(job_id, 4, 3, message_bytes=1e9) for job_id in "ab")
    order, cluster = "stopping-tiresias:threshold_gpu_s=4,interval_s=1.5", replace(THREE_SERVERS, num_servers=2)
    result = run(*jobs, cluster=cluster, order=order, disturbances=Disturbances(state_mb=0.0))
    assert result.jobs["finish_s"].tolist() == pytest.approx([8.4, 13.8])
    assert result.jobs["restarts"].tolist() == [1, 1]


def test_elastic_jobs_are_refused_beside_them():
    from ddlsched.workload.elastic_job import ElasticJob, LinearCurve

    elastic = ElasticJob(
        job_id="e", arrival_s=0.0, samples=10, curve=LinearCurve(fixed_s=0.0, sample_s=0.01), gpu_batch=1, max_gpus=2
    )
    with pytest.raises(
        InputError, match=r"job 'e' is elastic, and order .* stops or moves running jobs; expected jobs"
    ):
        simulate(Workload((elastic,)), order=SRTF, allocation="tiresias")


# ---- On views made by hand


def test_stops_are_tested_without_a_simulation():
    long = job_view(number=0, num_gpus=4, iterations_left=50, servers=(0,), gpus=(0, 1, 2, 3))
    cluster = cluster_view(num_servers=1, free_memory_mb=500.0, residents={gpu: [long] for gpu in range(4)})
    assert SRTF.stops([long], [job_view(number=1, num_gpus=2, iterations_left=9)], cluster) == [long]
    assert SRTF.stops([long], [job_view(number=1, num_gpus=2, iterations_left=60)], cluster) == []


def test_the_key_that_stops_go_by_must_be_given():
    with pytest.raises(NotImplementedError, match="give the order a key"):
        StopsByKey().key(job_view(), 0.0)
