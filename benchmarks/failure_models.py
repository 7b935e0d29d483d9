"""Published tables of failures beside what the engine makes of them: failure_models.py [--seeds 20].

The clock counts the service of a job in nanoseconds of a GPU, so 16,384 GPUs run for at most 6.5 days at once: spans
are made of runs of 6 days, each with a seed of its own, which times without memory allow.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
from scipy.stats import poisson

import ddlsched
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import FailureCause, read_causes
from ddlsched.results.reliability import failures_of, reliability_by_size

DAY_S = 86_400.0
RSC_1_H = {1024: 7.9, 16_384: 1.8}
LLAMA_DAYS, LLAMA_GPUS = 54, 16_384
RUN_DAYS = 6


def long_job(gpus: int, failures: object, until_s: float, seed: int, **given: float) -> ddlsched.Result:
    """Return the run of one job of iterations of a minute that never ends, with 1 % of servers to spare."""
    step = ddlsched.DataParallelIteration(forward_s=20, backward_s=40, message_bytes=0)
    iterations = round(until_s / 60) + 1
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=gpus, iterations=iterations, iteration=step, gpu_memory_mb=1)
    cluster = ddlsched.Cluster(num_servers=-(-gpus // 8) * 101 // 100 + 2, gpus_per_server=8)
    disturbances = Disturbances(failures=failures, **given)
    workload = ddlsched.Workload.of([job])
    return ddlsched.simulate(
        workload, cluster, placement="first-fit", disturbances=disturbances, until_s=until_s, seed=seed
    )


def time_to_failure_h(gpus: int, days: float, seeds: int) -> float:
    """Return the mean time to failure of a job on RSC-1, hours with GPUs / failures, over seeds."""
    runs = range(seeds * round(days / RUN_DAYS))
    rows = [reliability_by_size(long_job(gpus, "rsc-1", RUN_DAYS * DAY_S, seed)).iloc[0] for seed in runs]
    return sum(row["time_to_failure_h"] * row["failures"] for row in rows) / sum(row["failures"] for row in rows)


def llama_counts(seed: int) -> Counter[str]:
    """Return how often each cause stopped a job on all GPUs in 54 days, and print the ETTR."""
    runs = range(seed * LLAMA_DAYS // RUN_DAYS, (seed + 1) * LLAMA_DAYS // RUN_DAYS)
    given = {"restart_s": 300, "checkpoint_iterations": 10}
    results = [long_job(LLAMA_GPUS, "llama3-16k", RUN_DAYS * DAY_S, run, **given) for run in runs]
    ettr = np.mean([reliability_by_size(result)["ettr"].iloc[0] for result in results])
    print(f"Llama 3, restarts of 300 s, checkpoints every 600 s, seed {seed}: ETTR {ettr:.3f}")
    return sum((Counter(failures_of(result)["cause"]) for result in results), Counter())


def ettr_pair(nodes: int, rate_per_day: float, interval_min: int, restart_s: float, seeds: int) -> tuple[float, float]:
    """Return the simulated ETTR, and RSC-1's formula to first order without a queue."""
    cause = FailureCause(cause="node", per="server", mtbf_s=DAY_S / rate_per_day, takes="job")
    given = {"restart_s": restart_s, "checkpoint_iterations": interval_min}
    runs = [long_job(nodes * 8, (cause,), 60 * DAY_S, seed, **given) for seed in range(seeds)]
    simulated = float(np.mean([reliability_by_size(run)["ettr"].iloc[0] for run in runs]))
    return simulated, 1 - nodes * rate_per_day * (restart_s + interval_min * 30) / DAY_S


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    for gpus, published_h in RSC_1_H.items():
        found_h = time_to_failure_h(gpus, 60, seeds)
        print(f"RSC-1, {gpus:6} GPUs: time to failure {found_h:.2f} h, published {published_h} h")
    print("nodes  rate/day  interval  restart  simulated  formula")
    for nodes, rate, interval_min, restart_s in ((16, 0.0065, 60, 300), (128, 0.0065, 30, 300), (128, 0.0065, 60, 600)):
        simulated, formula = ettr_pair(nodes, rate, interval_min, restart_s, seeds)
        print(f"{nodes:5} {rate:9} {interval_min:5} min {restart_s:6} s {simulated:10.4f} {formula:8.4f}")
    days = {"gpu": LLAMA_GPUS * LLAMA_DAYS, "server": LLAMA_GPUS // 8 * LLAMA_DAYS}
    counts = [llama_counts(seed) for seed in range(min(seeds, 3))]
    print("cause                           published  99 % of Poisson  simulated, a seed each")
    for cause in read_causes("llama3-16k"):
        published = round(days[cause.per] * DAY_S / cause.mtbf_s)
        least, most = poisson.interval(0.99, published)
        found = [count[cause.cause] for count in counts]
        print(f"{cause.cause:30} {published:8}  {least:7.0f} to {most:3.0f}   {found}")


if __name__ == "__main__":
    main()
