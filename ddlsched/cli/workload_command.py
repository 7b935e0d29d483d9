"""``ddlsched workload`` generates or imports workload files, ``import-cluster`` reads what schedulers in use have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.app import Command
from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, notice, one_line, status, write_told
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.io.files import refuse_unwritable, replacing
from ddlsched.options import Option
from ddlsched.plugins import IMPORT_CONTENTION
from ddlsched.workload.traces.columns import FORMATS, TOLD
from ddlsched.workload.traces.traced import Selection

if TYPE_CHECKING:
    from ddlsched.comparisons.cluster_imports import ImportedCluster
    from ddlsched.workload.traces.trace_import import ImportedTrace

_SHOWN_OF_A_REASON = 2
_SECONDS_A_DAY = 86_400.0

EPILOG = "\n\n".join(["Formats:", *(f"{name}: {entry.summary}" for name, entry in FORMATS.items())])


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """How a trace's rows become jobs, and where these go.

    Parameters
    ----------
    out
        File to write, by its suffix .csv or .parquet.
    rejected
        Write every refused row here: file, line, reason, found.
    seed
        Of the models drawn for jobs whose trace names none.
    contention
        Whose time of an all-reduce, alone, is part of an iteration on several servers.
    gpus_per_server
        Decides which jobs are on several servers.
    as_json
        Print the report as JSON to stdout; needs --out.
    """

    column: Sequence[str] = option(
        (),
        help_text=f"For the format csv: which column tells what, such as arrival_s=SubmitTime: {', '.join(TOLD)}.",
        metavar="WHAT=COLUMN",
        shown="the column of that name",
    )
    out: Path | None = option(None, shown="CSV to stdout")
    rejected: Path | None = option(None, metavar="FILE.csv")
    seed: int = 1
    contention: str = IMPORT_CONTENTION
    gpus_per_server: int = Cluster.gpus_per_server
    as_json: bool = False


def import_command(
    format_name: Annotated[str, Option(metavar="FORMAT")],
    files: Annotated[list[Path], Option(metavar="FILE...")],
    *,
    options: Annotated[Given[ImportOptions], Panel(several=("column",))],
    selection: Annotated[
        Given[Selection], Panel(None, shown={"to_s": "the end", "gpus_at_most": "any", "limit": "all"})
    ],
) -> None:
    """Make a workload file of a public trace.

    A job's time alone on its GPUs is the traced duration: its model is the trace's own if its gradient is known,
    else drawn by seed from the four of the 64-GPU experiment; iterations = duration / time of one iteration.
    Rows that are no job are counted and listed (docs/traces.md).

    Parameters
    ----------
    format_name
        One of the formats below.
    files
        Files of the trace: plain, .gz, .tar or .zip; several are merged on one clock.
    """
    from ddlsched.workload.traces.trace_import import SUFFIXES, import_trace, write_jobs, write_refused
    from ddlsched.workload.workload_files import refuse_suffix

    asked = options.made()
    out, rejected = asked.out, asked.rejected
    if asked.as_json and out is None:
        raise InputError("--json prints the report to stdout, where the jobs go; expected --out FILE with it")
    if out is not None:
        refuse_suffix(out, SUFFIXES)
        refuse_unwritable(out, "--out")
    refuse_unwritable(rejected, "--rejected", (".csv",))
    with status("reading") as shown:
        trace = import_trace(
            format_name,
            files,
            columns=_columns(asked.column),
            selection=selection.made(),
            contention=asked.contention,
            gpus_per_server=asked.gpus_per_server,
            seed=asked.seed,
            watch=lambda rows: None if shown is None else shown.update(f"read {rows:,} rows"),
        )
    if rejected is not None:
        with replacing(rejected, "--rejected") as file:
            write_refused(trace, file)
    _tell(trace, rejected)
    trace.refuse_empty()
    if out is None:
        emit(trace.jobs.to_csv(index=False, lineterminator="\n"))
        return
    write_told(out, "--out", f"{len(trace.jobs):,} jobs", write_jobs, trace)
    if asked.as_json:
        emit(json.dumps(trace.report, indent=1) + "\n")


def _columns(given: Sequence[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for text in given:
        what, equals, column = (part.strip() for part in text.partition("="))
        if not (what and equals and column) or what in columns:
            raise InputError(f"--column {text}: names no column, or one again; expected such as arrival_s=SubmitTime")
        columns[what] = column
    return columns


def _tell(trace: ImportedTrace, rejected: Path | None) -> None:
    report = trace.report
    refused = len(trace.refused)
    notice(f"{report['format']}: read {report['rows']:,} rows of {len(report['files'])} file(s), refused {refused:,}")
    for reason, count in report["refused"].items():
        notice(f"  refused {count:,}: {one_line(reason)}")
        for row in trace.refused[trace.refused["reason"] == reason].head(_SHOWN_OF_A_REASON).itertuples():
            notice(f"    {row.file}, line {row.line}: {one_line(str(row.found))}")
    if refused and rejected is None:
        notice("  --rejected FILE.csv lists every refused row")
    for why, count in report["left_out"].items():
        notice(f"  left out {count:,}: {why}")
    for what, count in report["notes"].items():
        notice(f"  of the jobs read, {count:,}: {one_line(what)}")
    if report["jobs"]:
        _tell_rule(report)


def _tell_rule(report: dict[str, Any]) -> None:
    rule, off = report["rule"], report["alone_less_duration"]
    models = ", ".join(f"{name} {count:,}" for name, count in report["models"].items())
    notice(f"models: {report['models_drawn']:,} of {report['jobs']:,} drawn with seed {rule['seed']} ({models})")
    notice(
        f"iterations: duration / time of one alone, on servers of {rule['gpus_per_server']} GPUs under "
        f"{rule['contention']}, scale {rule['scale']:g}"
    )
    if off["jobs"]:
        notice(
            f"time alone differs from the traced duration by at most {off['largest_s']:.3g} s, "
            f"by more than 1% for {off['off_by_more_than_1_percent']:,} jobs"
        )
    untold = report["jobs"] - off["jobs"]
    if untold:
        notice(f"{untold:,} jobs have no traced duration: iterations and their time follow from what the trace tells")
    span = f"{report['span_s']:,.0f} s ({report['span_s'] / _SECONDS_A_DAY:,.1f} days)"
    notice(f"arrivals over {span}, {report['gpu_hours']:,.1f} GPU hours alone")


app = typer.Typer(
    help="Generate a workload file for 'simulate', or import one from a public trace.",
    no_args_is_help=True,
    epilog="Columns of a workload file: job_id, arrival_s, gpus, iterations, forward_s, backward_s, message_bytes, "
    "gpu_memory_mb, and optionally model, user, buckets, time_limit_s, queue, priority, required_levels, "
    "preferred_levels, balanced_level.",
)


app.command("import", cls=Command, epilog=EPILOG)(import_command)


@app.command("failures", cls=Command, epilog=EPILOG)
def failures(
    format_name: Annotated[str, Option(metavar="FORMAT")],
    files: Annotated[list[Path], Option(metavar="FILE...")],
    *,
    out: Annotated[Path | None, Option(metavar="FILE.csv", shown="stdout")] = None,
    options: Annotated[Given[ImportOptions], Panel(only=("column",), several=("column",))],
) -> None:
    """Count how often jobs of a trace failed: a table of causes for --failures.

    Parameters
    ----------
    format_name
        One of the formats below, whose jobs have states.
    files
        Files of the trace.
    out
        File to write.
    """
    import csv
    import io

    from ddlsched.workload.traces.trace_import import COLUMNS, failure_rows

    refuse_unwritable(out, "--out")
    columns = _columns(options.made().column)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *failure_rows(format_name, files, columns)])
    if out is None:
        emit(text.getvalue())
        return
    write_told(out, "--out", "a table of causes", lambda file: file.write_text(text.getvalue()))


@app.command("microsoft-160", cls=Command)
def microsoft_160(
    *,
    seed: int = 1,
    scale: Annotated[float, Option(metavar="FACTOR")] = 1.0,
    out: Annotated[Path | None, Option(shown="CSV to stdout")] = None,
) -> None:
    """Generate the 160 jobs of the 64-GPU experiment, after a Microsoft trace.

    1 to 32 GPUs, 1000 to 6000 iterations, four models, arrivals over 1200 s.

    Parameters
    ----------
    seed
        The same seed, from 0, gives the same jobs.
    scale
        Multiplies iterations and arrival times; 0.01 makes a quick try.
    out
        File to write, by its suffix .csv, .parquet or .json.
    """
    from ddlsched.workload.generators.microsoft import microsoft_160 as generate
    from ddlsched.workload.workload_files import refuse_suffix, workload_table, write_workload

    if out is not None:
        refuse_unwritable(out, "--out")
        refuse_suffix(out)
    workload = generate(seed=seed, scale=scale)
    if out is None:
        emit(workload_table(workload).to_csv(index=False, lineterminator="\n"))
        return
    write_told(out, "--out", f"{len(workload)} jobs", write_workload, workload)


def import_cluster(
    scheduler: str,
    source: Annotated[Path, Option(metavar="FILES")],
    *,
    out: Annotated[Path, Option(metavar="DIR")] = Path("imported"),
    default_s: Annotated[float | None, Option(metavar="SECONDS", shown="they are left out")] = None,
) -> None:
    """Make queues, servers and jobs of the files of Kueue, Volcano, KAI or Slurm, and print the run with them.

    What jobs compute and send, which such files do not say, is that of the models of 'workload import'.

    Parameters
    ----------
    scheduler
        One of kueue, volcano, kai, slurm.
    source
        Folder or file with what 'kubectl get -o yaml' (or json) prints; for slurm a folder with 'sacctmgr show
        assoc -P' (Account, User, ParentName, Share, GrpTRES), 'sacct -P' (JobID, User, Account, Submit, Start, End,
        AllocTRES, Timelimit) and 'scontrol show node'.
    out
        Folder for queues.yaml, servers.csv and jobs.csv.
    default_s
        For how long jobs run of which no duration is known, seconds.
    """
    from ddlsched.comparisons.cluster_imports import write_imported

    imported = _read(scheduler, source)
    jobs, arguments = write_imported(imported, out, default_s)
    for note in imported.notes:
        notice(note)
    counts = f"{len(imported.queues)} queues, {len(imported.servers)} servers, {jobs} jobs in {out}"
    emit(f"{counts}\nddlsched simulate {' '.join(arguments)}\n")


def _read(scheduler: str, source: Path) -> ImportedCluster:
    from ddlsched.comparisons.cluster_imports import kueue, slurm, volcano_kai

    readers = {
        "kueue": kueue.read_kueue,
        "volcano": volcano_kai.read_volcano,
        "kai": volcano_kai.read_kai,
        "slurm": slurm.read_slurm,
    }
    if scheduler not in readers:
        raise UnknownNameError(f"no scheduler is named {scheduler!r}.{did_you_mean(scheduler, readers)}")
    return readers[scheduler](source)
