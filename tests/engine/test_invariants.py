"""What physics demands, asserted on the recorded timelines of random runs, disturbed ones among them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from runs_of_settings import run_engine
from strategies import Setting, settings
from tiers import examples

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.network.contention import ring_bytes
from ddlsched.results.result import PHASES, Result
from ddlsched.results.slices import compute_slices, transfer_slices


def recorded(setting: Setting) -> Result:
    """Run the engine without interference, which changes how long a task takes."""
    return run_engine(dataclasses.replace(setting, interference=None), timeline=True)


def each_instant(slices: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return, for every start of a slice, the slices that are running then."""
    return [
        (now, slices[(slices["start_ns"] <= now) & (slices["end_ns"] > now)]) for now in slices["start_ns"].unique()
    ]


def a_gpu_computes_one_task_at_a_time_and_all_that_is_counted(setting: Setting, result: Result) -> None:
    slices = compute_slices(result)
    for _, rows in slices.groupby("gpu"):
        assert (rows["start_ns"].to_numpy()[1:] >= rows["end_ns"].to_numpy()[:-1]).all()
    took_ns = defaultdict(int)
    for row in slices.itertuples():
        took_ns[row.job_id] += row.end_ns - row.start_ns
    for job, record in zip(setting.workload, result.finished.state.jobs, strict=True):
        assert took_ns[job.job_id] == record.busy_ns
    assert sum(took_ns.values()) == result.finished.busy_ns.sum()


@pytest.mark.long
@given(settings(disturbed=False))
@hypothesis_settings(max_examples=examples(15, by_default=6))
def test_an_undisturbed_run_computes_every_task_once(setting: Setting) -> None:
    records = recorded(setting).finished.state.jobs
    assert records.busy_ns.tolist() == [job.service_ns for job in setting.workload]


def a_gpu_computes_only_for_jobs_placed_on_it_and_only_while_its_server_is_up(setting: Setting, result: Result) -> None:
    stays = [(stay, setting.workload[stay.job].job_id) for stay in result.finished.stays]
    for row in compute_slices(result).itertuples():
        assert any(
            job_id == row.job_id and row.gpu in stay.gpus and stay.from_ns <= row.start_ns <= row.end_ns <= stay.to_ns
            for stay, job_id in stays
        )
        for server, down_ns, up_ns in result.finished.outages:
            assert setting.cluster.server_of_gpu[row.gpu] != server or row.end_ns <= down_ns or row.start_ns >= up_ns


def memory_is_never_over_committed(setting: Setting, result: Result) -> None:
    for now in {stay.from_ns for stay in result.finished.stays}:
        used = np.zeros(setting.cluster.num_gpus, np.int64)
        for stay in result.finished.stays:
            if stay.from_ns <= now < stay.to_ns:
                used[list(stay.gpus)] += setting.workload[stay.job].gpu_memory_bytes
        assert (used <= setting.cluster.gpu_memory_bytes).all()
    assert result.most_jobs_on_a_gpu <= (1 if setting.cluster.exclusive else len(setting.workload))


def every_transfer_sends_its_bytes(setting: Setting, result: Result) -> None:
    network, model = result.finished.network, result.contention
    slices = transfer_slices(result)
    carried, slacks = np.zeros(len(network.links)), 0.0
    for stay in result.finished.stays:
        job = setting.workload[stay.job]
        servers = set(setting.cluster.server_of_gpu[list(stay.gpus)].tolist())
        latency_ns = (model.latency_s + network.ring(tuple(servers)).latency_s) * 1e9
        here = slices[(slices["job_id"] == job.job_id) & slices["start_ns"].between(stay.from_ns, stay.to_ns - 1)]
        assert len(servers) > 1 or here.empty
        for (task, iteration), rows in here.groupby(["task", "iteration"]):
            sent = sent_bytes(rows, latency_ns)
            (message_bytes,) = (t.message_bytes for t in job.dag.tasks if t.name == task)
            wire_bytes = ring_bytes(model, message_bytes, len(servers))
            slack = 1.001e-9 * rows["rate_bytes_per_s"].max() + 1e-9 * wire_bytes  # the last nanosecond is whole
            slacks += slack
            assert sent <= wire_bytes + slack
            # What a failure cut is sent anew, or not at all if the job goes on on one server.
            ended = stay.to_ns == result.finished.state.jobs.finish_ns[stay.job] or here["iteration"].max() > iteration
            if ended:
                assert sent == pytest.approx(wire_bytes, abs=slack)
            np.add.at(carried, list(rows["links"].iloc[0]), min(sent, wire_bytes))
    assert result.links["bytes"].to_numpy() == pytest.approx(carried, rel=1e-9, abs=3.0 * slacks)


def sent_bytes(rows: pd.DataFrame, latency_ns: float) -> float:
    """Return rate x time, the first ``latency_ns`` of the time left out."""
    sent = 0.0
    for row in rows.itertuples():
        waited_ns = min(latency_ns, row.end_ns - row.start_ns)
        latency_ns -= waited_ns
        sent += (row.end_ns - row.start_ns - waited_ns) * row.rate_bytes_per_s / 1e9
    return sent


def no_link_carries_more_than_it_can(setting: Setting, result: Result) -> None:
    links, per_byte_s = result.finished.network.links, result.contention.alone_per_byte_s
    for _, running in each_instant(transfer_slices(result)):
        carried = defaultdict(float)
        for row in running.itertuples():
            for link in row.links:
                carried[link] += row.rate_bytes_per_s
        for link, rate in carried.items():
            assert rate * per_byte_s <= links[link].relative_bandwidth * (1 + 1e-9)


def a_jobs_time_is_at_least_its_compute_and_all_told(setting: Setting, result: Result) -> None:
    disturbed = setting.disturbances != Disturbances() or setting.cluster.servers
    for row, job in zip(result.jobs.itertuples(), setting.workload, strict=True):
        if row.state != "finished":
            assert np.isnan(row.jct_s)
            continue
        assert row.start_s >= row.arrival_s
        assert row.jct_s == pytest.approx(row.finish_s - row.arrival_s, abs=1e-9)
        assert sum(getattr(row, phase) for phase in PHASES) == pytest.approx(row.jct_s, abs=1e-9)
        assert len(set(result.gpus_of(job.job_id))) == job.num_gpus
        assert row.finish_s >= row.start_s + row.compute_s - 1e-9
        assert disturbed or row.compute_s == pytest.approx(job.compute_ns * job.iterations / 1e9, abs=1e-9)


def samples_hold_all_that_was_computed(setting: Setting, result: Result) -> None:
    samples = result.samples
    spans_s = np.diff(samples["time_s"], prepend=0.0)
    assert len(samples) <= 257
    assert (spans_s > 0).all()
    assert (samples["busy_gpus"] * spans_s).sum() == pytest.approx(result.finished.busy_ns.sum() / 1e9, abs=1e-6)
    assert (samples["busy_gpus"] <= setting.cluster.num_gpus + 1e-9).all()
    if len(samples):
        assert samples["time_s"].iloc[-1] == pytest.approx(result.finished.end_ns / 1e9)


def samples_are_evenly_spaced_and_count_what_is_recorded(setting: Setting, result: Result) -> None:
    times_ns = np.rint(result.samples["time_s"].to_numpy() * 1e9).astype(np.int64)
    spans_ns = np.diff(times_ns, prepend=0)
    assert (spans_ns[:-1] == spans_ns[:1]).all()
    stays = result.finished.stays
    (began, ended), (sends, sent) = (
        slices[["start_ns", "end_ns"]].to_numpy().T for slices in (compute_slices(result), transfer_slices(result))
    )
    for row, span_ns, now_ns in list(zip(result.samples.itertuples(), spans_ns, times_ns, strict=True))[:-1:9]:
        assert row.allocated_gpus == len({gpu for s in stays if s.from_ns <= now_ns < s.to_ns for gpu in s.gpus})
        assert row.active_transfers == ((sends <= now_ns) & (sent > now_ns)).sum()
        busy_ns = np.minimum(ended, now_ns) - np.maximum(began, now_ns - span_ns)
        assert row.busy_gpus * span_ns == pytest.approx(np.maximum(busy_ns, 0).sum(), abs=1.0)


DEMANDS = (
    a_gpu_computes_one_task_at_a_time_and_all_that_is_counted,
    a_gpu_computes_only_for_jobs_placed_on_it_and_only_while_its_server_is_up,
    memory_is_never_over_committed,
    every_transfer_sends_its_bytes,
    no_link_carries_more_than_it_can,
    a_jobs_time_is_at_least_its_compute_and_all_told,
    samples_hold_all_that_was_computed,
    samples_are_evenly_spaced_and_count_what_is_recorded,
)


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(38, by_default=6))
def test_runs_meet_all_demands(setting: Setting) -> None:
    result = recorded(setting)
    for demand in DEMANDS:
        demand(setting, result)
