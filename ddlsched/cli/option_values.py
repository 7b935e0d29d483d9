"""Values of options without pydantic, by which typer makes them and whose import takes as long as a short run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer import BadParameter

__all__ = ["make_values_plainly", "real", "whole"]


def whole(value: Any) -> int:
    """Return a whole number from an option's text (or its default)."""
    try:
        return int(_plain(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number.") from None


def real(value: Any) -> float:
    """Return a finite number from an option's text (or its default)."""
    try:
        number = float(_plain(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise typer.BadParameter(f"{value!r} is not a finite number.")
    return number


def _plain(value: Any) -> str:
    return str(value).replace("_", "?")  # Python reads 1_000 as a number, nobody else does.


def make_values_plainly(parameters: Iterable[Any]) -> None:
    """Let a command's parameters make texts, paths, choices and parsed values themselves; all else is typer's."""
    for parameter in parameters:
        if hasattr(parameter, "type_descriptor"):
            parameter._runtime_param = _WithoutPydantic(parameter.type_descriptor)


class _WithoutPydantic:
    """What typer asks for the value of an option's text; plain ones are made here."""

    def __init__(self, described: Any) -> None:
        self._described = described

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return an option's value; what is not plain, or wrong, is left to typer."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        info = self._described.parameter_info
        make = _plain_maker(self._described.annotation, info, several=several)
        if make is not None and (not several or isinstance(value, list | tuple)):
            try:
                return [make(each) for each in value] if several else make(value)
            except (ValueError, BadParameter):
                pass  # typer's message names the option.
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._described).coerce(value, param=param, ctx=ctx)


def _plain_maker(annotation: Any, info: Any, *, several: bool) -> Callable[[Any], Any] | None:
    """Return what makes a value of a text; None: only typer knows."""
    kind = get_args(annotation)[0] if several and get_origin(annotation) is list else annotation
    if info.parser is not None:
        parser: Callable[[Any], Any] = info.parser
        return parser
    if kind is str or (isinstance(kind, type) and issubclass(kind, Enum)):
        return kind
    is_unchecked = not (info.exists or info.readable or info.writable or info.resolve_path)
    return Path if kind is Path and is_unchecked and info.file_okay and info.dir_okay else None
