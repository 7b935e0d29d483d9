"""``ddlsched workload``: generates workload files, or imports them from traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlsched.cli.command_class import Command
from ddlsched.cli.import_command import EPILOG, import_command
from ddlsched.cli.option_values import real, whole
from ddlsched.cli.output import emit, notice
from ddlsched.io.files import refuse_unwritable, replacing

__all__ = ["app"]

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
    format_name: Annotated[
        str, typer.Argument(metavar="FORMAT", help="One of the formats below, whose jobs have states.")
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of the trace.")],
    out: Annotated[Path | None, typer.Option(help="File to write.", metavar="FILE.csv", show_default="stdout")] = None,
) -> None:
    """Count how often jobs of a trace failed: a table of causes for --failures."""
    import csv
    import io

    from ddlsched.workload.traces.trace_failures import COLUMNS, failure_rows

    if out is not None:
        refuse_unwritable(out, "--out")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *failure_rows(format_name, files)])
    if out is None:
        emit(text.getvalue())
        return
    with replacing(out, "--out") as file:
        file.write_text(text.getvalue())
    notice(f"wrote {out}")


@app.command("microsoft-160", cls=Command)
def microsoft_160(
    seed: Annotated[
        int, typer.Option(help="The same seed, from 0, gives the same jobs.", metavar="N", parser=whole)
    ] = 1,
    scale: Annotated[
        float,
        typer.Option(
            help="Multiplies iterations and arrival times; 0.01 makes a quick try.", metavar="FACTOR", parser=real
        ),
    ] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, by its suffix .csv, .parquet or .json.", metavar="FILE", show_default="CSV to stdout"
        ),
    ] = None,
) -> None:
    """Generate the 160 jobs of the 64-GPU experiment, after a Microsoft trace.

    1 to 32 GPUs, 1000 to 6000 iterations, four models, arrivals over 1200 s.
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
    with replacing(out, "--out") as file:
        write_workload(workload, file)
    notice(f"wrote {len(workload)} jobs to {out}")
