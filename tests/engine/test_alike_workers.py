"""Workers, tuples and links of jobs of groups that are alike are simulated as one: nothing reported depends on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import Fixed
from reference_simulator import reference_simulate
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import Setting, settings
from tiers import examples

from ddlsched import Cluster, IterationDag, Job, Workload, simulate
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.engine.alike import Colours, Crossings, GroupedDag, in_order, refined
from ddlsched.engine.driver import Simulation
from ddlsched.engine.grouped_jobs import GroupedJobs
from ddlsched.engine.records import make_records
from ddlsched.errors import SimulationError
from ddlsched.network.contention import MaxMin
from ddlsched.results.result import Result
from ddlsched.workload.dag import CollectiveTask, ComputeTask
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

TABLES = ("jobs", "gpus", "links", "samples", "placements")
RAILS = RailOptimised(rails=4, rail_gbps=8.0, nvlink_gbps=32.0)
SENDING = (*(f"bounded-overlap:limit={limit}" for limit in (1, 2, 9)), "adadual", "preemptive", "preemptive:by=bytes")
POLICIES: dict[str, Any] = {"order": "fifo", "communication": "bounded-overlap:limit=9", "contention": "max-min"}


class BesideFew:
    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer: Any, network: Any) -> bool:
        return len(network.met_by(transfer)) < 2


class Never(BesideFew):
    def admit(self, transfer: Any, network: Any) -> bool:
        return bool(network.most_on_links_of(transfer) < 0)


class BesideLarger(BesideFew):
    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer: Any, network: Any) -> bool:
        return all(transfer.message_bytes < other.message_bytes for other in network.met_by(transfer))


class BesideOne(BesideFew):
    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer: Any, network: Any) -> bool:
        return not any(any(a is not b for a in network.met_by(transfer)) for b in network.met_by(transfer))


class ByTheClock:
    def transfer_key(self, transfer: Any, network: Any) -> float:
        return transfer.message_bytes if network.now_s % 0.002 < 0.001 else -transfer.message_bytes


class MostLeft:
    def transfer_key(self, transfer: Any, network: Any) -> float:
        return -transfer.bytes_left


@contextmanager
def every_worker() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_may_fold", lambda _: False)
        yield


@contextmanager
def noting() -> Iterator[dict[str, list[int]]]:
    """Note how many classes of workers each job is placed with, and which jobs are split."""
    noted: dict[str, list[int]] = {"classes": [], "split": []}
    write, split = GroupedJobs._write, GroupedJobs._split_one

    def noting_write(jobs: GroupedJobs, number: int, dag: Any, partition: Any, parts: Any) -> None:
        noted["classes"].append(len(np.unique(partition.workers)))
        write(jobs, number, dag, partition, parts)

    def noting_split(jobs: GroupedJobs, number: int, colours: Colours) -> None:
        noted["split"].append(number)
        split(jobs, number, colours)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupedJobs, "_write", noting_write)
        patch.setattr(GroupedJobs, "_split_one", noting_split)
        yield noted


def assert_same(result: Result, expected: Result) -> None:
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, check_exact=True)
    assert result.summary()["events"] == expected.summary()["events"]


def step(*, tensor: int, data: int, stages: int, passes: int = 2, mb: float = 2.0) -> IterationDag:
    """A step of tensor, data and pipeline parallelism; workers are numbered in that order."""
    numbers = np.arange(tensor * data * stages).reshape(stages, data, tensor)
    groups: dict[str, list[list[int]]] = {}
    tasks: list[Any] = []
    for stage, own in enumerate(numbers):
        groups |= {f"stage {stage}": own.reshape(1, -1).tolist(), f"tensor {stage}": own.tolist()}
        groups[f"data {stage}"] = own.T.tolist()
        if stage + 1 < stages:
            groups[f"on {stage}"] = np.stack([own.ravel(), numbers[stage + 1].ravel()], axis=1).tolist()
        for number in range(passes):
            before = [f"send {stage - 1}.{number}"] * (stage > 0) + [f"reduce {stage}.{number - 1}"] * (number > 0)
            name, group = f"work {stage}.{number}", f"stage {stage}"
            tasks.append(ComputeTask(name=name, duration_ns=1_000_000 + stage, group=group, after=tuple(before)))
            sent = {"message_bytes": mb * 1e6, "algorithm": "hierarchical", "kind": "all-reduce"}
            tasks.append(
                CollectiveTask(name=f"reduce {stage}.{number}", group=f"tensor {stage}", after=(name,), **sent)
            )
            if stage + 1 < stages:
                after = (f"reduce {stage}.{number}",)
                send = {"kind": "send", "message_bytes": mb * 3e5, "group": f"on {stage}"}
                tasks.append(CollectiveTask(name=f"send {stage}.{number}", after=after, **send))
        after = (f"reduce {stage}.{passes - 1}",)
        tasks.append(CollectiveTask(name=f"gradients {stage}", group=f"data {stage}", after=after, **sent))
    return IterationDag(tuple(tasks), {name: tuple(map(tuple, tuples)) for name, tuples in groups.items()})


def test_computes_that_are_written_where_collectives_were_have_no_load() -> None:
    kinds = {"jobs": "job", "tasks": "task", "transfers": "transfer", "workers": "worker", "crossings": "crossing"}
    arrays = SimpleNamespace(**{name: make_records(kind, 64) for name, kind in kinds.items()}, gpus=range(4))
    vars(arrays).update({name: np.zeros(256, np.int64) for name in ("ready", "successors", "members", "position")})
    state: Any = SimpleNamespace(arrays=arrays, jobs=arrays.jobs, make_room=lambda *_: None)
    jobs, dag = GroupedJobs(state), GroupedDag(step(tensor=2, data=2, stages=1), 4)
    jobs._used = dict.fromkeys(jobs._used, 0)
    arrays.jobs.num_gpus = 4
    alike = Colours(np.zeros(4, np.int64), in_order(dag.group_of_tuple), np.zeros(0, np.int64))
    for colours in (dag.finest, alike, dag.finest):
        jobs._write(0, dag, colours, dag.parts(colours))
        arrays.tasks.load_ns[(arrays.tasks.transfer >= 0) & (np.arange(64) < arrays.jobs.num_tasks[0])] = 5
    tasks = arrays.tasks[: arrays.jobs.num_tasks[0]]
    assert not tasks.load_ns[tasks.transfer < 0].any()


def with_early_gradients(dag: IterationDag) -> IterationDag:
    """Return a step whose first stage sends gradients beside all but its first computation."""
    early = {"gradients 0": ("work 0.0",)}
    tasks = [dataclasses.replace(task, after=early.get(task.name, task.after)) for task in dag.tasks]
    return dataclasses.replace(dag, tasks=tuple(tasks))


def job(name: str, dag: IterationDag, gpus: int, **given: Any) -> Job:
    given = {"arrival_s": 0.0, "iterations": 20, "gpu_memory_mb": 1.0} | given
    return Job(job_id=name, num_gpus=gpus, iteration=dag, **given)


def both(jobs: list[Job], places: dict[str, list[int]], **given: Any) -> tuple[Result, dict[str, list[int]]]:
    """Run jobs on 8 servers of 4 with and without the shortcut, and see that both are the same."""
    cluster = Cluster(num_servers=8, gpus_per_server=4, topology=given.pop("topology", RAILS))
    given = POLICIES | {"placement": Fixed(gpus=places)} | given
    with noting() as noted:
        result = simulate(Workload.of(jobs), cluster, **given)
    with every_worker():
        assert_same(result, simulate(Workload.of(jobs), cluster, **given))
    return result, noted


def test_a_job_alone_is_simulated_stage_by_stage() -> None:
    _, noted = both([job("a", step(tensor=4, data=4, stages=2), 32)], {"a": list(range(32))})
    assert noted == {"classes": [2], "split": []}


@pytest.mark.long
@pytest.mark.parametrize("contention", ["max-min", "equal-share"])
def test_a_job_that_comes_to_some_links_in_the_middle_of_a_step(contention: str) -> None:
    jobs = [
        job("a", step(tensor=4, data=3, stages=2), 24),
        job("b", step(tensor=2, data=2, stages=1), 4, arrival_s=0.0101),
    ]
    places = {"a": list(range(24)), "b": [20, 21, 24, 25]}
    result, noted = both(jobs, places, contention=contention)
    assert noted["classes"][0] == 2
    assert noted["split"] == [0]
    assert 2 < noted["classes"][1] < 24
    assert result.contended_iterations > 0


@pytest.mark.long
def test_a_job_that_comes_to_others_links_is_told_apart_only_there() -> None:
    jobs = [
        job("a", step(tensor=2, data=2, stages=1), 4),
        job("b", step(tensor=4, data=3, stages=2), 24, arrival_s=0.01),
    ]
    _, noted = both(jobs, {"a": [20, 21, 24, 25], "b": list(range(24))})
    assert noted["classes"][:1] + noted["classes"][-1:] == [1, noted["classes"][-1]]
    assert 2 < noted["classes"][-1] < 24


@pytest.mark.long
def test_a_policy_that_lets_some_go_first() -> None:
    dag = step(tensor=4, data=4, stages=2, passes=3)
    _, noted = both(
        [job("a", dag, 32)],
        {"a": list(range(32))},
        communication="bounded-overlap:limit=1",
        topology="star:nvlink_gbps=32",
    )
    assert noted["split"] == [0]


@pytest.mark.long
@pytest.mark.parametrize("sending", SENDING)
@pytest.mark.parametrize("contention", ["max-min", "equal-share"])
def test_transfers_that_meet_others_only_are_answered_alike(sending: str, contention: str) -> None:
    """Rails of their own: chunks to the next stage, and gradients, of which some wait or pause for others."""
    one = job("a", with_early_gradients(step(tensor=4, data=4, stages=2, passes=3)), 32)
    result, noted = both([one], {"a": list(range(32))}, communication=sending, contention=contention)
    assert noted == {"classes": [2], "split": []}
    assert (result.samples["waiting_transfers"].max() > 0) == (not sending.endswith(("2", "9")))


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Job], dict[str, list[int]]]:
    """One or two jobs whose gradients may go beside their steps, on GPUs of their own or on the same."""
    jobs, places = [], {}
    for name in "ab"[: draw(st.integers(1, 2))]:
        tensor, data, stages = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 4], [1, 2, 3, 4], [1, 2]))
        dag = step(tensor=tensor, data=data, stages=stages, passes=draw(st.integers(1, 3)), mb=draw(st.floats(0.5, 4)))
        dag = with_early_gradients(dag) if draw(st.booleans()) else dag
        count = tensor * data * stages
        first, stride = draw(st.sampled_from([(0, 1), (4, 1), (0, 2), (1, 2)]))
        places[name] = sorted(range(32), key=lambda gpu, a=first, b=stride: ((gpu - a) % b, (gpu - a) % 32))[:count]
        given = {"iterations": draw(st.sampled_from([3, 60])), "arrival_s": draw(st.sampled_from([0.0, 0.0101]))}
        jobs.append(job(name, dag, count, **given))
    return jobs, places


@pytest.mark.long
@given(steps(), st.sampled_from(SENDING), st.sampled_from(["max-min", "equal-share", "linear"]), st.booleans())
@hypothesis_settings(max_examples=examples(20, by_default=6))
def test_steps_under_every_policy(placed: Any, sending: str, contention: str, on_rails: bool) -> None:
    topology = RAILS if on_rails else Star(nic_gbps=8.0, nvlink_gbps=32.0)
    both(*placed, communication=sending, contention=contention, topology=topology)


@pytest.mark.long
def test_a_policy_that_counts_whom_a_transfer_meets_is_asked_about_each() -> None:
    """Two that are alike may meet as many transfers on as many links, and not as many different ones."""
    dag = step(tensor=4, data=4, stages=2)
    for policy, classes in ((BesideFew(), 32), (BesideOne(), 32), (BesideLarger(), 2)):
        _, noted = both([job("a", dag, 32)], {"a": list(range(32))}, communication=policy)
        assert noted["classes"] == [classes]


@pytest.mark.long
@pytest.mark.parametrize(("policy", "arrival_s"), [(ByTheClock(), 0.0101), (MostLeft(), 0.0103)])
def test_transfers_are_not_ordered_anew_when_workers_are_told_apart(policy: Any, arrival_s: float) -> None:
    """A job comes in the middle of a step to others' links, and no transfer ends or becomes ready."""
    one = job("a", with_early_gradients(step(tensor=4, data=3, stages=2, passes=3, mb=1.0)), 24)
    other = job("b", step(tensor=2, data=2, stages=1), 4, arrival_s=arrival_s)
    _, noted = both([one, other], {"a": list(range(24)), "b": [20, 21, 24, 25]}, communication=policy)
    assert noted["split"]


def test_three_on_a_link_whose_rounding_could_tell_them_apart() -> None:
    """A third of a bandwidth has no exact float: sends of three workers of a server, which share its card."""
    both(
        [job("a", step(tensor=3, data=2, stages=2, passes=3), 12)],
        {"a": [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14]},
        topology="star:nvlink_gbps=32",
    )


@pytest.mark.long
@pytest.mark.parametrize("data", [1, 4])
@pytest.mark.parametrize("topology", [RAILS, Star(nic_gbps=8.0, nvlink_gbps=32.0)])
def test_sends_that_pile_up_on_cards_tell_nobody_apart(topology: Any, data: int) -> None:
    """Chunks of a ring of stages, a server each, sent at once, and gradients: ties whose shares have no exact float."""
    numbers = np.arange(8 * data).reshape(data, 4, 2)  # by stage, then by rail
    groups = {"all": numbers.reshape(data, -1).T.tolist()}
    tasks: list[Any] = [ComputeTask(name="work", duration_ns=1_000_000)]
    for stage in range(4):
        groups[f"on {stage}"] = np.stack([numbers[:, stage], numbers[:, (stage + 1) % 4]], -1).reshape(-1, 2).tolist()
        for chunk, mb in enumerate((2.0, 2.0, 1.0, 0.7, 0.7)):
            send = {"kind": "send", "group": f"on {stage}", "message_bytes": mb * 1e6, "after": ("work",)}
            tasks.append(CollectiveTask(name=f"send {stage}.{chunk}", **send))
    if data > 1:
        sent = {"kind": "all-reduce", "algorithm": "ring", "group": "all", "message_bytes": 3e6}
        tasks.append(CollectiveTask(name="gradients", after=("work",), **sent))
    dag = IterationDag(tuple(tasks), {name: tuple(map(tuple, own)) for name, own in groups.items()})
    one = job("a", dag, 8 * data, iterations=3)
    gpus = [server * 4 + rail for server in range(4 * data) for rail in (0, 1)]
    cluster = Cluster(num_servers=4 * data, gpus_per_server=4, topology=topology)
    given = POLICIES | {"contention": MaxMin(), "communication": "bounded-overlap:limit=99"}
    with noting() as noted:
        result = simulate(Workload.of([one]), cluster, placement=Fixed(gpus={"a": gpus}), **given)
    assert noted["classes"][0] < 8 * data
    assert noted["split"] == []
    with every_worker():
        assert_same(result, simulate(Workload.of([one]), cluster, placement=Fixed(gpus={"a": gpus}), **given))
    cluster = Cluster(num_servers=4 * data, gpus_per_server=2, topology=topology)
    placed = {"placement": "first-fit", "topology": result.finished.network._topology}
    assert_agrees(
        simulate(Workload.of([one]), cluster, placement="first-fit", **given),
        reference_simulate(Workload.of([one]), cluster, **placed, **given),
    )


@pytest.mark.long
def test_a_server_fails_and_a_warm_up_and_a_run_cut_off() -> None:
    outage = Disturbances(outages=(Outage(server=1, from_s=0.0123, to_s=0.0301),), checkpoint_iterations=2)
    jobs = [job("a", step(tensor=4, data=4, stages=2), 32)]
    both(jobs, {"a": list(range(32))}, disturbances=outage)
    both(jobs, {"a": list(range(32))}, until_s=0.0237, warmup_s=0.0113)


@pytest.mark.long
def test_a_gpu_that_becomes_slow_tells_its_worker_apart() -> None:
    slow = FailureCause(cause="slow", per="gpu", mtbf_s=2.0, noticed_s=0.02, repair_s=0.01, slowdown=2.5)
    jobs = [job("a", step(tensor=4, data=4, stages=2), 32)]
    result, _ = both(jobs, {"a": list(range(32))}, disturbances=Disturbances(failures=(slow,)))
    assert {failure.hang_ns for failure in result.finished.failures} == {None, 0}


@pytest.mark.long
@given(settings(grouped=True), st.sampled_from(SENDING), st.sampled_from([1, 20]))
@hypothesis_settings(max_examples=examples(20, by_default=6))
def test_every_table_is_as_with_every_worker(setting: Setting, sending: str, times: int) -> None:
    jobs = [dataclasses.replace(each, iterations=each.iterations * times) for each in setting.workload]
    setting = dataclasses.replace(setting, workload=Workload(tuple(jobs)), order="fifo", communication=sending)
    result = run_engine(setting)
    with every_worker():
        assert_same(result, run_engine(setting))
    if times == 1:
        assert_agrees(result, run_reference(setting))


def test_colours_of_a_ring_and_of_a_path() -> None:
    """Tuples of two neighbours: in a ring all are alike, in a path those as far from an end."""
    none = np.zeros(0, np.int64)
    for count, expected in ((6, [0] * 6), (5, [0, 1, 2, 2, 1, 0])):
        pairs = [(worker, (worker + 1) % 6) for worker in range(count)]
        members = np.array(pairs).ravel(), np.repeat(np.arange(count), 2)
        colours = refined(Colours(np.zeros(6), np.zeros(count), none), members, Crossings(none, none, none))
        assert in_order(colours.workers).tolist() == expected


@pytest.mark.long
def test_jobs_that_meet_on_links_alike_stay_folded_and_may_leave() -> None:
    """Two jobs side by side in every host of two units send over the same spines; the shorter one leaves first."""
    topology = RailOptimised(hosts_per_unit=4, rails=4, spines=2, rail_gbps=8.0, nvlink_gbps=32.0, oversubscription=2.0)
    places = {"a": [0, 1, 4, 5, 16, 17, 20, 21], "b": [8, 9, 12, 13, 24, 25, 28, 29]}
    jobs = [
        job("a", step(tensor=2, data=2, stages=2), 8),
        job("b", step(tensor=2, data=2, stages=2, passes=3, mb=1.0), 8, arrival_s=0.0107, iterations=5),
    ]
    result, noted = both(jobs, places, topology=topology)
    assert result.contended_iterations > 0
    assert max(noted["classes"]) < 8
    both(jobs, places, topology=topology, until_s=0.0237)
    long = [dataclasses.replace(each, iterations=3000) for each in jobs]
    result, _ = both(long, places, topology=topology, sample=True)
    assert result.leapt_iterations > 0


@pytest.mark.long
@pytest.mark.parametrize("path", ["ecmp", "least-congested"])
def test_paths_that_a_policy_chooses(path: str) -> None:
    topology = RailOptimised(hosts_per_unit=2, rails=4, spines=2, rail_gbps=8.0, nvlink_gbps=32.0)
    jobs = [
        job("a", step(tensor=4, data=4, stages=2), 32),
        job("b", step(tensor=4, data=2, stages=2), 16, arrival_s=0.01),
    ]
    cluster = {"a": list(range(32)), "b": [*range(4, 12), *range(20, 28)]}
    _, noted = both(jobs, cluster, topology=topology, path=path, seed=1)
    assert noted["classes"][0] < 32


@pytest.mark.long
def test_a_job_of_folded_workers_that_never_sends_is_told() -> None:
    one = job("a", step(tensor=4, data=2, stages=2), 16)
    cluster = Cluster(num_servers=4, gpus_per_server=4, topology=RAILS)
    placement = Fixed(gpus={"a": list(range(16))})
    with pytest.raises(SimulationError, match=r"communication Never starts none of the transfers of jobs a$"):
        simulate(Workload.of([one]), cluster, placement=placement, **POLICIES | {"communication": Never()})
