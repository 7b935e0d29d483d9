"""How far policies are from the optimum of small instances, and AdaDUAL's theorem checked by simulation.

python experiments/beyond_ada_srsf/optimality.py            40 instances
python experiments/beyond_ada_srsf/optimality.py --full     300 instances
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from bounds import bound_s, small_gaps
from run import CSV, shades

import ddlsched
from algorithms.optimal.bound import average_jct_bound_s
from algorithms.optimal.exact import optimum
from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.comparisons.charts.jct_charts import bars
from ddlsched.comparisons.charts.style import save
from ddlsched.io.progress import progress_bar
from ddlsched.network.contention import TEN_GBE, Linear
from ddlsched.results.paired_comparison import markdown
from ddlsched.results.statistics import mean_interval

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


def two_transfers() -> pd.DataFrame:
    """Return the sum of JCTs (s) of two transfers in isolation, for sizes of the new one around AdaDUAL's threshold."""
    rows = []
    for share in (0.1, 0.2, 0.3, 0.38, 0.39, 0.3925, 0.395, 0.41, 0.5, 0.7, 0.9):
        row = {"new / left of the old": share}
        for name, communication in {
            "wait": "bounded-overlap:limit=1",
            "overlap": "bounded-overlap:limit=2",
            "AdaDUAL": "adadual",
            "preempt": "preemptive:by=bytes",
        }.items():
            row[name] = _isolated_s(share, communication)
        rows.append(row)
    return pd.DataFrame(rows)


def _isolated_s(share: float, communication: str) -> float:
    """Return the sum of JCTs (s) of an old transfer of 1e9 bytes and a new one, both ready at 0."""
    jobs = [
        Job(
            job_id=name,
            arrival_s=0.0,
            num_gpus=2,
            iterations=1,
            gpu_memory_mb=1.0,
            iteration=DataParallelIteration(forward_s=0.0, backward_s=compute_s, message_bytes=message_bytes),
        )
        for name, compute_s, message_bytes in (("old", 0.0, 1e9), ("new", 1e-9, share * 1e9))
    ]
    cluster = Cluster(num_servers=2, gpus_per_server=1)
    return float(ddlsched.simulate(Workload.of(jobs), cluster, communication=communication).jobs["jct_s"].sum())


def large(seeds: int) -> pd.DataFrame:
    """Return, for job sets of the 64-GPU experiment, the lower bound and Block-SRTF's average JCT (s)."""
    rows = []
    for seed in range(1, seeds + 1):
        workload = ddlsched.microsoft_160(seed=seed)
        run = ddlsched.simulate(workload, scheduler="block-srtf")
        row = {"seed": seed, "bound_s": bound_s(seed, 1.0, exclusive=False), "block_srtf_s": run.jobs["jct_s"].mean()}
        rows.append(row)
    return pd.DataFrame(rows)


def report(found: pd.DataFrame, out: Path, seeds: int) -> None:
    """Print the tables, write them as CSV files, and draw the chart."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    transfers, bounds = two_transfers(), large(seeds)
    for name, table in {"optimality": found, "two_transfers": transfers, "bound": bounds}.items():
        table.to_csv(out / "tables" / f"{name}.csv", **CSV)
    proven = int(found["proven"].sum())
    print(f"## Gap to the optimum, {len(found)} instances, {proven} proven optimal; the others against the bound\n")
    print(gap_table(found), "\n\n## Two transfers in isolation: the sum of JCTs (s)\n")
    print(transfer_table(transfers))
    solved = found[found["proven"]]
    print(f"\n{small_gaps(solved['optimum_s'], solved['bound_s'])}")
    ratio = mean_interval((bounds["block_srtf_s"] / bounds["bound_s"]).to_numpy())
    over = f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    print(f"\nBlock-SRTF / lower bound at full size, {seeds} seeds: {over}")
    means = {policy: mean_interval(found[policy].to_numpy()) for policy in POLICIES}
    title = f"{len(found)} random instances of 2 to 5 jobs on 2 servers of 2 GPUs"
    figure = bars(means, axis="Mean gap to the optimum (%)", title=title, colour=shades(POLICIES))
    print("Charts:", *save(figure, out / "charts" / "optimality"))


def gap_table(found: pd.DataFrame) -> str:
    """Return a row a policy of how far it is from the optimum."""
    return markdown([{"policy": policy} | _gap_row(found[policy]) for policy in POLICIES])


def transfer_table(transfers: pd.DataFrame) -> str:
    """Return the sums of two transfers' JCTs (s)."""
    return markdown([{k: f"{v:.5g}" for k, v in row.items()} for row in transfers.to_dict("records")])


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="300 instances, 10 seeds of the bound")
    parser.add_argument("--instances", type=int, metavar="N")
    parser.add_argument("--limit", type=float, default=10.0, metavar="S", help="solver's seconds each")
    parser.add_argument(
        "--out", type=Path, default=Path("results/beyond_ada_srsf"), metavar="DIR", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    instances = arguments.instances or (300 if arguments.full else 40)
    report(gaps(instances, arguments.limit), arguments.out, 10 if arguments.full else 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
