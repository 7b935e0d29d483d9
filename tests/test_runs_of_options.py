"""Which options of a run go together, and that links are looked at after it: without a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import ddlsched
from ddlsched import simulation
from ddlsched.cli import run_arguments
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.errors import InputError
from ddlsched.testing.conformance_runs import example_elastic_workload, example_workload
from ddlsched.workload.job import Workload

STEADY = example_workload(0, num_jobs=1)
ELASTIC = example_elastic_workload(0, num_jobs=1)
FAILING = Disturbances(server_mtbf_s=100.0, server_repair_s=1.0)
NOTHING = dict.fromkeys(("load_per_byte_s", "disturbances", "replay", "placement", "allocation", "capacity"))


@pytest.mark.parametrize(
    "given",
    [
        {}, {"load_per_byte_s": 0.0}, {"load_per_byte_s": simulation.MAX_CONSTANT_S}, {"disturbances": FAILING},
        {"replay": "run"}, {"placement": "lwf"}, {"capacity": "trace"},
        {"capacity": "trace", "disturbances": Disturbances(jitter_cv=0.1)},
    ],
)  # fmt: skip
def test_options_that_go_together(given: dict[str, Any]) -> None:
    simulation._refuse_options(STEADY, NOTHING | given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "given", "said"),
    [
        (STEADY, {"load_per_byte_s": -1e-9}, "load_per_byte_s is -1e-09; expected a number from 0 to"),
        (STEADY, {"load_per_byte_s": 1.01 * simulation.MAX_CONSTANT_S}, "load_per_byte_s is"),
        (STEADY, {"disturbances": 3}, "disturbances is 3; expected ddlsched.Disturbances(...)"),
        (STEADY, {"replay": "run", "placement": "lwf"}, "placement= and replay= both say where jobs run"),
        (ELASTIC, {"replay": "run", "allocation": "x"}, "replay= says on which GPUs jobs run"),
        (STEADY, {"capacity": "trace", "disturbances": FAILING}, "the run has a capacity trace and failures"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(workload: Workload, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        simulation._refuse_options(workload, NOTHING | given)  # type: ignore[arg-type]
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("workload", "allocation", "said"),
    [
        (STEADY, "x", "the run has an allocation policy but no elastic jobs; expected both or neither"),
        (ELASTIC, None, "the run has elastic jobs but no allocation=; expected both or neither"),
    ],
)
def test_elastic_jobs_need_an_allocation_and_others_have_none(
    workload: Workload, allocation: str | None, said: str
) -> None:
    with pytest.raises(InputError) as refused:
        simulation._refuse_options(workload, NOTHING | {"allocation": allocation})  # type: ignore[arg-type]
    assert str(refused.value) == said
    simulation._refuse_options(ELASTIC, NOTHING | {"allocation": "x"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "given", "said"),
    [
        (8, {}, "cluster is 8; expected ddlsched.Cluster(...)"),
        (Cluster(), {"servers": 3, "server_table": "x"}, "num_servers, server_table and cluster= both say"),
        (Cluster(), {"server_table": "x"}, "server_table and cluster= both say"),
        (None, {"servers": 3, "server_table": "x"}, "server_table= and counts both say what the servers are"),
    ],
)
def test_servers_are_said_once(cluster: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        simulation.cluster_of(cluster, given)  # type: ignore[arg-type]
    assert str(refused.value).startswith(said)


def test_options_of_a_cluster_replace_its_own() -> None:
    assert simulation.cluster_of(None, {"servers": 3, "gpus_per_server": 2}) == Cluster(
        num_servers=3, gpus_per_server=2
    )
    own = Cluster(num_servers=3)
    assert simulation.cluster_of(own, {}) is own
    assert simulation.cluster_of(own, {"exclusive": True}) == Cluster(num_servers=3, exclusive=True)


def test_rates_of_links_are_looked_at_after_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(simulation, "run_simulation", lambda workload, settings: "finished")
    monkeypatch.setattr(simulation, "Result", lambda *given: given)
    monkeypatch.setattr(simulation, "refuse_faster_than_links", looked.append)
    result: Any = ddlsched.simulate(STEADY)
    assert looked == [result]
    assert result[2] == "finished"


def _context(monkeypatch: pytest.MonkeyPatch, *given: str) -> Any:
    monkeypatch.setattr(run_arguments, "is_given", lambda context, name: name in given)
    return SimpleNamespace(params=dict.fromkeys([*given, "other"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["servers"], ""), (["server_table"], ""), (["exclusive"], ""), (["interference"], ""),
        (["servers", "server_table"], "--servers: the servers are those of --server-table; expected one of the two"),
        (["gpus_per_server", "server_table", "other"], "--gpus-per-server: the servers are those of --server-table"),
        (["gpu_memory_mb", "server_table"], "--gpu-memory-mb: the servers are those of --server-table"),
        (["exclusive", "interference"], "--interference: with --exclusive no GPU is shared"),
        (["admission"], "--admission: does nothing alone; expected --queues as well"),
        (["admission", "queues"], ""),
        (["state_mb"], "--state-mb: does nothing alone; expected --order or --placement or --queues or --checkpoint"),
        (["state_mb", "checkpoint"], ""),
    ],
)  # fmt: skip
def test_flags_that_do_nothing_are_refused(monkeypatch: pytest.MonkeyPatch, given: list[str], said: str) -> None:
    context = _context(monkeypatch, *given)
    if not said:
        run_arguments.refuse_ineffective(context)
        return
    with pytest.raises(InputError) as refused:
        run_arguments.refuse_ineffective(context)
    assert str(refused.value).startswith(said)
