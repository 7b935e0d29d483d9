"""The trace formats by name (``formats.yaml``). What reads JSON and other text is imported when its format is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.workload.traces.columns import TraceColumns, own_table, table
from ddlsched.workload.traces.traced import Reader

__all__ = ["FORMATS", "TraceFormat", "reader_of"]


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
