"""The timeline: its tables against physics and a brute-force count, and the trace file against the format."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import os
import threading
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from jobs_by_hand import Fixed, data_parallel_job
from strategies import Setting, settings
from tiers import examples

import ddlsched
from ddlsched import AllReduceTask, Cluster, ComputeTask, InputError, IterationDag, Job, Workload
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.engine.outcome import Window
from ddlsched.network.contention import EqualShare, Linear, MaxMin, ring_bytes
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.results.result import Result
from ddlsched.results.slices import compute_slices, transfer_slices
from ddlsched.results.timeline import write_timeline

MS = 1_000_000
SCALE = 0.005
NS_A_BYTE = Linear(per_byte_s=1e-9, penalty_per_byte_s=0.5e-9)
"""1 ns a byte alone, 2.5 ns for each of two that share a server."""


job = functools.partial(data_parallel_job, forward_s=0.01, backward_s=0.02, message_bytes=1e6)


def run(*jobs: Job, gpus: dict[str, list[int]], timeline: Any = True, **options: Any) -> Result:
    """Simulate jobs on given GPUs of servers, by default of two each, with up to two transfers at a time."""
    options = {"scheduler": "srsf-2", "contention": NS_A_BYTE, "topology": "star", "gpus_per_server": 2} | options
    shape = {name: options.pop(name) for name in ("topology", "gpus_per_server")}
    cluster = Cluster(num_servers=4, **shape)
    return ddlsched.simulate(Workload(jobs), cluster, placement=Fixed(gpus=gpus), timeline=timeline, **options)


@pytest.fixture(scope="module")
def mix() -> Result:
    """Return the 64-GPU mix, shortened, with up to three transfers on a server."""
    return run_of_mix()


def run_of_mix(**given: Any) -> Result:
    workload = ddlsched.microsoft_160(seed=1, scale=SCALE)
    return ddlsched.simulate(workload, scheduler="srsf-3", timeline=True, **given)


@pytest.fixture(scope="module")
def mix_events(mix: Result, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return written(mix, tmp_path_factory.mktemp("mix"))


def intervals(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(frame.drop(columns="cut", errors="ignore").itertuples(index=False, name=None))


# ---- The file, read strictly


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events with all times in exact nanoseconds, having checked all that the format asks."""
    text = path.read_text(encoding="ascii")
    trace = json.loads(text, parse_float=Decimal, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(trace) == ["traceEvents", "displayTimeUnit"]
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        check_event(event)
        for key in {"ts", "dur"} & set(event):
            assert event[key].as_tuple().exponent == -3
            event[key] = int(event[key] * 1000)
    check_rows(trace["traceEvents"])
    return trace["traceEvents"]


def check_event(event: dict[str, Any]) -> None:
    always = {"ph", "name", "pid", "args"}
    timed = always | {"cat", "ts", "tid"}
    fields = {"X": timed | {"dur"}, "C": timed, "i": timed | {"s"}}
    if event["ph"] == "M":
        expected = always | ({"tid"} if event["name"].startswith("thread_") else set())
        assert event["name"].split("_", 1)[1] in ("name", "sort_index")
    else:
        expected = fields[event["ph"]]
    assert set(event) == expected
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int)
    if event["ph"] == "X":
        assert event["dur"] > 0
    if event["ph"] == "C":
        assert list(event["args"]) == ["transfers"]
    assert event.get("s", "t") == "t"
    assert event.get("ts", 0) >= 0


def check_rows(events: list[dict[str, Any]]) -> None:
    """Every row is named and placed once, has content, and its slices do not overlap."""
    names, places = row_metadata(events, "thread_name", "name"), row_metadata(events, "thread_sort_index", "sort_index")
    content = {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xi"}
    assert set(names) == set(places) == content
    assert len(set(names.values())) == len(names)
    # A viewer takes the thread with its process's number for its main thread, and number 0 for the idle one.
    assert len({tid for _, tid in content}) == len(content)
    assert not {tid for _, tid in content} & {0, 1, 2, 3}
    assert all(int(str(tid)[1:]) == places[pid, tid] for pid, tid in content)  # of GPU 14 it is 1014
    assert sorted(names) == sorted(names, key=lambda row: (row[0], places[row]))
    processes = row_metadata(events, "process_name", "name")
    assert processes == {pid: {1: "GPUs", 2: "Links", 3: "Jobs"}[pid] for pid in {pid for pid, _ in content}}
    assert row_metadata(events, "process_sort_index", "sort_index") == {pid: pid for pid in processes}
    check_nothing_overlaps(events)


def row_metadata(events: list[dict[str, Any]], name: str, key: str) -> dict[Any, Any]:
    found = [event for event in events if event["name"] == name and event["ph"] == "M"]
    result = {(event["pid"], event["tid"]) if "tid" in event else event["pid"]: event["args"][key] for event in found}
    assert len(result) == len(found)
    return result


def check_nothing_overlaps(events: list[dict[str, Any]]) -> None:
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in rows.values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(slices)))


def rows_of(events: list[dict[str, Any]], phase: str = "X") -> dict[str, list[dict[str, Any]]]:
    """Return the events of each row, by its name."""
    names = row_metadata(events, "thread_name", "name")
    result = defaultdict(list)
    for event in events:
        if event["ph"] == phase:
            result[names[event["pid"], event["tid"]]].append(event)
    return dict(result)


def spans(events: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events]


def written(result: Result, folder: Path) -> list[dict[str, Any]]:
    write_timeline(result, folder / "trace.json")
    return read_events(folder / "trace.json")


# ---- What the GPUs did


def test_a_job_alone_has_a_row_for_each_of_its_gpus(tmp_path):
    result = run(job("a", 3, iterations=2, message_bytes=4e6), gpus={"a": [0, 1, 3]})
    expected = [
        ("a", "forward", 0, 0, 10 * MS),
        ("a", "backward", 0, 10 * MS, 30 * MS),
        ("a", "forward", 1, 34 * MS, 44 * MS),
        ("a", "backward", 1, 44 * MS, 64 * MS),
    ]
    assert intervals(compute_slices(result)) == [(gpu, *row) for gpu in (0, 1, 3) for row in expected]
    rows = rows_of(written(result, tmp_path))
    assert list(rows) == ["server 0, GPU 0", "server 0, GPU 1", "server 1, GPU 3", "server 0", "server 1"]
    assert spans(rows["server 1, GPU 3"]) == [(f"job a {t}, iteration {i}", s, e) for _, t, i, s, e in expected]
    assert rows["server 0, GPU 1"][0]["args"] == {"job": "a", "task": "forward", "iteration": 0}


def test_a_neighbour_that_comes_in_the_midst_of_a_task_changes_nothing_of_it():
    result = run(job("a", 2, iterations=2), job("b", arrival_s=0.005), gpus={"a": [0, 1], "b": [1]})
    table = compute_slices(result)
    on_gpu = {gpu: intervals(group.drop(columns="gpu")) for gpu, group in table.groupby("gpu")}
    assert on_gpu[1][:2] == [("a", "forward", 0, 0, 10 * MS), ("b", "forward", 0, 10 * MS, 20 * MS)]
    assert on_gpu[0][:2] == [("a", "forward", 0, 0, 10 * MS), ("a", "backward", 0, 10 * MS, 30 * MS)]
    assert not table.duplicated(["gpu", "job_id", "task", "iteration"]).any()


def test_tasks_that_take_no_time_are_left_out(tmp_path):
    result = run(job("a", forward_s=0.0), gpus={"a": [0]})
    assert compute_slices(result)["task"].tolist() == ["backward"]
    assert len(rows_of(written(result, tmp_path))["server 0, GPU 0"]) == 1


def test_a_task_that_a_failure_ended_is_cut():
    result = ddlsched.simulate(
        Workload.of([data_parallel_job(iterations=3, forward_s=1.0, backward_s=2.0)]),
        Cluster(num_servers=1, gpus_per_server=1),
        disturbances=Disturbances(outages=(Outage(server=0, from_s=4.5, to_s=5.5),)),
        timeline=True,
    )
    table = compute_slices(result)
    cut = table[table["cut"]]
    assert cut[["task", "iteration", "start_ns", "end_ns"]].values.tolist() == [["backward", 1, 4e9, 4.5e9]]
    assert len(table) == 8


@pytest.mark.long
def test_every_task_is_there_once_on_each_gpu(mix):
    table = compute_slices(mix)
    expected = {
        (gpu, job.job_id, task, iteration)
        for job in mix.workload
        for gpu in mix.gpus_of(job.job_id)
        for task in ("forward", "backward")
        for iteration in range(job.iterations)
    }
    found = Counter(table[["gpu", "job_id", "task", "iteration"]].itertuples(index=False, name=None))
    assert set(found) == expected
    assert set(found.values()) == {1}
    busy_s = (table["end_ns"] - table["start_ns"]).groupby(table["gpu"]).sum() / 1e9
    assert busy_s.reindex(range(64), fill_value=0.0).tolist() == mix.gpus["busy_s"].tolist()


@pytest.mark.long
def test_the_file_holds_the_table(mix, mix_events):
    names = row_metadata(mix_events, "thread_name", "name")
    found = [
        (names[1, e["tid"]], e["args"]["job"], e["args"]["task"], e["args"]["iteration"], e["ts"], e["ts"] + e["dur"])
        for e in mix_events
        if e["ph"] == "X" and e["pid"] == 1
    ]
    table = compute_slices(mix)
    table["gpu"] = [f"server {gpu // 4}, GPU {gpu}" for gpu in table["gpu"]]
    assert found == intervals(table)
    models = {job.job_id: job.model for job in mix.workload}
    slices = [e for e in mix_events if e["ph"] == "X"]
    assert all(e["args"]["model"] == models[e["args"]["job"]] for e in slices)
    assert all(e["name"] == "job {job} {task}, iteration {iteration}".format(**e["args"]) for e in slices)


# ---- What the transfers did


@pytest.mark.long
def test_the_file_holds_each_transfer_on_each_of_its_links(mix, mix_events):
    names = row_metadata(mix_events, "thread_name", "name")
    found = Counter(
        (
            names[2, e["tid"]].split(" (")[0],
            e["ts"],
            e["ts"] + e["dur"],
            *(v for k, v in e["args"].items() if k != "model"),
        )
        for e in mix_events
        if e["ph"] == "X" and e["pid"] == 2
    )
    columns = ["links", "start_ns", "end_ns", "job_id", "task", "iteration", "sharing", "rate_bytes_per_s"]
    table = transfer_slices(mix).explode("links")
    table["links"] = [f"server {link}" for link in table["links"]]
    table["rate_bytes_per_s"] = [Decimal(repr(rate)) for rate in table["rate_bytes_per_s"].tolist()]
    assert found == Counter(intervals(table[columns]))


def test_overlapping_transfers_take_a_lane_each_and_keep_it(tmp_path):
    # a sends from 30 ms; b from 31 ms beside it on server 1; a ends, and b goes on alone in its own lane.
    result = run(
        job("a", 2, message_bytes=4e6, iterations=2),
        job("b", 2, message_bytes=4e6, arrival_s=0.001),
        gpus={"a": [0, 2], "b": [3, 4]},
    )
    table, approx = transfer_slices(result), pytest.approx
    assert intervals(table[["job_id", "iteration", "start_ns", "end_ns", "links", "sharing", "rate_bytes_per_s"]]) == [
        ("a", 0, 30 * MS, 31 * MS, (0, 1), 1, approx(1e9)),
        ("a", 0, 31 * MS, 38_500_000, (0, 1), 2, approx(4e8)),
        ("b", 0, 31 * MS, 38_500_000, (1, 2), 2, approx(4e8)),
        ("b", 0, 38_500_000, 39_500_000, (1, 2), 1, approx(1e9)),
        ("a", 1, 68_500_000, 72_500_000, (0, 1), 1, approx(1e9)),
    ]
    events = written(result, tmp_path)
    rows = {name: slices for name, slices in rows_of(events).items() if "GPU" not in name}
    a, b = "job a all-reduce, iteration 0", "job b all-reduce, iteration 0"
    again = ("job a all-reduce, iteration 1", 68_500_000, 72_500_000)
    a_slices, b_slices = [(a, 30 * MS, 31 * MS), (a, 31 * MS, 38_500_000)], [(b, 31 * MS, 38_500_000)]
    b_slices.append((b, 38_500_000, 39_500_000))
    assert {name: spans(slices) for name, slices in rows.items()} == {
        "server 0": [*a_slices, again],
        "server 1": [*a_slices, again],
        "server 1 (2)": b_slices,
        "server 2": b_slices,
    }
    rate = Decimal(repr(float(table["rate_bytes_per_s"][1])))
    args = {"job": "a", "task": "all-reduce", "iteration": 0, "sharing": 2, "rate_bytes_per_s": rate}
    assert rows["server 0"][1]["args"] == args
    counts = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counts[event["name"]].append((event["ts"], event["args"]["transfers"]))
    assert counts["server 1"] == [
        (30 * MS, 1),
        (31 * MS, 2),
        (38_500_000, 1),
        (39_500_000, 0),
        (68_500_000, 1),
        (72_500_000, 0),
    ]


@pytest.mark.parametrize(("c_arrival_s", "c_row"), [(0.001, "server 1"), (0.000999999, "server 1 (3)")])
def test_a_newcomer_takes_the_lowest_lane_that_is_free_at_that_instant(tmp_path, c_arrival_s, c_row):
    # a ends at 31 ms. c begins then and takes its lane, or 1 ns before and may not; b, that runs on, keeps its own.
    result = run(
        job("a", 2, message_bytes=0.4e6),
        job("b", 2, message_bytes=4e6),
        job("c", 2, message_bytes=4e6, arrival_s=c_arrival_s),
        gpus={"a": [0, 3], "b": [1, 4], "c": [5, 6]},
        gpus_per_server=3,
        scheduler="srsf-3",
    )
    rows = rows_of(written(result, tmp_path))
    jobs = {name: {slice["args"]["job"] for slice in slices} for name, slices in rows.items() if "GPU" not in name}
    on_server_1 = {"server 1": {"a"}, "server 1 (2)": {"b"}}
    on_server_1[c_row] = on_server_1.get(c_row, set()) | {"c"}
    assert {name: on for name, on in jobs.items() if name.startswith("server 1")} == on_server_1


@pytest.mark.long
def test_a_paused_transfer_gives_up_its_lane(tmp_path):
    # b, the shorter, stops a from 31 to 32 ms; one transfer at a time needs one lane.
    result = run(
        job("a", 2, message_bytes=4e6, iterations=3),
        job("b", 2, message_bytes=1e6, arrival_s=0.001),
        gpus={"a": [0, 2], "b": [1, 3]},
        communication="preemptive:by=service",
    )
    rows = rows_of(written(result, tmp_path))
    assert [(slice["args"]["job"], slice["ts"] // MS) for slice in rows["server 0"]][:3] == [
        ("a", 30),
        ("b", 31),
        ("a", 32),
    ]
    assert "server 0 (2)" not in rows


MODELS = [Linear(), EqualShare(), MaxMin()]


@pytest.mark.long
@pytest.mark.parametrize("contention", MODELS, ids=["linear", "equal-share", "max-min"])
@pytest.mark.parametrize("communication", ["bounded-overlap:limit=3", "preemptive:by=bytes"])
def test_every_all_reduce_sends_its_bytes(contention, communication):
    result = ddlsched.simulate(
        ddlsched.microsoft_160(seed=2, scale=0.004), contention=contention, communication=communication, timeline=True
    )
    table = transfer_slices(result)
    sent = (table["rate_bytes_per_s"] * (table["end_ns"] - table["start_ns"]) / 1e9).groupby(
        [table["job_id"], table["iteration"]]
    )
    jobs = {job.job_id: job for job in result.workload}
    servers = {job_id: len({gpu // 4 for gpu in result.gpus_of(job_id)}) for job_id in jobs}
    assert set(sent.groups) == {(j, i) for j in jobs if servers[j] > 1 for i in range(jobs[j].iterations)}
    for (job_id, _), total in sent.sum().items():
        expected = ring_bytes(contention, jobs[job_id].iteration.message_bytes, servers[job_id])
        assert expected * (1 - 1e-9) <= total <= expected * (1 + 1e-9) + 1.3  # an end is rounded up to 1 ns: 1.25 B
    carried = table.explode("links")
    carried_bytes = carried["rate_bytes_per_s"] * (carried["end_ns"] - carried["start_ns"]) / 1e9
    per_link = carried_bytes.groupby(carried["links"].astype(int)).sum().reindex(range(16), fill_value=0.0)
    assert per_link.to_numpy() == pytest.approx(result.links["bytes"].to_numpy(), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("given", [{}, {"contention": MaxMin()}], ids=["linear", "max-min"])
def test_the_number_sharing_is_that_of_overlapping_transfers(given):
    table = transfer_slices(run_of_mix(**given))
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    on = np.zeros((16, len(table)), bool)
    for place, links in enumerate(table["links"]):
        on[list(links), place] = True
    for place in range(len(table)):
        for instant in (start[place], end[place] - 1):
            running = (start <= instant) & (instant < end)
            assert (on[on[:, place]] & running).sum(axis=1).max() == table["sharing"][place]
    assert table["sharing"].max() == 3


@pytest.mark.long
def test_counters_count_the_transfers_on_a_link(mix, mix_events):
    table = transfer_slices(mix).explode("links")
    changes = defaultdict(list)
    for event in mix_events:
        if event["ph"] == "C":
            changes[int(event["name"].removeprefix("server "))].append((event["ts"], event["args"]["transfers"]))
    assert set(changes) == set(table["links"])
    for link, points in changes.items():
        here = table[table["links"] == link]
        start, end = here["start_ns"].to_numpy(), here["end_ns"].to_numpy()
        assert all(a[0] < b[0] and a[1] != b[1] for a, b in itertools.pairwise(points))
        assert points[-1][1] == 0
        assert all(((start <= time) & (time < end)).sum() == count for time, count in points)
        assert {time for time, _ in points} <= set(start) | set(end)


# ---- Random runs


@pytest.mark.long
@given(settings(disturbed=False))
@hypothesis_settings(max_examples=examples(12, by_default=4))
def test_invariants_of_any_run(tmp_path_factory, setting: Setting) -> None:
    result = simulate_setting(setting)
    computed, transferred = compute_slices(result), transfer_slices(result)
    check_tasks(setting, result, computed)
    check_bytes_and_rates(setting, result, transferred)
    slices = [event for event in written(result, tmp_path_factory.mktemp("any")) if event["ph"] == "X"]
    assert len(slices) == len(computed) + sum(len(set(links)) for links in transferred["links"])


def simulate_setting(setting: Setting) -> Result:
    plugins = {kind: resolve(kind, getattr(setting, kind)) for kind in ("placement", "order", "communication")}
    cluster = dataclasses.replace(setting.cluster, topology=setting.topology)
    return ddlsched.simulate(setting.workload, cluster, contention=setting.contention, timeline=True, **plugins)


def check_tasks(setting: Setting, result: Result, table: pd.DataFrame) -> None:
    """Each worker computes each task once, for its time, after its predecessors, one at a time."""
    for _, on_gpu in table.groupby("gpu"):
        assert (on_gpu["start_ns"].to_numpy()[1:] >= on_gpu["end_ns"].to_numpy()[:-1]).all()
    slices = {
        row[:4]: row[4:] for row in intervals(table[["gpu", "job_id", "iteration", "task", "start_ns", "end_ns"]])
    }
    assert len(slices) == len(table)
    expected = 0
    for one in setting.workload:
        tasks = [task for task in one.dag.tasks if isinstance(task, ComputeTask) and task.duration_ns]
        expected += len(tasks) * one.iterations * one.num_gpus
        for key in ((g, one.job_id, i) for g in result.gpus_of(one.job_id) for i in range(one.iterations)):
            for task in tasks:
                start, end = slices[*key, task.name]
                assert end - start == task.duration_ns
                assert all(slices[*key, name][1] <= start for name in task.after if (*key, name) in slices)
    assert len(slices) == expected


def check_bytes_and_rates(setting: Setting, result: Result, table: pd.DataFrame) -> None:
    """Each all-reduce sends its bytes once its latency is over; no link carries more than it can."""
    network, model = Network(setting.topology, setting.cluster.num_servers), result.finished.network
    contention = setting.contention.bound_to(model)
    pieces = defaultdict(list)
    for row in table.itertuples():
        pieces[row.job_id, row.task, row.iteration].append(row)
    for one in setting.workload:
        servers = {gpu // setting.cluster.gpus_per_server for gpu in result.gpus_of(one.job_id)}
        sends = [task for task in one.dag.tasks if isinstance(task, AllReduceTask) and task.message_bytes > 0]
        reduces = sends if len(servers) > 1 else []
        ring = network.ring(tuple(servers))
        for task, iteration in ((task, iteration) for task in reduces for iteration in range(one.iterations)):
            sent, latency_ns, fastest = 0.0, (contention.latency_s + ring.latency_s) * 1e9, 0.0
            for piece in pieces.pop((one.job_id, task.name, iteration), []):
                assert piece.links == ring.links
                passed = min(latency_ns, piece.end_ns - piece.start_ns)
                latency_ns -= passed
                sent += piece.rate_bytes_per_s * (piece.end_ns - piece.start_ns - passed) / 1e9
                fastest = max(fastest, piece.rate_bytes_per_s)
            assert latency_ns < 0.01
            assert sent == pytest.approx(
                ring_bytes(contention, task.message_bytes, len(servers)), rel=1e-9, abs=fastest / 9e8
            )
    assert not pieces
    check_links_hold(network, contention.alone_per_byte_s, table)


def check_links_hold(network: Network, per_byte_s: float, table: pd.DataFrame) -> None:
    crossings = table.explode("links")
    for instant in table["start_ns"].unique():
        now = crossings[(crossings["start_ns"] <= instant) & (instant < crossings["end_ns"])]
        for link, rate in now.groupby("links")["rate_bytes_per_s"].sum().items():
            assert rate <= network.links[link].relative_bandwidth / per_byte_s * (1 + 1e-9)


# ---- Windows and marks


WINDOW_NS = (6_000 * MS, 7_000 * MS)


@pytest.fixture(scope="module")
def part() -> Result:
    workload = ddlsched.microsoft_160(seed=1, scale=SCALE)
    return ddlsched.simulate(workload, scheduler="srsf-3", timeline=tuple(ns / 1e9 for ns in WINDOW_NS))


@pytest.mark.parametrize("table_of", [compute_slices, transfer_slices])
def test_a_window_holds_what_intersects_it_whole(mix, part, table_of):
    everything = table_of(mix)
    inside = (everything["end_ns"] > WINDOW_NS[0]) & (everything["start_ns"] < WINDOW_NS[1])
    assert 0 < inside.sum() < len(everything)
    pd.testing.assert_frame_equal(table_of(part), everything[inside].reset_index(drop=True))


@pytest.mark.long
def test_the_file_of_a_window_shows_only_the_window(mix_events, part, tmp_path):
    everything, events = mix_events, written(part, tmp_path)
    low, high = WINDOW_NS
    assert all(e["ts"] < high and e["ts"] + e["dur"] > low for e in events if e["ph"] == "X")
    assert len(row_metadata(events, "thread_name", "name")) < len(row_metadata(everything, "thread_name", "name"))
    marks = [(e["name"], e["ts"]) for e in everything if e["ph"] == "i" and low <= e["ts"] <= high]
    assert [(e["name"], e["ts"]) for e in events if e["ph"] == "i"] == marks != []
    counted: dict[str, dict[str, list[tuple[int, int]]]] = {"all": defaultdict(list), "part": defaultdict(list)}
    for which, source in (("all", everything), ("part", events)):
        for e in source:
            if e["ph"] == "C":
                counted[which][e["name"]].append((e["ts"], e["args"]["transfers"]))
    assert counted["part"] != {}
    for name, points in counted["part"].items():
        before = [count for time, count in counted["all"][name] if time <= low][-1:]
        expected = [(low, count) for count in before if count] + [p for p in counted["all"][name] if low < p[0] < high]
        assert points == expected


@pytest.mark.long
def test_what_changes_as_a_window_ends_is_not_in_it(mix_events, tmp_path):
    ends_ns = min(e["ts"] for e in mix_events if e["ph"] == "C" and e["ts"] > WINDOW_NS[1])
    workload = ddlsched.microsoft_160(seed=1, scale=SCALE)
    window = (WINDOW_NS[0] / 1e9, ends_ns / 1e9)
    part = ddlsched.simulate(workload, scheduler="srsf-3", timeline=window)
    counters = [e["ts"] for e in written(part, tmp_path) if e["ph"] == "C"]
    assert counters
    assert max(counters) < ends_ns


def test_marks_are_at_the_times_of_the_jobs(mix, mix_events):
    marks = rows_of(mix_events, "i")
    assert list(marks) == [f"job {job.job_id}" for job in mix.workload]
    for row, record in zip(marks.values(), mix.finished.state.jobs, strict=True):
        assert [mark["ts"] for mark in row] == [record.arrival_ns, record.start_ns, record.finish_ns]
    assert [mark["name"] for mark in marks["job 3"]] == ["job 3 arrival", "job 3 start", "job 3 finish"]
    assert marks["job 3"][0]["args"] == {"job": "3", "model": mix.workload[3].model}


def test_a_window_in_which_nothing_happens_gives_a_file_without_rows(tmp_path):
    result = run(job("a"), gpus={"a": [0]}, timeline=(5.0, 6.0))
    assert written(result, tmp_path) == []
    assert len(compute_slices(result)) == len(transfer_slices(result)) == 0


def test_links_that_carried_nothing_have_no_row(tmp_path):
    rows = rows_of(written(run(job("a", 2), gpus={"a": [0, 1]}), tmp_path))
    assert list(rows) == ["server 0, GPU 0", "server 0, GPU 1"]


# ---- The file


@pytest.mark.long
def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in ("first.json", "second.json"):
        workload = ddlsched.microsoft_160(seed=3, scale=0.002)
        write_timeline(ddlsched.simulate(workload, scheduler="srsf-3", timeline=True), tmp_path / name)
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()


def test_times_are_exact_after_a_long_run(tmp_path):
    result = run(
        job("late", arrival_s=10_000.000000001), job("last", arrival_s=1e8 / 3), gpus={"late": [0], "last": [1]}
    )
    rows, text = rows_of(written(result, tmp_path), "i"), (tmp_path / "trace.json").read_text()
    assert '"ts":10000000000.001,"dur":10000.000,' in text
    last_ns = result.workload[1].arrival_ns
    assert rows["job last"][0]["ts"] == last_ns
    assert f'"ts":{last_ns // 1000}.{last_ns % 1000:03d},' in text
    # A reader that takes the text for a double, as Perfetto does, still finds the very nanosecond.
    assert round(float(f"{last_ns // 1000}.{last_ns % 1000:03d}") * 1000.0) == last_ns


def test_any_text_may_be_a_name(tmp_path):
    odd = 'a "quoted" \\ name, {üñí} 🦆'
    iteration = IterationDag((ComputeTask(name=odd, duration_ns=5),))
    one = Job(job_id=odd, arrival_s=0.0, num_gpus=1, iterations=1, iteration=iteration, gpu_memory_mb=1.0, model=odd)
    events = written(run(one, gpus={odd: [0]}), tmp_path)
    (task,) = [event for event in events if event["ph"] == "X"]
    assert task["name"] == f"job {odd} {odd}, iteration 0"
    assert task["args"] == {"job": odd, "model": odd, "task": odd, "iteration": 0}
    assert list(rows_of(events, "i")) == [f"job {odd}"]


def test_a_link_crossed_between_switches_has_a_row_of_its_name(tmp_path):
    result = run(job("a", 2), gpus={"a": [0, 6]}, topology="leaf-spine:servers_per_leaf=2,spines=1")
    names = {link.name for link in result.finished.network.links}
    rows = [row for row in rows_of(written(result, tmp_path)) if "GPU" not in row]
    assert len(rows) == 6
    assert set(rows) <= names


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoSwitches:
    """Even servers on the one, odd servers on the other: the ring over 0, 1, 2, 3 goes to and fro twice."""

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        graph: nx.Graph[Any] = nx.Graph()
        cables = [(server, "AB"[server % 2]) for server in range(num_servers)]
        graph.add_edges_from([*cables, ("A", "B")], bandwidth_bytes_per_s=1e9, latency_s=0.0)
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> list[Any]:
        return nx.shortest_path(graph, source, target)


@pytest.mark.long
def test_a_link_crossed_twice_has_one_slice_and_counts_two(tmp_path):
    result = run(job("a", 4), gpus={"a": [0, 2, 4, 6]}, topology=TwoSwitches(), contention=EqualShare())
    events = written(result, tmp_path)
    rows = {name: len(slices) for name, slices in rows_of(events).items() if "GPU" not in name}
    assert rows == {**{f"server {n}": 1 for n in range(4)}, "A to B": 1, "B to A": 1}
    counts = {(e["name"], e["args"]["transfers"]) for e in events if e["ph"] == "C"}
    assert {count for name, count in counts if name == "A to B"} == {2, 0}
    assert {count for name, count in counts if name == "server 0"} == {1, 0}
    assert transfer_slices(result)["sharing"].tolist() == [2]


def test_a_run_without_a_timeline_is_refused(tmp_path):
    result = run(job("a"), gpus={"a": [0]}, timeline=False)
    for ask in (compute_slices, transfer_slices, lambda result: write_timeline(result, tmp_path / "x.json")):
        with pytest.raises(InputError, match=r"no timeline; expected .*timeline=True") as raised:
            ask(result)
        assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["missing/trace.json", "file/trace.json", "folder", "x" * 300 + ".json"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path, where):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"timeline .*; expected") as raised:
        write_timeline(run(job("a"), gpus={"a": [0]}), tmp_path / where)
    assert "\n" not in str(raised.value)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
    assert (tmp_path / "file").read_text() == "kept"


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")

    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("ddlsched.results.timeline._event", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_timeline(run(job("a"), gpus={"a": [0]}), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_and_a_link_to_it_kept(tmp_path):
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "old.json")
    write_timeline(run(job("a"), gpus={"a": [0]}), str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert read_events(tmp_path / "old.json")
    assert (tmp_path / "old.json").stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, received = tmp_path / "pipe", tmp_path / "received.json"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.write_bytes(pipe.read_bytes()))
    reader.start()
    write_timeline(run(job("a"), gpus={"a": [0]}), pipe)
    reader.join(timeout=10)
    assert pipe.is_fifo()
    assert read_events(received)


@pytest.mark.parametrize("span", [(5.0, 3.0), (3.0, 3.0), (-1.0, 3.0), (math.nan, 3.0), (1e30, math.inf)])
def test_a_window_that_holds_no_time_of_a_run_is_refused(span: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"expected 0 <= FROM < TO, seconds"):
        Window(*span)


@pytest.mark.parametrize(
    ("window", "shown"), [((0, 0.5), []), ((0, 0.6), [2, 3]), ((0.8, 9), [2, 3]), ((0.9, 9), []), ((0, 9), [2, 3])]
)
def test_an_outage_is_shown_on_each_gpu_of_its_server_if_it_is_within_the_window(
    tmp_path: Path, window: tuple[float, float], shown: list[int]
) -> None:
    faults = Disturbances(outages=(Outage(server=1, from_s=0.5, to_s=0.9),))
    jobs = job("a", iterations=50)
    events = written(run(jobs, gpus={"a": [0]}, disturbances=faults, timeline=Window(*window)), tmp_path)
    found = {row: spans(each) for row, each in rows_of(events).items() if each[-1]["name"] == "server down"}
    assert found == {f"server 1, GPU {gpu}": [("server down", 500 * MS, 900 * MS)] for gpu in shown}
