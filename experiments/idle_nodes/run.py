"""Malleable training on the idle nodes of a batch-scheduled machine: FreeTrain, MalleTrain, and what can be gained.

python experiments/idle_nodes/run.py                        all parts; on the generated trace about two minutes
python experiments/idle_nodes/run.py --reference --json     the reference rows alone, as JSON
python experiments/idle_nodes/run.py --part sweep --data DIR

DIR holds the measured fragments and trainers; without it ../shared/data/idle_nodes is used if it is there, or else the
generated trace in this folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from beyond import MOST_JOBS, no_cost_bound, runs
from inputs import Inputs, load, shared_evenly
from on_engine import Watched, simulated
from replay import TrainingJob, replay
from scipy import stats
from streams import architecture_search, hyperparameter_search

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.equal_share import NodeEqualShare
from algorithms.allocation.link_aware import LinkAware
from algorithms.allocation.malletrain import MalleTrain
from algorithms.allocation.node_milp import SOLVERS, best_map
from ddlsched.cluster import Cluster
from ddlsched.elastic.curves import LinearCurve
from ddlsched.elastic.idle_nodes import IdleTrace
from ddlsched.elastic.jobs import ElasticJob
from ddlsched.elastic.rescale import ConstantRescaleCost
from ddlsched.elastic.trainers import Trainer, objective
from ddlsched.errors import DdlschedError
from ddlsched.jobs import Workload
from ddlsched.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
MOST_OF_A_STREAM = 0.8
"""Throughput of a stream is that of its first four fifths: then the last few jobs share all nodes."""
MEASURED = ROOT.parent / "shared" / "data" / "idle_nodes"
POLICIES: dict[str, Any] = {
    "equal share": NodeEqualShare(),
    "optimum, T_fwd 10 s": CountProgramme(lookahead_s=10.0),
    "optimum, T_fwd 120 s": CountProgramme(lookahead_s=120.0),
}
LOOKAHEADS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


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


def reference(inputs: Inputs) -> pd.DataFrame:
    """Return the published table's rows: the replayer's rules, through the engine."""
    rows = [{"policy": name} | row_of(inputs.idle, inputs.hpo, policy, True) for name, policy in POLICIES.items()]
    return pd.DataFrame(rows)


def crosscheck(inputs: Inputs) -> pd.DataFrame:
    """Return the same by the plain replay of the same rules, which knows no engine."""
    rows = []
    for name, policy in POLICIES.items():
        out = replay(inputs.idle, inputs.hpo, policy, most_jobs=MOST_JOBS)
        samples = sum(job.samples for job in inputs.hpo)
        rows.append(
            {
                "policy": name,
                "makespan_h": out.makespan_s / 3600,
                "rescale_lost": out.rescale_lost / samples,
                "preempt_lost": out.preempt_lost / samples,
                "rescales": out.rescales,
                "of_running": out.resizes,
                "u": samples / out.makespan_s / shared_evenly(inputs.hpo, out.mean_idle, MOST_JOBS),
                "finished": out.finished,
            }
        )
    return pd.DataFrame(rows)


def sweep(inputs: Inputs) -> pd.DataFrame:
    """Return what the look-ahead changes, under both sets of rules, for both sets of trainers."""
    rows = []
    for kind in ("hpo", "imagenet"):
        for published in (True, False):
            for lookahead_s in LOOKAHEADS_S:
                row = row_of(inputs.idle, getattr(inputs, kind), CountProgramme(lookahead_s=lookahead_s), published)
                rules = "published" if published else "live"
                rows.append({"trainers": kind, "rules": rules, "lookahead_s": lookahead_s} | row)
    return pd.DataFrame(rows)


def solve_times(inputs: Inputs) -> pd.DataFrame:
    """Return how long one decision takes: the programme over counts, and the node-level MILP by each solver."""
    rates = inputs.hpo[0].rates
    rows = []
    for num_jobs, num_nodes in ((5, 40), (10, 100), (30, 500)):
        rng = np.random.default_rng(num_jobs)
        owner: list[int | None] = [int(j) if j >= 0 else None for j in rng.integers(-2, num_jobs, num_nodes)]
        trainers = [
            Trainer(nodes=owner.count(j), rates=rates * rng.uniform(0.5, 2.0), scale_up_s=18.0, scale_down_s=12.0)
            for j in range(num_jobs)
        ]
        programme = CountProgramme(lookahead_s=120.0)
        begin = time.perf_counter()
        for _ in range(10):
            counts = programme.counts(trainers, num_nodes)
        row = {"jobs": num_jobs, "nodes": num_nodes, "programme_ms": 100 * (time.perf_counter() - begin)}
        for solver in SOLVERS if num_nodes <= 100 else ("highs",):
            begin = time.perf_counter()
            found = _within(trainers, owner, solver)
            row[f"{solver}_s"] = time.perf_counter() - begin
            row[f"{solver}_same"] = found is not None and found == _objective(trainers, counts)
        rows.append(row)
    return pd.DataFrame(rows)


def _within(trainers: Sequence[Trainer], owner: Sequence[int | None], solver: str) -> float | None:
    """Return the objective that a solver proves the best within a minute, in millions of samples, or None."""
    try:
        found = best_map(trainers, owner, lookahead_s=120.0, solver=solver, time_limit_s=60.0)
    except DdlschedError:
        return None
    return _objective(trainers, found.counts(len(trainers))) if found.is_optimal else None


def _objective(trainers: Sequence[Trainer], counts: Sequence[int]) -> float:
    return round(objective(trainers, counts, 120.0) / 1e6, 4)


def streams(inputs: Inputs, seeds: int) -> pd.DataFrame:
    """Return MalleTrain over FreeTrain, whose users assume linear scaling, and over FreeTrain that knows the truth."""
    rows = []
    policies = {
        "FreeTrain, linear": CountProgramme(lookahead_s=120.0, believes="linear"),
        "FreeTrain, true curves": CountProgramme(lookahead_s=120.0),
        "MalleTrain": MalleTrain(lookahead_s=120.0),
    }
    for name, make in (("architecture search", architecture_search), ("hyper-parameter search", hyperparameter_search)):
        for seed in range(1, seeds + 1):
            jobs = make(seed, 60)
            for policy, instance in policies.items():
                finish_s = np.sort(simulated(inputs.idle, jobs, instance)[0].jobs["finish_s"])
                most_h = float(finish_s[int(MOST_OF_A_STREAM * len(jobs)) - 1]) / 3600
                row = {
                    "stream": name,
                    "seed": seed,
                    "policy": policy,
                    "jobs_per_h": MOST_OF_A_STREAM * len(jobs) / most_h,
                }
                rows.append(row | {"makespan_h": float(finish_s[-1]) / 3600, "mean_finish_h": finish_s.mean() / 3600})
    table = pd.DataFrame(rows)
    linear = table[table["policy"] == "FreeTrain, linear"].set_index(["stream", "seed"])["jobs_per_h"]
    base = linear.loc[pd.MultiIndex.from_frame(table[["stream", "seed"]])].to_numpy()
    return table.assign(gain=table["jobs_per_h"] / base - 1)


def efficiency(inputs: Inputs) -> pd.DataFrame:
    """Return U under live rules next to a bound: what is best at each instant if no change costs anything."""
    rows = []
    for kind, chosen in (("hpo", POLICIES), ("imagenet", {"optimum, T_fwd 120 s": POLICIES["optimum, T_fwd 120 s"]})):
        jobs = getattr(inputs, kind)
        for name, policy in chosen.items():
            row = row_of(inputs.idle, jobs, policy, False)
            bound = no_cost_bound(inputs.idle, jobs, row["makespan_h"] * 3600)
            rows.append({"trainers": kind, "policy": name, **row, "u_no_cost": bound})
    return pd.DataFrame(rows)


def topology(inputs: Inputs) -> pd.DataFrame:
    """Return what jobs whose gradients cross the network train in two hours, by network."""
    idle = inputs.all_nodes.of_nodes(0, 128).between(0.0, 7200.0)
    curve = LinearCurve(fixed_s=0.1, sample_s=0.01)
    jobs = [
        ElasticJob(
            job_id=f"t{j}", arrival_s=0.0, samples=10**8, curve=curve, gpu_batch=64, max_gpus=32, message_bytes=100e6
        )
        for j in range(MOST_JOBS)
    ]
    rows = []
    leaves = [f"leaf-spine:servers_per_leaf=16,oversubscription={ratio}" for ratio in (4, 16)]
    choices = {"counts alone": CountProgramme(lookahead_s=120.0), "link-aware": LinkAware(lookahead_s=120.0)}
    for network, (name, policy) in product(("star", *leaves), choices.items()):
        watched = Watched(policy=policy)
        simulate(
            Workload(jobs),
            Cluster(num_servers=128, gpus_per_server=1, topology=network),
            allocation=watched,
            communication="bounded-overlap:limit=1000000",
            contention="max-min",
            rescale_cost=ConstantRescaleCost(up_s=18.0, down_s=12.0),
            capacity=idle.capacity(),
            until_s=7200.0,
        )
        rate = watched.seen["trained"] / watched.seen["until_s"]
        rows.append({"network": network, "nodes_by": name, "samples_per_s": rate})
    table = pd.DataFrame(rows)
    return table.assign(against_star=table["samples_per_s"] / table["samples_per_s"].iloc[0] - 1)


def beyond(inputs: Inputs) -> pd.DataFrame:
    """Return U of each policy over disjoint sets of nodes, and its paired gain over T_fwd 120 s with a t interval."""
    until_s = 50_000.0
    table = runs(inputs.all_nodes, inputs.hpo[:120], 512, 9, until_s)
    by_set = table.pivot(index="first_node", columns="policy", values="u")
    rows = []
    for policy in by_set.columns:
        gain = by_set[policy] - by_set["optimum, T_fwd 120 s"]
        half = float(stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain)))
        losses = table[table["policy"] == policy][["rescale_lost", "preempt_lost"]].mean()
        row = {"policy": policy, "sets": len(gain), "u": by_set[policy].mean(), "gain": gain.mean()}
        rows.append(row | {"low": gain.mean() - half, "high": gain.mean() + half, **losses})
    return pd.DataFrame(rows)


PARTS: dict[str, Callable[[Inputs], pd.DataFrame]] = {
    "reference": reference,
    "crosscheck": crosscheck,
    "sweep": sweep,
    "solve_times": solve_times,
    "efficiency": efficiency,
    "beyond": beyond,
    "topology": topology,
}


def main() -> int:
    """Compute, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/idle_nodes"), metavar="DIR")
    parser.add_argument("--data", type=Path, default=MEASURED if MEASURED.is_dir() else None, metavar="DIR")
    parser.add_argument(
        "--part", action="append", choices=sorted([*PARTS, "streams"]), help="may be given several times"
    )
    parser.add_argument("--reference", action="store_true", help="the same as --part reference")
    parser.add_argument("--seeds", type=int, default=3, help="of the streams (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON, write nothing")
    given = parser.parse_args()
    computed = PARTS | {"streams": lambda inputs: streams(inputs, given.seeds)}
    parts = (given.part or []) + ["reference"] * given.reference or list(computed)
    try:
        inputs = load(given.data)
        tables = {part: computed[part](inputs) for part in parts}
    except DdlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        rows = {part: json.loads(table.to_json(orient="records")) for part, table in tables.items()}
        print(json.dumps(rows["reference"] if parts == ["reference"] else rows, indent=2))
        return 0
    (given.out / "tables").mkdir(parents=True, exist_ok=True)
    for part, table in tables.items():
        print(f"## {part} ({inputs.name})\n\n{table.to_string(index=False, float_format='{:.4g}'.format)}\n")
        table.to_csv(given.out / "tables" / f"{part}.csv", index=False, float_format="%.6g", lineterminator="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
