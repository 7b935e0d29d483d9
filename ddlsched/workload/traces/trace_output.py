"""Writes what was imported from a trace, batch by batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.workload.traces.trace_import import ImportedTrace

__all__ = ["refuse_table_suffix", "write_jobs", "write_refused"]

_SUFFIXES = (".csv", ".parquet")
_BATCH = 65_536


def refuse_table_suffix(path: Path) -> None:
    """Raise InputError if a file's suffix is of no table that can be written in batches."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path}: the suffix is {path.suffix!r}; expected one of {', '.join(_SUFFIXES)}")


def write_jobs(trace: ImportedTrace, path: Path) -> None:
    """Write a workload file, CSV or Parquet by the suffix; Parquet also keeps the report, under the key ``ddlsched``.

    Raises
    ------
    InputError
        The suffix is another, or no job is left.
    OSError
        The file cannot be written.
    """
    refuse_table_suffix(path)
    trace.refuse_empty()
    if path.suffix.lower() == ".csv":
        trace.jobs.to_csv(path, index=False, lineterminator="\n", chunksize=_BATCH)
    else:
        _write_parquet(trace, path)


def _write_parquet(trace: ImportedTrace, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = {"job_id", "model", "user"}
    whole = {"gpus", "iterations"}
    kinds = [pa.string() if name in texts else pa.int64() if name in whole else pa.float64() for name in trace.jobs]
    report = json.dumps(trace.report).encode()
    schema = pa.schema(list(zip(trace.jobs.columns, kinds, strict=True)), metadata={"ddlsched": report})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(trace.jobs), _BATCH):
            batch = trace.jobs.iloc[start : start + _BATCH]
            writer.write_table(pa.Table.from_pandas(batch, schema=schema, preserve_index=False))


def write_refused(trace: ImportedTrace, path: Path) -> None:
    """Write the refused rows as CSV: file, line, reason, found; the header alone if there are none."""
    trace.refused.to_csv(path, index=False, lineterminator="\n")
