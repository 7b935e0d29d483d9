"""How a run's CPU time grows with the jobs on one GPU, and with the transfers on one network card: ``crowded.py``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmark_tables import Table, say

import ddlsched
from ddlsched.policies.views import ClusterView, JobView

JOBS = (200, 400, 800, 1_600)
MEMORY_MB = 1.0
SHARES: dict[str, dict[str, Any]] = {
    "one GPU, SRSF": {"order": "srsf", "communication": "adadual"},
    "one card, preemptive by bytes": {"order": "srsf", "communication": "preemptive:by=bytes"},
    "one card, max-min": {"order": "srsf", "communication": "bounded-overlap:limit=1000000", "contention": "max-min"},
}


class OneGpuAServer:
    """Every job has a GPU of its own on both servers."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[int]:
        """Return the GPUs of the job's number."""
        number = int(job.job_id)
        return [number, cluster.num_gpus // 2 + number]


def crowd(jobs: int, *, gpus: int) -> ddlsched.Workload:
    """Return jobs that arrive within a second or two and differ a little."""
    return ddlsched.Workload.of(
        [
            ddlsched.Job(
                job_id=str(number),
                arrival_s=0.001 * number,
                num_gpus=gpus,
                iterations=10 // gpus,
                iteration=ddlsched.DataParallelIteration(
                    forward_s=0.01 + 1e-5 * (number % 37), backward_s=0.02, message_bytes=1e6 + number
                ),
                gpu_memory_mb=MEMORY_MB,
            )
            for number in range(jobs)
        ]
    )


def cpu_s(jobs: int, share: str) -> float:
    if share.startswith("one GPU"):
        cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=1, gpu_memory_mb=MEMORY_MB * jobs)
        workload, placement = crowd(jobs, gpus=1), "first-fit"
    else:
        cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=jobs, gpu_memory_mb=MEMORY_MB)
        workload, placement = crowd(jobs, gpus=2), OneGpuAServer()
    begin_s = time.process_time()
    ddlsched.simulate(workload, cluster, placement=placement, **SHARES[share])
    return time.process_time() - begin_s


def main() -> None:
    rows = []
    for share in SHARES:
        say(share)
        cpu_s(2, share)  # loads the compiled code
        seconds = [min(cpu_s(jobs, share) for _ in range(3)) for jobs in JOBS]
        power = float(np.polyfit(np.log(JOBS[1:]), np.log(seconds[1:]), 1)[0])
        rows.append([share, *seconds, f"{power:.2f}"])
    columns = ("CPU, s", *(f"{jobs:,} jobs" for jobs in JOBS), "power, from 400 on")
    note = "Every decision looks at all that wait, so that the power of a run is between 1 and 2."
    print(Table(title="Jobs that share one GPU or one card", columns=columns, rows=rows, notes=[note]))


if __name__ == "__main__":
    main()
