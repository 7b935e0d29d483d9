"""Sampled runs: what is simulated in part still adds up, and comes out as the exact run does within its error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddlsched
from ddlsched.cluster.disturbances import Outage
from ddlsched.comparisons.sweeps.stored_runs import run_bytes
from ddlsched.engine import build
from ddlsched.engine.field_values import Stretch
from ddlsched.engine.loop.skipping import foreseen
from ddlsched.engine.loop.skipping.foreseen import settled
from ddlsched.engine.loop.skipping.leaps import leap_link
from ddlsched.engine.loop.skipping.sampling import SHORTEST, STRETCH_OF_GROUPS
from ddlsched.engine.native.jit import runs_in_python
from ddlsched.engine.records import make_records
from ddlsched.results.metrics import sampled_text
from ddlsched.results.result import PHASES, Result
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload
from tests.jobs_by_hand import Fixed, data_parallel_job

LONG = 8_000
SENDING = {
    "free": {"communication": "bounded-overlap:limit=99"},
    "max-min": {"communication": "bounded-overlap:limit=99", "contention": "max-min"},
    "SRSF(2)": {"communication": "bounded-overlap:limit=2"},
    "AdaDUAL": {"communication": "adadual"},
}


def _jobs(iterations: int = LONG) -> Workload:
    rng = np.random.default_rng(5)
    return Workload.of(
        [
            data_parallel_job(
                f"job {n}",
                2 + n % 4,
                arrival_s=float(rng.integers(0, 40)),
                iterations=int(iterations * (0.5 + rng.random())),
                memory_mb=9_000.0,
                forward_s=0.002 + 0.004 * rng.random(),
                backward_s=0.004 + 0.006 * rng.random(),
                message_bytes=4e6 + 2e7 * rng.random(),
                buckets=1 + n % 3,
            )
            for n in range(14)
        ]
    )


def _run(sending: str, **options: Any) -> Result:
    cluster = ddlsched.Cluster(num_servers=5, gpus_per_server=2, gpu_memory_mb=20_000)
    where = {} if "replay" in options else {"placement": "first-fit"}
    return ddlsched.simulate(_jobs(), cluster, **where, **SENDING[sending], **options)


@pytest.mark.long
@pytest.mark.parametrize("sending", SENDING)
def test_a_sampled_run_adds_up_and_comes_out_as_the_exact_one(sending: str, tmp_path: Path) -> None:
    exact = _run(sending)
    (tmp_path / "run.parquet").write_bytes(run_bytes(exact, {}, {}, stays=True))
    sampled = _run(sending, sample=True, replay=tmp_path / "run.parquet")
    run = sampled.finished.state.run[0]
    assert run.leapt_iterations > 0.2 * run.contended_iterations
    assert exact.leapt_iterations == 0
    jobs = sampled.jobs
    assert jobs[list(PHASES)].sum(axis=1).to_numpy() == pytest.approx(jobs["jct_s"].to_numpy(), abs=1e-6)
    # Work and bytes are conserved, whatever the rates were.
    assert jobs["compute_s"].to_numpy() == pytest.approx(exact.jobs["compute_s"].to_numpy(), rel=1e-12)
    assert sampled.links["bytes"].sum() == pytest.approx(exact.links["bytes"].sum(), rel=1e-9)
    assert run.events == exact.finished.state.run[0].events
    samples = sampled.samples
    sampled_busy_s = (samples["busy_gpus"] * np.diff(samples["time_s"], prepend=0.0)).sum()
    assert sampled_busy_s == pytest.approx(sampled.gpus["busy_s"].sum(), rel=1e-9)
    # Nothing was busy for longer than there was time, and links were as busy as they were.
    assert (sampled.gpus["utilisation"] <= 1.0).all()
    assert (sampled.links["utilisation"] <= 1.0).all()
    assert sampled.links["busy_s"].sum() == pytest.approx(exact.links["busy_s"].sum(), rel=0.05)
    assert jobs["jct_s"].mean() == pytest.approx(exact.jobs["jct_s"].mean(), rel=0.05)


def test_failures_a_warm_up_and_a_cut_do_not_break_what_adds_up() -> None:
    goes_wrong = ddlsched.Disturbances(server_mtbf_s=60, server_repair_s=5, restart_s=1, checkpoint_iterations=100)
    result = _run("SRSF(2)", sample=True, disturbances=goes_wrong, warmup_s=20, until_s=400, seed=3)
    jobs = result.jobs
    assert jobs["restarts"].sum() > 0
    assert result.leapt_iterations > 0
    until_s = np.where(jobs["state"] == "finished", jobs["finish_s"], 400.0)
    assert jobs[list(PHASES)].sum(axis=1).to_numpy() == pytest.approx(until_s - jobs["arrival_s"], abs=1e-6)
    assert (jobs["lost_s"] >= 0).all()
    assert (result.gpus["utilisation"] <= 1.0).all()


class Waits(Fixed):
    """Places each job on given GPUs once they have room."""

    def place(self, job: Any, cluster: Any) -> list[int] | None:
        """Return them, or None."""
        gpus = self.gpus[job.job_id]
        return gpus if set(gpus) <= set(cluster.eligible_gpus(job)) else None


def test_a_stop_behind_a_leap_loses_what_it_does_in_an_exact_run() -> None:
    """Two jobs contend, in iterations of 49 ms, and stop thrice: 20 iterations may be lost each time."""
    jobs = [data_parallel_job(f"job {n}", 2, iterations=LONG, forward_s=0.01, message_bytes=2e7) for n in range(2)]
    outages = tuple(Outage(server=n, from_s=at_s, to_s=at_s + 1) for n, at_s in ((0, 103.21), (1, 156.7), (0, 207.77)))
    exact, sampled = (
        ddlsched.simulate(
            Workload.of(jobs),
            ddlsched.Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=20_000),
            placement=Waits(gpus={"job 0": [0, 2], "job 1": [1, 3]}),
            communication="bounded-overlap:limit=99",
            disturbances=ddlsched.Disturbances(outages=outages, checkpoint_iterations=20),
            sample=sample,
        )
        for sample in (False, True)
    )
    assert sampled.leapt_iterations > 0
    assert exact.jobs["restarts"].tolist() == [3, 3]
    assert sampled.jobs["lost_s"].to_numpy() == pytest.approx(exact.jobs["lost_s"].to_numpy(), abs=3 * 0.05)


class LastFirst:
    """An order whose keys say nothing of how they change."""

    compiled = False

    def key(self, job: Any, now_s: float) -> float:
        """Return the number, negated."""
        return -float(job.number)


class OneAtATime:
    """A policy that promises nothing of its refusals."""

    def admit(self, transfer: Any, network: Any) -> bool:
        """Return whether the transfer would meet nobody."""
        return len(network.met_by(transfer)) < 1


class Remembers:
    """An order whose answers may depend on how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def begin(self, *arguments: Any) -> Remembers:
        """Return one that remembers nothing yet."""
        return Remembers()

    def key(self, job: Any, now_s: float) -> int:
        """Return the job's number, and count."""
        self.asked += 1
        return int(job.number)


class HalvesLeft:
    """An order whose key falls by the same, but is no whole number."""

    key_is_linear: ClassVar[bool] = True

    def key(self, job: Any, now_s: float) -> float:
        """Return half the iterations that the job has left."""
        return job.iterations_left * 0.5


@pytest.mark.long
@pytest.mark.parametrize(
    ("further", "why"),
    [
        ({"order": LastFirst()}, "LastFirst is asked in Python"),
        ({"disturbances": ddlsched.Disturbances(jitter_cv=0.1)}, "times of tasks vary"),
        ({"disturbances": ddlsched.Disturbances(prediction_error=0.3)}, "lengths are predicted"),
        ({"communication": OneAtATime()}, "OneAtATime does not promise refusal_lasts"),
        ({"order": Remembers()}, "Remembers remembers answers"),
        ({"order": "tiresias"}, "used_service_ns without the promise key_is_linear"),
        ({"order": HalvesLeft()}, "HalvesLeft reads iterations_left in a first number not whole"),
        ({"contention": "mltcp"}, "reads bytes_sent"),
    ],
    ids=["python", "jitter", "predicted", "refusals", "memory", "queues", "halves", "rates"],
)
def test_what_cannot_be_sampled_is_simulated_exactly_and_says_why(further: dict[str, Any], why: str) -> None:
    workload, cluster = _jobs(60), ddlsched.Cluster(num_servers=5, gpus_per_server=2, gpu_memory_mb=20_000)
    exact = ddlsched.simulate(workload, cluster, placement="first-fit", **further)
    sampled = ddlsched.simulate(workload, cluster, placement="first-fit", sample=True, **further)
    assert sampled.leapt_iterations == 0
    assert sampled.jobs.equals(exact.jobs)
    assert sampled_text(sampled).endswith(f"{why}.")


class LastFirstCompiled:
    """The same order, which the loop asks itself."""

    def key(self, job: Any, now_s: float) -> float:
        """Return the number, negated."""
        return -float(job.number)


@pytest.mark.long
@pytest.mark.parametrize("path", ["ecmp", "sglb", "perfect"])
def test_with_one_job_a_gpu_an_order_in_python_is_sampled_as_a_compiled_one_is(path: str) -> None:
    cluster = ddlsched.Cluster(num_servers=5, gpus_per_server=2, exclusive=True)
    free = {"placement": "first-fit", "communication": "bounded-overlap:limit=99", "contention": "max-min"}
    free |= {"topology": "leaf-spine:servers_per_leaf=1,spines=2", "path": path}
    runs = [
        ddlsched.simulate(_jobs(), cluster, **free, order=order, sample=True)
        for order in (LastFirst(), LastFirstCompiled())
    ]
    assert runs[0].leapt_iterations > 0.2 * runs[0].contended_iterations
    assert runs[0].jobs.equals(runs[1].jobs)
    assert runs[0].leapt_iterations == runs[1].leapt_iterations


@pytest.mark.skipif(runs_in_python(), reason="is what it would be compared with")
def test_a_sampled_run_is_the_same_compiled_and_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (_run("free", sample=True) for _ in range(2))
    assert first.jobs.equals(again.jobs)


def test_links_are_busy_for_what_leaps_carry() -> None:
    # A stretch has a part of an iteration of the slow job, in which its links carry all the time, or nothing.
    slow = data_parallel_job("slow", 2, iterations=100, forward_s=0.5, backward_s=0.5, message_bytes=1.25e9)
    fast = data_parallel_job("fast", 2, iterations=40_000, forward_s=0.005, backward_s=0.005, message_bytes=1e6)
    result = ddlsched.simulate(
        Workload.of([slow, fast]),
        ddlsched.Cluster(num_servers=3, gpus_per_server=1, gpu_memory_mb=20_000),
        placement=Fixed(gpus={"slow": [0, 1], "fast": [1, 2]}),
        sample=True,
        **SENDING["max-min"],
    )
    assert result.leapt_iterations > 0.3 * result.contended_iterations
    links = result.links
    least_s = links["bytes"] / links["bandwidth_bytes_per_s"]
    assert (links["busy_s"] >= 0.999 * least_s).all()
    # The link that both cross is full whenever it carries anything; of a message a part may pass and be sent again.
    assert links["busy_s"][1] == pytest.approx(least_s[1], abs=1.1)


def test_where_no_transfer_is_held_back_keys_that_cross_end_no_leap() -> None:
    jobs = [
        data_parallel_job("sends", 2, iterations=6_000, backward_s=0.011, message_bytes=1e7),
        data_parallel_job("computes", 2, iterations=3_000, backward_s=0.0237, message_bytes=1e6),
    ]
    cluster = ddlsched.Cluster(num_servers=3, gpus_per_server=2)
    placement = Fixed(gpus={"sends": [0, 2], "computes": [3, 4]})
    runs = [
        ddlsched.simulate(
            Workload.of(jobs), cluster, placement=placement, order=order, sample=True, **SENDING["max-min"]
        )
        for order in ("fifo", "srsf")
    ]
    assert runs[0].leapt_iterations > 0.5 * runs[0].contended_iterations
    assert runs[0].jobs.equals(runs[1].jobs)


def test_a_leap_ends_where_jobs_that_hold_each_other_back_change_their_order() -> None:
    """Under SRSF the wide ones, whose service left falls faster, come to go first; a leap past that is 8 % off."""
    rows = [
        (2, 7600, 0.0039, 0.0200, 21.6e6, 1),
        (4, 7700, 0.0047, 0.0136, 13.2e6, 2),
        (2, 10700, 0.0035, 0.0118, 20.3e6, 1),
        (4, 9300, 0.0053, 0.0188, 29.1e6, 2),
    ]
    names = ("gpus", "iterations", "forward_s", "backward_s", "message_bytes", "buckets")
    # They arrive so late that samples are seldom from then on: none ends a leap.
    each: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) | {"arrival_s": 1e6} for row in rows]
    exact, sampled = (
        ddlsched.simulate(
            Workload.of([data_parallel_job(f"{n}", **given_) for n, given_ in enumerate(each)]),
            ddlsched.Cluster(num_servers=4, gpus_per_server=4, exclusive=True),
            placement=Fixed(gpus={f"{n}": list(range(n, 4 * row[0], 4)) for n, row in enumerate(rows)}),
            order="srsf",
            sample=sample,
            **SENDING["SRSF(2)"],
        )
        for sample in (False, True)
    )
    assert sampled.leapt_iterations > 0.3 * sampled.contended_iterations
    assert sampled.jobs["jct_s"].to_numpy() == pytest.approx(exact.jobs["jct_s"].to_numpy(), rel=0.01)


@pytest.mark.parametrize(
    ("further", "rel"), [({}, 1e-9), ({"topology": "leaf-spine:servers_per_leaf=1,spines=2", "path": "sglb"}, 0.03)]
)
def test_work_that_is_under_way_counts_in_the_rates_of_a_leap(further: dict[str, Any], rel: float) -> None:
    """Two jobs send all the time, one a message longer than a leap, each with half of a link that both cross."""
    jobs = [
        data_parallel_job("slow", 2, iterations=20, message_bytes=1.25e9),
        data_parallel_job("fast", 2, iterations=20_000, message_bytes=1.25e6),
    ]
    exact, sampled = (
        ddlsched.simulate(
            Workload.of(jobs),
            ddlsched.Cluster(num_servers=3, gpus_per_server=1, gpu_memory_mb=20_000),
            placement=Fixed(gpus={"slow": [0, 1], "fast": [1, 2]}),
            sample=sample,
            communication="bounded-overlap:limit=2",
            contention="max-min:latency_s=0",
            **further,
        )
        for sample in (False, True)
    )
    assert sampled.leapt_iterations > 0.8 * sampled.contended_iterations
    message_s = exact.jobs["jct_s"][0] / 20
    assert sampled.jobs["jct_s"].to_numpy() == pytest.approx(exact.jobs["jct_s"].to_numpy(), abs=message_s)
    links = sampled.links
    assert links["bytes"].to_numpy() == pytest.approx(exact.links["bytes"].to_numpy(), rel=rel)
    # Links are busy in a leap for what passes of a message, not only where one ends.
    assert links["busy_s"].to_numpy() == pytest.approx(exact.links["busy_s"].to_numpy(), abs=message_s)
    assert further or exact.jobs["jct_s"][0] == pytest.approx(40 * 1.25e9 / links["bandwidth_bytes_per_s"][0])


@pytest.mark.parametrize(
    ("sending", "count", "settling", "stretch"),
    [("free", 48, 512, 128), ("free", 49, 49, 128), ("SRSF(2)", 48, 512, 512), ("max-min", 48, 0, 128)],
)
def test_so_much_passes_before_the_first_leap(sending: str, count: int, settling: int, stretch: int) -> None:
    # Leaps end where samples of the state are taken, which is seldom so late. Nobody has waited when all begin.
    each = {"arrival_s": 1000.0, "iterations": LONG, "forward_s": 0.01, "message_bytes": 1e6}
    jobs = [data_parallel_job(f"{n}", 2, backward_s=0.0001 * n, **each) for n in range(count)]  # type: ignore[arg-type]
    result = ddlsched.simulate(
        Workload.of(jobs),
        ddlsched.Cluster(num_servers=2, gpus_per_server=count, exclusive=True),
        placement=Fixed(gpus={f"{n}": [n, count + n] for n in range(count)}),
        sample=True,
        until_s=1010.0,
        **SENDING[sending],
    )
    assert result.leapt_iterations > 10 * count
    assert 0 <= result.computed_iterations - settling - stretch <= 2 * count


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 16, 27, 54])
def test_a_full_link_may_seem_to_carry_a_little_too_much(seed: int) -> None:
    """A stretch has parts of 40 jobs' iterations: at their rates a link carries 1 to 5 % more than it can."""
    rng = np.random.default_rng(seed)
    jobs = [
        data_parallel_job(
            f"{n}",
            2,
            arrival_s=float(rng.uniform(0, 10)),
            iterations=int(600 * rng.uniform(0.5, 1.5)),
            forward_s=float(rng.uniform(0.05, 0.2)),
            message_bytes=9e6 * float(rng.uniform(0.5, 2)),
            backward_s=0.0,
        )
        for n in range(40)
    ]
    servers = ddlsched.Cluster(num_servers=2, gpus_per_server=40, exclusive=True)
    placement = Fixed(gpus={f"{n}": [n, 40 + n] for n in range(40)})
    given = {"placement": placement, **SENDING["max-min"]}
    sampled, exact = (ddlsched.simulate(Workload.of(jobs), servers, sample=sample, **given) for sample in (True, False))
    carried = [
        run.links["bytes"] / run.links["busy_s"] / run.links["bandwidth_bytes_per_s"] for run in (sampled, exact)
    ]
    assert sampled.leapt_iterations > 0.2 * sampled.contended_iterations
    assert 1.01 < carried[0].max() < 1.05
    assert carried[1].max() < 1.001
    assert abs(sampled.jobs["jct_s"].mean() / exact.jobs["jct_s"].mean() - 1) < 0.03


def test_jobs_whose_state_recurs_are_measured_anew() -> None:
    """The recurrence breaks a stretch off; in the one that has begun since, what they were at its start is noted."""
    each = {"iterations": LONG, "forward_s": 0.01, "backward_s": 0.01, "message_bytes": 2e6}
    jobs = [data_parallel_job(name, 2, **each) for name in "ab"]  # type: ignore[arg-type]
    state = ddlsched.simulate(
        Workload.of(jobs),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2, exclusive=True),
        placement=Fixed(gpus={"a": [0, 2], "b": [1, 3]}),
        sample=True,
        until_s=1.0,
        **SENDING["max-min"],
    ).finished.state
    assert state.jobs.stretch[0] == Stretch.EXACT
    assert state.jobs.measuring.tolist() == [1, 1]


def test_item_27_who_has_leapt_keeps_no_other_from_leaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs of jobs that share links end no sooner than they have leapt to, which one that waits for all asks."""
    monkeypatch.setattr(build, "_FIRST_SAMPLE_NS", 10**15)
    each = {"forward_s": 0.01, "message_bytes": 2e6}
    jobs = {
        f"{pair} {n}": data_parallel_job(f"{pair} {n}", 2, iterations=count, backward_s=0.011 + 0.0011 * n, **each)
        for pair, count in (("short", 700), ("long", 1500))
        for n in range(2)
    }
    waits = data_parallel_job("waits", 8, arrival_s=1.0, iterations=5, **each)
    places = {"short 0": [0, 2], "short 1": [1, 3], "long 0": [4, 6], "long 1": [5, 7], "waits": list(range(8))}

    def computed(*names: str, further: tuple[Job, ...] = ()) -> int:
        result = ddlsched.simulate(
            Workload.of([*(jobs[name] for name in names), *further]),
            ddlsched.Cluster(num_servers=4, gpus_per_server=2, exclusive=True),
            placement=Fixed(gpus=places),
            sample=True,
            **SENDING["max-min"],
        )
        assert result.leapt_iterations > 1000
        return result.computed_iterations

    alone = computed("short 0", "short 1") + computed("long 0", "long 1")
    # Each begins one iteration more where it is measured anew.
    assert computed(*jobs, further=(waits,)) <= alone + waits.iterations + len(jobs)


def _sampled_one_by_one(taken: int, step_ns: int, next_ns: int, until_ns: int, room: int) -> tuple[int, int]:
    """Take samples until a time, each second one whenever there is no room; return their step and the first of them."""
    kept: list[int | None] = [None] * taken
    while next_ns < until_ns:
        if len(kept) == room:
            next_ns += step_ns if len(kept) % 2 == 0 else 0
            kept, step_ns = kept[1::2], 2 * step_ns
        else:
            kept.append(next_ns)
            next_ns += step_ns
    return step_ns, next(time_ns for time_ns in [*kept, next_ns] if time_ns is not None)


@given(*map(st.integers, (0, 1, 0, 0, 1), (9, 5, 40, 400, 9)))
def test_item_27_how_seldom_samples_will_be_is_known_before_they_are_taken(
    taken: int, step_ns: int, next_ns: int, until_ns: int, room: int
) -> None:
    run = make_records("run", 1)
    run.num_samples, run.sample_step_ns, run.next_sample_ns = taken % (room + 1), step_ns, next_ns
    state: Any = SimpleNamespace(run=run, samples=[None] * (room + 1))
    found = getattr(settled, "py_func", settled)(state, until_ns)
    assert found == _sampled_one_by_one(taken % (room + 1), step_ns, next_ns, until_ns, room)


@pytest.mark.parametrize(("num_phases", "periods"), [(0, 2), (1, 6)])
def test_periods_in_which_nobody_looked_are_jumped_over_up_to_the_next_sample(
    num_phases: int, periods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for those at 125 and 145 ns but for one of them, on which somebody has looked ahead or not."""
    monkeypatch.setattr(foreseen, "settled", getattr(settled, "py_func", settled))
    run, jobs = make_records("run", 1), make_records("job", 1)
    run.now_ns, run.num_samples, run.sample_step_ns, run.next_sample_ns = 100, 8, 20, 125
    jobs.num_phases, jobs.phases_from_ns, jobs.phases_ns = num_phases, 90, 10
    jobs.samples_from_ns, jobs.samples_step_ns = 145, 40
    state: Any = SimpleNamespace(run=run, jobs=jobs, samples=[None] * 9)
    seen = getattr(foreseen.seen_periods, "py_func", foreseen.seen_periods)
    assert seen(state, root=0, period_ns=10, periods=6) == periods


def _in_pairs(job_id: str, transfers: int, duration_ns: int, every: int = 1) -> Job:
    """Return a job on four GPUs that computes before every so manieth of so many all-reduces of two pairs."""
    tasks: list[ComputeTask | CollectiveTask] = []
    for number in range(transfers):
        before = (f"s{number - 1}",) if number else ()
        if number % every == 0:
            tasks.append(ComputeTask(name=f"c{number}", duration_ns=duration_ns, after=before))
            before = (f"c{number}",)
        sums = {"message_bytes": 1e5, "group": "pairs", "after": before}
        tasks.append(CollectiveTask(name=f"s{number}", kind="all-reduce", **sums))  # type: ignore[arg-type]
    step = IterationDag(tuple(tasks), {"pairs": ((0, 1), (2, 3))})
    return Job(job_id=job_id, arrival_s=1e6, num_gpus=4, iterations=LONG, iteration=step, gpu_memory_mb=1)


def _met(jobs: list[Job], until_s: float, sample: bool) -> Result:
    """Return a run in which two jobs of :func:`_in_pairs` share the cards of four servers."""
    return ddlsched.simulate(
        Workload.of(jobs),
        ddlsched.Cluster(num_servers=4, gpus_per_server=2, exclusive=True),
        placement=Fixed(gpus={"a": [0, 2, 4, 6], "b": [1, 3, 5, 7]}),
        sample=sample,
        until_s=until_s,
        **SENDING["max-min"],
    )


@pytest.mark.long
@pytest.mark.parametrize(("transfers", "settling", "each"), [(100, 32, STRETCH_OF_GROUPS), (2_100, 2, SHORTEST)])
def test_jobs_of_groups_with_many_transfers_settle_for_an_iteration_each(
    transfers: int, settling: int, each: int
) -> None:
    jobs = [_in_pairs("a", transfers, 100_000), _in_pairs("b", transfers, 123_456)]
    result = _met(jobs, 1e6 + 0.02 * transfers, True)
    assert result.leapt_iterations > 20
    assert 0 <= result.computed_iterations - settling - 2 * each <= 2


@pytest.mark.long
def test_jobs_alone_on_16_384_gpus_all_have_room_for_their_snapshots() -> None:
    """And once more as they come and go; one without a snapshot would be simulated to its end."""
    machine = parse_cluster("h200").machine(512)
    plan = Parallelism(tensor=8, pipeline=8, data=8, global_batch=256, micro_batch=1, zero=1, overlap=True)
    large = job_of(MODELS["llama-3-70b"], plan, machine, job_id="a", iterations=1, groups=True)
    state = ddlsched.simulate(
        Workload.of([replace(large, gpu_memory_mb=1)]),
        ddlsched.Cluster(num_servers=64, gpus_per_server=8, topology="rail-clos:nvlink_gbps=3600", exclusive=True),
        placement="first-fit",
        path="ecmp",
        **SENDING["max-min"],
    ).finished.state
    assert state.jobs.num_leaders[0] == 512
    assert 4 * 32 * state.run.num_words[0] < len(state.snapshots)


@pytest.mark.long
def test_large_jobs_of_groups_leap_once_past_the_samples_which_add_up() -> None:
    """One is four times as fast: of the slow one, whose stretch is waited for, a whole iteration is measured."""
    jobs = [replace(_in_pairs(name, 2_100, ns), arrival_s=0.0) for name, ns in (("a", 50_000), ("b", 400_000))]
    sampled, exact = (_met(jobs, 400, sample) for sample in (True, False))
    assert sampled.finished.state.run.leaps[0] == 1
    assert sampled.contended_iterations == pytest.approx(exact.contended_iterations, abs=1)
    assert sampled.computed_iterations < 16
    busy, exactly_busy = (result.samples.set_index("time_s")["busy_gpus"] for result in (sampled, exact))
    assert (busy.index > 60).sum() > 100
    assert (busy[60:] / exactly_busy[60:]).to_numpy() == pytest.approx(1.0, rel=0.05)
    for result in (sampled, exact):
        busy_s = (result.samples["busy_gpus"] * np.diff(result.samples["time_s"], prepend=0.0)).sum()
        assert busy_s == pytest.approx(result.gpus["busy_s"].sum(), rel=1e-9)


@pytest.mark.long
def test_what_jobs_of_groups_send_is_work_where_they_compute_at_the_start_of_an_iteration_alone() -> None:
    jobs = [_in_pairs("a", 2_100, 1_000_000, every=2_100), _in_pairs("b", 2_100, 1_234_567, every=2_100)]
    sampled, exact = (_met(jobs, 1e6 + 21, sample) for sample in (True, False))
    assert sampled.leapt_iterations > 40
    assert abs(sampled.contended_iterations - exact.contended_iterations) <= 1


@pytest.mark.parametrize("stretch_bytes", [0.0, 1e-3, 1e12])
def test_a_link_that_was_idle_in_a_stretch_is_busy_for_the_bytes_of_a_leap(stretch_bytes: float) -> None:
    """Of 1e13 bytes before, rounding may leave a part of one that the stretch seems to have carried in no time."""
    links = make_records("link", 1)
    link = links[0]
    link.bandwidth_bytes_per_s, link.passing_bytes, link.stretch_bytes = 2e11, 1e12, stretch_bytes
    getattr(leap_link, "py_func", leap_link)(link, 10**10)
    assert links.busy_ns[0] == 5 * 10**9


@pytest.mark.long
@pytest.mark.parametrize(("path", "iterations"), [("sglb", LONG), ("perfect", LONG // 16)])
def test_where_transfers_choose_their_paths_anew_a_run_is_sampled_too(
    path: str, iterations: int, tmp_path: Path
) -> None:
    cluster = ddlsched.Cluster(num_servers=8, gpus_per_server=2, gpu_memory_mb=20_000, exclusive=True)
    where = {"topology": "leaf-spine:servers_per_leaf=2,spines=2", "path": path, "contention": "max-min"}
    jobs = _jobs(iterations)
    exact = ddlsched.simulate(jobs, cluster, placement="random", **where, **SENDING["free"])
    (tmp_path / "run.parquet").write_bytes(run_bytes(exact, {}, {}, stays=True))
    again = {"replay": tmp_path / "run.parquet", "sample": True}
    sampled = ddlsched.simulate(jobs, cluster, **where, **SENDING["free"], **again)
    run = sampled.finished.state.run[0]
    assert run.leapt_iterations > 0.2 * run.contended_iterations
    assert sampled.jobs["compute_s"].to_numpy() == pytest.approx(exact.jobs["compute_s"].to_numpy(), rel=1e-12)
    assert sampled.links["bytes"].sum() == pytest.approx(exact.links["bytes"].sum(), rel=1e-9)
    assert (sampled.links["utilisation"] <= 1.0).all()
    jct_s = sampled.jobs["jct_s"]
    assert sampled.jobs[list(PHASES)].sum(axis=1).to_numpy() == pytest.approx(jct_s.to_numpy(), abs=1e-6)
    assert jct_s.mean() == pytest.approx(exact.jobs["jct_s"].mean(), rel=0.05)
