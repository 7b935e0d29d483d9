"""Commands whose modules are imported when they are called: a start of one does not wait for all others."""

from __future__ import annotations

import importlib
from typing import Any, Final

import typer
import typer.main

from ddlsched.cli.command_class import Command
from ddlsched.cli.failures import ReportingGroup

__all__ = ["LazyCommands"]

_COMMANDS: Final = {
    "simulate": "simulate_command:simulate",
    "compare": "compare_command:compare",
    "report": "report_command:report",
    "explain": "explain_command:explain",
    "estimate": "estimate_command:estimate",
    "design": "design_command:design",
    "calibrate": "calibrate_command:calibrate",
    "calibrate-agent": "calibrate_command:calibrate_agent",
    "workload": "workload_command:app",
    "reshard": "reshard_command:reshard",
    "checkpoint": "checkpoint_command:app",
    "list": "list_command:list_plugins",
    "live": "live_command:live",
    "slurm-agent": "slurm_agent_command:slurm_agent",
    "slurm-trial": "slurm_trial_command:slurm_trial",
    "record": "record_command:record",
    "tune": "tune_command:tune",
    "doctor": "doctor_command:doctor",
    "testbed": "testbed_command:app",
    "validate": "validate_command:validate",
}
"""Where each command is, in the order of the help."""


class LazyCommands(ReportingGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command. If there is none of this name, make all, of which the nearest is named, and return None."""
        for name in [cmd_name] if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self.commands[name] = _made(name)
        return self.commands.get(cmd_name)


def _made(name: str) -> Any:
    module_name, _, attribute = _COMMANDS[name].partition(":")
    module = importlib.import_module(f"ddlsched.cli.{module_name}")
    found = getattr(module, attribute)
    app = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
        return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    app.command(name, cls=Command, context_settings=getattr(module, "SETTINGS", None))(found)
    return typer.main.get_command(app)
