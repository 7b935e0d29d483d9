"""``ddlsched calibrate``: constants of the contention model from a user's own measurements, and taking those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.numbers import real, whole
from ddlsched.cli.output import emit, notice, status, without_nan
from ddlsched.errors import InputError
from ddlsched.io.files import refuse_unwritable, replacing
from ddlsched.real.commands.calibrated_shares import shares_as_json, shares_as_lines

if TYPE_CHECKING:
    from ddlsched.real.calibration.fit import Constant, Fit
    from ddlsched.real.calibration.measurements import Measurements
    from ddlsched.real.calibration.shares import ShareRows

__all__ = ["calibrate", "calibrate_agent"]

_MEASURING = "Measuring"
_POOR = 0.2
"""Mean error on rows not fitted from which on the table says that no model is near."""
_UNITS = {"latency_s": (1e6, "us"), "per_byte_s": (1e9, "ns/B"), "penalty_per_byte_s": (1e9, "ns/B")}
_NAMES = {"latency_s": "latency", "per_byte_s": "time of a byte", "penalty_per_byte_s": "penalty"}


def calibrate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.csv",
            help="Measurements: concurrent_jobs, message_bytes, transfer_s, and perhaps servers.",
            readable=False,
        ),
    ] = None,
    shares: Annotated[
        Path | None,
        typer.Option(
            help="Small messages beside large ones, as the testbed measures them: fits size-shares, too.",
            metavar="FILE.csv",
            readable=False,
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            help="Say which of its messages and rings are beyond those measured.", metavar="JOBS", readable=False
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure instead: a host of the ring, where `ddlsched calibrate-agent` listens; once for each.",
            metavar="HOST:PORT",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the agents' token.", metavar="FILE", rich_help_panel=_MEASURING),
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(help="Numbers of all-reduces at a time.", metavar="N,...", rich_help_panel=_MEASURING),
    ] = "1,2,4,8",
    sizes_mb: Annotated[
        str,
        typer.Option(help="Sizes of a message, MB (1e6 B).", metavar="MB,...", rich_help_panel=_MEASURING),
    ] = "1,4,16,64",
    repeats: Annotated[
        int,
        typer.Option(help="All-reduces of each setting.", metavar="N", parser=whole, rich_help_panel=_MEASURING),
    ] = 5,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep what was measured here.", metavar="FILE.csv", rich_help_panel=_MEASURING),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(help="Draw the fit against the measurements: .png and .svg.", metavar="FILE.png")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the fits as one JSON object.")] = False,
) -> None:
    """Fit latency, time of a byte and penalty of the contention model to measured all-reduces.

    Prints each model's constants with 95 % intervals, its error on rows that were not fitted, and the text for
    simulate --contention. The file's columns, and how to measure: docs/calibration.md.
    """
    if chart is not None:
        if chart.suffix.lower() not in (".png", ".svg"):
            raise InputError(f"--chart {chart}: the suffix is {chart.suffix!r}; expected .png or .svg")
        for suffix in (".png", ".svg"):
            refuse_unwritable(chart.with_suffix(suffix), "--chart")
    if (file is None) == (not measure):
        raise InputError("expected either FILE.csv with measurements or --measure HOST:PORT for each host, not both")
    if file is not None and (out is not None or token_file is not None):
        raise InputError("--out and --token-file belong to --measure; expected neither with FILE.csv")
    share_rows, jobs_to_come = _read_shares(shares), _read_workload(workload)
    rows = _measured(measure, token_file, jobs, sizes_mb, repeats, out) if measure else _read(file)
    from ddlsched.real.calibration.fit import calibrate as fitted
    from ddlsched.real.calibration.reach import Reach
    from ddlsched.real.calibration.shares import fit_size_shares

    source = str(file) if file is not None else "measured"
    try:
        with status("fitting"):
            fits = fitted(rows)
            of_shares = None if share_rows is None else fit_size_shares(share_rows, rows)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    if chart is not None:
        from ddlsched.comparisons.charts.style import save
        from ddlsched.real.calibration.fit_chart import fit_chart

        paths = save(fit_chart(rows, fits[0]), chart.with_suffix(""))
        notice(f"drew {' and '.join(map(str, paths))}")
    reach = Reach.of(rows)
    beyond = [] if jobs_to_come is None else [f"{workload}: {line}" for line in reach.beyond(jobs_to_come)]
    if as_json:
        more = {} if of_shares is None else {"size_shares": shares_as_json(of_shares)}
        emit(_json(source, rows, fits, more | {"measured": str(reach), "beyond": beyond}))
    else:
        more_lines = [] if of_shares is None else ["", *shares_as_lines(of_shares)]
        emit(_table(source, rows, fits, [*more_lines, f"Measured were {reach}.", *beyond]))


def calibrate_agent(
    address: Annotated[str, typer.Argument(metavar="ADDRESS:PORT", help="Where to listen; nowhere else.")],
    token_file: Annotated[Path, typer.Option(help="File with a token of at least 16 characters.", metavar="FILE")],
    memory_mb: Annotated[
        float,
        typer.Option(help="Most that one measurement may take, MB (1e6 B).", metavar="MB", parser=real),
    ] = 2048.0,
) -> None:
    """Wait for `ddlsched calibrate --measure` of another host and take part in its all-reduces, until Ctrl-C."""
    from ddlsched.real.calibration.agent import RingAgent
    from ddlsched.real.wire.handshake import parse_address, read_token

    agent = RingAgent(
        parse_address(address, any_port=True), read_token(token_file), most_bytes=round(memory_mb * 1e6), tell=notice
    )
    with agent:
        notice(f"listening on {agent.address}")
        agent.serve()


def _read(file: Path | None) -> Measurements:
    from ddlsched.real.calibration.measurements import read_measurements

    assert file is not None
    return read_measurements(file)


def _read_shares(path: Path | None) -> ShareRows | None:
    from ddlsched.real.calibration.shares import read_shares

    return None if path is None else read_shares(path)


def _read_workload(path: Path | None) -> list[tuple[list[float], int]] | None:
    """Return what the jobs of a workload reduce."""
    from ddlsched.workload.elastic_job import messages_and_workers
    from ddlsched.workload.workload_files import read_workload

    return None if path is None else messages_and_workers(read_workload(path))


def _measured(
    hosts: list[str], token_file: Path | None, jobs: str, sizes_mb: str, repeats: int, out: Path | None
) -> Measurements:
    """Take the measurements, keep them if asked to, and return them."""
    from rich.console import Console
    from rich.progress import track

    from ddlsched.real.calibration.measure import MeasurePlan, measure, write_measurements
    from ddlsched.real.wire.handshake import parse_address, read_token

    if token_file is None:
        raise InputError("--measure needs the agents' token; expected --token-file FILE")
    if out is not None:
        refuse_unwritable(out, "--out")
    settings = MeasurePlan(
        hosts=tuple(parse_address(host) for host in hosts),
        jobs=tuple(_list(jobs, "--jobs", whole)),
        message_bytes=tuple(round(size * 1e6) for size in _list(sizes_mb, "--sizes-mb", real)),
        repeats=repeats,
    )
    token = read_token(token_file)
    found = list(track(measure(settings, token), "measuring", len(settings.runs), console=Console(stderr=True)))
    table = [row for rows in found for row in rows]
    if out is not None:
        with replacing(out, "--out") as file:
            write_measurements(table, file)
        notice(f"wrote {len(table)} measurements to {out}")
    return settings.measurements(table)


def _list(text: str, flag: str, parse: Any) -> list[Any]:
    try:
        return [parse(part) for part in text.split(",")]
    except typer.BadParameter as error:
        raise InputError(f"{flag} {text}: {error.message} Expected numbers with commas between them") from None


def _json(source: str, rows: Measurements, fits: list[Fit], more: dict[str, Any]) -> str:
    models = [
        {
            "model": fit.form.name,
            "constants": {name: without_nan(vars(constant)) for name, constant in fit.constants.items()},
            "error": fit.error,
            "tested_error": without_nan(vars(fit.tested_error)),
            "contention": fit.preset,
        }
        for fit in fits
    ]
    found = {"source": source, "rows": len(rows), "settings": int(rows.settings.max()) + 1, "models": models}
    return json.dumps(found | more, indent=2) + "\n"


def _table(source: str, rows: Measurements, fits: list[Fit], more_lines: list[str]) -> str:
    lines = [
        f"{source}: {len(rows)} rows, {rows.settings.max() + 1} settings of jobs and bytes; intervals hold 95 %",
        f"  {'model':24}{'error on rows not fitted':28}constants",
    ]
    for fit in fits:
        tested = fit.tested_error
        error = f"{100 * tested.value:.1f} % [{100 * tested.low:.1f}, {100 * tested.high:.1f}]"
        head = f"  {fit.form.name:24}{error:28}"
        for name, constant in fit.constants.items():
            lines.append(f"{head}{_NAMES[name]:16}{_constant(name, constant)}")
            head = " " * 54
    lines += ["", "The nearest on rows not fitted (of equals the simplest):", f"  --contention {fits[0].preset}"]
    if rows.all_alone:
        lines.append(
            "Every all-reduce was alone, so the penalty of sharing was not measured: the linear model keeps its own, "
            "scaled to the topology's card. Measure with --jobs 1,2,4 to fit it."
        )
    if fits[0].tested_error.value > _POOR:
        lines.append(f"No model is near: more than {100 * _POOR:.0f} % off on average. See docs/calibration.md.")
    return "".join(f"{line}\n" for line in [*lines, *more_lines])


def _constant(name: str, constant: Constant) -> str:
    factor, unit = _UNITS[name]
    return f"{factor * constant.value:.4g} [{factor * constant.low:.4g}, {factor * constant.high:.4g}] {unit}"
