"""What physics demands, asserted on the recorded timelines of random runs."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from strategies import Setting, examples, settings

import ddlsched
from ddlsched.results.result import Result
from ddlsched.results.timeline import compute_slices, transfer_slices
from ddlsched.topology import Network


def recorded(setting: Setting) -> Result:
    return ddlsched.simulate(
        setting.workload,
        dataclasses.replace(setting.cluster, topology=setting.topology),
        placement=setting.placement,
        order=setting.order,
        communication=setting.communication,
        contention=setting.contention,
        load_per_byte_s=setting.load_per_byte_s,
        timeline=True,
    )


def each_instant(slices: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return, for every start of a slice, the slices that are running then."""
    return [
        (now, slices[(slices["start_ns"] <= now) & (slices["end_ns"] > now)]) for now in slices["start_ns"].unique()
    ]


@given(settings())
@hypothesis_settings(max_examples=examples(60))
def test_a_gpu_computes_one_task_at_a_time_and_every_task(setting: Setting) -> None:
    result = recorded(setting)
    slices = compute_slices(result)
    for _, rows in slices.groupby("gpu"):
        assert (rows["start_ns"].to_numpy()[1:] >= rows["end_ns"].to_numpy()[:-1]).all()
    took_ns = defaultdict(int)
    for row in slices.itertuples():
        took_ns[row.job_id] += row.end_ns - row.start_ns
    assert dict(took_ns) == {job.job_id: job.service_ns for job in setting.workload if job.service_ns}


@given(settings())
@hypothesis_settings(max_examples=examples(60))
def test_memory_is_never_over_committed(setting: Setting) -> None:
    result = recorded(setting)
    records = result.finished.state.jobs
    for now in {int(start) for start in records.start_ns}:
        used = defaultdict(int)
        for number, gpus in result.finished.gpus.items():
            if records.start_ns[number] <= now < records.finish_ns[number]:
                for gpu in gpus:
                    used[gpu] += setting.workload[number].gpu_memory_bytes
        assert max(used.values(), default=0) <= setting.cluster.gpu_memory_bytes[0]


@given(settings())
@hypothesis_settings(max_examples=examples(60))
def test_every_transfer_sends_its_bytes(setting: Setting) -> None:
    result = recorded(setting)
    network = Network(setting.topology, setting.cluster.num_servers)
    model = setting.contention.bound_to(network)
    slices = transfer_slices(result)
    for job in setting.workload:
        servers = {gpu // setting.cluster.gpus_per_server for gpu in result.gpus_of(job.job_id)}
        latency_ns = (model.latency_s + network.ring(tuple(servers)).latency_s) * 1e9
        for task in job.dag.tasks:
            if not hasattr(task, "message_bytes"):
                continue
            rows = slices[(slices["job_id"] == job.job_id) & (slices["task"] == task.name)]
            if len(servers) == 1:
                assert rows.empty
                continue
            for iteration in range(job.iterations):
                one = rows[rows["iteration"] == iteration]
                wire_bytes = model.wire_bytes(task.message_bytes, len(servers))
                assert sent_bytes(one, latency_ns) == pytest.approx(wire_bytes, abs=2.0, rel=1e-9)


def sent_bytes(rows: pd.DataFrame, latency_ns: float) -> float:
    """Return rate x time, the first ``latency_ns`` of the time left out."""
    sent = 0.0
    for row in rows.itertuples():
        waited_ns = min(latency_ns, row.end_ns - row.start_ns)
        latency_ns -= waited_ns
        sent += (row.end_ns - row.start_ns - waited_ns) * row.rate_bytes_per_s / 1e9
    return sent


@given(settings())
@hypothesis_settings(max_examples=examples(60))
def test_no_link_carries_more_than_it_can(setting: Setting) -> None:
    result = recorded(setting)
    network = Network(setting.topology, setting.cluster.num_servers)
    model = setting.contention.bound_to(network)
    for _, running in each_instant(transfer_slices(result)):
        carried = defaultdict(float)
        for row in running.itertuples():
            for link in row.links:
                carried[link] += row.rate_bytes_per_s
        for link, rate in carried.items():
            assert rate * model.alone_per_byte_s <= network.links[link].relative_bandwidth * (1 + 1e-9)


@given(settings())
@hypothesis_settings(max_examples=examples(60))
def test_a_jobs_time_is_at_least_its_compute_and_messages(setting: Setting) -> None:
    result = recorded(setting)
    for row, job in zip(result.jobs.itertuples(), setting.workload, strict=True):
        assert row.start_s >= row.arrival_s
        assert row.finish_s >= row.start_s + row.compute_s - 1e-9
        assert row.jct_s == pytest.approx(row.finish_s - row.arrival_s, abs=1e-9)
        assert row.communication_s + row.network_wait_s <= row.finish_s - row.start_s + 1e-9
        assert len(set(result.gpus_of(job.job_id))) == job.num_gpus
