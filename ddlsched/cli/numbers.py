"""Numbers on the command line: plain ones, and a message that shows what was given instead."""

from __future__ import annotations

import math
from typing import Any

import typer

__all__ = ["real", "whole"]


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
