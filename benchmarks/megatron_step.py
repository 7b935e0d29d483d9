"""Time of simulating a step of a Megatron-like job on 64 GPUs: ``megatron_step.py [--rounds N]``.

Llama-3-70B, tensor parallelism 8, pipeline 4, data 2, 16 micro-batches, all layers recomputed, as ``ddlsched estimate
--groups --job-out`` writes it: collectives over groups of its GPUs. 8 servers of 8 A100s, cards of 200 Gbit/s, max-min.
The first round compiles what is not kept from earlier runs.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmark_tables import Table

import ddlsched

PARALLELISM = {"tensor": 8, "pipeline": 4, "data": 2, "micro-batch": 1, "global-batch": 32}
CLUSTER = ddlsched.Cluster(num_servers=8, gpus_per_server=8, gpu_memory_mb=80_000)


def job(folder: Path) -> ddlsched.Job:
    """Return the job."""
    out = folder / "job.json"
    numbers = [word for name, number in PARALLELISM.items() for word in (f"--{name}", str(number))]
    command = ["ddlsched", "estimate", "llama-3-70b", "--cluster", "a100-80:nodes=8", *numbers]
    options = ["--recompute", "full", "--overlap", "--groups", "--job-out", str(out)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return next(iter(ddlsched.read_workload(out)))


def main() -> None:
    """Simulate a step several times and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, metavar="N")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        one = replace(job(Path(folder)), iterations=1)
    workload = ddlsched.Workload.of([one])
    rows = []
    for number in range(rounds):
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        result = ddlsched.simulate(
            workload, CLUSTER, topology="star:nic_gbps=200", contention="max-min", placement="first-fit"
        )
        took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        rows.append((str(number), took_s, cpu_s, float(result.summary()["makespan_s"])))
    title = f"A step of a Megatron-like job on {one.num_gpus} GPUs, {len(one.iteration.tasks)} tasks"
    print(Table(title=title, columns=("round", "wall, s", "CPU, s", "simulated step, s"), rows=rows))


if __name__ == "__main__":
    main()
