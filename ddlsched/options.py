"""Options: what an argument that is declared once defaults to, and what the command line says of it.

Options are the keys of a ``TypedDict``, such as :class:`ddlsched.engine.run_options.RunOptions`, whose docstring says
what each is::

    class Options(TypedDict, total=False):
        until_s: Annotated[float | None, Option(shown="the last finish")]

Keywords (:func:`keywords_of`), the command line (:mod:`ddlsched.cli.dataclass_options`) and files are derived from it.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

Called = TypeVar("Called", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """An option, beside its name and type.

    Attributes
    ----------
    default
        What it is unless it is given.
    panel
        Under which heading the command line's help has it; None if only Python has it.
    metavar, shown, flag
        What help calls its value, and its default; its flag where that is not its name.
    listed
        Whether a comparison may have several, or one of its own, so that it is not among what all its runs share.
    draws
        Whether it may make a run depend on its seed.
    """

    default: Any = None
    panel: str | None = None
    metavar: str | None = None
    shown: str | None = None
    flag: str | None = None
    listed: bool = False
    draws: bool = False


@cache
def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the type of each option, without what is said of it beside."""
    return typing.get_type_hints(kind)


@cache
def declared(kind: Any) -> Mapping[str, Option]:
    """Return the options of a ``TypedDict``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: next(each for each in hint.__metadata__ if isinstance(each, Option)) for name, hint in hints.items()}


@cache
def described(kind: Any) -> Mapping[str, str]:
    """Return what a class's docstring says of each of its fields."""
    text = inspect.getdoc(kind) or ""
    entries = re.findall(r"^((?:\w+, )*\w+)\n((?: {4}.*\n?)+)", text, flags=re.MULTILINE)
    return {name: " ".join(lines.split()) for names, lines in entries for name in names.split(", ")}


def filled(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options: those that are given, and the defaults of the others."""
    return {name: option.default for name, option in declared(kind).items()} | dict(given)


def keywords_of(kind: Any) -> Callable[[Called], Called]:
    """Let a function that takes ``**options: Unpack[kind]`` have them in its signature and in its docstring."""

    def decorate(function: Called) -> Called:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        hints = hints_of(kind)
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hints[name])
            for name, option in declared(kind).items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        _, _, entries = (kind.__doc__ or "").partition("----------\n")
        function.__doc__ = (function.__doc__ or "").replace(
            "\n    Returns\n", f"{entries.rstrip()}\n\n    Returns\n", 1
        )
        return function

    return decorate
