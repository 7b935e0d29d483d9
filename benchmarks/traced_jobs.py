"""Time of jobs with iterations as recorded ones have, of hundreds of tasks: ``traced_jobs.py [--iterations N ...]``.

100 jobs on 1,024 GPUs (128 servers of 8, 100 Gbit/s, star). An iteration has 250 forward and 250 backward tasks, 100
all-reduces of 10 MB that begin as the backward goes on, and a step of the optimizer after the last. Half of the jobs
have their servers for themselves; the others, of 4 GPUs on two servers each, share cards with three more. One row for
each number of iterations a job and each limit of all-reduces that may overlap on a link.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmark_tables import Table, say

import ddlsched
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag

FORWARD, BACKWARD, REDUCES = 250, 250, 100
ALONE, SHARING = 50, 50
GPUS_PER_SERVER = 8
POLICIES = ("bounded-overlap:limit=1", "bounded-overlap:limit=1000")


def iteration(message_bytes: float, task_s: float) -> IterationDag:
    """Return a chain of compute tasks whose second half lets an all-reduce go every few tasks."""
    tasks: list[ComputeTask | AllReduceTask] = []
    for n in range(FORWARD + BACKWARD):
        after = (f"c{n - 1}",) if n else ()
        tasks.append(ComputeTask(name=f"c{n}", duration_ns=round(1e9 * task_s), after=after))
    for n in range(REDUCES):
        last = FORWARD + (n + 1) * BACKWARD // REDUCES - 1
        tasks.append(AllReduceTask(name=f"r{n}", message_bytes=message_bytes, after=(f"c{last}",)))
    ends = (f"c{FORWARD + BACKWARD - 1}", *(f"r{n}" for n in range(REDUCES)))
    return IterationDag((*tasks, ComputeTask(name="step", duration_ns=2_000_000, after=ends)))


def workload(iterations: int) -> ddlsched.Workload:
    """Return the jobs, of four lengths of tasks, those that have their servers for themselves first."""
    dags = [iteration(1e7, task_s) for task_s in (4e-4, 5e-4, 6e-4, 7e-4)]
    jobs = [
        ddlsched.Job(
            job_id=str(n),
            arrival_s=0.0,
            num_gpus=2 * GPUS_PER_SERVER if n < ALONE else GPUS_PER_SERVER // 2,
            iterations=iterations,
            iteration=dags[n % len(dags)],
            gpu_memory_mb=1.0,
        )
        for n in range(ALONE + SHARING)
    ]
    return ddlsched.Workload.of(jobs)


@dataclass
class InPairs:
    """Gives each of the first jobs two whole servers, and four of the others two servers together."""

    def place(self, job: ddlsched.JobView, cluster: ddlsched.ClusterView) -> Sequence[int]:
        """Return half of the GPUs on each of two servers."""
        late = max(job.number - ALONE, 0)
        pair = job.number if job.number < ALONE else ALONE + late // 4
        half = job.num_gpus // 2
        first = 2 * pair * GPUS_PER_SERVER + (late % 4) * half
        return [*range(first, first + half), *range(first + GPUS_PER_SERVER, first + GPUS_PER_SERVER + half)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, action="append", help="of each job; by default 10, 100 and 1000")
    counts = parser.parse_args().iterations or [10, 100, 1000]
    cluster = ddlsched.Cluster(num_servers=128, gpus_per_server=GPUS_PER_SERVER, topology="star:nic_gbps=100")
    rows = []
    for communication in POLICIES:
        for count in counts:
            say(f"{communication}, {count} iterations")
            jobs = workload(count)
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            result = ddlsched.simulate(
                jobs, cluster, placement=InPairs(), order="srsf", communication=communication, contention="max-min"
            )
            run = result.finished.state.run[0]
            seconds = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
            skipped = [int(run.skipped_iterations), int(run.jumped_iterations)]
            rows.append([communication, count, *seconds, result.summary()["average_jct_s"], int(run.events), *skipped])
    columns = ("communication", "iterations", "wall, s", "CPU, s", "average JCT, s", "events", "skipped", "jumped")
    print(Table(title="100 jobs of 601 tasks an iteration on 1,024 GPUs", columns=columns, rows=rows))


if __name__ == "__main__":
    main()
