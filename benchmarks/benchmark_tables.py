"""The tables that the benchmarks print, and what a command of its own process takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["DDLSCHED", "Table", "command_costs", "say"]

DDLSCHED = (sys.executable, "-c", "from ddlsched.cli import main; main()")
"""The program, as the beginning of a command."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a title; the first column is text, the others numbers or short texts, aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int | None]]
    notes: Sequence[str] = field(default=())

    def __str__(self) -> str:
        cells = [list(self.columns), *([_text(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(_padded(row, widths)).rstrip() for row in cells]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", lines[0], rule, *lines[1:], *self.notes])


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else value


def say(text: str) -> None:
    """Tell on stderr how far the benchmark has come."""
    print(f"... {text}", file=sys.stderr, flush=True)


def command_costs(command: Sequence[str], folder: Path | None = None) -> tuple[float, float, float]:
    """Return the wall and processor seconds of a command, and its peak resident memory (``ru_maxrss``), MB."""
    begin_s = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return time.perf_counter() - begin_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6
