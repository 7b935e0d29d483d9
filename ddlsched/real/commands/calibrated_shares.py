"""What ``ddlsched calibrate`` prints of the fit of size-shares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ddlsched.cli.output import without_nan

if TYPE_CHECKING:
    from ddlsched.real.calibration.shares import SizeShareFit

__all__ = ["shares_as_json", "shares_as_lines"]

_SHOWN = {
    "latency_s": ("latency", 1e6, "us"),
    "per_byte_s": ("time of a byte", 1e9, "ns/B"),
    "step_s": ("time of a step", 1e6, "us"),
    "exponent": ("exponent", 1.0, ""),
    "window_bytes": ("window", 1e-3, "kB"),
    "chunk_s": ("time of a chunk", 1e6, "us"),
}


def shares_as_json(fit: SizeShareFit) -> dict[str, Any]:
    """Return the fit for ``--json``; a window without an end is null."""
    constants = {name: _without_inf(without_nan(vars(constant))) for name, constant in fit.constants.items()}
    texts = {"": fit.whole, "_in_chunks": fit.in_chunks, "_of_connections": fit.of_connections}
    return {"constants": constants} | {f"contention{name}": text for name, text in texts.items()}


def _without_inf(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in values.items()}


def shares_as_lines(fit: SizeShareFit) -> list[str]:
    """Return the fit for the terminal."""
    lines = ["size-shares, by messages of two sizes beside each other:"]
    for name, constant in fit.constants.items():
        shown, factor, unit = _SHOWN[name]
        low, high = factor * constant.low, factor * constant.high
        lines.append(f"  {shown:16}{factor * constant.value:.4g} [{low:.4g}, {high:.4g}] {unit}".rstrip())
    lines.append(f"  --contention {fit.whole}")
    if fit.in_chunks != fit.whole:
        lines += ["Where policies pause transfers, and messages go in chunks:", f"  --contention {fit.in_chunks}"]
    told = (
        "Where a job has one connection to each neighbour (its exponent, window_bytes and loss are not told by this):"
    )
    return [*lines, told, f"  --contention {fit.of_connections}"]
