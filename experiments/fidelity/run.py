"""How far simulated jobs that contend are from real ones: random mixes, measured on the testbed and simulated.

    sudo python experiments/fidelity/run.py --out DIR [--mixes 200] [--compared 20] [--repeats 3] [--resume]
    sudo python experiments/fidelity/run.py --out DIR --stop-after-min 40
    sudo python experiments/fidelity/run.py --quick --out DIR
    python experiments/fidelity/run.py --measured experiments/fidelity/measured [--tables DIR]

The first measures every mix under free overlap once, and some held-out ones under five policies several times, then
simulates all and prints the tables; the second does as much of it as the time allows, the third does so with short jobs
in three minutes. The last only simulates, against runs that were measured before, and needs neither root nor PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import measuring
import mixes
import pandas as pd

from ddlsched.cli.reporting import interrupted, notice, reported
from ddlsched.errors import InputError
from ddlsched.real.calibration.measurements import Reach, read_measurements
from ddlsched.real.calibration.shares import read_alone, read_shares, wait_text
from ddlsched.real.testbed.fidelity import FidelityReport, Mix, report_of
from ddlsched.real.testbed.run_models import RunModel, RunModels, run_models, simulated_runs
from ddlsched.workload.elastic_job import messages_and_workers


def measure(args: argparse.Namespace) -> None:
    """Make the runs that are missing, or as many as the time allows."""
    measuring.prepare_folder(args.out, resume=args.resume, quick=args.quick)
    draw = mixes.QUICK if args.quick else mixes.FULL
    seeds = range(args.first_mix, args.first_mix + args.mixes)
    planned = measuring.planned_runs(seeds, args.compared, args.repeats, draw)
    stop_s = float("inf") if args.stop_after_min is None else args.stop_after_min * 60
    try:
        measuring.Measuring(args.out, planned, stop_s).measure()
    except KeyboardInterrupt:
        notice(f"what is measured is kept: --measured {args.out} prints its tables, --resume goes on")
        raise


def fitted(folder: Path) -> RunModels:
    """Return the models with the constants that jobs alone and pairs gave."""
    shares, jobs = folder / measuring.SHARES, folder / measuring.ALONE
    return run_models(
        read_measurements(folder / measuring.CALIBRATION),
        read_shares(shares) if shares.exists() else None,
        read_alone(jobs) if jobs.exists() else None,
    )


def measured_runs(folder: Path) -> tuple[pd.DataFrame, list[Mix]]:
    """Return the measured runs of a folder, and its mixes under the policies that each ran under.

    Raises
    ------
    InputError
        The folder holds no measured run.
    """
    if not (folder / measuring.MEASURED).exists():
        raise InputError(f"{folder}: holds no {measuring.MEASURED}; expected a folder in which --out has measured runs")
    measured = pd.read_csv(folder / measuring.MEASURED, dtype={"servers": str})
    draw = mixes.QUICK if (folder / measuring.QUICK).exists() else mixes.FULL
    policies = measured.groupby("mix", sort=False).policy.unique()
    in_order = {name: tuple(policy for policy in mixes.POLICIES if policy in own) for name, own in policies.items()}
    return measured, [mixes.mix_of(mixes.seed_of(name), own, draw) for name, own in in_order.items()]


def reports(measured: pd.DataFrame, ran: Sequence[Mix], models: Mapping[str, RunModel]) -> dict[str, FidelityReport]:
    """Return what measured and simulated runs say of each other, for each half of the mixes that has any."""
    simulated = simulated_runs(ran, models)
    result = {}
    for half, wanted in (("training", False), ("held out", True)):
        names = [mix.name for mix in ran if mixes.held_out(mixes.seed_of(mix.name)) == wanted]
        if names:
            chosen = (table[table.mix.isin(names)] for table in (measured, simulated))
            result[half] = report_of(*chosen, models, mixes.BASELINE)
    return result


def on_one_server(jobs: pd.DataFrame, measured: pd.DataFrame, model: str = "packet-rings") -> str:
    """Return how far jobs that send nothing are off under a model, and all others; where each ran is that of its runs.

    Parameters
    ----------
    jobs
        Errors, a row a job, mix, policy and model.
    measured
        The runs, whose column ``servers`` says where each job ran.
    """
    keys = ["mix", "policy", "job_id"]
    places = measured.groupby(keys).servers.agg(lambda runs: all("," not in one for one in runs)).rename("alone")
    own = jobs[jobs.model == model].merge(places.reset_index(), on=keys)
    texts = []
    for alone, name in ((True, "on one server"), (False, "on several")):
        off = own[own.alone == alone].jct_error.abs() * 100
        if len(off):
            texts.append(f"{name} {off.mean():.1f}, 95 % within {off.quantile(0.95):.1f} ({len(off)})")
    return f"error of jobs under {model} (%): {'; '.join(texts)}"


def each_policy_alike(jobs: pd.DataFrame) -> str:
    """Return the mean error by model if every policy counts alike; over all jobs most count that ran most often."""
    errors = jobs.jct_error.abs().groupby([jobs.model, jobs.policy], sort=False).mean() * 100
    means = errors.groupby("model", sort=False).mean()
    return "mean error of a JCT, each policy counted alike (%): " + ", ".join(f"{k} {v:.2f}" for k, v in means.items())


def beyond(folder: Path) -> list[str]:
    """Return a line for what of the mixes is beyond what the calibration measured, if anything is."""
    reach = Reach.of(read_measurements(folder / measuring.CALIBRATION))
    return reach.beyond(messages_and_workers(job for mix in measured_runs(folder)[1] for job in mix.workload))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Simulated jobs that contend against real ones.")
    parser.add_argument("--out", type=Path, default=Path("fidelity"))
    parser.add_argument("--mixes", type=int, default=None)
    parser.add_argument("--first-mix", type=int, default=0, help="the first seed, default 0")
    parser.add_argument("--compared", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--contention", action="append", default=[], help="one more model, with its constants")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--stop-after-min", type=float, default=None, help="begin no run that would end later")
    parser.add_argument("--measured", type=Path, default=None, help="only simulate, against the runs in this folder")
    parser.add_argument("--tables", type=Path, default=None, help="also write tables and charts of --measured here")
    args = parser.parse_args(arguments)
    defaults = {"mixes": 6, "compared": 1, "repeats": 1} if args.quick else {"mixes": 200, "compared": 20, "repeats": 3}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
        least = 0 if name == "compared" else 1
        if getattr(args, name) < least:
            raise InputError(f"--{name} is {getattr(args, name)}; expected at least {least}")
    if args.first_mix < 0:
        raise InputError(f"--first-mix is {args.first_mix}; expected at least 0")
    if args.stop_after_min is not None and not args.stop_after_min > 0:
        raise InputError(f"--stop-after-min is {args.stop_after_min:g}; expected more than 0 minutes")
    if args.tables is not None and args.measured is None:
        raise InputError("--tables belongs to --measured; expected --out, whose folder gets the tables")
    return args


def main(arguments: Sequence[str]) -> None:
    """Measure if asked to, simulate, print."""
    args = parsed(arguments)
    if args.measured is None:
        measure(args)
    folder = args.measured or args.out
    runs, fit = measured_runs(folder), fitted(folder)
    models = {**fit.by_name} | {name: RunModel(contention=name) for name in args.contention}
    for half, report in reports(*runs, models).items():
        print(f"== {half} mixes\n\n{report.text()}")
        print(each_policy_alike(report.jobs))
        if "packet-rings" in report.models:
            print(on_one_server(report.jobs, measured_runs(folder)[0]) + "\n")
        tables = args.out if args.measured is None else args.tables
        if tables is not None:
            target = tables / half.replace(" ", "_")
            target.mkdir(parents=True, exist_ok=True)
            report.write(target)
    if fit.wait:
        print(wait_text(read_alone(folder / measuring.ALONE), fit.wait))
    for line in beyond(folder):
        print(line)


if __name__ == "__main__":
    with reported():
        try:
            main(sys.argv[1:])
        except KeyboardInterrupt:
            sys.exit(interrupted())
