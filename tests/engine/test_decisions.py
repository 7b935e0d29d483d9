"""Policies are asked, answers checked and costs counted in one form, for simulated and for real jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job
from reference_simulator import reference_simulate
from tiers import examples

from ddlsched import Cluster, DataParallelIteration, IterationDag, Job, Workload, simulate
from ddlsched.engine.decisions.checked_policies import CheckedPolicies, random_streams
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.errors import PluginError
from ddlsched.network.contention import MaxMin
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.workload.dag import AllReduceTask, ComputeTask

FOUR = Cluster(num_servers=4, gpus_per_server=2)


def checked(**given: Any) -> CheckedPolicies:
    names = {"placement": "first-fit", "order": "fifo", "communication": "adadual"}
    policies = {kind: given.get(kind, resolve(kind, name)) for kind, name in names.items()}
    return CheckedPolicies(FOUR, random_streams(0), **policies, contention=resolve("contention", "max-min"))


class BeginsWithANumber:
    def begin(self, cluster: Cluster, rng: np.random.Generator) -> int:
        return 3


@pytest.mark.parametrize("kind", ["placement", "order", "communication"])
def test_what_begin_answers_is_checked(kind: str) -> None:
    with pytest.raises(PluginError, match=f"{kind} BeginsWithANumber.*: begin answered 3; expected an object with"):
        checked(**{kind: BeginsWithANumber()})


def test_messages_name_the_policy_and_not_what_its_begin_answered() -> None:
    policies = checked(placement=resolve("placement", "near-enough"), order=resolve("order", "history"))
    assert policies.label("placement").startswith("NearEnough(")
    assert policies.label("order").startswith("ShortByHistory(")
    assert policies.label("contention").startswith("MaxMin(")


def test_streams_are_those_that_runs_had_before_they_had_names() -> None:
    """A new stream goes last: what was drawn for each before is drawn again."""
    spawned = [np.random.default_rng(seed) for seed in np.random.SeedSequence(7).spawn(8)]
    drawn = {name: rng.random() for name, rng in random_streams(7).items()}
    assert list(drawn) == ["placement", "order", "communication", "jobs", "capacity", "allocation", "path", "admission"]
    assert list(drawn.values()) == [rng.random() for rng in spawned]


@dataclass
class WakesAt:
    answer: float | None

    def key(self, job: Any, now_s: float) -> int:
        return 0

    def wake_s(self, now_s: float) -> float | None:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "wake_ns"),
    [(None, None), (1.0, None), (0.5, None), (2.0, 2_000_000_000), (1.5e-9 + 1.0, 1_000_000_002), (1e-10 + 3, None)],
)
def test_a_policy_is_woken_at_the_first_instant_that_is_not_before_the_time_asked_for(
    answer: float | None, wake_ns: int | None
) -> None:
    expected = 3_000_000_001 if answer == 1e-10 + 3 else wake_ns
    assert checked(order=WakesAt(answer)).wake_ns("order", 1_000_000_000) == expected


def costs(topology: str, cluster: Cluster) -> CommunicationCosts:
    network = Network(resolve("topology", topology), cluster.num_servers, None, cluster.gpus_of_servers)
    model = resolve("contention", "max-min:per_byte_s=1e-9,latency_s=0")
    return CommunicationCosts(cluster, network, model.bound_to(network))


def test_an_all_reduce_is_shared_out_over_a_servers_cards() -> None:
    """Two cards a server carry half of a ring's 2 (n - 1) / n bytes each."""
    one, two = costs("star", FOUR), costs("rail-optimised:rails=2,nvlink_gbps=3600", FOUR)
    assert (one.network.cards, two.network.cards) == (1, 2)
    assert one.all_reduce_s(1e9, 4) == pytest.approx(1.5)
    assert two.all_reduce_s(1e9, 4) == pytest.approx(0.75)


# --- all-reduces of no bytes (issue 35, A4)


def reducing(job_id: str, message_bytes: float, arrival_s: float = 0.0) -> Job:
    iteration = DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=message_bytes)
    return Job(job_id=job_id, arrival_s=arrival_s, num_gpus=4, iterations=3, iteration=iteration, gpu_memory_mb=9000.0)


def test_item_4_an_all_reduce_of_no_bytes_ends_when_it_is_ready() -> None:
    """Not after the latency of a message, nor when the communication policy is asked next."""
    jobs = Workload.of([reducing("a", 0.0), reducing("b", 0.0, 0.25), reducing("c", 1e9)])
    given = {"contention": "linear:latency_s=0.5", "communication": "bounded-overlap:limit=1", "placement": "first-fit"}
    cluster = Cluster(num_servers=6, gpus_per_server=2, exclusive=True)
    result = simulate(jobs, cluster, order="fifo", timeline=True, **given)
    jobs = result.jobs.set_index("job_id")
    assert jobs.jct_s[["a", "b"]].tolist() == [3.0, 3.0]
    assert jobs.communication_s[["a", "b"]].tolist() == [0.0, 0.0]
    assert jobs.communication_s["c"] > 1.0


@pytest.mark.long
def test_item_4_all_reduces_of_no_bytes_agree_with_the_reference() -> None:
    """Jobs whose graphs send nothing at times, on shared GPUs, with others beside them."""
    rng = np.random.default_rng(4)
    for _ in range(12):
        jobs = []
        for number in range(6):
            sizes = rng.choice([0.0, 0.0, 1e7, 3e8], 2).tolist()
            tasks = (
                ComputeTask(name="a", duration_ns=int(rng.integers(1, 5)) * 10_000_000),
                AllReduceTask(name="r", message_bytes=sizes[0], after=("a",)),
                ComputeTask(name="b", duration_ns=int(rng.integers(1, 5)) * 10_000_000, after=("a",)),
                AllReduceTask(name="s", message_bytes=sizes[1], after=("r", "b")),
            )
            job = Job(
                job_id=f"j{number}",
                arrival_s=float(rng.integers(0, 4)) / 10,
                num_gpus=int(rng.integers(1, 6)),
                iterations=int(rng.integers(1, 6)),
                iteration=IterationDag(tasks),
                gpu_memory_mb=4000.0,
            )
            jobs.append(job)
        workload = Workload.of(jobs)
        names = {"placement": "first-fit", "order": "srsf", "communication": "adadual", "contention": "linear"}
        found = simulate(workload, FOUR, **names).finished.state.jobs.finish_ns.tolist()
        given = {**names, "topology": resolve("topology", "star")}
        expected = reference_simulate(workload, FOUR, **given).jobs.values()
        assert found == [job.finish_ns for job in expected]


# --- orders that remember (issue 35, A2)


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """An order that draws its keys."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> DrawnKeys:
        return DrawnKeys(rng)


class DrawnKeys:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def key(self, job: Any, now_s: float) -> float:
        return float(self.rng.random())


def graphs(seed: int) -> tuple[Workload, Cluster]:
    """Return jobs of task graphs beside each other on few GPUs, some of which hold the same jobs."""
    rng, jobs = np.random.default_rng(seed), []
    for number in range(int(rng.integers(3, 7))):
        first, second, third = (int(ms) * 1_000_000 for ms in rng.integers(1, 30, 3))
        tasks = (
            ComputeTask(name="a", duration_ns=first),
            ComputeTask(name="b", duration_ns=second),
            AllReduceTask(name="r", message_bytes=float(rng.choice([0.0, 2e6, 2e7])), after=("a",)),
            ComputeTask(name="c", duration_ns=third, after=("r",) if rng.random() < 0.5 else ("b",)),
        )
        job = Job(
            job_id=f"j{number}",
            arrival_s=float(rng.integers(0, 5)) / 100,
            num_gpus=int(rng.integers(1, 7)),
            iterations=int(rng.integers(1, 20)),
            iteration=IterationDag(tasks),
            gpu_memory_mb=1000.0,
        )
        jobs.append(job)
    return Workload.of(jobs), Cluster(num_servers=3, gpus_per_server=2)


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("order", [Shuffled(), resolve("order", "qssf")], ids=["shuffled", "qssf"])
def test_item_2_recording_does_not_change_what_an_order_with_memory_is_asked(order: Any) -> None:
    """GPUs that hold the same jobs are asked about one by one, recorded or not."""
    for seed in range(examples(40, by_default=12)):
        workload, cluster = graphs(seed)
        given = {"placement": "first-fit", "order": order, "seed": seed}
        runs = [simulate(workload, cluster, timeline=recorded, **given).jobs.finish_s for recorded in (False, True)]
        assert runs[0].tolist() == runs[1].tolist(), seed


@dataclass
class TellsWhoWaits:
    told: list[tuple[str, float]]

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> TellsWhoWaits:
        return self

    def key(self, job: Any, now_s: float) -> int:
        if not job.servers:
            self.told.append((job.job_id, now_s))
        return int(job.number)


def test_an_order_with_memory_is_asked_about_one_that_queues_alone_when_a_job_comes_and_when_one_leaves() -> None:
    """So it has seen who finished before the last that waits starts, whoever else wakes placement then."""
    jobs = Workload.of(data_parallel_job(name, arrival_s=at_s, backward_s=1.0) for name, at_s in (("a", 0), ("b", 0.5)))
    cluster, told = Cluster(num_servers=1, gpus_per_server=1, exclusive=True), []
    simulate(jobs, cluster, order=TellsWhoWaits(told), placement="first-fit")
    assert told == [("a", 0.0), ("b", 0.5), ("b", 1.0)]


# --- fields that change during a run (issue 35, A3)


@dataclass
class CountsInItself:
    seen: Counter[str] = field(default_factory=Counter)

    def place(self, job: Any, cluster: Any) -> list[int] | None:
        self.seen[job.job_id] += 1
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


@dataclass
class CountsInARun(CountsInItself):
    def begin(self, cluster: Cluster, rng: np.random.Generator) -> CountsInItself:
        return CountsInItself()


def test_item_3_a_policy_whose_fields_change_during_a_run_is_told_with_the_mend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulate(Workload.of([reducing("a", 1e6)]), FOUR, placement=CountsInItself())
    said = capsys.readouterr().err
    assert "its field 'seen' changed during the run" in said
    assert "let begin(cluster, rng) return" in said


def test_a_policy_that_begins_or_does_not_change_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    for placement in (CountsInARun(), "first-fit", "random", "lwf"):
        simulate(Workload.of([reducing("a", 1e6)]), FOUR, placement=placement)
    simulate(Workload.of([reducing("a", 1e6), reducing("b", 2e6)]), FOUR, contention="crux")
    assert "changed during the run" not in capsys.readouterr().err


@dataclass(slots=True)
class CountsInSlots:
    count: int = 0

    def key(self, job: Any, now_s: float) -> int:
        self.count += 1
        return self.count


class CountsInItsClass(CountsInSlots):
    count_of_all: ClassVar[list[int]] = []

    def key(self, job: Any, now_s: float) -> int:
        self.count_of_all.append(1)
        return len(self.count_of_all)


class BeginsAsItIs(CountsInSlots):
    """It remembers random numbers, which each run gives anew, and how often it was asked, which none does."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> BeginsAsItIs:
        self.rng, self.cluster = rng, cluster
        return self

    def key(self, job: Any, now_s: float) -> int:
        self.rng.random()
        return super().key(job, now_s)


class BeginsAnew(BeginsAsItIs):
    def begin(self, cluster: Cluster, rng: np.random.Generator) -> BeginsAnew:
        self.count = int(rng.integers(10**9))
        super().begin(cluster, rng)
        return self


@pytest.mark.parametrize(
    ("kind", "field"),
    [(CountsInSlots, "count"), (CountsInItsClass, "count_of_all"), (BeginsAsItIs, "count"), (BeginsAnew, None)],
)
def test_item_3_fields_are_told_that_the_next_run_would_begin_with(
    capsys: pytest.CaptureFixture[str], kind: Any, field: str | None
) -> None:
    """They may be in slots, of the class, or of a policy that begins itself and forgets to make them anew."""
    for _ in range(2):
        policies = checked(order=(order := kind()))
        policies.key(SimpleNamespace(job_id="a"), 0.0)  # type: ignore[arg-type]
        policies.say_what_they_keep()
    assert order.count != 0 or kind is CountsInItsClass
    told = f"order {kind.__name__}: its field {field!r} changed during the run"
    assert capsys.readouterr().err.partition(",")[0] == ("" if field is None else f"ddlsched: {told}")


class CountsBytes(MaxMin):
    sent: ClassVar[list[float]] = []

    def weight(self, transfer: Any) -> float:
        self.sent.append(transfer.bytes_left)
        return 1.0


def test_item_3_a_contention_model_that_remembers_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for model in (MaxMin(per_byte_s=1e-9), CountsBytes(per_byte_s=1e-9)):
        assert capsys.readouterr().err == ""
        simulate(Workload.of([reducing("a", 1e6)]), FOUR, contention=model)
    assert "contention CountsBytes: its field 'sent' changed during the run" in capsys.readouterr().err


def test_a_policy_is_woken_at_the_first_nanosecond_that_is_not_before_its_time() -> None:
    def woken_ns(wake_s: float) -> int | None:
        asked: Any = SimpleNamespace(order=SimpleNamespace(wake_s=lambda _: wake_s), _ask=lambda *given: given[3]())
        return CheckedPolicies.wake_ns(asked, "order", 0)

    assert [woken_ns(wake_s) for wake_s in (0.1, 0.1000000004, 0.1000000006)] == [100_000_000, 100_000_001, 100_000_001]
