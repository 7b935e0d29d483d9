"""The formats of traces by name (``formats.yaml``); of those that are a table, which column tells what of a job."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import nan
from pathlib import Path

import msgspec

from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.workload.traces import traced
from ddlsched.workload.traces.trace_files import Layout, read_csv
from ddlsched.workload.traces.traced import BadRowError, Cells, Reader, Refusal, TracedJob, TraceSource

_WHOLE_GPU_MILLI = 1000
_OPTIONAL = ("model", "user", "queue", "priority", "fail_s")

PRIORITIES = {"HP": 1, "LS": 2, "BURSTABLE": 1, "BE": 0, "SPOT": 0}
"""What classes of service in traces mean, higher goes first: Alibaba's ``job_type`` (HP, Spot) and ``qos``."""


def _priority_of(cells: Cells, column: str) -> int:
    """Return a job's priority; an empty cell and a class that is not known are of the lowest."""
    text = cells.get(column, "").strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) < 10 else PRIORITIES.get(text.upper(), 0)


@dataclass(frozen=True, kw_only=True)
class TraceColumns:
    """The names of a table's columns by what they tell of a job; None where none does.

    Parameters
    ----------
    job_id
        By default the number of the line.
    arrival_s
        When it was submitted: a number of seconds, or a date and time.
    gpus
        How many GPUs it has, or each of its workers, if there is a column of workers.
    duration_s
        For how long it held them, seconds; by default from ``start_s`` to ``end_s``.
    start_s, end_s
        When it got its GPUs and gave them back; a job without one of them is refused.
    fail_s
        When it failed; an empty cell of one that did not.
    iterations, model, user, queue, state
        As in :class:`~ddlsched.workload.traces.traced.TracedJob`; the state is counted.
    time_limit_s
        How long its user said that it runs at most, seconds.
    priority
        Of each job, by the text of its cell: a whole number, or one of :data:`PRIORITIES`.
    workers
        By how many the GPUs are multiplied.
    gpu_milli
        The share of a GPU that it has, in thousandths; it counts as a whole one.
    unit_s
        Seconds of one unit of the arrival and the duration; no column.
    user_is_file
        Whether the file's name stands for the user; no column.
    """

    job_id: str | None = None
    arrival_s: str
    gpus: str
    duration_s: str | None = None
    start_s: str | None = None
    end_s: str | None = None
    fail_s: str | None = None
    iterations: str | None = None
    model: str | None = None
    user: str | None = None
    queue: str | None = None
    priority: str | None = None
    state: str | None = None
    time_limit_s: str | None = None
    workers: str | None = None
    gpu_milli: str | None = None
    unit_s: float = 1.0
    user_is_file: bool = False

    def layout(self, source: TraceSource, optional: Collection[str] = _OPTIONAL) -> Layout:
        """Return the columns that a file must have, which are all but those of some names, and what makes a job."""
        told = (getattr(self, field.name) for field in fields(self) if field.name not in optional)
        return [column for column in told if isinstance(column, str)], partial(self._job, source.stem)

    def _job(self, file: str, cells: Cells) -> TracedJob:
        gpus = traced.gpus_of(cells, self.gpus) * (traced.gpus_of(cells, self.workers) if self.workers else 1)
        held_s = self._held_s(cells)
        note = None if self.state is None else f"state {traced.text_of(cells, self.state)}"
        if self.gpu_milli and traced.whole_of(cells, self.gpu_milli) < _WHOLE_GPU_MILLI:
            note = f"{note}, share of a GPU counted as a whole one"
        return TracedJob(
            job_id=traced.text_of(cells, self.job_id) if self.job_id else "",
            arrival_s=traced.instant_s(cells, self.arrival_s) * self.unit_s,
            num_gpus=gpus,
            duration_s=traced.positive_s(cells, self.duration_s) * self.unit_s if self.duration_s else held_s,
            iterations=traced.whole_of(cells, self.iterations) if self.iterations else 0,
            time_limit_s=traced.optional_s(cells, self.time_limit_s) if self.time_limit_s else nan,
            model=traced.optional_text(cells, self.model) if self.model else None,
            user=file if self.user_is_file else traced.optional_text(cells, self.user) if self.user else None,
            queue=traced.optional_text(cells, self.queue) if self.queue else None,
            priority=_priority_of(cells, self.priority) if self.priority else 0,
            note=note,
            failed_after_s=self._failed_after_s(cells),
        )

    def _failed_after_s(self, cells: Cells) -> float:
        if self.fail_s is None or self.start_s is None or not cells.get(self.fail_s, "").strip():
            return nan
        return traced.instant_s(cells, self.fail_s) - traced.instant_s(cells, self.start_s)

    def _held_s(self, cells: Cells) -> float:
        if self.start_s is None or self.end_s is None:
            return nan
        start_s = traced.instant_s(cells, self.start_s, missing="never started")
        held_s = traced.instant_s(cells, self.end_s, missing="never ended") - start_s
        if held_s <= 0 and self.duration_s is None:
            detail = f"{self.end_s} is {held_s:g} s after {self.start_s}; expected more than 0"
            raise BadRowError("duration is 0 or less", detail)
        return held_s


def table(layouts: Sequence[TraceColumns], source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read a table in the first of some layouts whose columns are all there."""

    def layout(header: list[str]) -> Layout:
        known = [columns.layout(source) for columns in layouts]
        return next((each for each in known if set(each[0]) <= set(header)), known[0])

    return read_csv(source, layout)


TOLD = [field.name for field in fields(TraceColumns) if field.name not in ("unit_s", "user_is_file")]
"""What a column of the user's can tell."""


def own_table(given: Mapping[str, str]) -> Reader:
    """Return what reads a table of the user's own.

    Parameters
    ----------
    given
        Its columns by what they tell, ``{"arrival_s": "SubmitTime"}``; the ``_s`` of a name may be left out. What is
        not given is told by the column of its own name, if there is one.

    Raises
    ------
    UnknownNameError
        Something that no column can tell.
    InputError
        While reading: a column is not there, or nothing tells an arrival, the GPUs, or a duration.
    """
    named = {name if name in TOLD else f"{name}_s": column for name, column in given.items()}
    for name in given:
        if name not in TOLD and f"{name}_s" not in TOLD:
            raise UnknownNameError(f"--column {name}: nothing is told by it.{did_you_mean(name, TOLD)}")

    def read(source: TraceSource) -> Iterator[TracedJob | Refusal]:
        def layout(header: list[str]) -> Layout:
            told = {name: name for name in TOLD if name in header} | named
            _refuse_untold(source, told)
            return TraceColumns(**told).layout(source, ())  # type: ignore[arg-type]

        return read_csv(source, layout)

    return read


def _refuse_untold(source: TraceSource, told: Collection[str]) -> None:
    length = "duration_s" if {"start_s", "end_s", "iterations"}.isdisjoint(told) else "arrival_s"
    for name in ("arrival_s", "gpus", length):
        if name not in told:
            raise InputError(f"{source.name}: no column tells {name}; expected --column {name}=COLUMN")


class TraceFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format: what it is, its files' names within an archive, and how it is read.

    ``tables`` are layouts, of which the first that fits a file counts; ``reader`` is a module here and its function.
    """

    summary: str
    members: str = "*.csv"
    tables: tuple[TraceColumns, ...] = ()
    reader: str = ""


FORMATS = msgspec.yaml.decode(Path(__file__).with_name("formats.yaml").read_bytes(), type=dict[str, TraceFormat])
"""Every format that can be imported."""


def reader_of(name: str, columns: Mapping[str, str] | None = None) -> Reader:
    """Return the function that reads a format; ``columns`` are those of ``csv``, by what they tell.

    Raises
    ------
    UnknownNameError
        No format of that name, or a column that tells nothing.
    InputError
        TraceColumns for a format that has its own.
    """
    if name not in FORMATS:
        raise UnknownNameError(f"unknown trace format {name!r}.{did_you_mean(name, FORMATS)}")
    if name == "csv":
        return own_table(columns or {})
    if columns:
        raise InputError(f"--column is given for {name}, which has columns of its own; expected the format csv with it")
    given = FORMATS[name]
    if given.tables:
        return partial(table, given.tables)
    module, function = given.reader.split(":")
    reader: Reader = getattr(importlib.import_module(f"ddlsched.workload.traces.{module}"), function)
    return reader
