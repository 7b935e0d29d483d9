"""The command line, one file a command: ``ddlsched simulate``, ``compare``, ``report``, ``workload``, ...

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Annotated

import typer

from ddlsched.cli.lazy_commands import LazyCommands
from ddlsched.cli.output import emit

__all__ = ["app", "main"]

app = typer.Typer(
    name="ddlsched",
    cls=LazyCommands,
    help="Simulate schedulers of distributed deep-learning jobs on shared GPU clusters.",
    epilog="Start with: ddlsched workload microsoft-160 --out jobs.csv, then ddlsched simulate jobs.csv",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


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
    # Looking for cycles after every 700 new objects takes a tenth of a short run; nothing here makes many.
    gc.set_threshold(50_000)
    app(args=None if args is None else list(args), prog_name="ddlsched")
