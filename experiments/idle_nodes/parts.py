"""The parts that replay the whole trace, and how long one decision takes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from beyond import MOST_JOBS, no_cost_bound
from inputs import Inputs, shared_evenly
from on_engine import simulated
from parallel import Workers
from replay import TrainingJob, replay

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.equal_share import NodeEqualShare
from algorithms.allocation.node_milp import SOLVERS, best_map
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.errors import DdlschedError
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.workload.malleable.trainers import Trainer, objective

POLICIES: dict[str, Any] = {
    "equal share": NodeEqualShare(),
    "optimum, T_fwd 10 s": CountProgramme(lookahead_s=10.0),
    "optimum, T_fwd 120 s": CountProgramme(lookahead_s=120.0),
}
LOOKAHEADS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DECISIONS = ((5, 40), (10, 100), (30, 500))
"""Jobs and nodes of the decisions that are timed."""
INSTANCES, LIMIT_S = 3, 30.0
TIMELINE_S = 6 * 3600.0


def row_of(idle: IdleTrace, jobs: Sequence[TrainingJob], policy: Any, published: bool) -> dict[str, float]:
    """Run on the engine to the last job's end; U is against as many trainers that share the mean idle count evenly."""
    result, tally = simulated(idle, jobs, policy, published=published)
    makespan_s = float(result.summary()["makespan_s"])
    samples = sum(job.samples for job in jobs)
    even = shared_evenly(jobs, idle.mean_idle(0.0, makespan_s), MOST_JOBS)
    return {
        "makespan_h": makespan_s / 3600,
        "rescale_lost": tally.rescale_lost / samples,
        "preempt_lost": tally.preempt_lost / samples,
        "rescales": tally.rescales,
        "u": samples / makespan_s / even,
    }


def reference(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return the rows of the reference table: the log replayer's rules, through the engine."""
    calls = [(inputs.idle, inputs.hpo, policy, True) for policy in POLICIES.values()]
    rows = workers.do("reference", row_of, calls)
    return pd.DataFrame([{"policy": name} | row for name, row in zip(POLICIES, rows, strict=True)])


def crosscheck(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return the same by the plain replay of the same rules, which knows no engine."""
    outs = workers.do("crosscheck", _replayed, [(inputs.idle, inputs.hpo, policy) for policy in POLICIES.values()])
    return pd.DataFrame([{"policy": name} | row for name, row in zip(POLICIES, outs, strict=True)])


def _replayed(idle: IdleTrace, jobs: Sequence[TrainingJob], policy: Any) -> dict[str, float]:
    out = replay(idle, jobs, policy, most_jobs=MOST_JOBS)
    samples = sum(job.samples for job in jobs)
    return {
        "makespan_h": out.makespan_s / 3600,
        "rescale_lost": out.rescale_lost / samples,
        "preempt_lost": out.preempt_lost / samples,
        "rescales": out.rescales,
        "u": samples / out.makespan_s / shared_evenly(jobs, out.mean_idle, MOST_JOBS),
        "of_running": out.resizes,
        "finished": out.finished,
    }


def sweep(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return what the look-ahead changes, under both sets of rules, for both sets of trainers."""
    settings = [
        (kind, rules, s) for kind in ("hpo", "imagenet") for rules in ("published", "live") for s in LOOKAHEADS_S
    ]
    calls = [
        (inputs.idle, getattr(inputs, kind), CountProgramme(lookahead_s=s), rules == "published")
        for kind, rules, s in settings
    ]
    labels = [dict(zip(("trainers", "rules", "lookahead_s"), setting, strict=True)) for setting in settings]
    return pd.DataFrame([a | b for a, b in zip(labels, workers.do("sweep", row_of, calls), strict=True)])


def efficiency(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return U under live rules next to a bound: what is best at each instant if no change costs anything."""
    settings = [("hpo", name) for name in POLICIES] + [("imagenet", "optimum, T_fwd 120 s")]
    calls = [(inputs.idle, getattr(inputs, kind), POLICIES[name], False) for kind, name in settings]
    rows = []
    for (kind, name), row in zip(settings, workers.do("efficiency", row_of, calls), strict=True):
        bound = no_cost_bound(inputs.idle, getattr(inputs, kind), row["makespan_h"] * 3600)
        rows.append({"trainers": kind, "policy": name, **row, "u_no_cost": bound})
    return pd.DataFrame(rows)


def solve_times(inputs: Inputs) -> pd.DataFrame:
    """Return how long one decision takes: the programme over counts, and the node-level MILP by each solver.

    One at a time in this process, since they are timed; the MILP's time has its building in it.
    """
    timed = Workers(1)
    settings = [(*size, instance) for size in DECISIONS for instance in range(INSTANCES)]
    rows = timed.do("solve times", _decided, [(inputs.hpo[0].rates, *setting) for setting in settings])
    return pd.DataFrame([row for found in rows for row in found])


def _decided(rates: np.ndarray, num_jobs: int, num_nodes: int, instance: int) -> list[dict[str, object]]:
    rng = np.random.default_rng([num_jobs, instance])
    owner: list[int | None] = [int(j) if j >= 0 else None for j in rng.integers(-2, num_jobs, num_nodes)]
    trainers = [
        Trainer(nodes=owner.count(j), rates=rates * rng.uniform(0.5, 2.0), scale_up_s=18.0, scale_down_s=12.0)
        for j in range(num_jobs)
    ]
    programme = CountProgramme(lookahead_s=120.0)
    begin = time.perf_counter()
    for _ in range(10):
        counts = programme.counts(trainers, num_nodes)
    labels = {"jobs": num_jobs, "nodes": num_nodes, "instance": instance}
    rows = [labels | {"method": "programme", "seconds": (time.perf_counter() - begin) / 10}]
    for solver in SOLVERS:
        begin = time.perf_counter()
        found = _within_limit(trainers, owner, solver)
        row = labels | {"method": solver, "seconds": time.perf_counter() - begin}
        rows.append(row | {"same_optimum": None if found is None else found == _objective(trainers, counts)})
    return rows


def _within_limit(trainers: Sequence[Trainer], owner: Sequence[int | None], solver: str) -> float | None:
    """Return the objective that a solver proves the best within the limit, in millions of samples, or None."""
    try:
        found = best_map(trainers, owner, lookahead_s=120.0, solver=solver, time_limit_s=LIMIT_S)
    except DdlschedError:
        return None
    return _objective(trainers, found.counts(len(trainers))) if found.is_optimal else None


def _objective(trainers: Sequence[Trainer], counts: Sequence[int]) -> float:
    return round(objective(trainers, counts, 120.0) / 1e6, 4)


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """Passes questions on and keeps how many nodes were idle, and what each job was given."""

    policy: Any
    rows: list[dict[str, float]] = field(default_factory=list)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _RecordedRun:
        return _RecordedRun(self.policy.begin(cluster, rng), self.rows)


@dataclass
class _RecordedRun:
    asked: Any
    rows: list[dict[str, float]]

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        answer: Mapping[str, Allocation] = self.asked.allocate(jobs, capacity, now_s)
        sizes = {job_id: float(given.num_gpus) for job_id, given in answer.items()}
        self.rows.append({"time_s": now_s, "idle": float(capacity.num_gpus)} | sizes)
        return answer


def timeline(inputs: Inputs) -> pd.DataFrame:
    """Return the idle nodes and each job's nodes over the first hours, live rules, T_fwd 120 s: a row a decision."""
    recorded = _Recorded(policy=POLICIES["optimum, T_fwd 120 s"])
    simulated(inputs.idle, inputs.hpo, recorded, until_s=TIMELINE_S)
    return pd.DataFrame(recorded.rows).fillna(0.0).astype({"idle": int})
