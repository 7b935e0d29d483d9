"""All commands and their common options."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlsched.cli.lazy_commands import LazyCommands
from ddlsched.cli.output import emit

__all__ = ["app"]

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
