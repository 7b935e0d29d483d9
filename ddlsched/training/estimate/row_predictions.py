"""Tables of runs with what the estimate says of each row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.training.estimate.measured import PROGRAMS
from ddlsched.training.estimate.published_rows import PublishedRun, is_published, read_published
from ddlsched.training.estimate.rows import GPUS_PER_NODE, estimate_rows, read_rows, table_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predicted_rows"]

_ERRORS = (
    "7 % typical error of GPT models on several nodes of A100s",
    "4 % typical error of GPT models on one node of A100s",
)
"""Means of 20 splits, experiments/cluster_design/expected/measured_rows.csv."""


def predicted_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a table with measured and predicted step, predicted memory and a remark.

    The columns are ``measured_step_s``, ``predicted_step_s``, ``predicted_memory_gb`` and ``remark``. A row that cannot
    be said has no prediction, and the reason for its remark.

    Raises
    ------
    InputError
        The file is no table of runs, with file, row, column and value.
    """
    return _of_published(path) if is_published(table_rows(path)[0]) else _of_rows(path)


def _of_rows(path: Path) -> pd.DataFrame:
    """Return rows on nodes of eight A100s whose kernels are launched one by one."""
    import pandas as pd

    rows, said, reasons = read_rows(path)
    found = estimate_rows(said)
    predicted = pd.DataFrame(index=said.index).assign(
        predicted_ms=(1e3 * found.step_s).round(6),
        measured_step_s=said["iteration_ms"] / 1e3,
        predicted_step_s=found.step_s,
        predicted_memory_gb=found.memory.total_bytes / 1e9,
        remark=np.where(said["gpus"] > GPUS_PER_NODE, *_ERRORS),
    )
    table = rows.join(predicted)
    return table.assign(remark=table["remark"].fillna(pd.Series(reasons, dtype=object)))


def _of_published(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([{**run.row, **_prediction(run)} for run in read_published(path)])


def _prediction(run: PublishedRun) -> dict[str, float | str]:
    if run.model is None:
        return {
            "measured_step_s": run.measured_step_s,
            "predicted_step_s": math.nan,
            "predicted_memory_gb": math.nan,
            "remark": run.reason,
        }
    found = run.estimated()
    return {
        "measured_step_s": run.measured_step_s,
        "predicted_step_s": float(run.step_s()),
        "predicted_memory_gb": _ran_in_gb(run, float(found.memory.total_bytes)),
        "remark": PROGRAMS[run.program].remark(run.gpu, run.precision, run.model),
    }


def _ran_in_gb(run: PublishedRun, needed_bytes: float) -> float:
    """Return what a run needs, but no more than its GPU has if it was measured: it ran."""
    has_bytes = math.inf if math.isnan(run.measured_step_s) else float(run.machine.gpu.memory_bytes)
    return min(needed_bytes, has_bytes) / 1e9
