"""How every command behaves: help that ends with the names that exist, and flags that are no more."""

from __future__ import annotations

import copy
from typing import Any, Final

from typer.core import TyperCommand

from ddlsched.cli.dataclass_options import make_values_plainly
from ddlsched.errors import InputError

__all__ = ["DROPPED", "Command", "TakesPlainly"]

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


class TakesPlainly:
    """What takes texts, numbers and what is not given without typer's own way, which has to import pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "_runtime_param", None) is None:
                parameter._runtime_param = _Plain(parameter)
        return parameters


class Command(TakesPlainly, TyperCommand):
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


class _Plain:
    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a parameter's value from what stands on the command line, or from its default."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        described = self._parameter.type_descriptor
        parser = described.parameter_info.parser or (str if described.annotation is str else None)
        if parser is None or isinstance(value, list | tuple):
            self._parameter._runtime_param = None  # typer makes its own
            return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)
        return parser(value)


def _with_names(parameter: Any) -> Any:
    """Return an option that is called as a kind of plug-in with that kind's names at the end of its help."""
    from ddlsched.plugins.names import KINDS, names

    kind = {"scheduler": "bundle"}.get(parameter.name, parameter.name)
    if kind not in KINDS:
        return parameter
    shown = copy.copy(parameter)
    shown.help = f"{parameter.help} Names: {', '.join(names(kind))}."
    return shown
