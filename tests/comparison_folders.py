"""Makes a comparison's folder from real simulations, as ``ddlsched compare`` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import ddlsched
from ddlsched.reporting.folder import slug
from ddlsched.results.comparison import compare_runs
from ddlsched.results.result import Result
from ddlsched.results.timeline import compute_slices

PHASES = ("queueing", "computing", "gpu_wait", "communication", "network_wait", "restart")
NASTY = '</script><b>bold</b> & "it\'s" ${x} %{y} $1'
"""A label that must come through as it is."""


def make_folder(
    path: Path,
    policies: Mapping[str, Mapping[str, Any]],
    *,
    seeds: Sequence[int] = range(1, 7),
    workloads: Sequence[float] = (0.005,),
    clusters: Sequence[tuple[int, int]] = ((16, 4),),
    timelines: bool = False,
    failures: Sequence[tuple[str, int, str]] = (),
) -> Path:
    """Simulate ``microsoft_160`` at each scale in ``workloads`` and write the folder.

    ``policies`` are arguments of ``simulate`` by label; ``failures`` (policy, seed, message) are only reported.
    """
    (path / "runs").mkdir(parents=True)
    runs, classes = [], []
    for scale in workloads:
        for servers, gpus in clusters:
            cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus)
            for label, options in policies.items():
                for seed in seeds:
                    workload = ddlsched.microsoft_160(seed=seed, scale=scale)
                    result = ddlsched.simulate(workload, cluster, seed=seed, timeline=True, **options)
                    first = seed == seeds[0] and scale == workloads[0] and (servers, gpus) == clusters[0]
                    labels = {"policy": label, "workload": f"microsoft-160 x{scale:g}", "cluster": f"{servers}x{gpus}"}
                    row = labels | {"seed": seed}
                    jobs = _job_metrics(result)
                    summary = result.summary() | _run_metrics(jobs)
                    name = f"runs/{len(runs):04d}.parquet"
                    _write_run(path / name, jobs, summary, _samples(result))
                    runs.append(row | {"file": name} | summary)
                    for size, own in jobs.groupby("size_class"):
                        classes.append(row | {"size_class": size, "average_jct_s": own["jct_s"].mean()})
                    if first:
                        _write_first(path, label, result, timelines)
    baseline = next(iter(policies))
    runs, classes = pd.DataFrame(runs), pd.DataFrame(classes)
    metrics = [*list(runs.columns)[5:10], "average_slowdown", "p95_slowdown"]
    _write_tables(path, runs, classes, baseline, metrics, failures)
    _write_asked(path, policies, seeds, runs, baseline)
    return path


def _job_metrics(result: Result) -> pd.DataFrame:
    jobs = result.jobs
    network = jobs["communication_s"] + jobs["network_wait_s"]
    alone = jobs["compute_s"] + jobs["communication_s"]
    return jobs.assign(
        computing_s=jobs["compute_s"],
        gpu_wait_s=(jobs["jct_s"] - jobs["queueing_s"] - jobs["compute_s"] - network).clip(lower=0),
        restart_s=0.0,
        state="finished",
        counted=True,
        alone_s=alone,
        slowdown=jobs["jct_s"] / alone,
        size_class=np.array(["1", "2-4", "5-7", "8+"])[np.searchsorted([2, 5, 8], jobs["gpus"], side="right")],
    )


def _run_metrics(jobs: pd.DataFrame) -> dict[str, float]:
    speed = 1 / jobs["slowdown"]
    return {
        "jobs": len(jobs),
        "unfinished_jobs": 0,
        "average_slowdown": jobs["slowdown"].mean(),
        "p95_slowdown": jobs["slowdown"].quantile(0.95),
        "jain_index": speed.sum() ** 2 / len(speed) / (speed**2).sum(),
        **{f"{phase}_share": jobs[f"{phase}_s"].sum() / jobs["jct_s"].sum() for phase in PHASES},
    }


def _samples(result: Result) -> dict[str, list[float]]:
    slices = compute_slices(result)
    time_s = np.linspace(0, result.summary()["makespan_s"], 129)[1:]
    cut = np.concatenate(([0.0], time_s))
    begin, end = slices["start_ns"].to_numpy() / 1e9, slices["end_ns"].to_numpy() / 1e9
    overlap = [
        (np.minimum(end, high) - np.maximum(begin, low)).clip(0).sum()
        for low, high in zip(cut[:-1], time_s, strict=True)
    ]
    return {"time_s": time_s.tolist(), "busy_gpus": (np.array(overlap) / np.diff(cut)).tolist()}


def _placements(result: Result) -> pd.DataFrame:
    records, server = result.finished.state.jobs, result.finished.state.gpus.server
    rows = [
        (job.job_id, gpu, int(server[gpu]), records.start_ns[number] / 1e9, records.finish_ns[number] / 1e9)
        for number, job in enumerate(result.workload)
        for gpu in result.finished.gpus[number]
    ]
    return pd.DataFrame(rows, columns=["job_id", "gpu", "server", "from_s", "to_s"])


def _write_run(path: Path, jobs: pd.DataFrame, summary: dict[str, float], samples: dict[str, list[float]]) -> None:
    table = pa.Table.from_pandas(jobs, preserve_index=False)
    described = {"inputs": {}, "summary": summary, "samples": samples}
    pq.write_table(table.replace_schema_metadata({b"ddlsched": json.dumps(described)}), path)


def _write_first(path: Path, label: str, result: Result, timelines: bool) -> None:
    (path / "placements").mkdir(exist_ok=True)
    _placements(result).to_parquet(path / "placements" / f"{slug(label)}.parquet")
    if timelines:
        (path / "timelines").mkdir(exist_ok=True)
        result.write_timeline(path / "timelines" / f"{slug(label)}.json")


def _write_tables(path, runs, classes, baseline, metrics, failures) -> None:
    runs.to_csv(path / "runs.csv", index=False)
    setting, compared = ["workload", "cluster"], []
    for names, own in runs.groupby(setting, sort=False):
        table = compare_runs(own, baseline=baseline, metrics=metrics)
        compared.append(table.assign(**dict(zip(setting, names, strict=True))))
    pd.concat(compared).to_csv(path / "comparison.csv", index=False)
    compared = []
    for (*names, size), own in classes.groupby([*setting, "size_class"], sort=False):
        table = compare_runs(own, baseline=baseline, metrics=["average_jct_s"])
        compared.append(table.assign(**dict(zip(setting, names, strict=True)), size_class=size))
    pd.concat(compared).to_csv(path / "classes.csv", index=False)
    first = runs.iloc[0]
    failed = [(policy, first["workload"], first["cluster"], seed, message) for policy, seed, message in failures]
    names = ["policy", "workload", "cluster", "seed", "message"]
    pd.DataFrame(failed, columns=names).to_csv(path / "failures.csv", index=False)


def _write_asked(path, policies, seeds, runs, baseline) -> None:
    scales = {name: {"generator": "microsoft-160", "scale": float(name.split("x")[-1])} for name in runs["workload"]}
    sizes = {name: map(int, name.split("x")) for name in runs["cluster"]}
    shapes = {name: {"gpus": [gpus] * servers} for name, (servers, gpus) in sizes.items()}
    command = [
        "ddlsched",
        "compare",
        *(part for policy in policies for part in ("--policy", policy)),
        "--seeds",
        f"{seeds[0]}:{seeds[-1]}",
    ]
    asked = {
        "ddlsched": ddlsched.__version__,
        "command": command,
        "baseline": baseline,
        "policies": {label: dict(options) for label, options in policies.items()},
        "workloads": scales,
        "clusters": shapes,
        "seeds": list(seeds),
        "contention": "10gbe",
        "options": {},
    }
    (path / "comparison.json").write_text(json.dumps(asked, indent=2))
