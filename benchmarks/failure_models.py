"""Published tables and formulas of failures beside what the engine makes of them: failure_models.py published.

``intervals`` compares Young's and Daly's intervals between checkpoints with the best one, ``cluster`` runs 90 days of
16,384 GPUs.

The clock counts the service of a job in nanoseconds of a GPU, so 16,384 GPUs run for at most 6.5 days at once: spans
are made of runs of 6 days, each with a seed of its own, which times without memory allow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np
import typer
from benchmark_tables import workload_of
from scipy.stats import poisson

import ddlsched
from algorithms.reliability.intervals import Daly, Young
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import FailureCause, failures_per_s, read_causes
from ddlsched.cluster.reliability_doors import CheckpointedJob
from ddlsched.results.reliability import failures_of, gpu_time_of, reliability_by_size
from ddlsched.simulation import warm_up

app = typer.Typer(help=__doc__)
DAY_S = 86_400.0
RSC_1_H = {1024: 7.9, 16_384: 1.8}
RSC_1_ETTR = {60: 0.7, 5: 0.93}
"""Of a job of 16,000 GPUs that saves without being held up, by minutes between checkpoints; starts take 5 minutes."""
LLAMA_DAYS, LLAMA_GPUS = 54, 16_384
RUN_DAYS = 6


def long_job(gpus: int, failures: object, until_s: float, seed: int, **given: object) -> ddlsched.Result:
    """Return the run of one job of iterations of a minute that never ends, with 1 % of servers to spare."""
    workload = workload_of(gpus=[gpus], iterations=round(until_s / 60) + 1, forward_s=20, backward_s=40)
    cluster = ddlsched.Cluster(num_servers=-(-gpus // 8) * 101 // 100 + 2, gpus_per_server=8)
    disturbances = Disturbances(failures=failures, **given)
    return ddlsched.simulate(
        workload, cluster, placement="first-fit", disturbances=disturbances, until_s=until_s, seed=seed
    )


def time_to_failure_h(gpus: int, days: float, seeds: int) -> float:
    """Return the mean time to failure of a job on RSC-1, hours with GPUs / failures, over seeds."""
    runs = range(seeds * round(days / RUN_DAYS))
    rows = [reliability_by_size(long_job(gpus, "rsc-1", RUN_DAYS * DAY_S, seed)).iloc[0] for seed in runs]
    return sum(row["time_to_failure_h"] * row["failures"] for row in rows) / sum(row["failures"] for row in rows)


def llama(gpus: int, days: float, seed: int) -> tuple[Counter[str], float]:
    """Return how often each cause stopped a job of Llama 3's on so many GPUs, and its ETTR.

    It saves 5.7 TB when Young says, to storage that takes 2 TB/s of 16,384 GPUs, and restarts in 300 s.
    """
    run_days = min(RUN_DAYS, 6 * LLAMA_GPUS / gpus)
    count = round(days / run_days)
    saving = {"checkpoint": "young", "checkpoint_to": "disk:gb_per_s=1", "state_mb": 5.7e6 / LLAMA_GPUS}
    results = [
        long_job(gpus, "llama3-16k", run_days * DAY_S, seed * count + run, restart_s=300, **saving)
        for run in range(count)
    ]
    ettr = float(np.mean([reliability_by_size(result)["ettr"].iloc[0] for result in results]))
    return sum((Counter(failures_of(result)["cause"]) for result in results), Counter()), ettr


class EttrCase(NamedTuple):
    """A job of RSC-1's formula; its nodes, their failures a day, and what it takes."""

    nodes: int
    rate_per_day: float
    interval_min: int
    restart_s: float
    write_s: float = 0.0

    def formula(self) -> float:
        """Return E[ETTR] of arXiv 2410.21680 without a queue: (1 - N r (u + dt / 2)) / (1 + w / dt)."""
        interval_s = 60 * self.interval_min
        lost = self.nodes * self.rate_per_day * (self.restart_s + interval_s / 2) / DAY_S
        return (1 - lost) / (1 + self.write_s / interval_s)

    def simulated(self, seeds: int, most_days: float = 60) -> float:
        """Return the simulated ETTR, of as many days as the clock holds at most.

        To read a checkpoint takes as long as to write one, and is part of a start.
        """
        cause = FailureCause(cause="node", per="server", mtbf_s=DAY_S / self.rate_per_day, takes="job")
        given: dict[str, object] = {"restart_s": self.restart_s, "checkpoint_iterations": self.interval_min}
        if self.write_s:  # it saves at the end of the iteration of a minute that is under way
            given = {
                "restart_s": self.restart_s - self.write_s,
                "checkpoint": f"fixed:every_s={60 * self.interval_min - 30}",
                "checkpoint_to": "disk:gb_per_s=1",
                "state_mb": 1000 * self.write_s / 8,
            }
        days = min(most_days, 12_288 / self.nodes)
        runs = [long_job(self.nodes * 8, (cause,), days * DAY_S, seed, **given) for seed in range(seeds)]
        return float(np.mean([reliability_by_size(run)["ettr"].iloc[0] for run in runs]))


@app.command("published")
def print_published(seeds: int = 20) -> None:
    """Print what is published of RSC-1 and Llama 3 beside the engine's."""
    for gpus, published_h in RSC_1_H.items():
        found_h = time_to_failure_h(gpus, 60 if gpus == 1024 else 12, seeds)
        print(f"RSC-1, {gpus:6} GPUs: time to failure {found_h:.2f} h, published {published_h} h")
    print("nodes  rate/day  interval  restart  write  simulated  formula")
    cells = product((16, 64, 128, 512, 1024), (0.00234, 0.0065), (30, 60), (300, 900), (0, 60))
    grid = [case for case in (EttrCase(*cell) for cell in cells) if case.nodes <= 128 or not case.write_s]
    pairs = [(case.simulated(min(seeds, 3) if case.write_s else seeds), case.formula()) for case in grid]
    for case, (simulated, formula) in zip(grid, pairs, strict=True):
        nodes, rate, interval_min, restart_s, write_s = case
        print(f"{nodes:5} {rate:9} {interval_min:5} min {restart_s:6} s {write_s:4} s {simulated:10.4f} {formula:8.4f}")
    errors: dict[tuple[int, float], float] = {}
    for case, (simulated, formula) in zip(grid, pairs, strict=True):
        of = case.nodes, case.write_s
        errors[of] = max(errors.get(of, 0.0), abs(simulated / formula - 1))
    for (nodes, write_s), error in errors.items():
        print(f"RSC-1's formula, {nodes:4} nodes, {write_s:2} s to write: largest error {100 * error:.2f} %")
    print_unfitted(seeds)
    counts, ettrs = zip(*(llama(LLAMA_GPUS, LLAMA_DAYS, seed) for seed in range(min(seeds, 3))), strict=True)
    print("Llama 3, Young's checkpoints of 2.8 s, restarts of 300 s: ETTR", *(f"{ettr:.3f}" for ettr in ettrs))
    larger = [llama(8 * LLAMA_GPUS, 6, seed)[1] for seed in range(min(seeds, 3))]
    print("  on 131,072 GPUs, as likely each to fail", *(f"{ettr:.3f}" for ettr in larger))
    days = {"gpu": LLAMA_GPUS * LLAMA_DAYS, "server": LLAMA_GPUS // 8 * LLAMA_DAYS}
    print("cause                           published  99 % of Poisson  simulated, a seed each")
    for cause in read_causes("llama3-16k"):
        published = round(days[cause.per] * DAY_S / cause.mtbf_s)
        least, most = poisson.interval(0.99, published)
        found = [count[cause.cause] for count in counts]
        print(f"{cause.cause:30} {published:8}  {least:7.0f} to {most:3.0f}   {found}")


def print_unfitted(seeds: int) -> None:
    """Print what RSC-1's table was not fitted to, beside what its authors say."""
    for interval_min, published in RSC_1_ETTR.items():
        found = EttrCase(2000, 0.0065, interval_min, 300).simulated(min(seeds, 3), RUN_DAYS)
        print(f"RSC-1's node rate, 16,000 GPUs, {interval_min:2} min: ETTR {found:.3f}, published {published}")
    rate = failures_per_s(read_causes("rsc-1"), 131_072, 131_072 // 8)
    print(f"RSC-1, 131,072 GPUs: time to failure {1 / rate / 3600:.3f} h by its table, published 0.23 h")


# --- Young and Daly

WRITE_S, MTBF_S, RATIOS = 60.0, 6000.0, (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)


def waste(when: float | str, causes: Sequence[FailureCause], store: str, jobs: int, days: float, seed: int) -> float:
    """Return which part of the time of jobs of one GPU that save 60 GB each trains nothing."""
    workload = workload_of(gpus=[1] * jobs, iterations=round(days * DAY_S), forward_s=1, backward_s=2)
    cluster = ddlsched.Cluster(num_servers=jobs + 1, gpus_per_server=1, exclusive=True, topology="star:nic_gbps=8")
    disturbances = Disturbances(
        failures=tuple(causes),
        checkpoint=when if isinstance(when, str) else f"fixed:every_s={when}",
        checkpoint_to=store,
        state_mb=1000 * WRITE_S,
    )
    given = {"placement": "in-order", "communication": "bounded-overlap:limit=99", "contention": "max-min"}
    result = ddlsched.simulate(workload, cluster, disturbances=disturbances, until_s=days * DAY_S, seed=seed, **given)
    times = gpu_time_of(result)
    return 1 - float(times["training"].sum() / (times["held"] + times["requeueing"]).sum())


def best_interval(young_s: float, wasted: Callable[[float], float], about: float = 1.0) -> tuple[float, float, float]:
    """Return the interval that wastes least, and what that and Young's waste: a/x + b x + c fitted over seven.

    These are ``about`` times as long as Young's.
    """
    every_s = about * young_s * np.array(RATIOS)
    found = np.array([wasted(float(each)) for each in every_s])
    (a, b, c), *_ = np.linalg.lstsq(np.stack([1 / every_s, every_s, np.ones_like(every_s)], 1), found, rcond=None)
    best_s = float(np.sqrt(a / b))
    return best_s, float(a / best_s + b * best_s + c), float(a / young_s + b * young_s + c)


@app.command("intervals")
def print_intervals(days: float = 300.0) -> None:
    """Print the best interval beside Young's and Daly's, where their assumptions hold and where not."""
    job = CheckpointedJob(job_id="j", num_gpus=1, write_s=WRITE_S, restart_s=0.0, time_to_failure_s=MTBF_S, now_s=0.0)
    young_s, daly_s = Young().interval_s(job), Daly().interval_s(job)

    def cause(shape: float = 1.0, per: str = "job") -> list[FailureCause]:
        return [FailureCause(cause="node", per=per, mtbf_s=MTBF_S, takes="job", shape=shape)]

    cases: dict[str, tuple[list[FailureCause], str, int, float]] = {
        "assumptions hold": (cause(), "disk:gb_per_s=1", 1, 1.0),
        "failures in bursts (Weibull, shape 0.5)": (cause(0.5), "disk:gb_per_s=1", 1, 1.0),
        "failures that wear brings (Weibull, shape 3)": (cause(3.0), "disk:gb_per_s=1", 1, 1.0),
        "8 jobs share a storage server": (cause(), "storage", 8, 1.0),
        "8 jobs share one, and fail at once": (cause(per="rack"), "storage", 8, 2.5),
    }
    print(f"checkpoints of {WRITE_S:g} s, {MTBF_S:g} s to failure: Young {young_s:.0f} s, Daly {daly_s:.0f} s")
    for name, (causes, store, jobs, about) in cases.items():
        wasted = partial(waste, causes=causes, store=store, jobs=jobs, days=days / jobs, seed=0)
        best_s, least, youngs = best_interval(young_s, wasted, about)
        print(
            f"{name}: best {best_s:.0f} s, {100 * (best_s / young_s - 1):+.1f} % of Young's, "
            f"{100 * (best_s / daly_s - 1):+.1f} % of Daly's; wasted {100 * least:.2f} %, "
            f"with Young's {100 * youngs:.2f} %, where it sees what the last one took {100 * wasted('young'):.2f} %"
        )


# --- a cluster


FURTHER_CAUSES = (
    FailureCause(cause="switch", per="rack", mtbf_s=3000 * DAY_S, takes="rack", repair_s=4 * 3600),
    FailureCause(cause="maintenance", per="server", mtbf_s=365 * DAY_S, repair_s=2 * 3600, warned=True),
    FailureCause(cause="silent corruption", per="gpu", mtbf_s=150_000 * DAY_S, takes="job", noticed_s=inf),
    FailureCause(cause="slow GPU", per="gpu", mtbf_s=10_000 * DAY_S, noticed_s=inf, repair_s=DAY_S, slowdown=1.5),
)
"""Beside RSC-1's, of whatever kind there is; their rates are invented, but for that of corruption, Llama 3's."""


@app.command("cluster")
def print_cluster(num_jobs: int = 200, days: float = 90.0) -> None:
    """Print what 16,384 GPUs with failures of all kinds do with jobs of up to 2,048 GPUs, and how long that took."""
    rng = np.random.default_rng(0)
    sizes = rng.choice(
        [8, 32, 64, 128, 256, 512, 1024, 2048], num_jobs, p=[0.2, 0.15, 0.15, 0.15, 0.13, 0.1, 0.08, 0.04]
    )
    times = [(rng.uniform(0, 0.9 * days * DAY_S), 1 + rng.exponential(days / 9)) for _ in sizes]
    workload = workload_of(
        arrival_s=[arrival_s for arrival_s, _ in times],
        gpus=sizes,
        iterations=[int(of_days * DAY_S / 10) for _, of_days in times],
        forward_s=3,
        backward_s=7,
        message_bytes=4e9,
        gpu_memory_mb=60_000,
    )
    topology = "leaf-spine:servers_per_leaf=16,spines=16,nic_gbps=400"
    cluster = ddlsched.Cluster(
        num_servers=2048, gpus_per_server=8, gpu_memory_mb=80_000, topology=topology, exclusive=True
    )
    disturbances = Disturbances(
        failures=(*read_causes("rsc-1"), *FURTHER_CAUSES),
        checkpoint="young",
        checkpoint_to="disk:gb_per_s=5",
        state_share=0.2,
        restart_s=300,
        recovery="spares:count=16",
        health="repeated-failures:check_s=21600",
    )
    warm_up()
    begin_s = time.process_time()
    given = {"placement": "first-fit", "order": "fifo", "communication": "bounded-overlap:limit=99"}
    result = ddlsched.simulate(
        workload, cluster, contention="max-min", disturbances=disturbances, until_s=days * DAY_S, **given
    )
    print(reliability_by_size(result).to_string(index=False))
    saved = sum(stay.saved for stay in result.finished.stays)
    took_s = time.process_time() - begin_s
    print(
        f"{days:g} days, {num_jobs} jobs, {len(result.finished.failures)} failures, {saved} checkpoints: {took_s:.0f} s"
    )


if __name__ == "__main__":
    app()
