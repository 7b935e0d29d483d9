"""Draws a training step of an LLM whose tensor, pipeline and data traffic runs over groups of workers.

python experiments/collectives/llm_step.py [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ddlsched
from ddlsched.comparisons.charts.style import save
from ddlsched.comparisons.charts.training_charts import step_chart
from ddlsched.results.result import Result
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked

PLAN = Parallelism(tensor=4, pipeline=4, data=2, micro_batch=1, global_batch=16)
MODEL = "gpt3-6.7b"
HOSTS = 4


def run() -> tuple[Result, float]:
    """Return a recorded run of one step on H100 hosts with a card a GPU, and the estimated time of a step, seconds."""
    machine = parse_cluster(f"h100:nodes={HOSTS}", efficiency="megatron").machine(int(PLAN.num_gpus))
    job = job_of(MODELS[MODEL], PLAN, machine, job_id=MODEL, iterations=1, groups=True)
    cluster = ddlsched.Cluster(
        num_servers=HOSTS, gpus_per_server=8, gpu_memory_mb=80_000, topology="rail-optimised:nvlink_gbps=3600"
    )
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        cluster,
        placement="first-fit",
        order="fifo",
        communication="bounded-overlap:limit=100",
        contention="max-min",
        timeline=True,
    )
    return result, float(estimate_checked(MODELS[MODEL], PLAN, machine).step_s)


def main() -> int:
    """Write the picture and say how long the step takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "charts")
    given = parser.parse_args()
    result, estimated_s = run()
    written = save(step_chart(result, MODEL), given.out / "llm-step")
    print(f"a step takes {result.jobs['jct_s'].item():.4f} s, by the estimate {estimated_s:.4f} s; wrote {written[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
