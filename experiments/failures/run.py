"""What does placement have to do with failures? Racks as failure domains against racks as fast domains, 20 seeds.

python experiments/failures/run.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import t

import ddlsched
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.results.reliability import gpu_time_of
from experiments.commands import new_parser, write_tables

DAY_S, DAYS, RACKS, RACK = 86_400.0, 14, 8, 4
MIXES = {"small": (8, 8, 16, 16, 32), "large": (32, 64, 64, 128)}
PLACEMENTS = {"racks kept": "whole-racks:servers_per_rack=4", "first fit": "first-fit", "spread over racks": "spread"}
RECOVERIES = {
    "queue": None,
    "1 spare": "spares:count=1",
    "8 spares": "spares:count=8",
    "wait": "wait",
    "shrink": "shrink",
}


class SpreadOverRacks:
    """Servers of racks in turn: a rack that fails hits few workers of a job, and most jobs."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[int] | None:
        """Return the first GPUs that are free, those of a rack's first servers before those of its others."""
        gpus = cluster.eligible_gpus(job)
        by_rack = sorted(gpus, key=lambda gpu: (cluster.server_of(gpu) % RACK, gpu))
        return by_rack[: job.num_gpus] if len(gpus) >= job.num_gpus else None


def workload(mix: str, seed: int) -> ddlsched.Workload:
    """Return jobs of iterations of 9 s, as few as offer 90 % of the cluster's two weeks."""
    rng = np.random.default_rng(seed)
    jobs: list[ddlsched.Job] = []
    step = ddlsched.DataParallelIteration(forward_s=3.0, backward_s=6.0, message_bytes=2e9)
    while sum(job.num_gpus * job.iterations * 9 for job in jobs) < 0.9 * DAYS * DAY_S * RACKS * RACK * 8:
        gpus, days = int(rng.choice(MIXES[mix])), float(rng.exponential(1.0) + 0.2)
        arrival_s = float(rng.uniform(0, 0.8 * DAYS * DAY_S))
        count = round(days * DAY_S / 9)
        job = ddlsched.Job(
            job_id=f"j{len(jobs)}",
            arrival_s=arrival_s,
            num_gpus=gpus,
            iterations=count,
            iteration=step,
            gpu_memory_mb=30_000,
        )
        jobs.append(job)
    return ddlsched.Workload.of(jobs)


def goodput(mix: str, placement: str, recovery: str, health: str | None, seed: int) -> float:
    """Return which part of the cluster's GPU time trained what was kept."""
    causes = (
        FailureCause(cause="gpu", per="gpu", mtbf_s=400 * DAY_S, noticed_s=600, repair_s=12 * 3600),
        FailureCause(cause="server", per="server", mtbf_s=60 * DAY_S, repair_s=DAY_S, lemon_share=0.1, lemon_times=20),
        FailureCause(cause="rack", per="rack", mtbf_s=60 * DAY_S, takes="rack", repair_s=4 * 3600),
    )
    disturbances = Disturbances(
        failures=causes,
        checkpoint="young",
        checkpoint_to="disk:gb_per_s=2",
        restart_s=300,
        recovery=RECOVERIES[recovery],
        health=health,
    )
    topology = f"leaf-spine:servers_per_leaf={RACK},spines=1,nic_gbps=100"
    cluster = ddlsched.Cluster(
        num_servers=RACKS * RACK, gpus_per_server=8, gpu_memory_mb=80_000, topology=topology, exclusive=True
    )
    chosen = PLACEMENTS[placement]
    given = {"order": "fifo", "communication": "bounded-overlap:limit=99", "contention": "max-min"}
    result = ddlsched.simulate(
        workload(mix, seed),
        cluster,
        placement=SpreadOverRacks() if chosen == "spread" else chosen,
        disturbances=disturbances,
        until_s=DAYS * DAY_S,
        seed=seed,
        **given,
    )
    return float(gpu_time_of(result)["training"].sum() / (DAYS * DAY_S * cluster.num_gpus))


def rows(seeds: int) -> pd.DataFrame:
    """Return goodput by mix and policy, and its change against first fit into the queue, with 95 % intervals."""
    policies = [(place, "queue", None) for place in PLACEMENTS] + [("first fit", each, None) for each in RECOVERIES]
    policies += [("first fit", "queue", "repeated-failures:count=2")]
    found = []
    for mix in MIXES:
        base: np.ndarray | None = None
        for place, recovery, health in dict.fromkeys([("first fit", "queue", None), *policies]):
            values = np.array([goodput(mix, place, recovery, health, seed) for seed in range(seeds)])
            base = values if base is None else base
            change = 100 * (values / base - 1)
            half = float(t.ppf(0.975, seeds - 1) * change.std(ddof=1) / seeds**0.5)
            name = ", ".join([place, recovery, *(["lemons replaced"] if health else [])])
            mean = float(change.mean())
            found.append((mix, name, 100 * float(values.mean()), mean, mean - half, mean + half))
            print(*found[-1], flush=True)
    return pd.DataFrame(found, columns=["mix", "policy", "goodput", "change", "change_low", "change_high"])


def main() -> int:
    """Write the table."""
    parser = new_parser(__doc__, "failures")
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    write_tables(given.out, {"goodput": rows(given.seeds)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
