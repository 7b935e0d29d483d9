"""How far policies are from the optimum of small instances.

python experiments/beyond_ada_srsf/optimality.py            40 instances
python experiments/beyond_ada_srsf/optimality.py --full     300 instances
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from bounds import small_gaps
from exact import optimum

import ddlsched
from algorithms.bound import average_jct_bound_s
from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.io.progress import progress_bar
from ddlsched.network.contention import TEN_GBE, Linear
from ddlsched.results.paired_comparison import markdown
from ddlsched.results.statistics import mean_interval
from experiments.commands import new_parser, write_tables

UNIT_S = 0.05
TWO_SERVERS = Cluster(num_servers=2, gpus_per_server=2)
NETWORK = Linear(**TEN_GBE)
POLICIES = {
    "SRSF(1)": {"scheduler": "srsf-1"},
    "SRSF(2)": {"scheduler": "srsf-2"},
    "Ada-SRSF": {"scheduler": "ada-srsf"},
    "LWF-1, preemptive": {"scheduler": "srsf-1", "communication": "preemptive:by=service-per-gpu"},
    "Blocks, no overlap": {"scheduler": "block-srtf", "communication": "bounded-overlap:limit=1"},
    "Block-SRTF": {"scheduler": "block-srtf"},
}


def instance(seed: int) -> Workload:
    """Return 2 to 5 jobs of 1 to 4 GPUs and 1 to 3 iterations, all times whole units."""
    rng = np.random.default_rng([seed, 5])
    return Workload(tuple(_job(rng, number) for number in range(rng.integers(2, 6))))


def _job(rng: np.random.Generator, number: int) -> Job:
    forward, backward, transfer, arrival = rng.integers(1, 3), rng.integers(1, 3), rng.integers(1, 6), rng.integers(8)
    return Job(
        job_id=str(number),
        arrival_s=float(arrival * UNIT_S),
        num_gpus=int(rng.integers(1, 5)),
        iterations=int(rng.integers(1, 4)),
        iteration=DataParallelIteration(
            forward_s=float(forward * UNIT_S),
            backward_s=float(backward * UNIT_S),
            message_bytes=float(transfer * UNIT_S / NETWORK.per_byte_s),
        ),
        gpu_memory_mb=1.0,
    )


def gaps(instances: int, limit_s: float) -> pd.DataFrame:
    """Return a row an instance: the optimum (s), whether it is proven, and each policy's gap to it, %."""
    rows = []
    with progress_bar("solving") as watch:
        for seed in range(1, instances + 1):
            workload = instance(seed)
            best = optimum(workload, TWO_SERVERS, contention=NETWORK, unit_s=UNIT_S, time_limit_s=limit_s)
            rows.append({"instance": seed, "jobs": len(workload), "optimum_s": best.average_jct_s})
            rows[-1] |= {"proven": best.proven, "bound_s": average_jct_bound_s(workload, TWO_SERVERS, NETWORK)}
            for policy, options in POLICIES.items():
                run = ddlsched.simulate(workload, TWO_SERVERS, contention=NETWORK, load_per_byte_s=None, **options)
                rows[-1][policy] = 100.0 * (run.jobs["jct_s"].mean() / best.lower_bound_s - 1.0)
            watch(seed, instances, None)
    return pd.DataFrame(rows)


def report(found: pd.DataFrame, out: Path) -> None:
    """Print the gaps and write them as a CSV file."""
    write_tables(out / "tables", {"optimality": found})
    proven = int(found["proven"].sum())
    print(f"## Gap to the optimum, {len(found)} instances, {proven} proven optimal; the others against the bound\n")
    print(gap_table(found))
    solved = found[found["proven"]]
    print(f"\n{small_gaps(solved['optimum_s'], solved['bound_s'])}")


def gap_table(found: pd.DataFrame) -> str:
    """Return a row a policy of how far it is from the optimum."""
    return markdown([{"policy": policy} | _gap_row(found[policy]) for policy in POLICIES])


def _gap_row(gap: pd.Series) -> dict[str, str]:
    found = mean_interval(gap.to_numpy())
    return {
        "mean gap (%)": f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]",
        "median": f"{gap.median():.1f}",
        "95th percentile": f"{gap.quantile(0.95):.1f}",
        "worst": f"{gap.max():.1f}",
        "optimal in (%)": f"{100 * (gap < 1e-6).mean():.0f}",
    }


def main() -> int:
    """Solve, then report."""
    parser = new_parser(__doc__, "beyond_ada_srsf")
    parser.add_argument("--full", action="store_true", help="300 instances")
    parser.add_argument("--instances", type=int, metavar="N")
    parser.add_argument("--limit", type=float, default=10.0, metavar="S", help="solver's seconds each")
    given = parser.parse_args()
    report(gaps(given.instances or (300 if given.full else 40), given.limit), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
