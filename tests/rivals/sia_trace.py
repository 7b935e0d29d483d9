"""Sia on its own workloads: its authors' simulator with their policy, and with the one of this project.

    python tests/rivals/sia_trace.py --artifact artifacts/sia-simulator     160 jobs on 64 GPUs of three kinds
    python tests/rivals/sia_trace.py --artifact artifacts/sia-simulator --gavel --workloads 1 2 3 4 5 6 7 8 9 10

The artifact is siasosp23/artifacts @ aaf7a0d; cvxpy and autograd have to be installed for it. Its jobs are goodput
models over batch sizes that are fitted anew as they run, which ``ddlsched`` does not have, so that its own classes run
them: arrivals, batches, fits, progress and what a restart costs. Decided here, with ``algorithms/allocation/sia.py``,
is what each job gets: configurations, normalised goodputs, restart factors, the programme, and the servers.

``--gavel`` plays its baseline instead, Gavel with fixed batches in rounds of 360 s: with its own shares of time, of the
largest sum of throughputs, and with the max-min fair ones of ``algorithms/allocation/gavel.py``. It has to have ecos
and psutil, too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

import ddlsched
from algorithms.allocation.gavel import Gavel, max_min_shares
from algorithms.allocation.kinds import Kinds
from algorithms.allocation.sia import (
    Configuration,
    Sia,
    best_configurations,
    configurations,
    normalised,
    placed,
    restart_factor,
)
from algorithms.solving import Solver
from ddlsched.cli.reporting import reported
from ddlsched.cluster.cluster import Server, Throughputs
from ddlsched.errors import InputError
from ddlsched.policies.elastic_views import CapacityView
from experiments.commands import PUBLIC_DATA

ROUND_S = 60
GAVEL_ROUND_S = 360
RESTART_S = {"imagenet": 250.0, "bert": 120.0, "yolov3": 45.0, "deepspeech2": 25.0}
"""What a restart of a model is thought to take; of others what ``Sia.restart_s`` says."""


def its_modules(folder: Path, *, gavel: bool = False) -> dict[str, ModuleType]:
    """Return the modules of its simulator.

    Its solver, CBC, is replaced by HiGHS, which SciPy has. A fit that was made once is not made again, and none for
    Gavel, which reads none.

    Raises
    ------
    InputError
        It is not in the folder, or lacks a library.
    """
    if not (folder / "sia.py").is_file():
        raise InputError(
            f"--artifact: {folder} has no sia.py; expected the folder sia-simulator of github.com/siasosp23/artifacts"
        )
    sys.path.insert(0, str(folder.resolve()))
    pd.DataFrame.append = _append  # type: ignore[attr-defined]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = {name: import_module(name) for name in ("simulator_config", "sia", "cluster", "job", "gavel")}
            cvxpy = import_module("cvxpy")
    except ImportError as error:
        raise InputError(f"--artifact: {folder} needs {error.name}; expected it installed") from error
    if gavel:
        found["job"].fit_perf_params = lambda *_: None  # type: ignore[attr-defined]
        return found
    solve = cvxpy.Problem.solve
    cvxpy.Problem.solve = lambda self, **_: solve(self, solver=cvxpy.SCIPY)
    found["job"].fit_perf_params = _once(found["job"].fit_perf_params)  # type: ignore[attr-defined]
    return found


def _append(self: pd.DataFrame, other: pd.DataFrame, ignore_index: bool = False) -> pd.DataFrame:
    """Stand in for a method that pandas 2 no longer has."""
    return pd.concat([self, other], ignore_index=ignore_index)


def _once(fit: Callable[..., Any]) -> Callable[..., Any]:
    @cache
    def of_bytes(*points: bytes) -> Any:
        return fit(*(np.frombuffer(text) for text in points))

    return lambda *points: of_bytes(*(np.asarray(values, dtype=float).tobytes() for values in points))


@dataclass
class Ours:
    """The decisions of this project's Sia, in place of those of one of its policies, whose fits it reads."""

    its: Any
    capacity: CapacityView
    policy: Sia = field(default_factory=Sia)
    held: dict[str, tuple[Configuration, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.solver = Solver("sia_trace", self.policy.time_limit_s)
        self.cluster = self.capacity.cluster
        self.kinds = Kinds.of(self.cluster)

    def optimize(self, jobs: Mapping[str, Any], _nodes: object, _before: object) -> dict[str, tuple[str, list[int]]]:
        """Return of each job its kind and the server of each of its GPUs.

        Raises
        ------
        InputError
            The programme was not solved.
        """
        self.held = {name: held for name, held in self.held.items() if name in jobs}
        restarts = {name for name in self.held if jobs[name].scaling_underway}
        found = best_configurations(
            [self.goodputs(name, info) for name, info in jobs.items()],
            self.kinds.in_all,
            power=self.policy.power,
            queue_price=self.policy.queue_price,
            solver=self.solver,
            keep={place for place, name in enumerate(jobs) if name in restarts},
        )
        if found is None:
            raise InputError(f"sia: a programme of {len(jobs)} jobs was not solved; expected a longer time_limit_s")
        names = list(jobs)
        given = {number: c for number, c in enumerate(found) if c is not None}
        stay = {n: self.held[names[n]][1] for n, c in given.items() if self.held.get(names[n], (None,))[0] == c}
        tied = [n for n in stay if names[n] in restarts]
        gpus = placed(given, stay, self.capacity.free_gpus, self.kinds, tied)
        self.held = {names[n]: (c, gpus[n]) for n, c in given.items()}
        return {name: self._as_it_has_them(c.kind, gpus) for name, (c, gpus) in self.held.items()}

    def _as_it_has_them(self, kind: int, gpus: Sequence[int]) -> tuple[str, list[int]]:
        first = self.kinds.of_gpu.index(kind)
        on = [self.capacity.server_of(gpu) - self.capacity.server_of(first) for gpu in gpus]
        return self.cluster.kinds[kind], sorted(on)

    def goodputs(self, name: str, info: Any) -> dict[Configuration, float]:
        """Return the normalised goodput of each configuration of a job, as its fits have it by now."""
        present = self.held[name][0] if name in self.held else None
        if present is not None and info.scaling_underway:
            return {present: 1.0}
        raw = {c: value for kind in range(len(self.kinds)) for c, value in self._raw(info, kind) if value > 0}
        restart_s = RESTART_S.get(name.split("-")[0], self.policy.restart_s)
        return normalised(raw, present, restart_factor(info.age, info.num_restarts, restart_s))

    def _raw(self, info: Any, kind: int) -> Iterator[tuple[Configuration, float]]:
        """Yield goodputs on a kind; before the first run all are alike on one GPU."""
        if not any(info.speedup_fn.values()):
            yield Configuration(kind, 1), 1.0
            return
        per_server, most = self.kinds.gpus_per_server[kind], max(info.max_replicas.values())
        known = configurations(self.kinds.in_all[kind] // per_server, per_server)
        sizes = np.array([n for n in known if n <= most])
        values = self.its._compute_goodputs_v2(info, self.cluster.kinds[kind], -(-sizes // per_server), sizes)
        yield from ((Configuration(kind, int(n)), float(value)) for n, value in zip(sizes, values, strict=True))


def capacity_of(servers: Mapping[str, int], gpus_per_server: Mapping[str, int]) -> CapacityView:
    """Return so many servers of each kind, all free; how fast a job is there, it knows itself."""
    made = [Server(gpus=gpus_per_server[kind], gpu_kind=kind) for kind, count in servers.items() for _ in range(count)]
    kinds = Throughputs(values=tuple(("any", kind, 1.0) for kind in servers))
    cluster = ddlsched.Cluster(servers=made, throughputs=kinds)
    return CapacityView(num_gpus=cluster.num_gpus, free_gpus=tuple(range(cluster.num_gpus)), cluster=cluster)


def started(its: dict[str, ModuleType], workload: pd.DataFrame, *, ours: bool) -> Any:
    """Return its cluster of 64 GPUs of three kinds, before its first round, as its experiments have it."""
    config = its["simulator_config"]
    per_node = {kind: config.cluster_ngpus_per_node[kind] for kind in config.cluster_nnodes}
    policy = its["sia"].SiaPolicy(
        p_fairness=-0.5, restart_penalty=30, lambda_a=0.01, lambda_n=1.1, project_throughputs=True
    )
    policy.populate_valid_configs(config.cluster_nnodes, per_node, config.cluster_max_physical_nnodes)
    if ours:
        policy.optimize = Ours(policy, capacity_of(config.cluster_nnodes, per_node)).optimize
    nodes, most = config.cluster_nnodes, config.cluster_max_physical_nnodes
    return its["cluster"].Cluster(workload, policy, nodes, per_node, max_physical_nodes=most)


def max_min(gavel: Any) -> Callable[[], dict[str, dict[str, float]]]:
    """Return what gives its Gavel the shares of this project's, of each job on each kind."""
    solver = Solver("sia_trace", Gavel().time_limit_s)

    def shares() -> dict[str, dict[str, float]]:
        state = gavel.get_allocation_state()
        speeds = np.array([list(of.values()) for of in state["throughputs"].values()])
        workers = [state["cluster_spec"][kind] for kind in gavel._cluster_name]
        found = max_min_shares(speeds, [*state["scale_factors"].values()], workers, solver)
        if found is None:
            raise InputError(f"gavel: a programme of {len(speeds)} jobs was not solved; expected that it is")
        named = zip(state["throughputs"], found.tolist(), strict=True)
        return {name: dict(zip(gavel._cluster_name, row, strict=True)) for name, row in named}

    return shares


def gavel_played(its: dict[str, ModuleType], workload: pd.DataFrame, *, ours: bool) -> Any:
    """Run its simulator with its Gavel until all jobs have ended."""
    config = its["simulator_config"]
    per_node = {kind: config.cluster_ngpus_per_node[kind] for kind in config.cluster_nnodes}
    with contextlib.redirect_stdout(io.StringIO()):
        policy = its["gavel"].GavelPolicy(GAVEL_ROUND_S, policy=config.gavel_default_policy)
        policy.populate_valid_configs(config.cluster_nnodes, per_node, config.cluster_max_physical_nnodes)
        if ours:
            policy.compute_allocations = max_min(policy)
        most = config.cluster_max_physical_nnodes
        cluster = its["cluster"].Cluster(workload, policy, config.cluster_nnodes, per_node, max_physical_nodes=most)
        cluster.disable_bsz_tuning()
        while not cluster.all_complete():
            cluster.step(GAVEL_ROUND_S)
            cluster.logs.clear()
    return cluster


def decided(cluster: Any) -> dict[str, tuple[str, int]]:
    """Return the kind and the number of GPUs of each job that has some."""
    return {name: (kind, len(at)) for name, (kind, at) in cluster.allocations.items() if kind}


def played(clusters: Mapping[str, Any]) -> dict[str, Any]:
    """Run simulators side by side until all jobs have ended; return the first round in which decisions differ."""
    first: dict[str, Any] = {}
    while left := [cluster for cluster in clusters.values() if not cluster.all_complete()]:
        for cluster in left:
            with contextlib.redirect_stdout(io.StringIO()):
                cluster.step(ROUND_S)
            cluster.logs = cluster.logs[-1:]
        if left[0].current_time % (60 * ROUND_S) == 0:
            ended = [sum(job.completion_time is not None for job in cluster.jobs) for cluster in clusters.values()]
            print(f"hour {left[0].current_time // 3600}: {ended} jobs have ended", file=sys.stderr, flush=True)
        here, there = (decided(cluster) for cluster in clusters.values())
        if not first and here != there:
            first = {"at_s": left[0].current_time, "jobs": {n: (here.get(n), there.get(n)) for n in here | there}}
    return first


def row_of(name: str, policy: str, cluster: Any) -> dict[str, object]:
    """Return average JCT, 99th percentile, makespan, seconds, and restarts a job of a run that has ended."""
    jct_s = np.array([job.completion_time - job.submission_time for job in cluster.jobs])
    return {
        "workload": name,
        "policy": policy,
        "jobs": len(jct_s),
        "average_jct_s": jct_s.mean(),
        "p99_jct_s": np.quantile(jct_s, 0.99),
        "makespan_s": max(job.completion_time for job in cluster.jobs),
        "restarts_per_job": np.mean([job.num_restarts or 0 for job in cluster.jobs]),
    }


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA / "traces" / "sia-sosp23" / "saturn", metavar="DIR")
    parser.add_argument("--workloads", type=int, nargs="*", default=[1])
    parser.add_argument("--jobs", type=int, default=None, help="only so many, the first ones")
    parser.add_argument("--gavel", action="store_true", help="its baseline in place of its policy")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: results/rivals/sia_trace.csv, sia_gavel.csv")
    given = parser.parse_args()
    its, rows = its_modules(given.artifact, gavel=given.gavel), []
    out = given.out or Path("results/rivals") / ("sia_gavel.csv" if given.gavel else "sia_trace.csv")
    for number in given.workloads:
        file = given.data / f"workload-{number}.csv"
        if not file.is_file():
            raise InputError(
                f"--data: {file} is not there; expected the artifact's workloads/saturn or another of them"
            )
        workload = pd.read_csv(file).head(given.jobs)
        if given.gavel:
            clusters = {name: gavel_played(its, workload, ours=name == "ours") for name in ("its", "ours")}
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                clusters = {"its": started(its, workload, ours=False), "ours": started(its, workload, ours=True)}
            print(f"{given.data.name} {number}, the first round that differs:", played(clusters))
        rows += [row_of(f"{given.data.name}-{number}", policy, cluster) for policy, cluster in clusters.items()]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:,.1f}".format))
    print(table.groupby("policy", sort=False)["average_jct_s"].mean().to_string())
    out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(out, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    with reported():
        main()
