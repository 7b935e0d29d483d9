"""``ddlsched testbed compare``: a workload for real and simulated, under several policies and models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option, with_options
from ddlsched.cli.output import emit, notice
from ddlsched.errors import InputError
from ddlsched.real.commands.testbed_options import GateOptions, NetworkOfNamespaces, Place

if TYPE_CHECKING:
    from ddlsched.real.testbed.fidelity import Mix

__all__ = ["compare"]

_SEVERAL = ("scheduler", "communication", "contention")


@dataclass(frozen=True, kw_only=True)
class ComparedPolicies:
    """What is compared, and how often."""

    scheduler: list[str] | None = option(None, "A bundle to compare.", metavar="BUNDLE", shown="none")
    communication: list[str] | None = option(
        None, "A communication policy to compare, with --placement and --order.", metavar="NAME", shown="none"
    )
    placement: str = option("first-fit", "Placement of those with --communication.", metavar="NAME")
    order: str = option("srsf", "Order of those with --communication.", metavar="NAME")
    contention: list[str] | None = option(
        None,
        "A contention model to simulate as it is given, beside those that are fitted.",
        metavar="NAME",
        shown="none",
    )
    repeats: int = option(3, "How often each is run for real, in shuffled order.")
    seed: int = option(0, "Of that order, and of the policies' randomness.")


@with_options
def compare(
    jobs: Annotated[
        Path, typer.Argument(metavar="JOBS", help="Workload file: .csv, .parquet or .json.", readable=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder of the runs, tables and charts.", metavar="DIR")],
    network: Annotated[Given[NetworkOfNamespaces], Panel("Network")],
    policies: Annotated[
        Given[ComparedPolicies],
        Panel("Policies, the first one is the baseline", several=_SEVERAL),
    ],
    gate: Annotated[Given[GateOptions], Panel("Gate", only=("chunk_bytes", "window"))],
    place: Annotated[Given[Place], Panel("Where", only=("hosts", "token_file", "no_realtime"))],
) -> None:
    """Run a workload for real and simulate it, and say how far the simulated times are off.

    The contention models' constants are first fitted, to measured jobs alone and pairs only. Started again with the
    same DIR it goes on with the runs that are missing.
    """
    from rich.console import Console
    from rich.progress import track

    from ddlsched.real.calibration.measurements import read_measurements
    from ddlsched.real.calibration.reach import Reach
    from ddlsched.real.calibration.ring_wait import read_alone, wait_text
    from ddlsched.real.calibration.shares import read_shares
    from ddlsched.real.testbed.alone_runs import alone_jobs, measure_alone
    from ddlsched.real.testbed.calibration_runs import fitted_models, measured_rows
    from ddlsched.real.testbed.fidelity import Runs, note_settings, plan, run_planned
    from ddlsched.real.testbed.fidelity_report import report_of
    from ddlsched.real.testbed.places import crew_of
    from ddlsched.real.testbed.run_models import run_models
    from ddlsched.real.testbed.settings import gate_settings
    from ddlsched.real.testbed.share_runs import measure_shares
    from ddlsched.real.testbed.simulated import RunModel, simulated_runs
    from ddlsched.workload.elastic_job import messages_and_workers

    wanted, asked = policies.made(), place.made()
    mix = _mix(jobs, network.made(), wanted, gate.values)
    described = {"jobs": jobs.name, "network": network.values, "policies": mix.policies, "repeats": wanted.repeats}
    note_settings(out, described | {"seed": wanted.seed})
    planned, runs, realtime = plan([mix], wanted.repeats, seed=wanted.seed), Runs(out), not asked.no_realtime
    missing = runs.missing(planned)
    calibration = ("calibration.csv", "shares.csv", "alone.csv")
    if missing or not all((out / name).exists() for name in calibration):
        with crew_of(mix.cluster, asked.hosts, asked.token_file, realtime=realtime) as crew:
            notice("measuring jobs alone and pairs")
            settings = gate_settings(mix.cluster)
            fitted = fitted_models(measured_rows(out / "calibration.csv", settings, crew))
            measure_shares(out / "shares.csv", settings, crew)
            measure_alone(out / "alone.csv", alone_jobs(settings), settings, crew)
            for run in track(missing, "running", console=Console(stderr=True)):
                runs.keep(run, run_planned(run, crew, fitted["max-min"], realtime=realtime))
    rows = read_measurements(out / "calibration.csv")
    alone = read_alone(out / "alone.csv")
    fit = run_models(rows, read_shares(out / "shares.csv"), alone)
    models = {**fit.by_name} | {name: RunModel(contention=name) for name in wanted.contention or ()}
    report = report_of(runs.measured(planned), simulated_runs([mix], models), models, next(iter(mix.policies)))
    report.write(out)
    emit(report.text())
    if fit.wait:
        emit(f"\n{wait_text(alone, fit.wait)}\n")
    for line in Reach.of(rows).beyond(messages_and_workers(mix.workload)):
        notice(line)
    notice(f"tables and charts: {out}")


def _mix(jobs: Path, network: NetworkOfNamespaces, wanted: ComparedPolicies, gate: dict[str, Any]) -> Mix:
    from ddlsched.real.testbed.fidelity import Mix
    from ddlsched.workload.workload_files import read_workload

    policies: dict[str, dict[str, Any]] = {name: {"scheduler": name} for name in wanted.scheduler or ()}
    beside = {"placement": wanted.placement, "order": wanted.order}
    policies |= {name: {"communication": name, **beside} for name in wanted.communication or ()}
    if not policies:
        raise InputError("nothing to compare; expected --scheduler BUNDLE or --communication NAME, perhaps several")
    given = {name: {**chosen, **gate, "seed": wanted.seed} for name, chosen in policies.items()}
    return Mix(name=jobs.stem, workload=read_workload(jobs), cluster=network.cluster(), policies=given)
