"""Elastic jobs in the engine: against the reference simulator, to the nanosecond, and cases worked out by hand."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from reference_simulator import ReferenceRun, reference_simulate
from strategies import ElasticSetting, elastic_settings, examples

import ddlsched
from ddlsched.engine import kernel
from ddlsched.plugins import resolve
from ddlsched.results.result import Result
from ddlsched.testing import python_form


def run_engine(setting: ElasticSetting, *, python: bool = False, timeline: bool = False) -> Result:
    plugins = {kind: resolve(kind, getattr(setting, kind)) for kind in ("placement", "order", "communication")}
    plugins["contention"] = setting.contention
    if python:
        plugins = {kind: python_form(plugin) for kind, plugin in plugins.items()}
    return ddlsched.simulate(
        setting.workload,
        dataclasses.replace(setting.cluster, topology=setting.topology),
        load_per_byte_s=setting.load_per_byte_s,
        disturbances=setting.disturbances,
        until_s=setting.until_s,
        seed=setting.seed,
        timeline=timeline,
        allocation=setting.allocation,
        rescale_cost=setting.rescale_cost,
        capacity=setting.capacity,
        **plugins,
    )


def run_reference(setting: ElasticSetting) -> ReferenceRun:
    return reference_simulate(**{field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)})


def assert_agrees(result: Result, reference: ReferenceRun) -> None:
    assert list(result.finished.rescales) == reference.changes
    for number, (job_id, expected) in enumerate(reference.jobs.items()):
        record = result.finished.state.jobs[number]
        phases_ns = ["queueing", "computing", "gpu_wait", "communicating", "network_wait", "restarting"]
        assert tuple(int(record[f"{name}_ns"]) for name in phases_ns) == expected.phases_ns
        assert (record.start_ns, record.finish_ns) == (expected.start_ns, expected.finish_ns)
        assert result.gpus_of(job_id) == expected.gpus
        assert (record.busy_ns, record.lost_ns, record.restarts) == (
            expected.busy_ns,
            expected.lost_ns,
            expected.restarts,
        )
        samples_left = 0 if record.state == kernel.FINISHED else record.samples_left
        assert samples_left == expected.samples_left
    assert result.summary()["events"] == reference.events


@given(elastic_settings())
@hypothesis_settings(max_examples=examples(250))
def test_agrees_with_the_reference(setting: ElasticSetting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))
