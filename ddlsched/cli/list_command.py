"""``ddlsched list``: the names of all plug-ins, and the parameters of one."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from typing import Annotated, Any, NamedTuple

import typer

from ddlsched.cli.reporting import emit
from ddlsched.errors import UnknownNameError, did_you_mean
from ddlsched.plugins.names import KINDS, Kind, made_by, names, resolve_bundle
from ddlsched.ranges import choices_of, range_of, unit_of

__all__ = ["Description", "ParameterDescription", "description_of", "list_plugins"]

_ENTRY = re.compile(r"^(\w+(?:, \w+)*)(?: : .*)?\n((?: {4}.*\n?)+)", flags=re.MULTILINE)


class ParameterDescription(NamedTuple):
    """A parameter: its name, its default as a text ("" if it has none), what it may be, and what it means."""

    name: str
    default: str
    expected: str
    meaning: str


class Description(NamedTuple):
    """What a plug-in is, in a sentence, and its parameters."""

    summary: str
    parameters: tuple[ParameterDescription, ...]


def description_of(kind: Kind, name: str) -> Description:
    """Return what a registered plug-in says of itself; it is imported.

    Raises
    ------
    UnknownNameError, PluginError
        No such name, or it cannot be imported.
    """
    if kind == "bundle":
        parts = " + ".join(f"{part} {given}" for part, given in resolve_bundle(name).items())
        return Description(parts, ())
    made, known = made_by(kind, name)
    meanings = _meanings(made)
    fields = {field.name: field for field in dataclasses.fields(made)} if dataclasses.is_dataclass(made) else {}
    told = (
        ParameterDescription(each.name, _default(each), _expected(each, fields), meanings.get(each.name, ""))
        for each in known.values()
    )
    return Description(_plain((inspect.getdoc(made) or "").partition("\n")[0]), tuple(told))


def _meanings(made: Any) -> dict[str, str]:
    """Return what docstrings say of each parameter: the class's own before those of its bases."""
    found: dict[str, str] = {}
    for each in reversed(made.__mro__ if inspect.isclass(made) else (made,)):
        for told, lines in _ENTRY.findall(inspect.cleandoc(each.__doc__ or "") + "\n"):
            found |= dict.fromkeys(told.split(", "), _plain(" ".join(lines.split())))
    return found


def _plain(text: str) -> str:
    """Return a text without the marks of its markup."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", text).replace("``", "")


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else str(parameter.default).lower() or '""'


def _expected(parameter: inspect.Parameter, fields: dict[str, dataclasses.Field[Any]]) -> str:
    field = fields.get(parameter.name)
    if field is not None and (bounds := range_of(field)):
        return bounds.said(parameter.name)
    if field is not None and (choices := choices_of(field)):
        return " or ".join(str(choice).lower() for choice in choices)
    kinds = {"int": "a whole number", "bool": "true or false", "float": unit_of(parameter.name), "str": "a text"}
    said = (
        parameter.annotation
        if isinstance(parameter.annotation, str)
        else inspect.formatannotation(parameter.annotation)
    )
    return next((text for kind, text in kinds.items() if kind in re.findall(r"\w+", said)), "a value")


def list_plugins(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help="Only these: placement, order, communication, allocation, path, ranks, collective, contention, "
            "interference, topology, workload or bundle.",
            show_default="all",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Its parameters: defaults, units, meaning.", show_default="none"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as one JSON object.")] = False,
) -> None:
    """List the names that the flags of 'simulate' and 'compare' accept, yours included.

    A package adds names with entry points of the group ddlsched.KIND; listing them imports none of it.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind of plug-in is named {kind!r}.{did_you_mean(kind, KINDS)}")
    if kind is not None and name is not None:
        emit(_described(kind, name, as_json))
        return
    found = {each: names(each) for each in KINDS if kind in (None, each)}
    if as_json:
        emit(json.dumps(found, indent=2) + "\n")
    elif kind is not None:
        emit("".join(f"{name}\n" for name in found[kind]))
    else:
        emit("".join(f"{each:<15}{', '.join(found[each])}\n" for each in found))


def _described(kind: Kind, name: str, as_json: bool) -> str:
    said = description_of(kind, name)
    if as_json:
        parameters = [parameter._asdict() for parameter in said.parameters]
        return json.dumps({"name": name, "summary": said.summary, "parameters": parameters}, indent=2) + "\n"
    lines = [f"{name}: {said.summary}"]
    for each in said.parameters:
        lines += ["", f"{each.name}{f'={each.default}' if each.default else ''}   {each.expected}"]
        lines += textwrap.wrap(each.meaning, 100, initial_indent="    ", subsequent_indent="    ")
    if not said.parameters and kind != "bundle":
        lines += ["", "It has no parameters."]
    return "\n".join(lines) + "\n"
