"""The group of all commands, which reports failures and ends with their exit codes."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from ddlsched.cli.option_values import make_values_plainly
from ddlsched.cli.reporting import interrupted, reported

__all__ = ["ReportingGroup"]


class ReportingGroup(TyperGroup):
    """A group of commands that reports this package's errors and ends with their exit code."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run the command line and exit."""
        with reported():
            return super().main(*args, **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        make_values_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as by:
            raise typer.Exit(interrupted(by)) from None
