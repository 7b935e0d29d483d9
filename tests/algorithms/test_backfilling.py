"""Strict order, EASY and conservative backfilling: cases worked out by hand, and what each promises."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from command_line import run as run_command
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import data_parallel_job
from tiers import examples

from algorithms.placement.backfilling import Backfilling, EasyBackfill, InOrder
from algorithms.placement.conservative_backfill import ConservativeBackfill
from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError, InvalidDecisionError, PluginError
from ddlsched.plugins.names import resolve
from ddlsched.results.explanation import reservations
from ddlsched.simulation import simulate
from ddlsched.testing import cluster_view, job_view
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import write_workload

FOUR_GPUS = Cluster(num_servers=1, gpus_per_server=4, gpu_memory_mb=1000)
EASY, CONSERVATIVE = EasyBackfill(), ConservativeBackfill()
BOTH = pytest.mark.parametrize("placement", [EASY, CONSERVATIVE], ids=["easy", "conservative"])


def job(job_id: str, gpus: int, run_s: float, *, limit_s: float | None = None, arrival_s: float = 0.0) -> Job:
    """Return a job that takes a GPU's memory, runs for ``run_s`` and by default says so."""
    made = data_parallel_job(job_id, gpus, forward_s=run_s, arrival_s=arrival_s, memory_mb=1000)
    return replace(made, time_limit_s=run_s if limit_s is None else limit_s)


def starts(placement: Any, *jobs: Job, **options: Any) -> dict[str, float]:
    table = simulate(Workload(jobs), FOUR_GPUS, placement=placement, order="fifo", **options).jobs
    return dict(zip(table["job_id"], table["start_s"], strict=True))


# ---- Cases worked out by hand: "wide" takes 3 of 4 GPUs until 10 s, "all" waits for 4


WIDE, ALL = job("wide", 3, 10), job("all", 4, 10)


@pytest.mark.long
@BOTH
def test_a_job_that_ends_as_the_reservation_begins_is_backfilled(placement):
    assert starts(placement, WIDE, ALL, job("small", 1, 10)) == {"wide": 0, "all": 10, "small": 0}


@pytest.mark.long
@BOTH
def test_a_job_that_ends_a_nanosecond_later_is_not(placement):
    late = job("small", 1, 10.000000001)
    assert starts(placement, WIDE, ALL, late) == {"wide": 0, "all": 10, "small": 20}


def test_strict_order_backfills_nobody_and_skipping_delays_the_first():
    jobs = WIDE, ALL, job("small", 1, 11)
    assert starts(InOrder(), *jobs) == {"wide": 0, "all": 10, "small": 20}
    assert starts("first-fit", *jobs) == {"wide": 0, "all": 11, "small": 0}


@pytest.mark.long
@BOTH
def test_a_longer_job_takes_a_gpu_that_the_first_leaves_over(placement):
    jobs = WIDE, job("two", 2, 10), job("long", 1, 100)
    assert starts(placement, *jobs) == {"wide": 0, "two": 10, "long": 0}


@pytest.mark.long
def test_easy_delays_the_second_of_the_queue_and_conservative_does_not():
    # From 10 to 20 s "two" leaves two GPUs over, so that EASY starts "long"; then "all" waits for it until 30 s.
    jobs = WIDE, job("two", 2, 10), ALL, job("long", 1, 30)
    assert starts(EASY, *jobs) == {"wide": 0, "two": 10, "all": 30, "long": 0}
    assert starts(CONSERVATIVE, *jobs) == {"wide": 0, "two": 10, "all": 20, "long": 30}


@BOTH
def test_of_two_that_fit_alike_the_earlier_is_backfilled(placement):
    jobs = WIDE, ALL, job("b", 1, 6), job("a", 1, 6)
    assert starts(placement, *jobs) == {"wide": 0, "all": 10, "b": 0, "a": 20}


@BOTH
def test_a_limit_that_is_too_long_lets_a_job_in_that_delays_nobody_beyond_the_reservation(placement):
    # "all" has a reservation at 20 s, so "small" may run until 15 s; "wide" ends at 10 s, and "all" starts at 15 s.
    jobs = job("wide", 3, 10, limit_s=20), ALL, job("small", 1, 15)
    assert starts(placement, *jobs) == {"wide": 0, "all": 15, "small": 0}


@BOTH
def test_reservations_move_forward_when_a_job_ends_early(placement):
    jobs = job("wide", 3, 10, limit_s=20), ALL
    assert starts(placement, *jobs) == {"wide": 0, "all": 10}


@BOTH
def test_a_job_that_outlives_its_limit_may_end_any_moment_so_nobody_is_backfilled(placement):
    # From 5 s on, "all" is expected to start at once; "later" would end a second after that.
    jobs = job("wide", 3, 10, limit_s=5), ALL, job("small", 1, 5), job("later", 1, 1)
    assert starts(placement, *jobs) == {"wide": 0, "all": 10, "small": 0, "later": 20}


@BOTH
def test_gpus_of_a_job_that_outlives_its_limit_are_not_given_away(placement):
    # At 7 s "long" should have ended two seconds before; the other two GPUs are enough for "two", not for "three".
    long = job("long", 2, 10, limit_s=5)
    assert starts(placement, long, job("two", 2, 1, arrival_s=7)) == {"long": 0, "two": 7}
    assert starts(placement, long, job("three", 3, 1, arrival_s=7)) == {"long": 0, "three": 10}


@BOTH
def test_a_limit_that_is_too_short_delays_the_first(placement):
    jobs = WIDE, ALL, job("small", 1, 15, limit_s=10)
    assert starts(placement, *jobs) == {"wide": 0, "all": 15, "small": 0}


@BOTH
def test_jobs_have_their_gpus_to_themselves_whatever_the_memory(placement):
    light = [replace(each, gpu_memory_mb=1.0) for each in (WIDE, ALL)]
    assert starts(placement, *light) == {"wide": 0, "all": 10}


@BOTH
def test_another_placement_chooses_among_free_gpus_only(placement):
    cluster = Cluster(num_servers=2, gpus_per_server=4, gpu_memory_mb=1000)
    jobs = job("a", 2, 10), job("b", 4, 10)
    run = simulate(Workload(jobs), cluster, placement=replace(placement, placement="delay"), order="fifo")
    assert (run.gpus_of("a"), run.gpus_of("b")) == ((0, 1), (4, 5, 6, 7))


@dataclass(frozen=True, kw_only=True)
class AnyGpu:
    """Looks at no memory."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return list(range(job.num_gpus))


def test_another_placement_that_answers_a_taken_gpu_is_refused():
    with pytest.raises(PluginError, match=r"AnyGpu\(\) answered \[0\]; expected some of the free GPUs \[3\]"):
        starts(EasyBackfill(placement=AnyGpu()), WIDE, job("small", 1, 1))


def test_on_gpus_of_two_sizes_only_those_that_the_first_can_use_are_kept_for_it():
    servers = (Server(gpus=1, gpu_memory_mb=500), Server(gpus=2, gpu_memory_mb=1000))
    small = [replace(job(name, 1, 100), gpu_memory_mb=500.0) for name in ("b", "c")]
    jobs = job("a", 1, 10), job("first", 2, 10), *small
    run = simulate(Workload(jobs), Cluster(servers=servers), placement=EASY, order="fifo")
    assert dict(zip(run.jobs["job_id"], run.jobs["start_s"], strict=True)) == {"a": 0, "first": 10, "b": 0, "c": 20}
    with pytest.raises(InputError, match="job 'a' does not fit on GPU 0; conservative backfilling expects GPUs"):
        simulate(Workload(jobs), Cluster(servers=servers), placement=CONSERVATIVE, order="fifo")


@pytest.mark.long
@BOTH
def test_reservations_of_a_job_that_waits_are_told_and_explained(placement, tmp_path, monkeypatch):
    workload = Workload((job("wide", 3, 10, limit_s=20), ALL))
    result = simulate(workload, FOUR_GPUS, placement=placement, order="fifo", timeline=True)
    assert reservations(result, "all").to_numpy().tolist() == [[0, 20]]
    assert reservations(result, "wide").empty
    monkeypatch.chdir(tmp_path)
    write_workload(workload, "w.csv")
    name = "easy-backfill" if placement is EASY else "conservative-backfill"
    options = ["--servers", "1", "--gpu-memory-mb", "1000", "--order", "fifo", "--placement", name]
    assert run_command("simulate", "w.csv", *options, "--run-out", "run.parquet").exit_code == 0
    said = run_command("explain", "run.parquet", "all")
    assert "Reserved from 20.000 s, as was said at 0.000 s" in said.stdout, said.stderr
    assert "Reserved" not in run_command("explain", "run.parquet", "wide").stdout


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Answers whatever it is given."""

    what: Any

    def place_round(self, queue: Any, cluster: Any) -> Any:
        return self.what(list(queue))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            lambda queue: [(queue[0], [0, 1, 2]), (queue[0], [0, 1, 2])],
            "job 'wide': place_round answered a job",
        ),
        (lambda queue: [(queue[0], [0])], r"job 'wide': place_round answered 1 GPUs \[0\]; expected 3"),
        (
            lambda queue: [queue[0]],
            "place_round answered <job wide of 3 GPUs>; expected pairs of",
        ),
        (lambda queue: [("wide", [0])], r"place_round answered \('wide', \[0\]\); expected pairs"),
    ],
)
def test_rounds_that_are_none_are_refused_with_policy_time_and_job(what, says):
    with pytest.raises(InvalidDecisionError, match=r"placement Rounds\(.*at 0.0 s.*" + says):
        starts(Rounds(what=what), WIDE, ALL)


@pytest.mark.parametrize("what", [lambda queue: 7, lambda queue: 1 / 0])
def test_a_round_that_raises_is_the_placements_fault(what):
    says = r"placement Rounds\(.* raised (TypeError|ZeroDivisionError) at 0.0 s, 2 queued jobs"
    with pytest.raises(PluginError, match=says):
        starts(Rounds(what=what), WIDE, ALL)


@pytest.mark.parametrize("kind", [EasyBackfill, ConservativeBackfill, InOrder])
def test_another_placement_that_decides_about_the_whole_queue_is_refused(kind):
    with pytest.raises(InputError, match="decides about the whole queue; expected one that has place"):
        starts(kind(placement=Rounds(what=list)), WIDE, ALL)


# ---- Estimates


@BOTH
def test_a_job_without_a_time_limit_is_refused_as_it_arrives_with_its_name_and_the_fix(placement, tmp_path):
    jobs = WIDE, replace(ALL, time_limit_s=None)
    with pytest.raises(InputError, match="job 'all' has no time_limit_s; expected one in the workload file, or the"):
        starts(placement, *jobs)
    write_workload(Workload(jobs), tmp_path / "w.csv")
    said = run_command("simulate", str(tmp_path / "w.csv"), "--order", "fifo", "--placement", "easy-backfill")
    assert (said.exit_code, "job 'all' has no time_limit_s" in said.stderr) == (2, True)
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("sigma", [-0.1, 11, float("nan")])
def test_an_error_that_is_none_is_refused(sigma):
    with pytest.raises(InputError, match=r"error_sigma is .*; expected a number from 0 to 10, or none"):
        EasyBackfill(error_sigma=sigma)


def test_parameters_in_a_text_are_read_as_what_they_are_and_another_placement_keeps_its_own():
    assert resolve("placement", "easy-backfill:error_sigma=0.5,placement=lwf:kappa=2") == EasyBackfill(
        placement="lwf:kappa=2", error_sigma=0.5
    )
    assert resolve("placement", "conservative-backfill:error_sigma=none") == CONSERVATIVE
    with pytest.raises(InputError, match="parameter error_sigma: 'much' is not a number"):
        resolve("placement", "conservative-backfill:error_sigma=much")


def test_another_placement_that_nobody_registered_is_refused():
    for kind in (EasyBackfill, ConservativeBackfill, InOrder):
        with pytest.raises(InputError, match="no placement is named 'first-fitt'"):
            kind(placement="first-fitt")


@pytest.mark.parametrize("gpus", [1, 4, 5, 9])
def test_without_error_a_job_is_expected_to_run_as_long_as_alone(gpus):
    cluster = Cluster(num_servers=4, gpus_per_server=4)
    alone = data_parallel_job("a", gpus, forward_s=0.3, message_bytes=1e8, iterations=7)
    expected: list[int] = []

    @dataclass(frozen=True, kw_only=True)
    class Spy(EasyBackfill):
        def begin(self, cluster: Any, rng: Any) -> Any:
            begun = super().begin(cluster, rng)
            tell = begun._expected_run_ns
            begun._expected_run_ns = lambda *asked: expected.append(tell(*asked)) or expected[-1]
            return begun

    simulate(Workload.of([alone]), cluster, placement=Spy(error_sigma=0.0))
    assert [ns / 1e9 for ns in sorted(set(expected))] == alone_s(Workload.of([alone]), cluster).tolist()


@pytest.mark.long
def test_errors_are_log_normal_with_the_stated_spread_and_the_same_for_a_job_whenever_it_is_asked_for():
    cluster = Cluster(num_servers=4, gpus_per_server=4)
    begun = [Backfilling(EasyBackfill(error_sigma=0.5), cluster, np.random.default_rng(3)) for _ in range(2)]
    jobs = [job_view(number=number, iterations=1000, message_bytes=0.0) for number in range(2000)]
    view = cluster_view()
    estimates = [
        [one._expected_run_ns(each, view) for each in order]
        for one, order in zip(begun, (jobs, jobs[::-1]), strict=True)
    ]
    assert estimates[0] == estimates[1][::-1]
    logs = np.log(np.array(estimates[0]) / (jobs[0].compute_ns * 1000))
    assert logs.mean() == pytest.approx(0.0, abs=3 * 0.5 / 2000**0.5)
    assert logs.std() == pytest.approx(0.5, rel=0.05)


# ---- What each promises, on random jobs


@st.composite
def queues(draw: st.DrawFn, most_wrong: float = 1.0) -> list[Job]:
    """Return jobs that arrive within some seconds, with limits of the time that they run to so many times that."""
    jobs = []
    for number in range(draw(st.integers(2, 14))):
        run_s = draw(st.sampled_from((1.0, 2.0, 3.0, 5.0, 7.0)))
        wrong = draw(st.sampled_from((1.0, most_wrong)))
        arrival_s = float(draw(st.integers(0, 8)))
        jobs.append(job(f"j{number}", draw(st.integers(1, 4)), run_s, limit_s=run_s * wrong, arrival_s=arrival_s))
    return sorted(jobs, key=lambda each: each.arrival_s)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A placement of which ``seen`` gets to know each round: the time, the queue, and until when each GPU is taken."""

    policy: Any
    seen: list[Any] = field(compare=False)

    def begin(self, cluster: Any, rng: Any) -> Any:
        begun, tell = self.policy.begin(cluster, rng), self.seen.append
        place_round = begun.place_round

        def watch(queue: Any, view: Any) -> Any:
            residents = [resident for gpu in range(4) for resident in view.residents(gpu)]
            ends_s = [resident.start_s + resident.time_limit_s for resident in residents]
            yield from place_round(queue, view)
            tell((view.now_s, [each.job_id for each in queue], ends_s, dict(begun.reservations_ns())))

        begun.place_round = watch
        return begun


def earliest_s(now_s: float, ends_s: list[float], gpus: int) -> float:
    """When so many of four GPUs are free, some of which are taken until given times."""
    return sorted([now_s] * (4 - len(ends_s)) + ends_s)[gpus - 1]


@pytest.mark.long
@given(queues())
@hypothesis_settings(max_examples=examples(60, by_default=15))
def test_easy_with_exact_limits_never_starts_the_first_later_than_its_reservation(jobs):
    seen: list[Any] = []
    started = starts(Watched(policy=EASY, seen=seen), *jobs)
    gpus = {each.job_id: each.num_gpus for each in jobs}
    for now_s, queue, ends_s, _ in seen:
        assert started[queue[0]] <= earliest_s(now_s, ends_s, gpus[queue[0]])


@pytest.mark.long
@given(queues(most_wrong=2.5))
@hypothesis_settings(max_examples=examples(60, by_default=15))
def test_conservative_never_starts_a_job_later_than_any_reservation_it_had(jobs):
    seen: list[Any] = []
    started = starts(Watched(policy=CONSERVATIVE, seen=seen), *jobs)
    for now_s, queue, _, reserved_ns in seen:
        waiting = {job_id for job_id in queue if started[job_id] > now_s}
        # Another round of the same instant may start one that this round left waiting.
        assert waiting <= {jobs[number].job_id for number in reserved_ns} <= set(queue)
        assert all(started[jobs[number].job_id] * 1e9 <= ns for number, ns in reserved_ns.items())


@pytest.mark.long
@given(queues())
@hypothesis_settings(max_examples=examples(20, by_default=8))
def test_conservative_with_exact_limits_starts_a_job_as_if_nobody_came_after_it(jobs):
    started = starts(CONSERVATIVE, *jobs)
    for count in range(1, len(jobs)):
        alone = starts(CONSERVATIVE, *jobs[:count])
        assert alone[jobs[count - 1].job_id] == started[jobs[count - 1].job_id]


@pytest.mark.long
@given(queues(most_wrong=2.5))
@hypothesis_settings(max_examples=examples(20, by_default=8))
def test_strict_order_starts_jobs_in_the_order_of_arrival(jobs):
    started = list(starts(InOrder(), *jobs).values())
    assert started == sorted(started)
