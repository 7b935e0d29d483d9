"""A main queue, first come, first served, with and without backfilling: what it leaves idle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from lublin import nodes_and_run_s
from parallel import Workers

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.idle_trace import Busy, IdleTrace, idle_between
from ddlsched.errors import InputError
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.traces.text_formats import swf
from ddlsched.workload.traces.trace_files import sources
from ddlsched.workload.traces.traced import TracedJob

NODES, JOBS = 256, 1000
MODEL = "Lublin's model"
SCHEDULERS = {"FCFS": "in-order", "FCFS, EASY": "easy-backfill", "FCFS, conservative": "conservative-backfill"}
LOADS = (0.7, 0.8, 0.9, np.inf)
"""Node-seconds that arrive each second as a share of the nodes; infinite: all jobs wait from the beginning."""
FIRST = 0.2
"""This share of the jobs fills the machine and is not looked at."""
MOST_FACTOR = 5.0
"""Limits are run times x a factor uniform from 1 to this, unless the log has them."""


class MainJob(NamedTuple):
    """A job of the main queue; seconds."""

    arrival_s: float
    nodes: int
    run_s: float
    limit_s: float


def model_jobs(seed: int, load: float) -> list[MainJob]:
    """Return jobs of the model as a Poisson process of a load."""
    rng = np.random.default_rng([seed, 3])
    nodes, run_s = nodes_and_run_s(rng, JOBS, NODES)
    arrival_s = np.cumsum(rng.exponential(1.0, JOBS))
    return _at_load(arrival_s, nodes, run_s, _limits_s(rng, run_s), load, NODES)


def nodes_of(log: Path) -> int:
    """Return how many processors the machine of an SWF log has, each a node here, by the log's header.

    Raises
    ------
    InputError
        The header does not say so.
    """
    said: dict[str, str] = dict(re.findall(r"^;\s*(MaxProcs|MaxNodes):\s*(\d+)", log.read_text(), re.MULTILINE))
    if not said:
        raise InputError(f"{log}: has no line '; MaxProcs: N', nor '; MaxNodes: N'; expected one in its header")
    return int(said.get("MaxProcs") or said["MaxNodes"])


def windows_of(log: Path) -> int:
    """Return how many whole windows of ``JOBS`` jobs a log has."""
    return len(_traced(log)) // JOBS


@cache
def _traced(log: Path) -> list[TracedJob]:
    return [row for source in sources(log, "*.swf") for row in swf(source) if isinstance(row, TracedJob)]


def log_jobs(path: Path, window: int, load: float) -> list[MainJob]:
    """Return a window of ``JOBS`` neighbours of an SWF log, its arrivals stretched to a load."""
    rng = np.random.default_rng([window, 4])
    own = _traced(path)[window * JOBS : (window + 1) * JOBS]
    columns = ("arrival_s", "num_gpus", "duration_s", "time_limit_s")
    arrival_s, nodes, run_s, told_s = (np.array([getattr(row, name) for row in own]) for name in columns)
    limits_s = np.where(np.isnan(told_s), _limits_s(rng, run_s), np.maximum(told_s, run_s))
    return _at_load(arrival_s - arrival_s[0], nodes, run_s, limits_s, load, nodes_of(path))


def _limits_s(rng: np.random.Generator, run_s: np.ndarray) -> np.ndarray:
    return run_s * rng.uniform(1.0, MOST_FACTOR, len(run_s))


def _at_load(
    arrival_s: np.ndarray, nodes: np.ndarray, run_s: np.ndarray, limit_s: np.ndarray, load: float, most_nodes: int
) -> list[MainJob]:
    span_s = float((nodes * run_s).sum()) / (load * most_nodes)  # 0 if all are to wait from the beginning
    rows = zip(arrival_s / arrival_s[-1] * span_s, nodes, run_s, limit_s, strict=True)
    return [MainJob(float(arrival), int(count), float(run), float(limit)) for arrival, count, run, limit in rows]


def served(jobs: list[MainJob], scheduler: str, nodes: int = NODES) -> Result:
    """Return a run of a main queue."""
    cluster = Cluster(num_servers=nodes, gpus_per_server=1, exclusive=True)
    workload = Workload.of([_job(number, job) for number, job in enumerate(jobs)])
    return simulate(workload, cluster, placement=SCHEDULERS[scheduler], order="fifo")


def _job(number: int, job: MainJob) -> Job:
    return Job(
        job_id=f"m{number}",
        arrival_s=job.arrival_s,
        num_gpus=job.nodes,
        iterations=1,
        iteration=DataParallelIteration(forward_s=job.run_s, backward_s=0.0, message_bytes=0.0),
        gpu_memory_mb=0.0,
        time_limit_s=job.limit_s,
    )


def looked_at_s(table: pd.DataFrame) -> tuple[float, float]:
    """Return from when to when a run is looked at: full at first, and jobs still to come or waiting at last."""
    arrivals_s = np.sort(table["arrival_s"].to_numpy())
    if arrivals_s[-1] == 0.0:
        starts_s = np.sort(table["start_s"].to_numpy())
        return 0.0, float(starts_s[-round(FIRST * len(starts_s))])
    return float(arrivals_s[round(FIRST * len(arrivals_s))]), float(arrivals_s[-1])


def idle_shares(table: pd.DataFrame, most_nodes: int = NODES) -> dict[str, float]:
    """Return which share of the nodes is idle, and which is idle while somebody waits."""
    from_s, to_s = looked_at_s(table)
    nodes, none = table["gpus"].to_numpy(), np.zeros(len(table), np.int64)
    times_s = np.concatenate([table["arrival_s"], table["start_s"], table["finish_s"]])
    order = np.argsort(times_s, kind="stable")
    busy = np.concatenate([none, nodes, -nodes])[order].cumsum()
    waiting = np.concatenate([none + 1, none - 1, none])[order].cumsum()
    within_s = np.clip(np.append(times_s[order], to_s), from_s, to_s)
    idle_s = np.diff(within_s) * (most_nodes - busy)
    all_s = most_nodes * (to_s - from_s)
    return {"idle": float(idle_s.sum() / all_s), "idle_while_waiting": float(idle_s[waiting > 0].sum() / all_s)}


def left_idle(result: Result, nodes: int = NODES) -> IdleTrace:
    """Return which nodes a main queue leaves idle when, from the moment that it is looked at."""
    table = result.jobs
    rows = zip(table["job_id"], table["start_s"], table["finish_s"], strict=True)
    busy = [Busy(gpu, start_s, end_s) for job, start_s, end_s in rows for gpu in result.gpus_of(job)]
    first_s = float(table["start_s"].min())
    from_s, to_s = looked_at_s(table)
    return idle_between(busy, nodes).between(from_s - first_s, to_s - first_s).since(from_s - first_s)


def main_queue(workers: Workers, logs: Sequence[Path | None], seeds: int) -> pd.DataFrame:
    """Return what each scheduler leaves idle of windows of logs, of which some have fewer, and of None, the model."""
    settings = [
        (log, *rest) for log in logs for rest in _settings(seeds if log is None else min(seeds, windows_of(log)))
    ]
    rows = workers.do("main queue", _one, settings)
    names = ("source", "load", "scheduler", "seed")
    labels = [dict(zip(names, (MODEL if s is None else s.name, *rest), strict=True)) for s, *rest in settings]
    return pd.DataFrame([label | row for label, row in zip(labels, rows, strict=True)])


def _settings(seeds: int) -> list[tuple[float, str, int]]:
    return list(product(LOADS, SCHEDULERS, range(1, seeds + 1)))


def _one(log: Path | None, load: float, scheduler: str, seed: int) -> dict[str, float]:
    jobs = model_jobs(seed, load) if log is None else log_jobs(log, seed - 1, load)
    nodes = NODES if log is None else nodes_of(log)
    result = served(jobs, scheduler, nodes)
    idle = left_idle(result, nodes)
    waits_s = result.jobs["start_s"] - result.jobs["arrival_s"]
    lengths_s = idle.lengths_s
    return idle_shares(result.jobs, nodes) | {
        "wait_s": float(waits_s.mean()),
        "fragments": len(idle),
        "median_fragment_s": float(np.median(lengths_s)),
        "mean_fragment_s": float(lengths_s.mean()),
    }
