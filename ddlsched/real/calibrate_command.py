"""``ddlsched calibrate``: constants of the contention model from a user's own measurements, and taking those."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option, real, whole
from ddlsched.cli.reporting import emit, notice, status, write_told
from ddlsched.errors import InputError
from ddlsched.io.files import refuse_unwritable
from ddlsched.io.tables import located
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.real.calibration.fit import Constant, ModelFit
    from ddlsched.real.calibration.measurements import Measurements
    from ddlsched.real.calibration.shares import SizeShareFit

_POOR = 0.2
"""Mean error on rows not fitted from which on the table says that no model is near."""
_SHOWN = {
    "latency_s": ("latency", 1e6, "us"),
    "per_byte_s": ("time of a byte", 1e9, "ns/B"),
    "penalty_per_byte_s": ("penalty", 1e9, "ns/B"),
    "step_s": ("time of a step", 1e6, "us"),
    "exponent": ("exponent", 1.0, ""),
    "window_bytes": ("window", 1e-3, "kB"),
    "chunk_s": ("time of a chunk", 1e6, "us"),
}
"""Of each constant what it is called, and its unit."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What is fitted beside the measurements, and what comes out.

    Parameters
    ----------
    shares
        Small messages beside large ones, as the testbed measures them: fits size-shares, too.
    workload
        Say which of its messages and rings are beyond those measured.
    chart
        Draw the fit against the measurements: .png and .svg.
    as_json
        Print the fits as one JSON object.
    """

    shares: Path | None = option(None, metavar="FILE.csv")
    workload: Path | None = option(None, metavar="JOBS")
    chart: Path | None = option(None, metavar="FILE.png")
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured, and where.

    Parameters
    ----------
    measure
        Measure instead: a host of the ring, where `ddlsched calibrate-agent` listens.
    token_file
        File with the agents' token.
    jobs
        Numbers of all-reduces at a time.
    sizes_mb
        Sizes of a message, MB (1e6 B).
    repeats
        All-reduces of each setting.
    out
        Keep what was measured here.
    """

    measure: list[str] | None = option(None, metavar="HOST:PORT")
    token_file: Path | None = option(None, metavar="FILE")
    jobs: str = option("1,2,4,8", metavar="N,...")
    sizes_mb: str = option("1,4,16,64", metavar="MB,...")
    repeats: int = option(5, metavar="N")
    out: Path | None = option(None, metavar="FILE.csv")


def calibrate(
    file: Annotated[Path | None, Option(metavar="FILE.csv")] = None,
    *,
    fit: Annotated[Given[FitOptions], Panel()],
    measuring: Annotated[Given[MeasureOptions], Panel("Measuring", several=("measure",))],
) -> None:
    """Fit latency, time of a byte and penalty of the contention model to measured all-reduces.

    Prints each model's constants with 95 % intervals, its error on rows that were not fitted, and the text for
    simulate --contention. The file's columns, and how to measure: docs/calibration.md.

    Parameters
    ----------
    file
        Measurements: concurrent_jobs, message_bytes, transfer_s, and perhaps servers.
    """
    asked, measured = fit.made(), measuring.made()
    if (chart := asked.chart) is not None:
        if chart.suffix.lower() not in (".png", ".svg"):
            raise InputError(f"--chart {chart}: the suffix is {chart.suffix!r}; expected .png or .svg")
        for suffix in (".png", ".svg"):
            refuse_unwritable(chart.with_suffix(suffix), "--chart")
    if (file is None) == (not measured.measure):
        raise InputError("expected either FILE.csv with measurements or --measure HOST:PORT for each host, not both")
    if file is not None and (measured.out is not None or measured.token_file is not None):
        raise InputError("--out and --token-file belong to --measure; expected neither with FILE.csv")
    from ddlsched.real.calibration.fit import calibrate as fitted
    from ddlsched.real.calibration.measurements import Reach, read_measurements
    from ddlsched.real.calibration.shares import fit_size_shares, read_shares
    from ddlsched.workload.elastic_job import messages_and_workers
    from ddlsched.workload.workload_files import read_workload

    share_rows = None if asked.shares is None else read_shares(asked.shares)
    to_come = [] if asked.workload is None else messages_and_workers(read_workload(asked.workload))
    rows = _measured(measured) if file is None else read_measurements(file)
    source = str(file) if file is not None else "measured"
    with status("fitting"):
        fits = located(source, lambda: fitted(rows))
        of_shares = None if share_rows is None else located(source, lambda: fit_size_shares(share_rows, rows))
    if chart is not None:
        from ddlsched.comparisons.charts.style import save
        from ddlsched.real.calibration.fit import fit_chart

        paths = save(fit_chart(rows, fits[0]), chart.with_suffix(""))
        notice(f"drew {' and '.join(map(str, paths))}")
    reach = Reach.of(rows)
    beyond = [f"{asked.workload}: {line}" for line in reach.beyond(to_come)]
    if asked.as_json:
        more = {} if of_shares is None else {"size_shares": shares_as_json(of_shares)}
        emit(_json(source, rows, fits, more | {"measured": str(reach), "beyond": beyond}))
    else:
        more_lines = [] if of_shares is None else ["", *shares_as_lines(of_shares)]
        emit(_table(source, rows, fits, [*more_lines, f"Measured were {reach}.", *beyond]))


def calibrate_agent(
    address: Annotated[str, Option(metavar="ADDRESS:PORT")], *, token_file: Path, memory_mb: float = 2048.0
) -> None:
    """Wait for `ddlsched calibrate --measure` of another host and take part in its all-reduces, until Ctrl-C.

    Parameters
    ----------
    address
        Where to listen; nowhere else.
    token_file
        File with a token of at least 16 characters.
    memory_mb
        Most that one measurement may take, MB (1e6 B).
    """
    from ddlsched.real.calibration.agent import RingAgent
    from ddlsched.real.channel import parse_address, read_token

    agent = RingAgent(
        parse_address(address, any_port=True), read_token(token_file), most_bytes=round(memory_mb * 1e6), tell=notice
    )
    notice(f"listening on {agent.address}")
    agent.serve()


def _measured(asked: MeasureOptions) -> Measurements:
    """Take the measurements, keep them if asked to, and return them."""
    from rich.console import Console
    from rich.progress import track

    from ddlsched.real.calibration.fit import told_forms
    from ddlsched.real.calibration.measurements import MeasurePlan, measure, write_measurements
    from ddlsched.real.channel import parse_address, read_token

    if asked.token_file is None:
        raise InputError("--measure needs the agents' token; expected --token-file FILE")
    refuse_unwritable(asked.out, "--out")
    plan = MeasurePlan(
        hosts=tuple(parse_address(host) for host in asked.measure or ()),
        jobs=tuple(_list(asked.jobs, "--jobs", whole)),
        message_bytes=tuple(round(size * 1e6) for size in _list(asked.sizes_mb, "--sizes-mb", real)),
        repeats=asked.repeats,
    )
    located(f"--jobs {asked.jobs} --sizes-mb {asked.sizes_mb}", lambda: told_forms(plan.planned))
    token = read_token(asked.token_file)
    found = list(track(measure(plan, token), "measuring", len(plan.runs), console=Console(stderr=True)))
    table = [row for rows in found for row in rows]
    if asked.out is not None:
        write_told(asked.out, "--out", f"{len(table)} measurements", write_measurements, table)
    return plan.measurements(table)


def _list(text: str, flag: str, parse: Any) -> list[Any]:
    try:
        return [parse(part) for part in text.split(",")]
    except typer.BadParameter as error:
        raise InputError(f"{flag} {text}: {error.message} Expected numbers with commas between them") from None


def _json(source: str, rows: Measurements, fits: list[ModelFit], more: dict[str, Any]) -> str:
    models = [
        {
            "model": fit.form.name,
            "constants": {name: _finite(constant) for name, constant in fit.constants.items()},
            "error": fit.error,
            "tested_error": _finite(fit.tested_error),
            "contention": fit.preset,
        }
        for fit in fits
    ]
    found = {"source": source, "rows": len(rows), "settings": int(rows.settings.max()) + 1, "models": models}
    return json.dumps(found | more, indent=2) + "\n"


def _table(source: str, rows: Measurements, fits: list[ModelFit], more_lines: list[str]) -> str:
    lines = [
        f"{source}: {len(rows)} rows, {rows.settings.max() + 1} settings of jobs and bytes; intervals hold 95 %",
        f"  {'model':24}{'error on rows not fitted':28}constants",
    ]
    for fit in fits:
        tested = fit.tested_error
        error = f"{100 * tested.value:.1f} % [{100 * tested.low:.1f}, {100 * tested.high:.1f}]"
        head = f"  {fit.form.name:24}{error:28}"
        for name, constant in fit.constants.items():
            lines.append(f"{head}{_constant(name, constant)}")
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
    shown, factor, unit = _SHOWN[name]
    low, high = factor * constant.low, factor * constant.high
    return f"{shown:16}{factor * constant.value:.4g} [{low:.4g}, {high:.4g}] {unit}".rstrip()


def shares_as_json(fit: SizeShareFit) -> dict[str, Any]:
    """Return the fit for ``--json``; a window without an end is null."""
    constants = {name: _finite(constant) for name, constant in fit.constants.items()}
    texts = {"": fit.whole, "_in_chunks": fit.in_chunks, "_of_connections": fit.of_connections}
    return {"constants": constants} | {f"contention{name}": text for name, text in texts.items()}


def _finite(constant: Constant) -> dict[str, float | None]:
    """Return a constant for ``--json``, which knows finite numbers only."""
    return {name: value if math.isfinite(value) else None for name, value in vars(constant).items()}


def shares_as_lines(fit: SizeShareFit) -> list[str]:
    """Return the fit for the terminal."""
    lines = ["size-shares, by messages of two sizes beside each other:"]
    lines += [f"  {_constant(name, constant)}" for name, constant in fit.constants.items()]
    lines.append(f"  --contention {fit.whole}")
    if fit.in_chunks != fit.whole:
        lines += ["Where policies pause transfers, and messages go in chunks:", f"  --contention {fit.in_chunks}"]
    told = (
        "Where a job has one connection to each neighbour (its exponent, window_bytes and loss are not told by this):"
    )
    return [*lines, told, f"  --contention {fit.of_connections}"]
