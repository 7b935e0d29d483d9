"""``simulate``: its tables, its plug-in doors, and what it refuses."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from jobs_by_hand import Fixed, data_parallel_job

import ddlsched
from ddlsched import Cluster, InputError, Workload
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.errors import InvalidDecisionError, PluginError, SimulationError, UnknownNameError
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve

SMALL = Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=1000.0)

job = functools.partial(
    data_parallel_job, forward_s=0.04, backward_s=0.06, message_bytes=1e8, iterations=10, memory_mb=400.0
)


def simulate(*jobs, cluster=SMALL, **given):
    return ddlsched.simulate(Workload.of(jobs), cluster, **given)


# ---- Tables


def test_the_parts_of_a_jobs_time():
    # Alone on two servers: 10 x (0.1 s compute + 0.1 s all-reduce at 1 ns a byte).
    result = simulate(job(gpus=4), contention=ddlsched.Linear(per_byte_s=1e-9, penalty_per_byte_s=0.0))
    (row,) = result.jobs.to_dict("records")
    assert row["jct_s"] == pytest.approx(2.0)
    assert row["compute_s"] == pytest.approx(1.0)
    assert row["communication_s"] == pytest.approx(1.0)
    assert (row["queueing_s"], row["network_wait_s"]) == (0.0, 0.0)
    assert (row["gpus"], row["servers"]) == (4, 2)
    assert result.summary()["gpu_utilisation"] == pytest.approx(0.5)
    assert result.links["bytes"].tolist() == [1e9, 1e9]
    assert result.links["utilisation"].tolist() == pytest.approx([0.5, 0.5])
    assert result.gpus["busy_s"].tolist() == pytest.approx([1.0] * 4)


def test_waiting_for_the_network_is_counted_apart():
    model = ddlsched.Linear(per_byte_s=1e-9, penalty_per_byte_s=0.0)
    jobs = [job("a", gpus=2, iterations=1), job("b", gpus=2, iterations=1)]
    spread = {"placement": Fixed(gpus={"a": (0, 2), "b": (1, 3)}), "communication": "bounded-overlap:limit=1"}
    result = simulate(*jobs, contention=model, **spread)
    assert result.jobs["network_wait_s"].tolist() == pytest.approx([0.0, 0.1])
    assert result.jobs["finish_s"].tolist() == pytest.approx([0.2, 0.3])


def test_queueing_is_the_time_before_placement():
    result = simulate(job("a", memory_mb=900.0, gpus=4), job("b", memory_mb=900.0, arrival_s=0.5), scheduler="srsf-1")
    finish_s = result.jobs["finish_s"][0]
    assert result.jobs["start_s"][1] == finish_s
    assert result.jobs["queueing_s"][1] == pytest.approx(finish_s - 0.5)


def test_a_job_that_does_not_fit_is_skipped_not_waited_for():
    jobs = [
        job("long", memory_mb=900.0, iterations=50),
        job("wide", memory_mb=900.0, gpus=4, arrival_s=0.1, iterations=1),
        job("late", memory_mb=900.0, arrival_s=0.2, iterations=30),
    ]
    result = simulate(*jobs, order="fifo")
    assert result.jobs["start_s"].tolist() == [0.0, 5.0, 0.2]


def test_summary_uses_the_linear_quantile_rule():
    result = simulate(*(job(str(n), iterations=n + 1, memory_mb=100.0) for n in range(5)))
    jct_s = result.jobs["jct_s"].to_numpy()
    summary = result.summary()
    assert summary["average_jct_s"] == pytest.approx(jct_s.mean())
    assert summary["p95_jct_s"] == pytest.approx(np.quantile(jct_s, 0.95, method="linear"))
    assert summary["makespan_s"] == result.jobs["finish_s"].max()


def test_the_64_gpu_mix_is_as_published():
    workload = ddlsched.microsoft_160(seed=5)
    sizes = [one.num_gpus for one in workload]
    assert {size: sizes.count(size) for size in sizes} == {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}
    assert all(1000 <= one.iterations <= 6000 and 0 <= one.arrival_s <= 1200 for one in workload)
    assert ddlsched.microsoft_160(seed=5) == workload
    assert ddlsched.microsoft_160(seed=6) != workload
    small = ddlsched.microsoft_160(seed=5, scale=0.01)
    assert all(10 <= one.iterations <= 60 and 0 <= one.arrival_s <= 12 for one in small)


# ---- Plug-ins


@dataclass(frozen=True, kw_only=True)
class LongestFirst:
    """An order of a user's, with a tuple for a key."""

    def key(self, job, now_s):
        return (-job.remaining_service_ns, job.number)


@pytest.mark.long
def test_a_users_order_decides_who_goes_first():
    longer = [job(name, memory_mb=900.0) for name in ("long", "x", "y", "z")]
    result = simulate(job("short", iterations=1, memory_mb=900.0), *longer, order=LongestFirst())
    assert result.jobs["start_s"].tolist()[0] > 0.0
    assert result.jobs["start_s"].tolist()[1:] == [0.0] * 4


class Delay:
    """Lets every job wait until a time, and asks to be woken then."""

    def __init__(self, until_s):
        self.until_s = until_s

    def place(self, job, cluster):
        return [0] if cluster.now_s >= self.until_s else None

    def wake_s(self, now_s):
        return self.until_s if now_s < self.until_s else None


def test_a_placement_that_waits_is_woken_when_it_asks():
    result = simulate(job(arrival_s=1.0), placement=Delay(7.25))
    assert result.jobs["start_s"].tolist() == [7.25]


class Gate:
    """Admits transfers from a time on, and asks to be woken then."""

    def admit(self, transfer, network):
        return network.now_s >= 5.0

    def wake_s(self, now_s):
        return 5.0 if now_s < 5.0 else None


def test_a_communication_policy_that_waits_is_woken_when_it_asks():
    result = simulate(job(gpus=4, iterations=1), communication=Gate())
    assert result.jobs["network_wait_s"].tolist() == pytest.approx([4.9])


class Remembers:
    """Counts its calls within a run, through begin."""

    def begin(self, cluster, rng):
        assert cluster is SMALL
        return RoundRobin(int(rng.integers(SMALL.num_gpus)))


class RoundRobin:
    def __init__(self, first):
        self.next = first

    def place(self, job, cluster):
        self.next += 1
        return [self.next % cluster.num_gpus]


def test_begin_gives_each_run_a_state_and_a_seed_of_its_own():
    policy = Remembers()
    runs = [simulate(job("a"), job("b"), placement=policy, seed=seed).finished.gpus for seed in (1, 1, 2, 3, 4)]
    assert runs[0] == runs[1]
    assert len({tuple(run.values()) for run in runs}) > 1


def placement_answering(answer):
    return type("Answers", (), {"place": lambda self, job, cluster: answer})()


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([0, 0], "GPU 0 twice"),
        ([0], "1 GPUs .* expected 2"),
        ([0, 1, 2], "3 GPUs .* expected 2"),
        ([0, 4], "GPU 4; expected whole numbers from 0 to 3"),
        ([0, -1], "GPU -1"),
        ([0, True], "GPU True"),
        ([0, 1.0], r"GPU 1\.0"),
        (7, "answered 7"),
        ([0, "1"], "GPU '1'"),
        (iter([0, 1]), "answered <list_iterator .* expected 2 GPU numbers"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(answer, fault):
    with pytest.raises(InvalidDecisionError, match=f"placement Answers at 0.5 s, job 'a': .*{fault}"):
        simulate(job(gpus=2, arrival_s=0.5), placement=placement_answering(answer))


def test_a_placement_without_memory_is_refused():
    with pytest.raises(InvalidDecisionError, match="GPU 0, which has 200 MB free; expected at least 400 MB"):
        simulate(job("a"), job("b"), job("c"), placement=placement_answering([0]))


@pytest.mark.parametrize(
    ("plugins", "fault"),
    [
        (
            {"order": type("Nan", (), {"key": lambda s, j, t: math.nan})()},
            "order Nan at 0.0 s, job 'a': its key is nan",
        ),
        ({"order": type("Mixed", (), {"key": lambda s, j, t: (1, 2) if j.number else 1})()}, "cannot be compared"),
        ({"order": type("Text", (), {"key": lambda s, j, t: j.job_id})()}, "its key is 'a'; expected numbers"),
        ({"communication": type("Maybe", (), {"admit": lambda s, t, n: "yes"})()}, "admit answered 'yes'"),
        ({"communication": type("Other", (), {"select": lambda s, t, n: [1]})()}, "select answered 1"),
        ({"communication": type("Breaks", (), {"admit": lambda s, t, n: 1 / 0})()}, "Breaks raised ZeroDivisionError"),
    ],
)
def test_a_policy_that_answers_nonsense_is_named(plugins, fault):
    with pytest.raises(PluginError, match=fault):
        simulate(job("a", gpus=4), job("b", gpus=4), **plugins)


class TakesOut:
    """The first transfer runs: the policy takes them out of its list, in which it leaves none."""

    def select(self, transfers, network):
        first = transfers.pop(0)
        transfers.clear()
        return [first]


class RatesOfNone(ddlsched.Linear):
    """Rates of a model that takes the transfers out of its list."""

    def rates(self, active, waiting, links):
        return [1e9 for _ in range(len(active)) if active.pop()]


def test_a_policy_may_take_what_it_was_given_out_of_its_list():
    two = job("a", gpus=4), job("b", gpus=4)
    first = type("First", (), {"select": lambda self, transfers, network: transfers[:1]})()
    times = [list(simulate(*two, communication=policy).jobs["jct_s"]) for policy in (TakesOut(), first)]
    assert times[0] == times[1]
    assert simulate(*two, contention=RatesOfNone()).jobs["finish_s"].notna().all()


@dataclass(frozen=True, kw_only=True)
class Rates(ddlsched.Linear):
    """A model whose rates are given."""

    answer: tuple = (0.0,)

    def rates(self, active, waiting, links):
        return self.answer


@pytest.mark.parametrize("answer", [(0.0,), (-1.0,), (math.nan,), (math.inf,), (), (1.0, 1.0), ("x",)])
def test_rates_that_cannot_be_are_refused(answer):
    with pytest.raises(PluginError, match=r"contention Rates\(.*\) at 0.1 s, 1 transfers: rates answered"):
        simulate(job(gpus=4), contention=Rates(answer=answer))


def test_the_plugins_own_exception_is_kept():
    class Breaks:
        def place(self, job, cluster):
            raise KeyError("mine")

    with pytest.raises(PluginError) as raised:
        simulate(job(), placement=Breaks())
    assert isinstance(raised.value.__cause__, KeyError)


class BadBegin:
    """Answers ``begin`` with nothing."""

    def begin(self, cluster, rng):
        return None


def raising(method):
    """Return an object whose ``method`` wants to leave the program."""

    def leave(*arguments):
        raise SystemExit(0)

    return type("Leaves", (), {method: leave, "route": leave})()


@pytest.mark.parametrize(
    ("plugins", "fault"),
    [
        ({"placement": BadBegin()}, "begin answered None; expected an object with place"),
        ({"order": raising("begin")}, "begin raised SystemExit"),
        ({"placement": raising("place")}, "Leaves raised SystemExit at 0.0 s, job 'a'"),
        ({"cluster": Cluster(topology=raising("graph"))}, "topology Leaves: graph raised SystemExit"),
    ],
)
def test_a_plugin_that_breaks_the_run_is_named(plugins, fault):
    with pytest.raises(PluginError, match=fault):
        simulate(job(gpus=4), **plugins)


# ---- Runs that cannot go on


def test_a_network_that_stands_still_is_an_error():
    never = type("Never", (), {"admit": lambda self, transfer, network: False})()
    with pytest.raises(SimulationError, match="communication Never starts none of the transfers of jobs a"):
        simulate(job(gpus=4), communication=never)


def test_a_placement_that_never_places_is_an_error():
    with pytest.raises(SimulationError, match="placement Answers keeps waiting with jobs a"):
        simulate(job(), placement=placement_answering(None))


class Insomniac:
    """Never places, and asks to be woken for ever."""

    def place(self, job, cluster):
        return None

    def wake_s(self, now_s):
        return now_s + 1.0


def test_waking_for_ever_is_an_error(monkeypatch):
    monkeypatch.setattr(ddlsched.engine.driver, "_MOST_IDLE", 2000)
    with pytest.raises(SimulationError, match="asked to be woken 2000 times while the cluster was idle"):
        simulate(job(), placement=Insomniac())


@pytest.mark.parametrize("waits", [{"placement": Insomniac()}, {"allocation": "gavel"}, {"allocation": "sia"}])
def test_waking_where_no_server_will_be_there_again_is_told_at_once(waits):
    curve = LinearCurve(fixed_s=1.0, sample_s=1.0)
    elastic = ElasticJob(job_id="e", arrival_s=0.0, samples=10**6, curve=curve, gpu_batch=1, max_gpus=1, max_batch=1)
    waiting = elastic if "allocation" in waits else job()
    there = {"cluster": Cluster(num_servers=1, gpus_per_server=4), "capacity": CapacityTrace.of([(0, 0.0, 5.0)])}
    with pytest.raises(SimulationError, match=r"nothing is left .*no server will be there again"):
        simulate(waiting, **there, **waits)
    assert simulate(waiting, until_s=9.0, **there, **waits).summary()["unfinished_jobs"] == 1


def failing_servers(servers):
    disturbances = ddlsched.Disturbances(server_mtbf_s=90.0, server_repair_s=30.0)
    return {"cluster": Cluster(num_servers=servers, gpus_per_server=4), "disturbances": disturbances}


@pytest.mark.long
def test_a_wait_that_no_server_can_end_is_told_soon():
    """The server is away for a quarter of the time: it is there otherwise, and nobody places the job."""
    with pytest.raises(SimulationError, match="all servers were there 1000 times while the cluster was idle"):
        simulate(job(), placement=placement_answering(None), **failing_servers(1))


@pytest.mark.long
def test_a_wait_in_a_run_that_is_cut_off_is_no_error():
    result = simulate(job(), placement=placement_answering(None), until_s=130_000.0, **failing_servers(1))
    assert result.summary()["unfinished_jobs"] == 1


def test_waiting_for_servers_that_are_never_there_together_is_an_error(monkeypatch):
    monkeypatch.setattr(ddlsched.engine.driver, "_MOST_IDLE", 200)
    with pytest.raises(SimulationError, match="servers left or joined 200 times while the cluster was idle"):
        simulate(job(gpus=256), until_s=1e4, **failing_servers(64))


def test_item_17_a_wait_that_may_never_end_is_told_while_it_lasts(monkeypatch, capsys):
    monkeypatch.setattr(ddlsched.engine.driver, "_TOLD_IDLE", 3)
    monkeypatch.setattr(ddlsched.engine.driver, "_MOST_IDLE", 9)
    with pytest.raises(SimulationError):
        simulate(job(), placement=Insomniac())
    told = capsys.readouterr().err
    assert told.count("\n") == told.count("keeps waiting with jobs a (placement asked to be woken 3 times while") == 1


def test_a_clock_that_would_overflow_is_an_error():
    slow = ddlsched.Linear(per_byte_s=1.0)
    with pytest.raises(InputError, match="more compute and communication"):
        simulate(job(gpus=4, message_bytes=1e10), contention=slow)
    late = job(arrival_s=9.2e9, gpus=4, iterations=1, message_bytes=1e8)
    with pytest.raises(SimulationError, match="beyond the clock"):
        simulate(late, contention=slow)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"gpus": 5}, "row 1, column gpus: job 'a' needs 5 GPUs, so it can never fit; expected at most .* 4"),
        (
            {"memory_mb": 1000.5},
            r"row 1, column gpu_memory_mb: job 'a' needs 1000.5 MB on each of 1 GPUs, .* at most the cluster's 1000",
        ),
    ],
)
def test_a_job_that_can_never_fit_is_refused(given, fault):
    with pytest.raises(InputError, match=fault):
        simulate(job(**given))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"placement": "lwff"}, "no placement is named 'lwff'. Did you mean 'lwf'"),
        ({"placement": "lwf:kapa=1"}, "no parameter is named 'kapa'. Did you mean 'kappa'"),
        ({"scheduler": "ada"}, "no bundle is named 'ada'. Did you mean 'ada-srsf'"),
        ({"contention": "maxmin"}, "Did you mean 'max-min'"),
    ],
)
def test_misspelt_names_suggest_the_near_ones(given, fault):
    with pytest.raises(UnknownNameError, match=fault):
        simulate(job(), **given)


@pytest.mark.parametrize(
    "given",
    [
        {"seed": -1},
        {"load_per_byte_s": math.nan},
        {"load_per_byte_s": 1e5},
        {"timeline": (3.0, 2.0)},
        {"timeline": (5e300, 1e301)},
        {"scheduler": ""},
        {"contention": "linear:latency_s=1e300"},
        {"communication": "bounded-overlap:limit=99999999999999999999"},
        {"cluster": Cluster(topology="star:nic_gbps=inf")},
        {"cluster": Cluster(topology="star:latency_s=inf")},
        {"cluster": Cluster(topology="leaf-spine:spines=100000000000")},
    ],
)
def test_bad_arguments_are_refused(given):
    with pytest.raises(InputError):
        simulate(job(gpus=4), **given)
