"""The most common command lines of ``ddlsched reshard``, understood without the libraries that parse all others.

Those take longer to import than 0.2 GB to copy. Whatever is not understood here, errors included, is left to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlsched.reconfiguration.format_names import Format

__all__ = ["plain_arguments"]


def plain_arguments(args: Sequence[str]) -> tuple[str, str, dict[str, Any]] | None:
    """Return source, destination and options of ``reshard SRC DST [--to T] [--format F] [--verify]``; else None."""
    if not args or args[0] != "reshard":
        return None
    paths: list[str] = []
    options: dict[str, Any] = {}
    left = iter(args[1:])
    for arg in left:
        if arg == "--verify":
            options["verify"] = True
        elif arg in ("--to", "--format"):
            value = next(left, "")
            if not value or value.startswith("-") or (arg == "--format" and value not in list(Format)):
                return None
            options |= {"to": value} if arg == "--to" else {"write": Format(value)}
        elif not arg or arg.startswith("-"):
            return None
        else:
            paths.append(arg)
    return (paths[0], paths[1], options) if len(paths) == 2 else None
