"""The command line, one file a command: ``ddlsched simulate``, ``compare``, ``report``, ``workload``, ...

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ddlsched.cli.calibrate_command import calibrate, calibrate_agent
from ddlsched.cli.checkpoint_command import app as checkpoint_app
from ddlsched.cli.command_class import Command
from ddlsched.cli.compare_command import compare
from ddlsched.cli.design_command import design
from ddlsched.cli.estimate_command import estimate
from ddlsched.cli.explain_command import explain
from ddlsched.cli.failures import ReportingGroup
from ddlsched.cli.list_command import list_plugins
from ddlsched.cli.live_command import live
from ddlsched.cli.output import emit
from ddlsched.cli.report_command import report
from ddlsched.cli.reshard_command import reshard
from ddlsched.cli.simulate_command import simulate
from ddlsched.cli.validate_command import validate
from ddlsched.cli.workload_command import app as workload_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="ddlsched",
    cls=ReportingGroup,
    help="Simulate schedulers of distributed deep-learning jobs on shared GPU clusters.",
    epilog="Start with: ddlsched workload microsoft-160 --out jobs.csv, then ddlsched simulate jobs.csv",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("simulate", cls=Command)(simulate)
app.command("compare", cls=Command)(compare)
app.command("report", cls=Command)(report)
app.command("explain", cls=Command)(explain)
app.command("estimate", cls=Command)(estimate)
app.command("design", cls=Command)(design)
app.command("calibrate", cls=Command)(calibrate)
app.command("calibrate-agent", cls=Command)(calibrate_agent)
app.add_typer(workload_app, name="workload")
app.command("reshard", cls=Command)(reshard)
app.add_typer(checkpoint_app, name="checkpoint")
app.command("list", cls=Command)(list_plugins)
app.command("live", cls=Command)(live)
app.command("validate", cls=Command)(validate)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        emit(f"ddlsched {version('ddlsched')}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    args
        Without the program's name; by default the process's own.

    Raises
    ------
    SystemExit
        Always: with 0, 2 for input that cannot be used, 1 for a plug-in or a run that failed, 130 for Ctrl-C.
    """
    app(args=None if args is None else list(args), prog_name="ddlsched")
