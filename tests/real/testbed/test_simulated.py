"""Mixes simulated as measured runs are held against them: by model, in chunks, with jitter."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from in_process_ranks import quick_job

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.network.weighted_shares import ConnectionShares
from ddlsched.plugins.names import resolve
from ddlsched.real.testbed import real_run, run_models
from ddlsched.real.testbed.fidelity import Mix
from ddlsched.real.testbed.run_models import InChunks, RunModel, _by_packets, simulated_runs
from ddlsched.simulation import simulate
from ddlsched.workload.dag import AllReduceTask
from ddlsched.workload.job import Workload

TWO = Cluster(num_servers=2, gpus_per_server=1)
FREE = {"placement": "first-fit", "order": "srsf", "communication": "bounded-overlap:limit=9"}
PREEMPTIVE = {**FREE, "communication": "preemptive:by=time"}
SLOW = "max-min:per_byte_s=1e-4"


def mix(**policies: dict[str, object]) -> Mix:
    jobs = [quick_job("a", gpus=2), quick_job("b", gpus=2, iterations=5)]
    return Mix(name="m", workload=Workload.of(jobs), cluster=TWO, policies=policies)


@pytest.mark.long
def test_simulated_runs_are_those_of_simulate() -> None:
    models = {"max-min": RunModel(contention="max-min"), "linear": RunModel(contention="linear")}
    table = simulated_runs([mix(free=FREE, one={**FREE, "communication": "bounded-overlap:limit=1"})], models)
    assert len(table) == 2 * 2 * 2
    iterations = table.job_id.map({"a": 3, "b": 5})
    assert (table.iteration_s * iterations).tolist() == pytest.approx(table.jct_s.tolist())  # nobody waits for GPUs


@pytest.mark.long
def test_a_model_has_another_form_where_messages_are_sent_in_chunks() -> None:
    given = mix(free=FREE, preemptive=PREEMPTIVE)
    chunked = RunModel(contention="max-min", in_chunks="max-min:per_byte_s=1e-3")
    table = simulated_runs([given], {"max-min": chunked}).set_index(["policy", "job_id"]).jct_s
    plain = simulated_runs([given], {"max-min": RunModel(contention="max-min")}).set_index(["policy", "job_id"]).jct_s
    assert (table["free"] == plain["free"]).all()
    assert (table["preemptive"] > plain["preemptive"]).all()


@pytest.mark.long
@pytest.mark.parametrize(("more", "chunk_bytes"), [({}, 400_000), ({"chunk_bytes": 2e4, "window": 1}, 2e4)])
def test_chunks_under_way_end_where_a_policy_pauses(more: dict[str, float], chunk_bytes: float) -> None:
    given = mix(free=FREE, preemptive={**PREEMPTIVE, **more})
    models = {name: RunModel(contention=SLOW, chunks_end=name == "ends") for name in ("at once", "ends")}
    table = simulated_runs([given], models).set_index(["policy", "model", "job_id"]).jct_s
    assert (table["free", "ends"] == table["free", "at once"]).all()
    policy = InChunks(
        policy=resolve("communication", "preemptive:by=time"),
        chunk_bytes=chunk_bytes,
        window=int(more.get("window", 2)),
    )
    expected = simulate(given.workload, TWO, contention=SLOW, **{**PREEMPTIVE, "communication": policy}).jobs.jct_s
    assert table["preemptive", "ends"].tolist() == expected.tolist()
    assert table["preemptive", "ends"].tolist() != table["preemptive", "at once"].tolist()


def test_times_are_means_over_the_seeds_of_the_jitter() -> None:
    given = mix(free={**FREE, "seed": 3})
    jitter = RunModel(contention=SLOW, jitter_cv=0.2, seeds=2)
    table = simulated_runs([given], {"jitter": jitter, "one": replace(jitter, seeds=1)}).set_index("model").jct_s
    runs = [
        simulate(given.workload, TWO, contention=SLOW, seed=seed, disturbances=Disturbances(jitter_cv=0.2), **FREE).jobs
        for seed in (3, 4)
    ]
    assert table["one"].tolist() == runs[0].jct_s.tolist()
    assert table["jitter"].tolist() == pytest.approx(((runs[0].jct_s + runs[1].jct_s) / 2).tolist())
    assert runs[0].jct_s.tolist() != runs[1].jct_s.tolist()


def test_a_model_says_what_it_is() -> None:
    assert str(RunModel(contention="max-min")) == "max-min"
    whole = RunModel(contention="max-min", in_chunks="linear", chunks_end=True, jitter_cv=0.02, seeds=5)
    assert str(whole) == ("max-min; in chunks linear; chunks under way end; computes vary by 2 %, mean of 5 seeds")


def test_each_ablation_of_packets_leaves_one_thing_out() -> None:
    whole, *ablations = (model.contention for model in _by_packets(ConnectionShares()).values())
    left_out = [{"queue_bytes": 2e6}, {"react_s": 0.0}, {"overhead": 0.0}]
    assert ablations == [replace(whole, **fields) for fields in left_out]


@pytest.mark.parametrize(("moved_bytes", "reduced_bytes"), [(8e6, 8e6), (6e6, 4e6), (2e6, 4e6)])
def test_a_ring_on_two_servers_reduces_what_it_moves_or_its_least_message(
    moved_bytes: float, reduced_bytes: float
) -> None:
    tasks = [AllReduceTask(name=f"{size}", message_bytes=size) for size in (4e6, 8e6)]
    job = SimpleNamespace(dag=SimpleNamespace(tasks=tasks))
    transfer: Any = SimpleNamespace(servers=(0, 1), message_bytes=moved_bytes, job=job)
    assert run_models._reduced_bytes(transfer) == reduced_bytes


def test_the_jct_of_a_real_job_begins_at_its_arrival_and_leaves_out_its_setup() -> None:
    job = SimpleNamespace(
        placed_ns=5 * 10**9, began_ns=6 * 10**9, finished_ns=10 * 10**9, view=SimpleNamespace(servers={1, 0})
    )
    job.job = SimpleNamespace(job_id="a", arrival_s=3.0, iterations=7)
    gate: Any = SimpleNamespace(jobs=[job])
    row = real_run._jobs_table(gate).iloc[0]
    assert (row.jct_s, row.setup_s, row.servers) == (10.0 - 3.0 - 1.0, 1.0, "0,1")


def test_a_fit_without_steps_has_a_model_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {name: SimpleNamespace(value=1e-6) for name in ("latency_s", "per_byte_s")}
    fit = SimpleNamespace(whole="size-shares", in_chunks="size-shares", constants=constants)
    monkeypatch.setattr(run_models, "fitted_models", lambda _: {})
    monkeypatch.setattr(run_models, "fitted_constants", lambda _: {})
    monkeypatch.setattr(run_models, "fit_size_shares", lambda *_: fit)
    rows: Any = None
    models = run_models.run_models(rows, SimpleNamespace()).by_name  # type: ignore[arg-type]
    assert isinstance(found := models["connection-shares"].contention, ConnectionShares)
    assert (found.latency_s, found.step_s) == (1e-6, 0.0)


def test_each_ablation_leaves_one_thing_out() -> None:
    whole = ConnectionShares(
        latency_s=1e-3, per_byte_s=8e-9, step_s=1e-4, exponent=0.25, window_bytes=3e5, loss=0.03, wait=0.1
    )
    models = run_models._with_ablations(whole, {"latency_s": 2e-3, "per_byte_s": 9e-9})
    off = {
        name: {
            each.name
            for each in fields(whole)
            if getattr(model.contention, each.name, 0.0) != getattr(whole, each.name)
        }
        for name, model in models.items()
    }
    assert off == {
        "connection-shares": set(),
        "- a share a transfer": {"loss", "wait"},
        "- even shares": {"exponent"},
        "- no loss": {"loss"},
        "- no steps": {"latency_s", "per_byte_s", "step_s"},
        "- pauses at once": set(),
        "- no wait": {"wait"},
        "+ jitter of 3 %": set(),
    }
    assert {name for name, model in models.items() if not model.chunks_end} == {"- pauses at once"}
    assert {(model.jitter_cv, model.seeds) for name, model in models.items() if name[0] != "+"} == {(0.0, 1)}
    assert (models["+ jitter of 3 %"].jitter_cv, models["+ jitter of 3 %"].seeds) == (0.03, 3)
    without = run_models._with_ablations(replace(whole, wait=0.0), {})
    assert set(models) - set(without) == {"- no wait"}
