"""The experiment with the Philly and ITP traces, on made-up traces in their formats."""

from __future__ import annotations

import dataclasses
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.network.contention import TEN_GBE
from ddlsched.workload.generators.microsoft import MODELS

FOLDER = EXPERIMENTS / "datacentre_traces"
run, parts, regimes, tables, network_file, clusters = scripts_of(
    "datacentre_traces", "run", "parts", "regimes", "tables", "network", "virtual_clusters"
)
Unshared, network = network_file.Unshared, network_file.network
needs_data = pytest.mark.skipif(bool(parts.missing(run.PUBLIC_DATA)), reason="needs the traces beside the project")


@pytest.fixture
def data(tmp_path) -> Path:
    """Both traces with a few dozen jobs, in their formats."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "data"
    for file in parts.FILES.values():
        (folder / file).parent.mkdir(parents=True)
    rows = [
        f"2017-10-{1 + k // 4:02d} {k % 4 * 6:02d}:00:00,{rng.integers(2_000, 90_000)}.0,{(1, 4, 8, 16)[k % 4]},1,aa"
        for k in range(100)
    ]
    header = "timestamp,duration,num_gpus,gpu_time,cluster"
    pd.Series([header, *rows]).to_csv(folder / parts.FILES["Philly"], index=False, header=False, quoting=3, sep="\t")
    with tarfile.open(folder / parts.FILES["ITP"], "w:gz") as tar:
        for number, name in enumerate(parts.ITP_CLUSTERS):
            jobs = [f"{k},{k * 40_000},{rng.integers(2_000, 90_000)},{(1, 8, 16)[k % 3]}" for k in range(30 + number)]
            content = "\n".join(["job_id,submission_time,duration,num_gpu", *jobs]).encode()
            entry = tarfile.TarInfo(f"raw-traces/{name}.csv")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return folder


def job(name: str, gpus: int) -> ddlsched.Job:
    """One iteration: 1 s of compute, 1 s of all-reduce alone on 10 Gbit/s."""
    message_bytes = 1.0 / TEN_GBE["per_byte_s"]
    return data_parallel_job(name, gpus, forward_s=0.4, backward_s=0.6, message_bytes=message_bytes, memory_mb=1_000.0)


THREE_JOBS = ddlsched.Workload.of([job("one", 1), job("left", 2), job("right", 2)])
THREE_SERVERS = ddlsched.Cluster(num_servers=3, gpus_per_server=2, gpu_memory_mb=1_000.0)
"""First-fit puts left on servers 0 and 1, right on 1 and 2: they share the link of server 1."""


def three_jobs(communication: str, contention: object) -> ddlsched.results.result.Result:
    return ddlsched.simulate(
        THREE_JOBS,
        THREE_SERVERS,
        placement="first-fit",
        order="fifo",
        communication=communication,
        contention=contention,
    )


def test_the_delay_is_what_sharing_adds_to_two_transfers_on_a_link():
    ratio = TEN_GBE["penalty_per_byte_s"] / TEN_GBE["per_byte_s"]
    found = network(three_jobs("bounded-overlap:limit=2", regimes.linear(10.0)))
    assert found["delay_share"] == pytest.approx(2 * (1 + ratio) / (1 + 2 * (3 + ratio)), rel=1e-8)
    assert found["alone_share"] == pytest.approx(2 / (1 + 2 * (3 + ratio)), rel=1e-8)
    assert (found["several_servers"], found["contended"], found["iterations"]) == (2, 2, 3)


def test_the_delay_counts_waiting_for_the_link_as_well():
    found = network(three_jobs("bounded-overlap:limit=1", regimes.linear(10.0)))
    assert found["delay_share"] == pytest.approx(1 / (1 + 2 + 3), rel=1e-8)


def test_ten_times_the_bandwidth_is_a_tenth_of_both_constants():
    faster = regimes.linear(100.0)
    assert faster.per_byte_s == pytest.approx(TEN_GBE["per_byte_s"] / 10)
    assert faster.penalty_per_byte_s == pytest.approx(TEN_GBE["penalty_per_byte_s"] / 10)


@pytest.mark.long
def test_without_contention_every_job_takes_its_time_alone_though_they_share_the_link():
    result = three_jobs(regimes.EVERY, Unshared(per_byte_s=TEN_GBE["per_byte_s"]))
    assert result.jobs["jct_s"].tolist() == pytest.approx([1.0, 2.0, 2.0], abs=1e-8)
    assert network(result)["delay_share"] == pytest.approx(0.0, abs=1e-8)
    assert network(result)["contended"] == 2


@pytest.mark.long
def test_the_model_without_contention_is_the_same_compiled_and_in_python():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Interpreted(Unshared):
        compiled = None

    workload = ddlsched.Workload.of([dataclasses.replace(each, iterations=7) for each in THREE_JOBS])
    finishes = [
        ddlsched.simulate(
            workload, THREE_SERVERS, placement="random", communication=regimes.EVERY, contention=kind(per_byte_s=1e-9)
        ).jobs["finish_s"]
        for kind in (Unshared, Interpreted)
    ]
    assert finishes[0].tolist() == finishes[1].tolist()


def test_the_memory_decides_whether_gpus_are_shared():
    needs_mb = [model.gpu_memory_mb for model in MODELS]
    assert max(needs_mb) <= parts.ONE_JOB_MB < 2 * min(needs_mb)
    assert parts.SEVERAL_JOBS_MB // min(needs_mb) * parts.GPUS_PER_SERVER == 88 < 1000


def test_a_part_is_imported_at_its_scale_and_its_cluster_has_the_load(data, tmp_path):
    part = parts.Part(trace="Philly", name="day 5", seed=2, from_day=5, limit=60, scale=0.01)
    found = parts.imported(part, data, tmp_path / "made")
    jobs = pd.read_parquet(found.path)
    assert (found.jobs, found.several_gpus, found.over_a_server, found.largest) == (60, 45, 15, 16)
    assert found.days == pytest.approx(jobs["arrival_s"].max() * 100 / 86_400)
    passes_s = jobs["forward_s"] + jobs["backward_s"]
    passes_s += np.where(jobs["gpus"] > 8, jobs["message_bytes"] * TEN_GBE["per_byte_s"], 0.0)
    submitted = (passes_s * jobs["iterations"] * jobs["gpus"]).sum()
    assert found.mean_gpus == pytest.approx(submitted / jobs["arrival_s"].max(), rel=1e-6)
    cluster = found.cluster(0.5)
    assert 0 <= cluster.num_gpus - 2 * found.mean_gpus < 8
    assert found.cluster(1e9).num_gpus == 16  # the largest job fits


def test_a_cluster_of_the_archive_is_imported_by_itself(data, tmp_path):
    part = parts.Part(trace="ITP", name="cluster01", seed=1, member="cluster01")
    assert parts.imported(part, data, tmp_path).jobs == 30 + parts.ITP_CLUSTERS.index("cluster01")


def test_what_contention_causes_is_paired_by_window():
    rows = [
        {"policy": policy, "part": f"w{window}", "seed": window, "average_jct_s": jct_s, "delay_share": 0.1}
        for window in (1, 2)
        for policy, jct_s in ((regimes.ALONE, 10.0 * window), ("SRSF(1)", 20.0 * window), ("SRSF(2)", 40.0 * window))
    ]
    runs = pd.DataFrame(rows).assign(trace="T", regime="R", gbps="10", scale="1", gpus="8", jobs=10)
    runs = runs.assign(several_servers=5, contended=3, iterations=30, queueing_s=1.0, gpu_utilisation=0.5)
    table = tables.regime_table(runs).set_index("policy")
    assert table["caused"].tolist() == pytest.approx([0.0, 0.5, 0.75])
    assert table["change"].tolist() == pytest.approx([-0.5, 0.0, 1.0])
    assert table["caused_low"].tolist() == pytest.approx(table["caused_high"].tolist())
    assert table.loc["SRSF(2)", "verdict"] == "undecided"  # two windows are too few
    assert (table["contended"] == 0.1).all()


PHILLY = parts.Part(trace="Philly", name="day 2", seed=1, from_day=2, limit=40)
ITP = parts.Part(trace="ITP", name="cluster04", seed=2, member="cluster04", limit=20)


@pytest.fixture
def tiny(monkeypatch) -> None:
    """Few and short runs."""
    monkeypatch.setattr(run, "BANDWIDTHS_GBPS", (10.0,))
    monkeypatch.setattr(run, "windows", lambda full: [PHILLY, ITP])


@pytest.mark.slow
def test_the_whole_experiment_on_made_up_traces(data, tmp_path, tiny, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["run.py", "--full", "--data", str(data), "--out", str(out), "--jobs", "1"])
    assert run.main() == 0
    table = pd.read_csv(out / "tables" / "regimes.csv")
    assert len(table) == 2 * len(regimes.REGIMES) * 5
    alone = table[table["policy"] == regimes.ALONE]
    assert (alone["caused"] == 0).all()
    assert alone["delay"].abs().max() < 1e-7
    spread = table[(table["regime"] == "FF, load 0.7") & (table["policy"] == "SRSF(2)")]
    assert (spread["delay"] > 0.02).all()
    assert (spread["contended"] > 0).all()
    assert len(pd.read_csv(out / "tables" / "windows.csv")) == len(table)
    assert "## placements" in capsys.readouterr().out


def test_absent_traces_are_named_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert "philly.csv.gz: no such file; docs/traces.md says where to get it" in capsys.readouterr().err


@pytest.mark.long
@needs_data
def test_committed_numbers_are_repeated(tmp_path):
    (part,) = (part for part in parts.windows(full=True) if part.name == "cluster02")
    made = parts.imported(part, run.PUBLIC_DATA, tmp_path / "workloads")
    done = sweep(list(regimes.runs(made, regimes.CONSOLIDATED, 10.0)), tmp_path / "runs", processes=1)
    found = tables.regime_table(tables.values(done.summaries()), by_part=True).astype({"gbps": float})
    expected = pd.read_csv(FOLDER / "expected" / "windows.csv")
    both = found.merge(expected, on=["part", "regime", "gbps", "policy"], suffixes=("", "_expected"))
    assert len(both) == 5
    for column in ("average_jct_s", "queueing_s", "contended", "caused", "delay", "change"):
        assert both[column].tolist() == pytest.approx(both[f"{column}_expected"].tolist(), rel=1e-4, abs=1e-9)


def test_waits_of_virtual_clusters_beside_published_ones():
    """Two jobs of 20 minutes have a quota of one GPU; when another lends nobody waits."""
    columns = {"arrival_s": [0.0, 0.0, 0.0], "duration": [1200.0, 1200.0, 1200.0], "num_gpus": [1, 1, 4]}
    jobs = pd.DataFrame(columns | {"virtual_cluster": ["a", "a", "b"]})
    assert [clusters.at_once(jobs, share) for share in (0.5, 1.0)] == [6, 6]
    assert clusters.quotas(jobs)["demand"] == {"a": 2, "b": 4}
    most = {"a": 1, "b": 7}
    waits = {rule: clusters.waits_min(jobs, most, lent=rule == "lent") for rule in ("lent", "hard")}
    assert [waits[rule].tolist() for rule in waits] == [[0.0, 0.0, 0.0], [0.0, 20.0, 0.0]]
    told = {"virtual_cluster": ["a", "b"], "gpus": ["1", "2-4"], "over_10_min": [40.0, 1.0], "over_60_min": [3.0, 0.0]}
    found = clusters.compared(jobs, pd.DataFrame(told), waits).set_index("virtual_cluster")
    assert found.loc["a", ["published_over_10", "lent_over_10", "hard_over_10", "hard_over_60"]].tolist() == [
        40,
        0,
        50,
        0,
    ]


def test_published_waits_fall_with_time():
    table = pd.read_csv(clusters.PUBLISHED)
    assert (table["over_60_min"] <= table["over_10_min"]).all()
