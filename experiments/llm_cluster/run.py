"""What does sharing a cluster cost language-model jobs, by fabric, placement and order of ranks? 20 seeds, four mixes.

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
from ddlsched.results.statistics import Interval, mean_interval, paired_change, paired_difference
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
    **{f"13B, {n} GPUs": ("llama-2-13b", {"data": n, "global_batch": n, **ZERO}) for n in (24, 40, 56)},
    "70B, 80 GPUs": ("llama-2-70b", {"tensor": 8, "pipeline": 2, "data": 5, "global_batch": 20, **DENSE}),
    "experts": ("qwen3-30b-a3b", {"data": 32, "expert": 32, "global_batch": 32, "micro_batch": 1, "zero": 1}),
    "experts, 64 GPUs": ("qwen3-30b-a3b", {"data": 64, "expert": 32, "global_batch": 64, "micro_batch": 1, "zero": 1}),
}
MIXES = {
    "ZeRO 3": ("13B", "13B, 96 GPUs"),
    "tensor and pipeline": ("70B", "70B, 96 GPUs"),
    "experts beside ZeRO 3": ("experts", "experts, 64 GPUs", "13B"),
    "3 to 10 hosts": ("13B, 24 GPUs", "13B, 40 GPUs", "13B, 56 GPUs", "70B, 80 GPUs"),
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


PLACEMENTS: dict[str, tuple[Any, dict[str, str]]] = {
    "hosts at random": (AnyHosts, {}),
    "first-fit": ("first-fit", {}),
    "blocks preferred": ("levels", {"preferred_levels": "block"}),
    "blocks required": ("levels", {"required_levels": "block"}),
    "balanced over blocks": ("levels", {"balanced_level": "block"}),
    "Kueue, blocks preferred": ("kueue-topology", {"preferred_levels": "block"}),
    "Volcano, blocks preferred": ("volcano-hypernodes", {"preferred_levels": "block"}),
    "Slurm topology/block": ("slurm-block:level=block", {}),
}
"""Of each the policy, and what jobs wish. A job that no block holds requires one for each half."""
ORDERED = (("hosts at random", "as placed"), ("hosts at random", "least-bytes"), ("first-fit", "as placed"))


@cache
def job(name: str, gpu: str = "h200") -> ddlsched.Job:
    """Return a job of one iteration."""
    model, given = (JOBS | SPLITS)[name]
    plan = Parallelism(**given)
    machine = parse_cluster(gpu).machine(int(plan.num_gpus))
    return job_of(MODELS[model], plan, machine, job_id=name, iterations=1, label=name, groups=True)


def workload(mix: str, wish: dict[str, str], seed: int) -> ddlsched.Workload:
    """Return jobs that come faster than they leave, so that the cluster stays full."""
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(JOBS_A_RUN):
        chosen = job(str(rng.choice(MIXES[mix])))
        values: dict[str, Any] = {"job_id": f"j{number}", "arrival_s": float(number * 0.5 + rng.uniform(0, 0.5))}
        if "required_levels" in wish and chosen.num_gpus > BLOCK * GPUS:
            values["required_levels"] = f"{chosen.num_gpus // 2}:block"
        jobs.append(replace(chosen, **wish | values, iterations=int(rng.integers(*ITERATIONS))))
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


def outcome(mix: str, fabric: str, placement: str, order: str, seed: int) -> tuple[float, float]:
    """Return by how many percent jobs run longer under ECMP than alone by destination, on average; and their JCT, s."""
    chosen, wish = PLACEMENTS[placement]
    if chosen is AnyHosts:
        chosen = AnyHosts(seed=seed)
    if order != "as placed":
        chosen = Ranked(placement=chosen, ranks=order)
    given = workload(mix, wish, seed)
    table = simulate(given, fabric, chosen, path=f"ecmp:seed={seed + 1}").jobs
    alone = np.array([one.iterations * alone_s(str(one.model), fabric) for one in given])
    ran = (table["finish_s"] - table["start_s"]).to_numpy()
    return round(float(100 * (ran / alone - 1).mean()), 6), float(table["jct_s"].mean())


def contention(seeds: int) -> pd.DataFrame:
    """Return by how much jobs run longer, and the differences from random hosts in order and from half the Clos.

    All have 95 % intervals.
    """
    values = {}
    for mix, fabric, place in product([*MIXES][:3], FABRICS, ORDERED):
        values[mix, fabric, place] = np.array([outcome(mix, fabric, *place, seed)[0] for seed in range(seeds)])
        print(mix, fabric, *place, values[mix, fabric, place].mean(), flush=True)
    rows = []
    for (mix, fabric, place), own in values.items():
        base, clos = values[mix, fabric, ORDERED[0]], values[mix, "Clos, half", place]
        found = [mean_interval(own), paired_difference(own, base), paired_difference(own, clos)]
        rows.append((mix, fabric, ", ".join(place), *_ends(found)))
    return pd.DataFrame(rows, columns=["mix", "fabric", "policy", *_named("longer", "change", "over_clos")])


def placements(seeds: int) -> pd.DataFrame:
    """Return the same of more placements with half the Clos, and the changes from ``levels`` with blocks preferred."""
    rows, names = [], [*PLACEMENTS][1:]
    for mix in [*MIXES][2:]:
        runs = {name: [outcome(mix, "Clos, half", name, "as placed", seed) for seed in range(seeds)] for name in names}
        own = {name: np.array(found).T for name, found in runs.items()}
        base, base_jct_s = own["blocks preferred"]
        for name, (longer, jct_s) in own.items():
            change = paired_change(jct_s, base_jct_s)
            rows.append((mix, name, *_ends([mean_interval(longer), paired_difference(longer, base), change])))
            print(*rows[-1], flush=True)
    return pd.DataFrame(rows, columns=["mix", "placement", *_named("longer", "points", "jct")])


def _ends(found: Sequence[Interval]) -> list[float]:
    return [number for one in found for number in (one.mean, one.low, one.high)]


def _named(*names: str) -> list[str]:
    return [name + end for name in names for end in ("", "_low", "_high")]


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
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    tables = {"splits": splits(), "placements": placements(given.seeds), "contention": contention(given.seeds)}
    write_tables(given.out, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
