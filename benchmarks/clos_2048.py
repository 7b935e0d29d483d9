"""What a 2,048-GPU Clos with 5,000 jobs takes to simulate: ``clos_2048.py``.

256 servers of 8 GPUs and 3.2 Tbit/s, three tiers, 2:1 at the racks and at the pods; LWF-1 placement, one job a GPU.
Jobs of 1 to 512 GPUs in the proportions of large clusters (most are small, most GPU time is in large ones).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from benchmark_tables import Table, say

import ddlsched

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARES = (0.30, 0.10, 0.10, 0.18, 0.12, 0.08, 0.06, 0.035, 0.02, 0.005)
PATHS = (None, "ecmp", "least-congested")
TOPOLOGY = "clos:servers_per_rack=8,racks_per_pod=4,rack_oversubscription=2,pod_oversubscription=2"


def jobs(count: int, load: float, seed: int) -> ddlsched.Workload:
    """Return jobs of minutes to hours that arrive as fast as the GPUs can just serve, times ``load``."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice(GPUS, count, p=SHARES)
    compute_s = rng.choice([0.1, 0.25, 0.5, 1.0], count)
    run_s = np.exp(rng.uniform(np.log(120), np.log(14_400), count))
    message_bytes = rng.choice([1e9, 4e9, 13e9, 26e9], count)
    gap_s = float((gpus * run_s).mean()) / (2048 * load)
    arrivals_s = np.cumsum(rng.exponential(gap_s, count))
    return ddlsched.Workload.of(
        [
            ddlsched.Job(
                job_id=str(n),
                arrival_s=float(arrivals_s[n]),
                num_gpus=int(gpus[n]),
                iterations=max(int(run_s[n] / compute_s[n]), 1),
                iteration=ddlsched.DataParallelIteration(
                    forward_s=float(compute_s[n]) / 3,
                    backward_s=float(compute_s[n]) * 2 / 3,
                    message_bytes=float(message_bytes[n]),
                ),
                gpu_memory_mb=1.0,
            )
            for n in range(count)
        ]
    )


def run(workload: ddlsched.Workload, path: str | None) -> tuple[ddlsched.Result, float, float]:
    """Return a run's result, and its seconds of wall time and of CPU, building the network included."""
    cluster = ddlsched.Cluster(num_servers=256, gpus_per_server=8, topology=TOPOLOGY, exclusive=True)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    result = ddlsched.simulate(
        workload,
        cluster,
        placement="lwf:kappa=1",
        order="srsf",
        communication="bounded-overlap:limit=1000",
        contention="max-min",
        path=path,
    )
    return result, time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--path", action="append", help="by default route, ecmp and least-congested")
    given = parser.parse_args()
    workload, rows = jobs(given.jobs, given.load, seed=1), []
    run(jobs(20, given.load, seed=1), "ecmp")  # loads the compiled code
    for path in [None if path == "route" else path for path in given.path] if given.path else PATHS:
        say(path or "the topology's route")
        result, wall_s, cpu_s = run(workload, path)
        summary, state = result.summary(), result.finished.state.run[0]
        figures = [wall_s, cpu_s, summary["average_jct_s"], f"{100 * summary['gpu_utilisation']:.1f} %"]
        rows.append([path or "route", *figures, int(summary["events"]), int(state.contended_iterations)])
    columns = ("paths", "wall, s", "CPU, s", "average JCT, s", "utilisation", "events", "contended iterations")
    print(Table(title=f"{given.jobs:,} jobs on 2,048 GPUs, Clos", columns=columns, rows=rows))


if __name__ == "__main__":
    main()
