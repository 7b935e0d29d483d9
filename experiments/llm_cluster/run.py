"""What does sharing a cluster cost language-model jobs, by fabric, placement and order of ranks? 10 seeds, three mixes.

python experiments/llm_cluster/run.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import ddlsched
from algorithms.placement.ranked import Ranked
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.results.statistics import mean_interval, paired_difference
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from experiments.commands import new_parser, write_tables

HOSTS, GPUS, BLOCK = 64, 8, 8
RAILS = f"hosts_per_unit={BLOCK},spines=2,rail_gbps=148,nvlink_gbps=2768"
"""Of 400 and 3,600 Gbit/s a GPU, what published steps on H100 reach (``ddlsched.training.estimate.presets``)."""
HALF = "oversubscription=2"
"""Half the bandwidth to the spines."""
FABRICS = {
    "Clos, full": f"rail-optimised:{RAILS}",
    "Clos, half": f"rail-optimised:{RAILS},{HALF}",
    "dual-plane, half": f"rail-optimised:{RAILS},planes=2,{HALF}",
    "rail-only, half": f"rail-optimised:{RAILS},rails_apart=true,{HALF}",
}
NVL72 = "nvl72"
DENSE = {"sequence_parallel": True, "micro_batch": 1, "zero": 1, "overlap": True}
ZERO = {"zero": 3, "micro_batch": 1, "overlap": True}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "13B": ("llama-2-13b", {"data": 32, "global_batch": 32, **ZERO}),
    "13B, 96 GPUs": ("llama-2-13b", {"data": 96, "global_batch": 96, **ZERO}),
    "70B": ("llama-2-70b", {"tensor": 8, "pipeline": 2, "data": 4, "global_batch": 16, **DENSE}),
    "70B, 96 GPUs": ("llama-2-70b", {"tensor": 8, "pipeline": 4, "data": 3, "global_batch": 24, **DENSE}),
    "experts": ("qwen3-30b-a3b", {"data": 32, "expert": 32, "global_batch": 32, "micro_batch": 1, "zero": 1}),
    "experts, 64 GPUs": ("qwen3-30b-a3b", {"data": 64, "expert": 32, "global_batch": 64, "micro_batch": 1, "zero": 1}),
}
MIXES = {
    "ZeRO 3": ("13B", "13B, 96 GPUs"),
    "tensor and pipeline": ("70B", "70B, 96 GPUs"),
    "experts beside ZeRO 3": ("experts", "experts, 64 GPUs", "13B"),
}
SPLITS = {
    "tensor 8, pipeline 2, data 4": (
        "llama-2-70b",
        {"tensor": 8, "pipeline": 2, "data": 4, "global_batch": 16, **DENSE},
    ),
    "ZeRO 3 over 64": ("llama-2-13b", {"data": 64, "global_batch": 64, **ZERO}),
    "experts over 64": ("qwen3-30b-a3b", {"data": 64, "expert": 64, "global_batch": 64, "micro_batch": 1, "zero": 1}),
}
JOBS_A_RUN, ITERATIONS = 24, (8, 25)


@dataclass(frozen=True, kw_only=True)
class AnyHosts:
    """Free hosts at random, as a queue leaves them that knows no network."""

    seed: int

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[int] | None:
        """Return the GPUs of enough hosts, those of a host next to each other."""
        gpus = np.array(cluster.eligible_gpus(job))
        order = np.random.default_rng(self.seed).permutation(HOSTS)
        chosen: list[int] = gpus[np.argsort(order[gpus // GPUS], kind="stable")][: job.num_gpus].tolist()
        return chosen if len(chosen) == job.num_gpus else None


@dataclass(frozen=True, kw_only=True)
class Split:
    """So many of 16 trays of 4 GPUs in the first rack of 18, the others in the second."""

    first: int

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[int]:
        """Return the GPUs of these trays."""
        trays = [*range(self.first), *range(18, 34 - self.first)]
        return [gpu for tray in trays for gpu in range(4 * tray, 4 * tray + 4)]


PLACEMENTS = ("hosts at random", "first-fit", "blocks preferred")
ORDERS = ("as placed", "least-bytes")


@cache
def job(name: str, gpu: str = "h200") -> ddlsched.Job:
    """Return a job of one iteration."""
    model, given = (JOBS | SPLITS)[name]
    plan = Parallelism(**given)
    machine = parse_cluster(gpu).machine(int(plan.num_gpus))
    return job_of(MODELS[model], plan, machine, job_id=name, iterations=1, label=name, groups=True)


def workload(mix: str, placement: str, seed: int) -> ddlsched.Workload:
    """Return jobs that come faster than they leave, so that the cluster stays full."""
    rng = np.random.default_rng(seed)
    wish: dict[str, Any] = {"preferred_levels": "block"} if placement == "blocks preferred" else {}
    jobs = []
    for number in range(JOBS_A_RUN):
        chosen = job(str(rng.choice(MIXES[mix])))
        values: dict[str, Any] = {"job_id": f"j{number}", "arrival_s": float(number * 0.5 + rng.uniform(0, 0.5))}
        jobs.append(replace(chosen, **wish, **values, iterations=int(rng.integers(*ITERATIONS))))
    return ddlsched.Workload.of(jobs)


def simulate(jobs: ddlsched.Workload, fabric: str, placement: Any, path: str | None = None) -> ddlsched.Result:
    """Return a run of exclusive GPUs under max-min sharing, first come first served; by default by destination."""
    hosts, gpus = (36, 4) if fabric == NVL72 else (HOSTS, GPUS)
    topology = FABRICS.get(fabric, fabric)
    cluster = ddlsched.Cluster(
        num_servers=hosts, gpus_per_server=gpus, gpu_memory_mb=192_000, topology=topology, exclusive=True
    )
    rest = {"order": "fifo", "communication": "bounded-overlap:limit=1000000", "contention": "max-min"}
    return ddlsched.simulate(jobs, cluster, placement=placement, path=path, **rest)


@cache
def alone_s(name: str, fabric: str) -> float:
    """Return an iteration's time in an empty cluster, in blocks as far as they hold it."""
    result = simulate(ddlsched.Workload.of([job(name)]), fabric, Ranked(placement="levels", ranks="least-bytes"))
    return float(result.jobs["jct_s"].item())


def longer(mix: str, fabric: str, placement: str, order: str, seed: int) -> float:
    """Return by how many percent jobs run longer under ECMP than alone by destination, on average, waiting apart."""
    chosen: Any = {"hosts at random": AnyHosts(seed=seed), "blocks preferred": "levels"}.get(placement, placement)
    if order != "as placed":
        chosen = Ranked(placement=chosen, ranks=order)
    given = workload(mix, placement, seed)
    table = simulate(given, fabric, chosen, path=f"ecmp:seed={seed + 1}").jobs
    alone = np.array([one.iterations * alone_s(str(one.model), fabric) for one in given])
    ran = (table["finish_s"] - table["start_s"]).to_numpy()
    return round(float(100 * (ran / alone - 1).mean()), 6)


def contention(seeds: int) -> pd.DataFrame:
    """Return by how much jobs run longer, and the difference from random hosts in order, with 95 % intervals."""
    rows = []
    for mix, fabric in product(MIXES, FABRICS):
        base: np.ndarray | None = None
        for placement, order in product(PLACEMENTS, ORDERS):
            values = np.array([longer(mix, fabric, placement, order, seed) for seed in range(seeds)])
            base = values if base is None else base
            found, change = mean_interval(values), paired_difference(values, base)
            row = (found.mean, found.low, found.high, change.mean, change.low, change.high)
            rows.append((mix, fabric, f"{placement}, {order}", *row))
            print(*rows[-1], flush=True)
    names = ["longer", "longer_low", "longer_high", "change", "change_low", "change_high"]
    return pd.DataFrame(rows, columns=["mix", "fabric", "policy", *names])


def splits() -> pd.DataFrame:
    """Return the time of a step on 64 GPUs by how many of their 16 trays are in the first of two NVL72 racks."""
    rows = []
    for name in SPLITS:
        jobs = ddlsched.Workload.of([job(name, "gb200")])
        times = {first: simulate(jobs, NVL72, Split(first=first)).jobs["jct_s"].item() for first in (16, 8, 12, 15)}
        rows += [(name, f"{first}:{16 - first}", s, 100 * (s / times[16] - 1)) for first, s in times.items()]
    return pd.DataFrame(rows, columns=["job", "trays", "step_s", "longer"])


def main() -> int:
    """Write the tables."""
    parser = new_parser(__doc__, "llm_cluster")
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    write_tables(given.out, {"splits": splits(), "contention": contention(given.seeds)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
