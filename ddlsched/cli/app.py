"""All commands and their common options; a command's module is imported when it is called.

The core's own are listed here. Those of the rooms above it, and anybody's, are entry points of the groups
``ddlsched.commands.HEADING``: an entry point's name is the command's, and the group's last word says under which
heading of the help it stands.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from ddlsched.cli.dataclass_options import make_values_plainly, with_options
from ddlsched.cli.reporting import emit, interrupted, reported
from ddlsched.errors import InputError

_CONSTANT = "is a parameter of the contention model now; expected --contention linear:{}=SECONDS"
DROPPED: Final = {
    "simulate": {
        "--latency-s": _CONSTANT.format("latency_s"),
        "--per-byte-s": _CONSTANT.format("per_byte_s"),
        "--penalty-per-byte-s": _CONSTANT.format("penalty_per_byte_s"),
    },
    "compare": {"--option": "each option has the flag that it has in simulate now; expected --load-per-byte-s 7.8e-9"},
}
"""By command, the flags of earlier versions and what to write now."""


class Command(TyperCommand):
    """A command whose help lists the plug-ins of each option that names one, and that tells what replaces a flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments.

        Raises
        ------
        InputError
            A flag of an earlier version, or the beginning of other flags; the message has what to write.
        """
        make_values_plainly(self.get_params(ctx))
        if not ctx.resilient_parsing:
            for arg in args[: args.index("--") if "--" in args else None]:
                self._refuse_near(arg.partition("=")[0])
        return super().parse_args(ctx, args)

    def _refuse_near(self, flag: str) -> None:
        dropped = DROPPED.get(str(self.name), {})
        if flag in dropped:
            raise InputError(f"{flag}: {dropped[flag]}")
        known = [name for parameter in self.params for name in parameter.opts]
        longer = [name for name in known if name.startswith(flag)]
        if len(flag) > len("--") and flag.startswith("--") and flag not in known and longer:
            raise InputError(f"{flag}: no such flag; expected {' or '.join(longer)}")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, for which alone the registered names are looked up."""
        shown = copy.copy(self)
        shown.params = [_with_names(parameter) for parameter in self.params]
        TyperCommand.format_help(shown, ctx, formatter)


def _with_names(parameter: Any) -> Any:
    """Return an option that is called as a kind of plug-in with that kind's names at the end of its help."""
    from ddlsched.plugins.names import KINDS, names

    kind = {"scheduler": "bundle"}.get(parameter.name, parameter.name)
    # A number of ranks is no way to order them, and the scheduler whose cluster is imported no bundle.
    if kind not in KINDS or isinstance(parameter.default, int) or parameter.param_type_name != "option":
        return parameter
    shown = copy.copy(parameter)
    shown.help = f"{parameter.help} Names: {', '.join(names(kind))}."
    return shown


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


_STUDY: Final = {
    "workload": "workload_command:app",
    "simulate": "simulate_command:simulate",
    "compare": "compare_command:compare",
    "explain": "explain_command:explain",
    "what-if": "what_if_command:what_if",
    "import-cluster": "workload_command:import_cluster",
    "report": "compare_command:report",
    "tune": "tune_command:tune",
    "validate": "validate_command:validate",
    "list": "installation_commands:list_plugins",
    "doctor": "installation_commands:doctor",
}
"""Where each of the core's commands is, in the order of the help."""
_HEADINGS: Final = {"train": "Train", "real": "Run for real", "checkpoints": "Checkpoints", "more": "More"}
"""By the last word of a group of entry points, in the order of the help."""


class LazyCommands(ReportingGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*_STUDY, *_of_rooms()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command. If there is none of this name, make all, of which the nearest is named, and return None."""
        known = [cmd_name] if cmd_name in _STUDY or cmd_name in _of_rooms() else self.list_commands(ctx)
        for name in known:
            if name not in self.commands:
                self.commands[name] = _made(name)
        return self.commands.get(cmd_name)


@cache
def _of_rooms() -> dict[str, tuple[str, str]]:
    """Return heading and place of each command that an entry point names."""
    points, groups = entry_points(), {f"ddlsched.commands.{group}": name for group, name in _HEADINGS.items()}
    return {each.name: (name, each.value) for group, name in groups.items() for each in points.select(group=group)}


def _made(name: str) -> Any:
    heading, place = ("Study", f"ddlsched.cli.{_STUDY[name]}") if name in _STUDY else _of_rooms()[name]
    module_name, _, attribute = place.partition(":")
    module = importlib.import_module(module_name)
    found = getattr(module, attribute)
    app = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        for each in found.registered_commands:
            each.callback = with_options(inspect.unwrap(each.callback))  # type: ignore[arg-type]
        app.add_typer(found, name=name, rich_help_panel=heading)
        return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    settings = getattr(module, "SETTINGS", {}).get(name)
    app.command(name, cls=Command, context_settings=settings, rich_help_panel=heading)(with_options(found))
    return typer.main.get_command(app)


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
