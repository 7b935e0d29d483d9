"""What a trace tells of a job, the cells of its rows, checked one by one, and which of its jobs are wanted.

A reader of a format is a function from the text of a file to its jobs and to the rows it refuses: every row
becomes one or the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TextIO, TypeAlias

from ddlsched.deferred import np, pd
from ddlsched.errors import InputError
from ddlsched.ranges import check_fields, ranged

_MAX_WHOLE = 2**53
_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
"""Control characters, and what stands for a byte that is no text."""
_SHOWN = 60


class TracedJob(NamedTuple):
    """A job as its trace tells it; it needs a duration, or iterations and the time of one.

    Parameters
    ----------
    job_id
        As in the trace; empty, where a trace has none, for the number of the line.
    arrival_s
        On the trace's own clock, seconds.
    num_gpus
        At least 1.
    duration_s
        Time it held its GPUs, seconds; NaN if the trace does not tell.
    iterations
        0 if the trace does not tell.
    compute_s
        Forward and backward of one iteration on each GPU, seconds; NaN if the trace does not tell.
    time_limit_s
        How long its user said that it runs at most, seconds; NaN if the trace does not tell.
    model, user
        The trace's names.
    queue, priority
        The tenant's queue, such as a virtual cluster, and how urgent the job is: higher goes first.
    required_levels, preferred_levels
        As of a :class:`~ddlsched.workload.job.Job`; the tables of clusters tell them.
    note
        What is to be counted about the job, such as its final state.
    failed_after_s
        Time from its start until it failed, seconds; NaN if the trace does not tell.
    line
        Where it stands in its file; filled in by :func:`~ddlsched.workload.traces.trace_files.read_rows`.
    """

    job_id: str
    arrival_s: float
    num_gpus: int
    duration_s: float = math.nan
    iterations: int = 0
    compute_s: float = math.nan
    time_limit_s: float = math.nan
    model: str | None = None
    user: str | None = None
    queue: str | None = None
    priority: int = 0
    required_levels: str | None = None
    preferred_levels: str | None = None
    note: str | None = None
    failed_after_s: float = math.nan
    line: int = 0


class Refusal(NamedTuple):
    """A row that is no job: its line, why in a few words (by which it is counted), and what was found."""

    line: int
    reason: str
    detail: str


class TraceSource(NamedTuple):
    """An open text: the name for messages, the name and folder that tell its jobs from those of others, the text."""

    name: str
    stem: str
    folder: str
    text: TextIO


Reader: TypeAlias = Callable[[TraceSource], Iterator["TracedJob | Refusal"]]
"""A function that reads one file of a format."""
Cells: TypeAlias = Mapping[str, str]
"""The cells of a row by column."""


class BadRowError(Exception):
    """A row that is refused; its arguments are the reason it is counted by and what was found."""


def number_of(cells: Cells, column: str) -> float:
    """Return a finite number >= 0."""
    text = cells.get(column, "").strip()
    try:
        number = math.nan if "_" in text else float(text)  # Python reads 1_000 as a number, nobody else does.
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        reason = "is no finite number" if text else "is missing"
        raise BadRowError(f"{column} {reason}", f"{column} is {_shown(text)}; expected a finite number >= 0")
    if number < 0:
        raise BadRowError(f"{column} is negative", f"{column} is {text}; expected a finite number >= 0")
    return number


def positive_s(cells: Cells, column: str) -> float:
    """Return a time in seconds greater than 0."""
    number = number_of(cells, column)
    if number == 0:
        raise BadRowError(f"{column} is 0", f"{column} is {cells[column]}; expected a number of seconds > 0")
    return number


def whole_of(cells: Cells, column: str) -> int:
    """Return a whole number from 0; 4.0 is one."""
    number = number_of(cells, column)
    if not number.is_integer() or number > _MAX_WHOLE:
        raise BadRowError(
            f"{column} is not whole", f"{column} is {cells[column]}; expected a whole number from 0 to 2**53"
        )
    return int(number)


def gpus_of(cells: Cells, column: str) -> int:
    """Return a number of GPUs from 1."""
    number = whole_of(cells, column)
    if number == 0:
        raise BadRowError("0 GPUs", f"{column} is {cells[column]}; expected at least 1 GPU")
    return number


def text_of(cells: Cells, column: str) -> str:
    """Return a text that is not empty, without control characters or bytes that are no text."""
    text = cells.get(column, "").strip()
    if not text or NO_TEXT.search(text):
        reason = "is no plain text" if text else "is missing"
        raise BadRowError(f"{column} {reason}", f"{column} is {_shown(text)}; expected a text")
    return text


def optional_text(cells: Cells, column: str) -> str | None:
    """Return a text, or None if the cell is empty or the column is not there."""
    return text_of(cells, column) if cells.get(column, "").strip() else None


def optional_s(cells: Cells, column: str) -> float:
    """Return a time in seconds greater than 0, or NaN if the cell is empty."""
    return positive_s(cells, column) if cells.get(column, "").strip() else math.nan


def instant_s(cells: Cells, column: str, missing: str | None = None) -> float:
    """Return a number of seconds >= 0, or a date and time as :func:`moment_s`."""
    try:
        float(cells.get(column, ""))
    except ValueError:
        return moment_s(cells, column, missing)
    return number_of(cells, column)


def moment_s(cells: Cells, column: str, missing: str | None = None) -> float:
    """Return a date and time such as ``2017-10-09 07:01:55`` or ``2023-03-01 00:18:22+08:00`` as seconds since 1970.

    One without a time zone is taken for UTC. ``missing`` is the reason to refuse an empty cell by, if it has a meaning.
    """
    text = cells.get(column, "").strip()
    if text in ("", "None"):
        raise BadRowError(missing or f"{column} is missing", f"{column} is {_shown(text)}; expected a date and time")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "expected a date and time such as 2017-10-09 07:01:55"
        raise BadRowError(f"{column} is no date and time", f"{column} is {_shown(text)}; {expected}") from None
    return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)).total_seconds()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


# Its docstring is also the help of the command line (ddlsched/cli/dataclass_options.py).
@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which jobs of a trace are wanted, and at what scale.

    Parameters
    ----------
    from_s
        Leave out earlier arrivals, seconds after the trace's first job; the workload's clock starts here.
    to_s
        Leave out arrivals from here on, seconds after the trace's first job.
    gpus_at_most
        Leave out jobs of more GPUs.
    limit
        Only so many jobs, the first by arrival.
    scale
        Multiplies arrivals and durations; 0.01 makes a quick try.

    Raises
    ------
    InputError
        A value out of range.
    """

    from_s: float = ranged(0.0, 0.0)
    to_s: float = math.inf
    gpus_at_most: int | None = ranged(None, 1)
    limit: int | None = ranged(None, 1)
    scale: float = ranged(1.0, 1e-6, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "selection")
        if not self.to_s > self.from_s:
            raise InputError(f"to_s is {self.to_s}; expected more than from_s, which is {self.from_s}")

    def apply(self, traced: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
        """Return the wanted jobs by arrival, and how many were left out by each wish."""
        left_out: dict[str, int] = {}
        traced = traced.assign(arrival_s=traced["arrival_s"] - traced["arrival_s"].min())
        arrival_s = traced["arrival_s"]
        inside = (arrival_s >= self.from_s) & (arrival_s < self.to_s)
        left_out["outside the window of arrivals"] = int((~inside).sum())
        traced = traced[inside]
        if self.gpus_at_most is not None:
            small = traced["num_gpus"] <= self.gpus_at_most
            left_out[f"more than {self.gpus_at_most} GPUs"] = int((~small).sum())
            traced = traced[small]
        traced = traced.sort_values("arrival_s", kind="stable", ignore_index=True)
        left_out["after the limit"] = max(0, len(traced) - (self.limit or len(traced)))
        traced = traced.head(self.limit or len(traced))
        # Fewer iterations, each as long as before.
        scaled = {name: traced[name] * self.scale for name in ("duration_s", "iterations", "time_limit_s")}
        with np.errstate(over="ignore"):  # What overflows is refused later.
            scaled["arrival_s"] = ((traced["arrival_s"] - self.from_s) * self.scale).round(9)
        return traced.assign(**scaled), {why: count for why, count in left_out.items() if count}
