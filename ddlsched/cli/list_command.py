"""``ddlsched list``: the names of all plug-ins, and the parameters of one."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.reporting import emit
from ddlsched.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from ddlsched.plugins.names import Kind

__all__ = ["list_plugins"]


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
    from ddlsched.plugins.names import KINDS, names

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
    from ddlsched.plugins.descriptions import description_of

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
