"""The tables that the benchmarks print, and what a function, a process or a command takes, and workloads by columns."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

import ddlsched

Found = TypeVar("Found")
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


def timed(function: Callable[[], Found]) -> tuple[Found, float, float]:
    """Return what a function returns, and the wall and processor seconds that it takes."""
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    found = function()
    return found, time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


def in_a_process(function: Callable[..., Found], *given: Any, **named: Any) -> Found:
    """Return what a function returns in a process of its own, which has a peak memory of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given, named)


def workload_of(**columns: Any) -> ddlsched.Workload:
    """Return jobs by the columns of a workload file; if nothing is said, they come at 0, send nothing and are small."""
    jobs = pd.DataFrame({"arrival_s": 0.0, "backward_s": 0.0, "message_bytes": 0.0, "gpu_memory_mb": 1.0} | columns)
    return ddlsched.Workload.from_frame(jobs.assign(job_id=[f"job-{number}" for number in range(len(jobs))]))


def peak_mb() -> float:
    """Return the peak resident memory of this process, MB, without what it had of its parent's when it began."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status.open() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def command_costs(command: Sequence[str]) -> tuple[float, float, float]:
    """Return the wall and processor seconds of a command, and its peak resident memory (``ru_maxrss``), MB."""
    begin_s = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return time.perf_counter() - begin_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6
