"""A real Slurm and its simulated twin: the same jobs under the same policies, side by side.

    python experiments/slurm_twin/run.py --out DIR [--jobs 500] [--first-seed 0] [--seeds 1] [--quick] [--scenario NAME]
    python experiments/slurm_twin/run.py --measured experiments/slurm_twin/expected

The first runs every scenario for real that DIR does not hold yet, on 32 nodes of this host, and compares; it needs
Slurm's Debian packages (tests/real/slurm/run installs them). --quick has 50 jobs and takes three minutes. The second
only compares with what was measured before.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from compare import comparison, repeated
from predictions import USUAL, Taken, taken
from real import run_for_real
from scenarios import SCENARIOS, Scenario

from ddlsched.cli.reporting import emit, notice, reported
from ddlsched.errors import InputError
from ddlsched.io.files import replacing

QUICK_JOBS = 50


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path)
    where.add_argument("--measured", type=Path)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in SCENARIOS])
    return parser.parse_args(given)


def measure(args: argparse.Namespace) -> None:
    """Make the runs that are missing."""
    args.out.mkdir(parents=True, exist_ok=True)
    num_jobs = QUICK_JOBS if args.quick else args.jobs
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for scenario in SCENARIOS:
            path = args.out / f"{scenario.name}-{num_jobs}-{seed}.csv"
            if path.exists() or scenario.name not in (args.scenario or [scenario.name]):
                continue
            notice(f"{scenario.name}, {num_jobs} jobs, seed {seed}")
            table = run_for_real(scenario.jobs(num_jobs, seed), scenario, path.with_suffix(".events"))
            with replacing(path, "--out") as partial:
                table.to_csv(partial, index=False)


def compared(folder: Path) -> pd.DataFrame:
    """Return a row a run that a folder holds, beside the runs of the same jobs in its subfolders ``again*``."""
    rows = []
    for path in sorted(folder.glob("*-*-*.csv")):
        name, num_jobs, seed = path.stem.rsplit("-", 2)
        [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
        real, jobs = pd.read_csv(path), scenario.jobs(int(num_jobs), int(seed))
        row = {"scenario": name, "jobs": int(num_jobs), "seed": int(seed)}
        rows.append(row | comparison(jobs, scenario, real, calibrated(folder, scenario)) | _again(path, real))
    if not rows:
        raise InputError(f"{folder}: holds no runs; expected files such as srsf-lwf-500-0.csv")
    return pd.DataFrame(rows)


def calibrated(folder: Path, scenario: Scenario) -> Taken:
    """Return what Slurm takes by the run in ``calibration`` whose agent looks as often; what is usual if there is none.

    That run has jobs of another seed than those that are compared.
    """
    for path in sorted((folder / "calibration").glob("*-*-*.csv")):
        [measured] = [each for each in SCENARIOS if each.name == path.stem.rsplit("-", 2)[0]]
        if scenario.options is not None and measured.between_looks == scenario.between_looks:
            return taken(pd.read_csv(path), measured)
    return USUAL


def _again(path: Path, real: pd.DataFrame) -> dict[str, float]:
    """Return what a run has in common with others of the same jobs on average."""
    rows = [repeated(real, pd.read_csv(other)) for other in sorted(path.parent.glob(f"again*/{path.name}"))]
    return {} if not rows else pd.DataFrame(rows).abs().mean().round(2).to_dict() | {"again": len(rows)}


def main() -> None:
    """Measure, compare, print."""
    args = arguments()
    with reported():
        if args.out is not None:
            measure(args)
        table = compared(args.out or args.measured)
        emit(table.to_string(index=False) + "\n")
        if args.out is not None:
            with replacing(args.out / "comparison.csv", "--out") as partial:
                table.to_csv(partial, index=False)


if __name__ == "__main__":
    main()
