"""Runs of drawn settings, by the engine and by the reference simulator, and that both agree."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re

from reference_simulator import ReferenceRun, reference_simulate
from strategies import Setting

import ddlsched
from ddlsched.engine.field_values import JobState
from ddlsched.plugins.names import resolve
from ddlsched.results.result import Result
from ddlsched.testing import python_form

PATH_IN_PYTHON = re.compile(r"path .*: (the run is recorded|about (all )?transfers|.* is, too$)")
"""What is said of a compiled path policy that such runs ask in Python all the same."""


def run_engine(setting: Setting, *, python: bool = False, timeline: bool = False) -> Result:
    """Run the engine, with policies compiled or calling every policy and model in Python."""
    given = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
    cluster = dataclasses.replace(given.pop("cluster"), topology=given.pop("topology"))
    plugins = {kind: resolve(kind, given.pop(kind)) for kind in ("placement", "order", "communication")}
    plugins["contention"] = given.pop("contention")
    if python:
        plugins = {kind: python_form(plugin) for kind, plugin in plugins.items()}
    with contextlib.redirect_stderr(io.StringIO()) as said:
        result = ddlsched.simulate(given.pop("workload"), cluster, timeline=timeline, **plugins, **given)
    told = [line for line in said.getvalue().splitlines() if "in Python" in line and not PATH_IN_PYTHON.search(line)]
    assert not told, told  # where a policy that is not compiled is told
    return result


def run_reference(setting: Setting) -> ReferenceRun:
    return reference_simulate(**{field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)})


def assert_agrees(result: Result, reference: ReferenceRun) -> None:
    """Assert that the same happened, to the nanosecond, and that links carried the same bytes."""
    assert list(result.finished.rescales) == reference.changes
    assert result.summary()["events"] == reference.events
    for record, (job_id, expected) in zip(result.finished.state.jobs, reference.jobs.items(), strict=True):
        assert (record.start_ns, record.finish_ns) == (expected.start_ns, expected.finish_ns)
        assert result.gpus_of(job_id) == expected.gpus
        phases_ns = ["queueing", "computing", "gpu_wait", "communicating", "network_wait", "restarting"]
        assert tuple(int(record[f"{name}_ns"]) for name in phases_ns) == expected.phases_ns
        assert (record.busy_ns, record.lost_ns, record.restarts) == (
            expected.busy_ns,
            expected.lost_ns,
            expected.restarts,
        )
        samples_left = 0 if record.state == JobState.FINISHED else record.samples_left
        assert samples_left == expected.samples_left
    carried_bytes = result.finished.state.links.bytes.tolist()
    least, most = [0.0] * len(carried_bytes), [0.0] * len(carried_bytes)
    for segment in reference.transfers:
        for link, share in zip(segment.links, segment.shares, strict=True):
            # Up to a nanosecond's more than there was to send, or a thousandth's less: ends are rounded so.
            most[link] += share * (segment.sent_bytes + segment.rate_bytes_per_s / 1e12)
            least[link] += share * (segment.sent_bytes - segment.rate_bytes_per_s / 1e9)
    for low, carried, high in zip(least, carried_bytes, most, strict=True):
        assert low - 1e-9 * high <= carried <= high * (1 + 1e-9)
