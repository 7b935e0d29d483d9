"""Collectives over groups of workers and the inside of servers: the engine against the reference, and by hand."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import Fixed
from policies_of_users import SizeLevels
from reference_simulator import reference_simulate
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import ASKED_IN_PYTHON, CONTENTION, Setting, settings
from tiers import examples

from ddlsched import Cluster, IterationDag, Job, Workload, simulate
from ddlsched.engine import build, driver
from ddlsched.engine.loop.splitting import put_on_network
from ddlsched.engine.records import example_state
from ddlsched.errors import InputError
from ddlsched.network.contention import MaxMin, ring_bytes
from ddlsched.network.topology import Topology
from ddlsched.network.traffic import TaskMessage, Traffic, traffic_of
from ddlsched.results.explanation import explain
from ddlsched.results.result import Result
from ddlsched.results.slices import compute_slices, transfer_slices
from ddlsched.results.timeline import write_timeline
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask
from topologies.fat_tree import FatTree
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

MS = 1_000_000


@pytest.mark.long
@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(20, by_default=10))
def test_agrees_with_the_reference(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


@pytest.mark.long
@pytest.mark.parametrize("name", [*CONTENTION, *ASKED_IN_PYTHON])
@given(data=st.data())
@hypothesis_settings(max_examples=examples(2))
def test_agrees_with_the_reference_under_every_contention_model(name: str, data: st.DataObject) -> None:
    """Of groups by every collective algorithm, on servers with an inside and on links that carry parts of messages."""
    setting = data.draw(settings(grouped=True, contention=(CONTENTION | ASKED_IN_PYTHON)[name]))
    assert_agrees(run_engine(setting), run_reference(setting))


@pytest.mark.long
@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(8, by_default=4))
def test_agrees_with_the_reference_when_every_policy_is_called_in_python(setting: Setting) -> None:
    assert_agrees(run_engine(setting, python=True), run_reference(setting))


@pytest.mark.long
@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(5))
def test_agrees_with_the_reference_when_every_array_has_to_grow(setting: Setting) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FIRST_RESIDENTS", 1)
        patch.setattr(build, "_FIRST_ENTRIES", 1)
        patch.setattr(driver, "_SLICES", 8)
        assert_agrees(run_engine(setting, timeline=True), run_reference(setting))


@pytest.mark.long
@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(8, by_default=4))
def test_every_table_is_as_without_skipping(setting: Setting) -> None:
    """Of long jobs, so that periods recur."""
    jobs = [dataclasses.replace(job, iterations=job.iterations * 20) for job in setting.workload]
    setting = dataclasses.replace(setting, workload=Workload(tuple(jobs)))
    result, expected = run_engine(setting), run_engine(setting, timeline=True)
    for table in ("jobs", "gpus", "links", "samples", "placements"):
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, rtol=1e-9)
    assert result.summary()["events"] == expected.summary()["events"]


# ---- bytes


def all_traffic(result: Result, number: int) -> dict[str, Traffic]:
    """Return what each collective of a job in its last place puts on links, by the name of the part."""
    job, network = result.workload[number], result.finished.network
    first = result.cluster.first_gpus
    servers = [int(result.cluster.server_of_gpu[gpu]) for gpu in result.gpus_of(job.job_id)]
    ranks = [network.rank(s, gpu - int(first[s])) for s, gpu in zip(servers, result.gpus_of(job.job_id), strict=True)]
    found = []
    for task in job.dag.tasks:
        if isinstance(task, CollectiveTask):
            tuples = [range(job.num_gpus)] if task.group is None else job.dag.groups[task.group]
            members = [[ranks[worker] for worker in workers] for workers in tuples]
            sent = TaskMessage(task.kind, task.algorithm, task.message_bytes)
            bytes_of = partial(ring_bytes, result.contention)
            found += [traffic_of(network, sent, own, bytes_of, network.own_way) for own in members]
    kinds = {task.name: isinstance(task, CollectiveTask) for task in job.dag.tasks}
    names = [name for name in job.dag.part_names if kinds[name.split(" ")[0]]]
    return dict(zip(names, found, strict=True))


@pytest.mark.long
@given(settings(disturbed=False, grouped=True))
@hypothesis_settings(max_examples=examples(8, by_default=4))
def test_every_link_carries_the_bytes_of_every_collective(setting: Setting) -> None:
    result = run_engine(dataclasses.replace(setting, path=None))
    expected = np.zeros(len(result.links))
    for number, job in enumerate(setting.workload):
        for traffic in all_traffic(result, number).values():
            np.add.at(expected, list(traffic.links), job.iterations * traffic.wire_bytes * np.array(traffic.shares))
    assert result.links["bytes"].to_numpy() == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
@given(settings(disturbed=False, grouped=True))
@hypothesis_settings(max_examples=examples(8, by_default=4))
def test_no_link_carries_more_than_it_can(setting: Setting) -> None:
    result = run_engine(dataclasses.replace(setting, path=None), timeline=True)
    shares = {
        (job.job_id, name): traffic.shares
        for number, job in enumerate(setting.workload)
        for name, traffic in all_traffic(result, number).items()
    }
    slices = transfer_slices(result)
    for now in slices["start_ns"].unique():
        carried: dict[int, float] = defaultdict(float)
        for row in slices[(slices["start_ns"] <= now) & (slices["end_ns"] > now)].itertuples():
            for link, share in zip(row.links, shares[row.job_id, row.task], strict=True):
                carried[link] += row.rate_bytes_per_s * share
        for link, rate in carried.items():
            limit = result.finished.network.links[link].relative_bandwidth * (1 + 1e-9)
            assert rate * result.contention.alone_per_byte_s <= limit


# ---- by hand: 1 ns a byte on a card; a port four times as fast


def run(dag: IterationDag, gpus: list[int], topology: Topology, *, iterations: int = 1, **given: Any) -> Result:
    """Run a job on these GPUs of 4 servers of 4, and see that the reference finds the same."""
    job = Job(job_id="a", arrival_s=0.0, num_gpus=len(gpus), iterations=iterations, iteration=dag, gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=4, gpus_per_server=4, topology=topology)
    policies = {"order": "fifo", "communication": "bounded-overlap:limit=9", "contention": MaxMin()}
    result = simulate(
        Workload.of([job]), cluster, placement=Fixed(gpus={"a": gpus}), timeline=True, **policies, **given
    )
    if gpus == sorted(gpus) and gpus[-1] < len(gpus):
        expected = reference_simulate(
            Workload.of([job]), cluster, placement="first-fit", topology=topology, **policies, **given
        )
        assert_agrees(result, expected)
    return result


NIC = 8.0  # Gbit/s: a byte a nanosecond
STAR = Star(nic_gbps=NIC, nvlink_gbps=4 * NIC)
RAILS = RailOptimised(rails=4, rail_gbps=NIC, nvlink_gbps=4 * NIC)


def lone(kind: str, message_bytes: float, **given: Any) -> IterationDag:
    return IterationDag((CollectiveTask(name="c", kind=kind, message_bytes=message_bytes, **given),))


@pytest.mark.parametrize(
    ("kind", "algorithm", "one_server_ms", "star_ms", "rails_ms"),
    [
        # 8 MB. In one server of 4 all-reduce 2 x 3/4 x 8 = 12 MB through ports of 4 MB a millisecond. Over 2 servers of
        # 4: 2 x 7/8 x 8 = 14 MB over one card at 1 MB a millisecond; or 14 / 4 over each of 4 cards.
        ("all-reduce", "ring", 3.0, 14.0, 3.5),
        # Hierarchical: between them 8 MB (2 x 1/2 x 8), or a quarter a card, while ports move 12 MB.
        ("all-reduce", "hierarchical", 3.0, 8.0, 3.0),
        ("all-gather", "ring", 1.5, 7.0, 1.75),
        ("reduce-scatter", "ring", 1.5, 7.0, 1.75),
        ("reduce-scatter", "hierarchical", 1.5, 4.0, 1.5),
        # Each sends 2 MB to 3 others; over 2 servers 1 MB to each of 4 remote ones: 16 over a card, or 4 each.
        ("all-to-all", "ring", 1.5, 16.0, 4.0),
        # The first sends 8 MB.
        ("broadcast", "ring", 2.0, 8.0, 2.0),
    ],
)
def test_each_kind_alone(kind: str, algorithm: str, one_server_ms: float, star_ms: float, rails_ms: float) -> None:
    dag = lone(kind, 8e6, algorithm=algorithm)
    found = [
        run(dag, list(range(4)), STAR),
        run(dag, list(range(8)), STAR),
        run(dag, list(range(8)), RAILS),
    ]
    times_ms = [int(result.finished.state.jobs.finish_ns[0]) / MS for result in found]
    assert times_ms == pytest.approx([one_server_ms, star_ms, rails_ms], abs=1e-5)


def test_an_all_reduce_in_a_server_takes_time_only_where_the_inside_is_stated() -> None:
    dag = IterationDag((AllReduceTask(name="c", message_bytes=8e6), ComputeTask(name="w", duration_ns=MS)))
    plain, stated = (run(dag, [0, 1, 2, 3], topology, iterations=5) for topology in (Star(nic_gbps=NIC), STAR))
    assert plain.jobs["jct_s"].item() == pytest.approx(0.005)
    assert stated.jobs["jct_s"].item() == pytest.approx(0.015)
    assert stated.jobs["communication_s"].item() == pytest.approx(0.015)


def test_two_jobs_in_one_server_share_no_port() -> None:
    jobs = [
        Job(job_id=name, arrival_s=0.0, num_gpus=2, iterations=1, iteration=lone("all-reduce", 8e6), gpu_memory_mb=1.0)
        for name in "ab"
    ]
    cluster = Cluster(num_servers=1, gpus_per_server=4, topology=STAR)
    apart = simulate(Workload.of(jobs), cluster, placement=Fixed(gpus={"a": [0, 1], "b": [2, 3]}), contention="max-min")
    shared = simulate(
        Workload.of(jobs),
        cluster,
        placement=Fixed(gpus={"a": [0, 1], "b": [1, 2]}),
        contention="max-min",
        communication="bounded-overlap:limit=2",
    )
    assert apart.jobs["jct_s"].tolist() == pytest.approx([0.002, 0.002])
    assert shared.jobs["jct_s"].tolist() == pytest.approx([0.004, 0.004])


STAGES = {"first": ((0, 1),), "second": ((2, 3),), "next": ((0, 2), (1, 3)), "tensor": ((0, 1), (2, 3))}


def pipeline() -> IterationDag:
    """Two stages of two tensor-parallel workers: 3 ms, all-reduce, send, 5 ms, all-reduce, then 1 ms everywhere."""
    return IterationDag(
        (
            ComputeTask(name="one", duration_ns=3 * MS, group="first"),
            CollectiveTask(name="reduce-one", kind="all-reduce", message_bytes=4e6, group="tensor", after=("one",)),
            CollectiveTask(name="send", kind="send", message_bytes=2e6, group="next", after=("reduce-one",)),
            ComputeTask(name="two", duration_ns=5 * MS, group="second", after=("send",)),
            CollectiveTask(name="reduce-two", kind="all-reduce", message_bytes=4e6, group="tensor", after=("two",)),
            ComputeTask(name="step", duration_ns=MS, after=("reduce-two",)),
        ),
        STAGES,
    )


def test_a_pipeline_by_hand() -> None:
    # A stage a server, on rails. Workers 2 and 3 have no part in "one", so their tuple of reduce-one runs from 0 to
    # 1 ms; that of 0 and 1 from 3 to 4 ms (4 MB at 4 MB a ms). Sends: 2 MB on cards of their own, 4 to 6 ms. "two"
    # until 11 ms. reduce-two of 0 and 1 waits for nothing, and runs from 0 to 1 ms, when "step" may begin there:
    # workers 0 and 1 compute it after "one". reduce-two of 2 and 3: 11 to 12 ms, "step" until 13 ms.
    result = run(pipeline(), [0, 1, 4, 5], RAILS)
    sent = transfer_slices(result).groupby("task")
    begins, ends = sent["start_ns"].min() / MS, sent["end_ns"].max() / MS
    assert {name: (begins[name], ends[name]) for name in sent.groups} == {
        "reduce-one 0": (3, 4),
        "reduce-one 1": (0, 1),
        "reduce-two 0": (0, 1),
        "reduce-two 1": (11, 12),
        "send 0": (4, 6),
        "send 1": (4, 6),
    }
    assert result.jobs["jct_s"].item() == pytest.approx(0.013)
    computed = compute_slices(result)
    assert sorted(computed[computed["task"] == "one"]["gpu"]) == [0, 1]
    assert sorted(computed[computed["task"] == "two"]["gpu"]) == [4, 5]
    assert int(result.finished.state.jobs.service_ns[0]) == (2 * 3 + 2 * 5 + 4) * MS


def test_timeline_and_explanation_know_groups(tmp_path) -> None:
    result = run(pipeline(), [0, 1, 4, 5], RAILS)
    write_timeline(result, tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    assert "reduce-two 1" in text
    assert "server 1, GPU 0" in text
    assert "server 0, card 1" in text
    assert explain(result, "a")["phase"].isin(["gpu_wait", "network_wait"]).all()


def loads_seen(iterations: int, at_s: float, **given: Any) -> tuple[Result, dict[int, int]]:
    """Return a run of a pipeline's job, and the loads of GPUs, by which placements choose, that another meets."""
    seen: dict[int, int] = {}

    @dataclasses.dataclass(frozen=True)
    class Spy:
        def place(self, job: Any, cluster: Any) -> list[int]:
            if job.job_id == "a":
                return [0, 1, 4, 5]
            seen.update(enumerate(cluster.loads_ns()))
            return [15]

    alone = IterationDag((ComputeTask(name="c", duration_ns=1),))
    kinds = (("a", 4, 0.0, iterations, pipeline()), ("b", 1, at_s, 1, alone))
    jobs = [
        Job(job_id=name, num_gpus=gpus, arrival_s=arrival_s, iterations=count, iteration=dag, gpu_memory_mb=1.0)
        for name, gpus, arrival_s, count, dag in kinds
    ]
    cluster = Cluster(num_servers=4, gpus_per_server=4, topology=RAILS)
    result = simulate(Workload.of(jobs), cluster, placement=Spy(), contention=MaxMin(), order="fifo", **given)
    return result, seen


@pytest.mark.parametrize(("iterations", "ended"), [(10, 0), (2_000, 1_000)])
def test_loads_count_what_each_worker_computes_and_sends(iterations: int, ended: int) -> None:
    """At the start as after periods that were jumped over: the load of a GPU is that of its own worker."""
    result, seen = loads_seen(iterations, ended * 0.013)
    assert result.finished.state.run[0].jumps > 0
    # Of each GPU's two all-reduces 4 MB / 4, and its send of 2 MB, at 1 ns a byte of a card.
    assert seen[0] == seen[1] == (iterations - ended) * (3 + 1 + 1 + 1 + 2) * MS
    assert seen[4] == seen[5] == (iterations - ended) * (5 + 1 + 1 + 1 + 2) * MS
    assert seen[2] == 0


def test_groups_that_are_all_workers_keep_lockstep_and_skip() -> None:
    """One tuple of all workers is no group to the engine: iterations are skipped over."""
    tasks = (
        ComputeTask(name="w", duration_ns=MS),
        CollectiveTask(name="c", kind="all-gather", message_bytes=8e6, group="all", after=("w",)),
    )
    job = Job(
        job_id="a",
        arrival_s=0.0,
        num_gpus=4,
        iterations=1000,
        iteration=IterationDag(tasks, {"all": ((3, 1, 0, 2),)}),
        gpu_memory_mb=1.0,
    )
    result = simulate(Workload.of([job]), Cluster(num_servers=1, topology=STAR), contention="max-min", order="fifo")
    assert result.jobs["jct_s"].item() == pytest.approx(1000 * 0.0025)
    assert result.finished.state.run[0].skipped_iterations > 900


def test_a_job_of_groups_that_communicates_longer_than_the_clock_holds_is_refused_when_it_is_placed() -> None:
    """By its row in the workload; its compute alone is short, and what it sends depends on where it is."""
    pairs = CollectiveTask(name="c", kind="all-reduce", message_bytes=1e12, group="pairs", after=("w",))
    step = IterationDag((ComputeTask(name="w", duration_ns=MS), pairs), {"pairs": ((0, 2), (1, 3))})
    job = Job(job_id="a", arrival_s=0.0, num_gpus=4, iterations=10**7, iteration=step, gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=2, gpus_per_server=2)
    in_pairs, apart = (Fixed(gpus={"a": gpus}) for gpus in ([0, 2, 1, 3], [0, 1, 2, 3]))
    given_: dict[str, Any] = {"contention": "max-min", "order": "fifo"}
    result = simulate(Workload.of([job]), cluster, placement=in_pairs, **given_)
    assert result.jobs["jct_s"].item() == pytest.approx(1e4)
    with pytest.raises(InputError, match=r"workload, row 1: job 'a' has more compute and communication x GPUs"):
        simulate(Workload.of([job]), cluster, placement=apart, **given_)


def test_a_job_of_groups_jumps_over_all_but_three_iterations() -> None:
    """The first, the one whose end is like its beginning, and the last."""
    job = Job(job_id="a", arrival_s=0.0, num_gpus=4, iterations=10_000, iteration=pipeline(), gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=2, gpus_per_server=4, topology=RAILS)
    result = simulate(
        Workload.of([job]), cluster, placement=Fixed(gpus={"a": [0, 1, 4, 5]}), contention=MaxMin(), order="fifo"
    )
    assert result.jobs["jct_s"].item() == pytest.approx(10_000 * 0.013)
    assert result.finished.state.run[0].jumped_iterations == 10_000 - 3


@pytest.mark.parametrize("topology", [RAILS, STAR])
def test_samples_within_periods_that_are_jumped_over_are_as_without(topology: Topology) -> None:
    """Of jobs alone and of two that share links, by the thousand, while others come and go."""
    kinds = (("a", 0.0, 5_000), ("b", 3.003, 7_003), ("c", 20.0171, 900), ("d", 41.9, 2_222))
    jobs = [
        Job(job_id=name, arrival_s=at_s, num_gpus=4, iterations=count, iteration=pipeline(), gpu_memory_mb=1.0)
        for name, at_s, count in kinds
    ]
    places = {"a": [0, 1, 4, 5], "b": [8, 9, 12, 13], "c": [2, 3, 6, 7], "d": [10, 11, 14, 15]}
    cluster = Cluster(num_servers=4, gpus_per_server=4, topology=topology)
    given = {"order": "fifo", "communication": "bounded-overlap:limit=9", "contention": MaxMin()}
    found = []
    for rounds in (0, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "ROUNDS_BEFORE_JUMPS", rounds)
            found.append(simulate(Workload.of(jobs), cluster, placement=Fixed(gpus=places), **given))
    result, expected = found
    for table in ("jobs", "gpus", "links", "samples"):
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, rtol=1e-9)
    assert result.summary()["events"] == expected.summary()["events"]
    jumped = [each.finished.state.run[0].jumped_iterations for each in found]
    assert jumped[0] > 14_000
    assert jumped[1] == 0


def test_loads_of_sampled_jobs_of_groups_end_at_nothing() -> None:
    """Whatever passes in leaps: each worker computes and sends what it counts."""
    dag = pipeline()
    jobs = [
        Job(
            job_id=str(number),
            arrival_s=0.0035 * number,
            num_gpus=4,
            iterations=4_000 + 300 * number,
            iteration=dataclasses.replace(dag, tasks=(ComputeTask(name="own", duration_ns=own_ns), *dag.tasks)),
            gpu_memory_mb=1.0,
        )
        for number, own_ns in enumerate((0, 1_234_567, 739_100, 412_345))  # so that nothing recurs
    ]
    given = {str(number): [2 * number, 2 * number + 1, 2 * number + 8, 2 * number + 9] for number in range(4)}
    cluster = Cluster(num_servers=2, gpus_per_server=8, topology=STAR)
    policies: dict[str, Any] = {"order": "srsf", "communication": "bounded-overlap:limit=9", "contention": MaxMin()}
    result = simulate(Workload.of(jobs), cluster, placement=Fixed(gpus=given), sample=True, **policies)
    assert result.leapt_iterations > 1_000
    assert not result.finished.state.workers.load_left_ns.any()
    assert not result.finished.state.jobs.load_left_ns.any()


@pytest.mark.long
def test_a_snapshot_has_room_for_a_job_that_was_split_since() -> None:
    """The short job's workers are told apart in a component that stays as it is; the other's snapshot lies behind."""
    direct = partial(CollectiveTask, kind="all-reduce", algorithm="direct", after=())
    split = IterationDag(
        tasks=(
            direct(name="start", message_bytes=0.0),
            *(ComputeTask(name=f"c{number}", duration_ns=0, after=()) for number in range(4)),
            direct(name="byte", message_bytes=1.0),
            ComputeTask(name="last", duration_ns=10 * MS, after=("byte",)),
            direct(name="pairs", message_bytes=0.0, group="pairs"),
        ),
        groups={"all": (tuple(range(6)),), "pairs": ((0, 1), (2, 3), (4, 5))},
    )
    sending = IterationDag(tasks=(direct(name="large", message_bytes=99.2e6),), groups={"all": ((0, 1, 2),)})
    given = {"gpu_memory_mb": 0.0}
    jobs = [
        Job(job_id="split", arrival_s=0.05, num_gpus=6, iterations=1, iteration=split, **given),
        Job(job_id="sending", arrival_s=0.0, num_gpus=3, iterations=20, iteration=sending, **given),
    ]
    cluster = Cluster(num_servers=3, gpus_per_server=2, topology=FatTree())
    policies = {"order": "srsf", "communication": "bounded-overlap:limit=1", "contention": SizeLevels(latency_s=0.0)}
    found = [simulate(Workload.of(jobs), cluster, timeline=timeline, **policies) for timeline in (False, True)]
    assert found[0].finished.state.run[0].jumps > 0
    pd.testing.assert_frame_equal(found[0].links, found[1].links)


@pytest.mark.long
def test_a_job_that_was_split_is_in_no_component_that_is_known() -> None:
    state = example_state()
    state.jobs[0].component = state.run[0].first_component + 3
    put_on_network(state, 0)
    assert state.jobs[0].component <= state.run[0].first_component
