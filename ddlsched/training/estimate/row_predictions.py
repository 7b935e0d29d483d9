"""Tables of runs with what the estimate says of each row."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddlsched.training.estimate.presets import PROGRAMS
from ddlsched.training.estimate.published_rows import PublishedRun, is_published, read_published
from ddlsched.training.estimate.rows import COLUMNS, GPUS_PER_NODE, estimate_rows, read_rows, table_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MEASURED", "RunsAlike", "predicted_rows"]

MEASURED = Path(__file__).with_name("gpt_on_a100.csv")
"""Runs of GPT models on 2 to 512 A100s that vTrain published; experiments/cluster_design/fit.py --ship writes it."""
_NOISE = 0.2
"""Variance of what single runs are off, to that of what runs alike share: 0.1 to 0.5 foretell equally well."""
_BLOCK = 1000
"""Rows that are compared with the measured runs at once."""
_ERRORS = (("one node", 3, 4), ("several nodes", 5, 7))
"""Percent with and without runs alike: means of 20 splits, experiments/cluster_design/expected/measured_rows.csv."""


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
    found, sizes = estimate_rows(said), said[list(COLUMNS)].to_numpy(np.float64)
    nodes, alike = (said["gpus"] > GPUS_PER_NODE).to_numpy().astype(int), np.ones(len(said))
    for several in (0, 1):
        alike[nodes == several] = np.exp(_gpt_runs(bool(several)).left_of(sizes[nodes == several]))
    predicted = pd.DataFrame(index=said.index).assign(
        predicted_ms=(1e3 * found.step_s * alike).round(6),
        measured_step_s=said["iteration_ms"] / 1e3,
        predicted_step_s=found.step_s * alike,
        predicted_memory_gb=found.memory.total_bytes / 1e9,
        remark=[_remark(*_ERRORS[several], by - 1) for several, by in zip(nodes, alike, strict=True)],
    )
    table = rows.join(predicted)
    return table.assign(remark=table["remark"].fillna(pd.Series(reasons, dtype=object)))


def _remark(nodes: str, moved_percent: int, percent: int, by: float) -> str:
    """Return how far off a row typically is, and by how much runs alike moved it, if there are any."""
    of = f"typical error of GPT models on {nodes} of A100s"
    if abs(by) < 0.0005:
        return f"{percent} % {of}, no measured run is alike"
    return f"{moved_percent} % {of}, with {by:+.1%} as runs alike"


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


class RunsAlike(NamedTuple):
    """Measured runs: their sizes, a row a run, and the logarithms of measured over estimated steps."""

    sizes: np.ndarray
    left: np.ndarray

    def left_of(self, sizes: np.ndarray) -> np.ndarray:
        """Return what the logarithms should be of runs of other sizes, a row a run: 0 far from all that were measured.

        A Gaussian process over the logarithms of sizes, in units of their spread. It knows nothing of training. A run
        of the same sizes is not asked, so that a table of measured runs shows what others say of each.
        """
        logs = np.log(self.sizes)
        spread = np.maximum(logs.std(axis=0), 1e-9)
        own, asked = logs / spread, np.log(sizes) / spread
        inverse = np.linalg.inv(_alike(own, own) + _NOISE * np.eye(len(own)))
        solved = inverse @ self.left
        others = self.left - solved / np.diag(inverse)
        blocks = np.split(asked, range(_BLOCK, len(asked), _BLOCK))
        return np.concatenate([_told(block, own, solved, others) for block in blocks])


def _told(asked: np.ndarray, own: np.ndarray, solved: np.ndarray, others: np.ndarray) -> np.ndarray:
    left: np.ndarray = _alike(asked, own) @ solved
    row, same = np.nonzero((asked[:, None] == own).all(axis=2))
    left[row] = others[same]
    return left


def _alike(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    alike: np.ndarray = np.exp(-((some[:, None] - others) ** 2).sum(axis=2) / 2)
    return alike


@cache
def _gpt_runs(on_several_nodes: bool) -> RunsAlike:
    """Return the runs of :data:`MEASURED` on one node of eight GPUs, or those on several."""
    table = np.loadtxt(MEASURED, delimiter=",", skiprows=1)
    own = table[(table[:, 0] > GPUS_PER_NODE) == on_several_nodes]
    return RunsAlike(own[:, :-1], own[:, -1])
