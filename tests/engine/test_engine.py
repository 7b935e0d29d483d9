"""The engine against the reference simulator, to the nanosecond, and against the golden cases."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from golden_cases import golden_cases
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import Fixed, data_parallel_job
from policies_of_users import Ageing
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import (
    ASKED_IN_PYTHON,
    COMMUNICATIONS,
    CONTENTION,
    ORDERS,
    PACKET_RINGS,
    USERS_COMMUNICATIONS,
    USERS_ORDERS,
    Setting,
    settings,
)
from tiers import examples

import ddlsched
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine import build, driver, field_values
from ddlsched.engine.field_values import Communication, Contention
from ddlsched.engine.loop import heap
from ddlsched.engine.policy_forms import PolicyForms
from ddlsched.network.contention import Linear, MaxMin
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.results.result import Result
from ddlsched.testing import python_form
from ddlsched.workload.dag import AllReduceTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Workload
from topologies.star import Star


def outcomes(result: Result) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    records = result.finished.state.jobs
    return {
        job.job_id: (int(records[n].start_ns), int(records[n].finish_ns), result.gpus_of(job.job_id))
        for n, job in enumerate(result.workload)
    }


@given(settings())
@hypothesis_settings(max_examples=examples(100, by_default=50))
def test_agrees_with_the_reference(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(30, by_default=10))
def test_agrees_with_the_reference_when_every_policy_is_called_in_python(setting: Setting) -> None:
    assert_agrees(run_engine(setting, python=True), run_reference(setting))


@pytest.mark.long
@given(settings(contention=st.one_of(*ASKED_IN_PYTHON.values())))
@hypothesis_settings(max_examples=examples(6))
def test_agrees_with_the_reference_where_a_model_rates_all_transfers_at_once(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


@pytest.mark.long
@given(settings(contention=PACKET_RINGS))
@hypothesis_settings(max_examples=examples(6))
def test_agrees_with_the_reference_about_rings_of_packets(setting: Setting) -> None:
    setting = replace(setting, path=None)
    assert_agrees(run_engine(setting), run_reference(setting))


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(15, by_default=5))
def test_agrees_with_the_reference_when_every_array_has_to_grow(setting: Setting) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FIRST_RESIDENTS", 1)
        patch.setattr(build, "_FIRST_ENTRIES", 1)
        patch.setattr(driver, "_SLICES", 8)
        assert_agrees(run_engine(setting, timeline=True), run_reference(setting))


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(15, by_default=5))
def test_recording_a_timeline_changes_nothing(setting: Setting) -> None:
    assert outcomes(run_engine(setting, timeline=True)) == outcomes(run_engine(setting))


class InTurn:
    """Which of two jobs is first goes by how often it has been asked before."""

    def __init__(self) -> None:
        self.asked = 0

    def begin(self, cluster: Any, rng: Any) -> InTurn:
        return InTurn()

    def key(self, job: Any, now_s: float) -> int:
        self.asked += 1
        return self.asked % 3


@pytest.mark.parametrize("python", [False, True])
def test_an_order_is_not_asked_about_transfers_that_go_by_keys_of_their_own(python: bool) -> None:
    sends = IterationDag((AllReduceTask(name="all-reduce", message_bytes=1.0),))
    short, long = (DataParallelIteration(forward_s=0.0, backward_s=s, message_bytes=0.0) for s in (0.0, 0.01))
    jobs = [("a", 0.1, 1, short), ("b", 0.1, 1, long), ("sends", 0.0, 3, sends)]
    workload = ddlsched.Workload.of(
        [
            ddlsched.Job(job_id=name, arrival_s=s, num_gpus=n, iterations=1, iteration=dag, gpu_memory_mb=0.0)
            for name, s, n, dag in jobs
        ]
    )
    key: Any = resolve("communication", "preemptive:by=bytes")
    forms = {"order": InTurn(), "communication": python_form(key) if python else key, "placement": "first-fit"}
    result = ddlsched.simulate(workload, ddlsched.Cluster(num_servers=2, gpus_per_server=2), **forms)
    finish_s = result.jobs.set_index("job_id")["finish_s"]
    assert (finish_s["a"], finish_s["b"]) == (0.11, 0.11)


@pytest.mark.long
@pytest.mark.parametrize("order", ORDERS + USERS_ORDERS, ids=str)
def test_every_order_that_is_drawn_is_compiled(order: Any) -> None:
    assert forms_of(order, "adadual", ddlsched.Linear()).all_compiled


@pytest.mark.parametrize("communication", COMMUNICATIONS + USERS_COMMUNICATIONS, ids=str)
def test_every_communication_policy_that_is_drawn_is_compiled(communication: Any) -> None:
    assert forms_of("srsf", communication, ddlsched.Linear()).all_compiled


@pytest.mark.long
@given(st.one_of(*CONTENTION.values()))
@hypothesis_settings(max_examples=examples(20, by_default=8))
def test_every_contention_model_that_is_drawn_is_compiled(contention: Any) -> None:
    assert forms_of("srsf", "adadual", contention).all_compiled


def forms_of(order: Any, communication: Any, contention: Any) -> PolicyForms:
    cluster = ddlsched.Cluster()
    asked = resolve("order", order)
    if hasattr(asked, "begin"):
        asked = asked.begin(cluster, np.random.default_rng(0))
    network = Network(resolve("topology", cluster.topology), cluster.num_servers, cluster.network_cards)
    return PolicyForms(asked, resolve("communication", communication), contention.bound_to(network), frozenset())


def test_agrees_with_every_golden_case() -> None:
    for (workload, placement, communication), golden in golden_cases().items():
        result = ddlsched.simulate(
            ddlsched.read_workload(golden.workload),
            ddlsched.Cluster(num_servers=golden.servers),
            placement=placement,
            order="srsf",
            communication=communication,
            contention=ddlsched.Linear(latency_s=golden.latency_s),
        )
        found = {
            job_id: (f"{start_ns / 1e9:.9f}", f"{finish_ns / 1e9:.9f}")
            for job_id, (start_ns, finish_ns, _) in outcomes(result).items()
        }
        assert found == golden.times_s, (workload, placement, communication)
    assert len(golden_cases()) == 224


@pytest.mark.slow
def test_agrees_with_itself_without_compilation() -> None:
    """NUMBA_DISABLE_JIT=1 runs the same code as plain Python, with the same shortcuts."""
    program = (
        "import ddlsched\n"
        "iteration = ddlsched.DataParallelIteration(forward_s=0.01, backward_s=0.02, message_bytes=2e7)\n"
        "common = {'iteration': iteration, 'num_gpus': 2, 'gpu_memory_mb': 1}\n"
        "jobs = [ddlsched.Job(job_id=str(n), arrival_s=n / 9, iterations=20, **common) for n in range(2)]\n"
        "cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=9)\n"
        "spines = ddlsched.Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=9, "
        "topology='leaf-spine:servers_per_leaf=1,spines=3,oversubscription=3')\n"
        "workload, fixed = ddlsched.Workload.of(jobs), {'order': 'fifo', 'placement': 'first-fit'}\n"
        "key, two = {'communication': 'preemptive'}, {'communication': 'bounded-overlap:limit=2'}\n"
        "for on, more in ((cluster, {'communication': 'adadual'}), (cluster, key | {'contention': 'mltcp'}), "
        "(cluster, key | {'contention': 'max-min'}), (cluster, two | {'contention': 'packet-rings'}), "
        "(spines, two | {'contention': 'max-min', 'path': 'sglb:best=3'})):\n"
        "    state = ddlsched.simulate(workload, on, **fixed, **more).finished.state\n"
        "    run = state.run[0]\n"
        "    print(state.jobs.finish_ns.tolist(), run.skipped_iterations, run.rounds, run.jumps_from_round, "
        "run.choosing_address > 0)\n"
        "    print(run.order_ranked, run.communication, run.contention)\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"NUMBA_DISABLE_JIT": disable},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for disable in ("0", "1")
    ]
    assert printed[0] == printed[1]
    # The loop asks by address, also where nothing is compiled.
    sorts = (Communication.KEYS, Contention.SHARES)
    admits = [(Communication.ADMITS, rates) for rates in (Contention.LINK_RATES, Contention.ASKED_FOR_RATES)]
    forms = admits[0], sorts, sorts, admits[1], (Communication.ADMITS, Contention.SHARES)
    assert printed[1].splitlines()[1::2] == [f"0 {sends:d} {shares:d}" for sends, shares in forms]


@pytest.mark.parametrize("gpus", [1, 2])
def test_more_than_are_sorted_by_insertion_are_in_order(gpus: int) -> None:
    """Jobs that queue for a GPU, and those whose transfers wait for a link: their keys change, so all are sorted."""
    rng = np.random.default_rng(gpus)
    jobs = []
    for number, (compute_s, mb) in enumerate(rng.integers(1, 9, (40, 2)).tolist()):
        iteration = ddlsched.DataParallelIteration(forward_s=0.0, backward_s=compute_s / 1e3, message_bytes=mb * 1e6)
        arrival_s = float(rng.integers(3)) / 1e3
        jobs.append(
            ddlsched.Job(
                job_id=str(number),
                arrival_s=arrival_s,
                num_gpus=gpus,
                iterations=2,
                iteration=iteration,
                gpu_memory_mb=1,
            )
        )
    setting = Setting(
        workload=ddlsched.Workload.of(jobs),
        cluster=ddlsched.Cluster(num_servers=gpus, gpus_per_server=[1, 40][gpus - 1], gpu_memory_mb=1),
        topology=Star(),
        contention=MaxMin(),
        placement="list-scheduling",
        order=Ageing(),
        communication="bounded-overlap:limit=1",
        load_per_byte_s=None,
        disturbances=Disturbances(),
        until_s=None,
        seed=0,
    )
    assert_agrees(run_engine(setting), run_reference(setting))


def test_events_of_workers_in_lockstep_are_all_counted() -> None:
    """A job alone on its GPUs takes the shortcut of simulating one worker; the ends of all still count."""
    iteration = ddlsched.DataParallelIteration(forward_s=0.01, backward_s=0.02, message_bytes=1e6)
    jobs = [
        ddlsched.Job(job_id=str(n), arrival_s=0.005 * n, num_gpus=3, iterations=4, iteration=iteration, gpu_memory_mb=1)
        for n in range(2)
    ]
    cluster = ddlsched.Cluster(num_servers=3, gpus_per_server=1)
    result = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, placement="first-fit", timeline=True)
    assert result.finished.state.run[0].events == 2 * 4 * (2 * 3 + 1)


def test_who_comes_to_one_card_of_a_ring_alone_slows_it() -> None:
    """1 ns a byte alone, 2.5 ns for each of two on a server: 10 of 20 MB until 20 ms, the others with b until 45 ms."""
    jobs = [
        data_parallel_job(name, gpus=2, backward_s=compute_s, message_bytes=20e6)
        for name, compute_s in (("a", 0.01), ("b", 0.02))
    ]
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=3, gpus_per_server=2, gpu_memory_mb=1),
        placement=Fixed(gpus={"a": [0, 2], "b": [1, 4]}),
        communication="bounded-overlap:limit=2",
        contention=Linear(latency_s=0.0, per_byte_s=1e-9, penalty_per_byte_s=0.5e-9),
    )
    assert result.jobs["finish_s"].tolist() == [0.045, 0.055]


def test_item_27_no_two_names_stand_for_one_number() -> None:
    kinds = [kind for kind in vars(field_values).values() if isinstance(kind, type) and issubclass(kind, IntEnum)]
    assert {Communication, Contention} < {*kinds}
    for kind in kinds:
        assert [value.name for value in kind] == [*kind.__members__]


def test_who_is_refused_does_not_count_as_just_ready_any_more() -> None:
    """Otherwise it would be asked again whenever something happens anywhere."""
    jobs = [data_parallel_job(f"job {n}", 2, arrival_s=0.1 * n, iterations=20, message_bytes=1e8) for n in range(4)]
    result = ddlsched.simulate(
        Workload.of(jobs),
        ddlsched.Cluster(num_servers=2, gpus_per_server=4),
        placement=Fixed(gpus={f"job {n}": [n, 4 + n] for n in range(4)}),
        communication="adadual",
    )
    assert result.jobs["network_wait_s"].sum() > 0
    assert result.finished.state.run[0].num_fresh == 0


def test_what_lies_behind_the_end_of_the_heap_of_events_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "earliest_child", getattr(heap.earliest_child, "py_func", heap.earliest_child))
    items, position, end_ns = np.array([0, 1]), np.array([0, -1]), np.array([7, 3])
    getattr(heap.sift_down, "py_func", heap.sift_down)(items, position, end_ns, 1, 0)
    assert (items[0], end_ns[0], position.tolist()) == (0, 7, [0, -1])
