"""What elastic scheduling of language-model training is worth when each change of a job's GPUs costs what it costs.

    python experiments/reconfiguration/elastic.py [--seeds N] [--out DIR]

Jobs train GPT XL (1.3B) or 2.7B with data parallelism on 40 GPUs (10 hosts, 100 Gbit/s). An autoscaler shares the
GPUs out anew every five minutes; it is compared with the best fixed number of GPUs a job, under several prices of a
change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from published import tensors_of
from schemes import central_s, collection

from ddlsched.checkpoints.change_cost import PlannedRescaleCost, ReplicaRule, Site
from ddlsched.checkpoints.tensors import total_bytes
from ddlsched.cluster.cluster import Cluster
from ddlsched.network.contention import MaxMin
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import by_seed, mean_interval, paired_ratio
from ddlsched.simulation import simulate
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, LinearCurve, Rescale, RescaleCost
from ddlsched.workload.job import Workload
from experiments.commands import new_parser, write_tables
from topologies.star import Star

HOSTS, GPUS_PER_HOST = 10, 4
TOPOLOGY = Star(nic_gbps=100.0)
RESTART_S = 78.7
"""Published for XL from 8 to 16 GPUs: 87.2 s in all, of which 8.5 s are the transfer of DP."""
QUICK_RESTART_S = 5.0
STORAGE_BYTES_PER_S = 1e9
TFLOP_PER_S = 150.0
"""Of a GPU, stated."""
TOKENS, BATCH = 1024, 64
HOURS, LOAD, WORK_HOURS = 6.0, 0.8, 2.0
FIXED = (1, 2, 4, 8)
SIZES = ("XL", "2.7B")


@dataclass(frozen=True, kw_only=True)
class FixedShare:
    """So many GPUs for each job from its start to its end, first come first served."""

    gpus: int

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return what runs, and who starts on what is free."""
        left = capacity.num_gpus - sum(job.num_gpus for job in jobs)
        chosen = {job.job_id: Allocation(job.num_gpus, BATCH) for job in jobs if job.num_gpus}
        for job in jobs:
            if not job.num_gpus and left >= self.gpus:
                chosen[job.job_id] = Allocation(self.gpus, BATCH)
                left -= self.gpus
        return chosen


def site(restart_s: float) -> Site:
    """Return the cluster as one where jobs are resized."""
    return Site(topology=TOPOLOGY, host_bytes_per_s=20e9, storage_bytes_per_s=STORAGE_BYTES_PER_S, restart_s=restart_s)


def planned(restart_s: float) -> Callable[[str], RescaleCost]:
    """Return the price of a model's changes by our plan."""

    @cache
    def of(model: str) -> RescaleCost:
        return PlannedRescaleCost(
            tensors=tensors_of(model),
            parallelism_of=ReplicaRule(),
            site=site(restart_s),
            gpus_per_host=GPUS_PER_HOST,
        )

    return of


@dataclass(frozen=True)
class Central:
    """Through one central host: it gathers a replica and sends every GPU a copy. From a stop: from storage."""

    stored: PlannedRescaleCost

    def __call__(self, change: Rescale) -> float:
        """Return the seconds of a change."""
        if change.is_first or not change.from_gpus:
            return self.stored(change)
        old, new = (collection(self.stored.tensors, ReplicaRule()(gpus), GPUS_PER_HOST) for gpus in (1, change.to_gpus))
        return central_s(old, new, 100e9 / 8) + RESTART_S


@dataclass(frozen=True)
class Stored:
    """Through storage: one replica writes its state, and every host reads it."""

    stored: PlannedRescaleCost

    def __call__(self, change: Rescale) -> float:
        """Return the seconds of a change."""
        if change.is_first:
            return 0.0
        writing_s = total_bytes(self.stored.tensors) / STORAGE_BYTES_PER_S if change.from_gpus else 0.0
        return writing_s + self.stored.seconds(0, change.to_gpus)


def through(kind: type[Central] | type[Stored]) -> Callable[[str], RescaleCost]:
    """Return the price of a model's changes through one place."""
    prices = planned(RESTART_S)

    @cache
    def of(model: str) -> RescaleCost:
        stored = prices(model)
        assert isinstance(stored, PlannedRescaleCost)
        return kind(stored)

    return of


PRICES: dict[str, Callable[[str], RescaleCost]] = {
    "free": lambda _: ConstantRescaleCost(),
    "30 s": lambda _: ConstantRescaleCost.restart(30.0),
    "plan, restart 5 s": planned(QUICK_RESTART_S),
    "plan, restart 79 s": planned(RESTART_S),
    "one host, restart 79 s": through(Central),
    "storage, restart 79 s": through(Stored),
}


def workload(seed: int, price: Callable[[str], RescaleCost]) -> Workload:
    """Return elastic jobs that arrive over some hours, half of each model, with log-normal work."""
    rng = np.random.default_rng(seed)
    rate_per_s = LOAD * HOSTS * GPUS_PER_HOST / WORK_HOURS / 3600
    arrivals_s = np.sort(rng.random(max(1, rng.poisson(rate_per_s * HOURS * 3600))) * HOURS * 3600)
    jobs = [_job(number, arrival_s, rng, price) for number, arrival_s in enumerate(arrivals_s.tolist())]
    return Workload.of(jobs)


def _job(number: int, arrival_s: float, rng: np.random.Generator, price: Callable[[str], RescaleCost]) -> ElasticJob:
    model = str(rng.choice(SIZES))
    weight_bytes = sum(tensor.num_bytes for tensor in tensors_of(model) if not tensor.name.startswith("optimiser."))
    sample_s = 6 * (weight_bytes / 2) * TOKENS / (TFLOP_PER_S * 1e12)
    work_s = WORK_HOURS * 3600 * float(rng.lognormal(-0.5, 1.0))
    return ElasticJob(
        job_id=f"{model}-{number}",
        arrival_s=arrival_s,
        samples=max(BATCH, round(work_s / sample_s)),
        curve=LinearCurve(fixed_s=0.02, sample_s=sample_s),
        max_gpus=10,
        gpu_batch=BATCH,
        min_batch=BATCH,
        max_batch=BATCH,
        message_bytes=float(weight_bytes),
        model=model,
        rescale_cost=price(model),
    )


def outcome(seed: int, price: Callable[[str], RescaleCost], allocation: object) -> dict[str, float]:
    """Return what one run came to."""
    result = simulate(
        workload(seed, price),
        cluster=Cluster(num_servers=HOSTS, gpus_per_server=GPUS_PER_HOST, topology=TOPOLOGY),
        contention=MaxMin(),
        communication="bounded-overlap:limit=40",
        allocation=allocation,  # type: ignore[arg-type]
    )
    jobs = result.jobs
    return {
        "average_completion_s": float(jobs["jct_s"].mean()),
        "changes_per_job": len(result.finished.rescales) / len(jobs) - 1,
        "restart_share": float(jobs["restart_s"].sum() / jobs["jct_s"].sum()),
    }


def runs(seeds: int) -> pd.DataFrame:
    """Return a row a run: the autoscaler under each price, and fixed numbers of GPUs, which never change."""
    rows = []
    for seed in range(1, seeds + 1):
        for name, price in PRICES.items():
            found = outcome(seed, price, "elastic-scaling:interval_s=300,queue=true")
            rows.append({"policy": name, "seed": seed, **found})
        for gpus in FIXED:
            found = outcome(seed, PRICES["free"], FixedShare(gpus=gpus))
            rows.append({"policy": f"fixed {gpus}", "seed": seed, **found})
    return pd.DataFrame(rows)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds, and average completion against the best fixed number of GPUs, paired by seed."""
    completion = by_seed(found, "average_completion_s")
    fixed = [f"fixed {gpus}" for gpus in FIXED]
    best = min(fixed, key=lambda policy: completion[policy].mean())
    rows = []
    for policy in completion.columns:
        own = found[found["policy"] == policy]
        gain = paired_ratio(completion[policy].to_numpy(), completion[best].to_numpy())
        rows.append(
            {
                "price of a change, or fixed GPUs": policy,
                "completion (h)": interval_text(
                    mean_interval(own["average_completion_s"].to_numpy() / 3600), decimals=2
                ),
                f"against {best}": "" if policy == best else interval_text(gain, decimals=3),
                "changes a job": f"{own['changes_per_job'].mean():.2f}",
                "time in changes (%)": f"{100 * own['restart_share'].mean():.2f}",
            }
        )
    return pd.DataFrame(rows)


def price_table() -> pd.DataFrame:
    """Return the seconds of some changes under each price."""
    rows = []
    for model in SIZES:
        for sizes in ((4, 8), (8, 4), (2, 3), (0, 4)):
            change = Rescale(
                job_id="job",
                time_s=0.0,
                from_gpus=sizes[0],
                to_gpus=sizes[1],
                from_batch=BATCH,
                to_batch=BATCH,
                lost_gpus=0,
                added_gpus=max(sizes[1] - sizes[0], 0),
                removed_gpus=max(sizes[0] - sizes[1], 0),
                to_servers=-(-sizes[1] // GPUS_PER_HOST),
                is_first=False,
                pending_s=0.0,
                lost_samples=0,
            )
            seconds = {name: price(model)(change) for name, price in PRICES.items()}
            rows.append({"model": model, "from": sizes[0], "to": sizes[1], **seconds})
    return pd.DataFrame(rows)


def main() -> int:
    """Simulate, print, write."""
    parser = new_parser(__doc__, "reconfiguration")
    parser.add_argument("--seeds", type=int, default=16, metavar="N")
    given = parser.parse_args()
    tables = {"prices": price_table(), "elastic": summary(runs(given.seeds))}
    write_tables(given.out / "tables", tables, float_format="%.6g")
    for name, table in tables.items():
        print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
