"""How many configurations of model, parallelism and cluster are estimated in a second.

python benchmarks/design_sweep.py [--configurations N]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.design_sweep import DesignSweep, design
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked

MODEL = MODELS["megatron-175b"]
PLAN = parse_cluster("h100")
GPUS = 512


def swept(variants: int) -> tuple[int, float]:
    """Return how many configurations were estimated at once, and the seconds it took.

    ``variants`` squared clusters, each with every valid parallelism.
    """
    factors = tuple(np.linspace(0.5, 2.0, variants).tolist())
    axes = {"memory_bandwidth": factors, "network_bandwidth": factors, "sequence_parallel": (0, 1)}
    start = time.perf_counter()
    table = design(MODEL, PLAN, num_gpus=GPUS, global_batch=1536, sweep=DesignSweep(axes=axes))
    return len(table), time.perf_counter() - start


def one_by_one(count: int) -> float:
    """Return the seconds of single estimates."""
    machine = PLAN.machine(GPUS)
    start = time.perf_counter()
    for _ in range(count):
        estimate_checked(MODEL, Parallelism(tensor=8, pipeline=8, data=8, global_batch=1536), machine)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=100_000, metavar="N", help="about; default: %(default)s")
    wanted = parser.parse_args().configurations
    plans, _ = swept(1)
    count, seconds = swept(max(1, round((wanted / plans) ** 0.5)))
    single_s = one_by_one(100) / 100
    print(f"at once:    {count:,} configurations in {seconds:.2f} s, {count / seconds:,.0f} a second")
    print(f"one by one: {1 / single_s:,.0f} a second")


if __name__ == "__main__":
    main()
