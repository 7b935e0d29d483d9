"""One large run in a process of its own: ``scale_run.py SPEC``, SPEC a JSON object of :func:`main`'s arguments.

Prints JSON: seconds of the run, peak memory of the process, iterations skipped over and contended.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import numpy as np
from one_run import peak_mb

import ddlsched
from ddlsched.workload.generators.microsoft import MODELS

GPUS_PER_SERVER = 8
MEMORY_MB = 16_000.0
SIZES = {"mixed": (1,) * 13 + (2, 2, 4, 4, 8, 8, 16), "single": (1,)}


def main(
    *,
    gpus: int,
    jobs: int | None = None,
    iterations: int = 0,
    sizes: str = "mixed",
    load: float = 0.5,
    trace: str | None = None,
    **policies: Any,
) -> dict[str, Any]:
    """Run ``jobs`` made jobs of about so many iterations, or the first of a workload file, on GPUs used exclusively."""
    if trace is None:
        workload = made(jobs or 0, gpus, iterations, SIZES[sizes], load)
    else:
        workload = ddlsched.Workload.of([exclusive(job) for job in ddlsched.read_workload(trace).jobs[:jobs]])
    servers = -(-gpus // GPUS_PER_SERVER)
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=GPUS_PER_SERVER, gpu_memory_mb=MEMORY_MB)
    ddlsched.simulate(ddlsched.Workload.of(workload.jobs[:1]), cluster)  # loads the compiled code
    cpu_s, begin = time.process_time(), time.perf_counter()
    result = ddlsched.simulate(workload, cluster, **policies)
    return {
        "total_s": time.perf_counter() - begin,
        "cpu_s": time.process_time() - cpu_s,
        "engine_s": result.summary()["engine_s"],
        "peak_mb": peak_mb(),
        "jobs": len(workload),
        "gpus": cluster.num_gpus,
        "iterations": sum(job.iterations for job in workload),
        "skipped": result.skipped_iterations,
        "contended": result.contended_iterations,
        "rounds": int(result.finished.state.run[0].rounds),
        "utilisation": result.summary()["gpu_utilisation"],
        "average_jct_s": result.summary()["average_jct_s"],
        "makespan_s": result.summary()["makespan_s"],
        "computed": result.computed_iterations,
    }


def made(jobs: int, gpus: int, iterations: int, choices: tuple[int, ...], load: float) -> ddlsched.Workload:
    """Return jobs of the four measured models whose compute alone keeps a share ``load`` of the GPUs busy."""
    rng = np.random.default_rng(1)
    models = [MODELS[number] for number in rng.integers(len(MODELS), size=jobs)]
    sizes = rng.choice(choices, jobs)
    counts = np.maximum(1, np.rint(iterations * rng.uniform(0.5, 1.5, jobs))).astype(int)
    service_s = [size * n * (m.forward_s + m.backward_s) for size, n, m in zip(sizes, counts, models, strict=True)]
    arrivals_s = np.cumsum(rng.exponential(float(np.mean(service_s)) / (load * gpus), jobs))
    return ddlsched.Workload.of(
        [
            ddlsched.Job(
                job_id=f"job-{number}",
                arrival_s=float(arrival_s),
                num_gpus=int(size),
                iterations=int(count),
                iteration=ddlsched.DataParallelIteration(
                    forward_s=model.forward_s, backward_s=model.backward_s, message_bytes=model.message_bytes
                ),
                gpu_memory_mb=MEMORY_MB,
            )
            for number, (arrival_s, size, count, model) in enumerate(
                zip(arrivals_s, sizes, counts, models, strict=True)
            )
        ]
    )


def exclusive(job: ddlsched.Job) -> ddlsched.Job:
    return dataclasses.replace(job, gpu_memory_mb=MEMORY_MB)


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
