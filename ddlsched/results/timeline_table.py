"""The timeline of a run as one table, for SQL and data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.results.slices import compute_slices, transfer_slices

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.results.result import Result

__all__ = ["timeline_table", "write_timeline_table"]


def timeline_table(result: Result) -> pd.DataFrame:
    """Return a row for each time that a GPU ran a task or a transfer ran at one rate, sorted by start.

    Columns: kind (``compute`` or ``transfer``); job_id; task; iteration; start_ns, end_ns; of a task gpu and cut
    (whether a failure ended it undone); of a transfer links (numbers of the rows of ``result.links``), sharing (the
    most transfers on any of them, itself included) and rate_bytes_per_s. What a row does not have is missing.

    Raises
    ------
    InputError
        The run was not recorded.
    """
    import pandas as pd

    slices = (compute_slices(result).assign(kind="compute"), transfer_slices(result).assign(kind="transfer"))
    names = ["kind", "job_id", "task", "iteration", "start_ns", "end_ns", "gpu", "cut"]
    names += ["links", "sharing", "rate_bytes_per_s"]
    parts = [
        part.reindex(columns=names).astype({"gpu": "Int64", "cut": "boolean", "sharing": "Int64", "links": "object"})
        for part in slices
    ]
    table = pd.concat(parts, ignore_index=True).sort_values("start_ns", kind="stable", ignore_index=True)
    table["links"] = table["links"].map(list, na_action="ignore")
    return table


def write_timeline_table(result: Result, path: Path) -> None:
    """Write the table to a Parquet file, whole or not at all.

    Raises
    ------
    InputError
        The run was not recorded, or the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = timeline_table(result)
    links = pa.array(table.pop("links"), pa.list_(pa.int64()), from_pandas=True)
    whole = pa.Table.from_pandas(table, preserve_index=False).append_column("links", links)
    with replacing(path, "timeline") as beside:
        try:
            pq.write_table(whole, beside)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
