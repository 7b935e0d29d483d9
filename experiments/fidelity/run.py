"""How far simulated jobs that contend are from real ones: random mixes, measured on the testbed and simulated.

    sudo python experiments/fidelity/run.py --out DIR [--mixes 200] [--compared 20] [--repeats 3] [--resume]
    sudo python experiments/fidelity/run.py --quick --out DIR
    python experiments/fidelity/run.py --measured experiments/fidelity/measured

The first measures every mix under free overlap once, and some held-out ones under five policies several times, then
simulates all and prints the tables; the second does so in three minutes; the third only simulates, against runs that
were measured before, and needs neither root nor PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import mixes
import pandas as pd
from rich.console import Console
from rich.progress import Progress

from ddlsched.cli.output import notice
from ddlsched.cli.reporting import reported
from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.performance.calibration.measurements import read_measurements
from ddlsched.testbed.calibration_runs import fitted_models, measured_rows
from ddlsched.testbed.fidelity import Planned, Runs, plan, run_planned, simulated_runs
from ddlsched.testbed.fidelity_report import FidelityReport, report_of
from ddlsched.testbed.places import crew_of
from ddlsched.testbed.settings import gate_settings

SEED = 0
CALIBRATION = "calibration.csv"
MEASURED = "measured.csv"
QUICK = "quick"
"""A file that is there if the mixes are the short ones."""


def planned_runs(args: argparse.Namespace) -> list[Planned]:
    """Return the runs, those of a cluster together."""
    seeds = sorted(range(args.mixes), key=lambda seed: (mixes.cluster_name(seed), seed))
    compared = [seed for seed in range(args.mixes) if mixes.held_out(seed)][: args.compared]
    runs = []
    for seed in seeds:
        policies = tuple(mixes.POLICIES) if seed in compared else (mixes.BASELINE,)
        mix = mixes.mix_of(seed, policies, mixes.QUICK if args.quick else mixes.FULL)
        runs += plan([mix], args.repeats if seed in compared else 1, seed=SEED + seed)
    return runs


def measure(args: argparse.Namespace, planned: list[Planned]) -> None:
    """Make the runs that are missing, cluster by cluster, and keep each."""
    runs, kept = Runs(args.out), args.out / CALIBRATION
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.resume and any(args.out.iterdir()):
        raise InputError(f"{args.out}: is not empty; expected --resume, or a new folder")
    if args.quick:
        (args.out / QUICK).touch()
    if not kept.exists():
        notice("measuring jobs alone and pairs")
        cluster = mixes.cluster_of(mixes.CALIBRATED)
        with crew_of(cluster, None, None, realtime=True) as crew:
            measured_rows(kept, gate_settings(cluster), crew)
    model = fitted_models(read_measurements(kept))["max-min"]
    missing = runs.missing(planned)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("running", total=len(planned), completed=len(planned) - len(missing))
        for _, group in groupby(missing, key=lambda run: mixes.cluster_name(seed_of(run.mix.name))):
            together = list(group)
            with crew_of(together[0].mix.cluster, None, None, realtime=True) as crew:
                for run in together:
                    runs.keep(run, run_planned(run, crew, model))
                    progress.advance(task)
    with replacing(args.out / MEASURED, "--out") as file:
        runs.measured(planned).to_csv(file, index=False, float_format="%.6g")


def seed_of(name: str) -> int:
    """Return the seed of a mix by its name."""
    return int(name.removeprefix("seed-"))


def reports(folder: Path, more_models: Sequence[str] = ()) -> dict[str, FidelityReport]:
    """Return what measured and simulated runs say of each other, for each half of the mixes that has any."""
    measured = pd.read_csv(folder / MEASURED, dtype={"servers": str})
    models = fitted_models(read_measurements(folder / CALIBRATION)) | {name: name for name in more_models}
    draw = mixes.QUICK if (folder / QUICK).exists() else mixes.FULL
    policies = measured.groupby("mix", sort=False).policy.unique()
    in_order = {name: tuple(policy for policy in mixes.POLICIES if policy in own) for name, own in policies.items()}
    ran = [mixes.mix_of(seed_of(name), own, draw) for name, own in in_order.items()]
    simulated = simulated_runs(ran, models)
    result = {}
    for half, wanted in (("training", False), ("held out", True)):
        names = [name for name in policies.index if mixes.held_out(seed_of(name)) == wanted]
        if names:
            chosen = (table[table.mix.isin(names)] for table in (measured, simulated))
            result[half] = report_of(*chosen, models, mixes.BASELINE)
    return result


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Simulated jobs that contend against real ones.")
    parser.add_argument("--out", type=Path, default=Path("fidelity"))
    parser.add_argument("--mixes", type=int, default=None)
    parser.add_argument("--compared", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--contention", action="append", default=[], help="one more model, with its constants")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--measured", type=Path, default=None, help="only simulate, against the runs in this folder")
    args = parser.parse_args(arguments)
    defaults = {"mixes": 6, "compared": 1, "repeats": 1} if args.quick else {"mixes": 200, "compared": 20, "repeats": 3}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
        if getattr(args, name) < (0 if name == "compared" else 1):
            raise InputError(f"--{name} is {getattr(args, name)}; expected at least 1")
    return args


def main(arguments: Sequence[str]) -> None:
    """Measure if asked to, simulate, print."""
    args = parsed(arguments)
    if args.measured is None:
        measure(args, planned_runs(args))
    for half, report in reports(args.measured or args.out, args.contention).items():
        print(f"== {half} mixes\n\n{report.text()}")
        if args.measured is None:
            target = args.out / half.replace(" ", "_")
            target.mkdir(exist_ok=True)
            report.write(target)


if __name__ == "__main__":
    with reported():
        main(sys.argv[1:])
