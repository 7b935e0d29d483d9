"""``ddlsched list``: the names of all plug-ins."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ddlsched.cli.output import emit
from ddlsched.errors import UnknownNameError, did_you_mean

__all__ = ["list_plugins"]


def list_plugins(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help="Only these: placement, order, communication, allocation, path, collective, contention, interference, "
            "topology, workload or bundle.",
            show_default="all",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the names of each kind.")] = False,
) -> None:
    """List the names that the flags of 'simulate' and 'compare' accept, yours included.

    A package adds names with entry points of the group ddlsched.KIND; listing them imports none of it.
    """
    from ddlsched.plugins.names import KINDS, names

    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind of plug-in is named {kind!r}.{did_you_mean(kind, KINDS)}")
    found = {each: names(each) for each in KINDS if kind in (None, each)}
    if as_json:
        emit(json.dumps(found, indent=2) + "\n")
    elif kind is not None:
        emit("".join(f"{name}\n" for name in found[kind]))
    else:
        emit("".join(f"{each:<15}{', '.join(found[each])}\n" for each in found))
