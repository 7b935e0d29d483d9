"""Measured or planned runs as rows of a CSV file, and what the estimate says of each, on nodes of eight A100s.

Columns: ``gpus, global_batch, micro_batch, hidden, heads, layers, sequence, tensor_parallel, data_parallel,
pipeline_parallel``, whole numbers, and optionally ``iteration_ms``, empty where a row was not measured; others are kept
and not read. Published tables are read by their own columns, and predicted on their own GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.io.tables import TableRow, cell_number, cell_whole, located, refuse_longer, table_rows
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule, refuse_broken
from ddlsched.training.estimate.presets import A100_NODE_TIERS, EFFICIENCIES, GPUS, PROGRAMS
from ddlsched.training.estimate.published_rows import PublishedRun, is_published, read_published
from ddlsched.training.estimate.step_estimate import Estimate, estimate

COLUMNS = (
    "gpus",
    "global_batch",
    "micro_batch",
    "hidden",
    "heads",
    "layers",
    "sequence",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
)
GPUS_PER_NODE = 8
_MOST = 100_000_000
"""Of any number in a row: beyond it, products of two would leave what a float holds exactly."""
_VOCABULARY = 50_257
"""GPT-2's: the files do not say. On one node it is not padded: the settings of the measured rows' source name it, and
output layers are the slower the worse their columns are aligned. On several, Megatron-LM pads it, to a multiple of 128
times the tensor-parallel GPUs."""


class ReadRows(NamedTuple):
    """Rows of a file: ``rows`` as they stand, ``said`` in numbers those that can be estimated, ``reasons`` why not."""

    rows: pd.DataFrame
    said: pd.DataFrame
    reasons: dict[int, str]


def read_rows(path: Path) -> ReadRows:
    """Return the rows of a file; those that can be said, and the reasons of the others, by their place.

    Raises
    ------
    InputError
        The file cannot be read, lacks a column or has no rows.
    """
    header, rows = table_rows(path, "a table of runs")
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; expected the columns {', '.join(COLUMNS)}")
    if not rows:
        raise InputError(f"{path}: has no rows; expected at least one")
    said: dict[int, dict[str, float]] = {}
    reasons: dict[int, str] = {}
    for place, row in enumerate(rows):
        try:
            said[place] = _said(row, f"row {place + 1}")
        except InputError as error:
            reasons[place] = str(error)
    numbers = pd.DataFrame.from_dict(said, orient="index", columns=[*COLUMNS, "iteration_ms"])
    return ReadRows(pd.DataFrame(rows, columns=header), numbers.astype(dict.fromkeys(COLUMNS, "int64")), reasons)


def _said(row: TableRow, where: str) -> dict[str, float]:
    """Return the numbers of a row that some cluster of whole nodes can run."""
    refuse_longer(row)
    sizes = {column: cell_whole(where, column, row[column], at_most=_MOST) for column in COLUMNS}
    text, expected = row.get("iteration_ms"), "expected milliseconds > 0, or nothing"
    measured_ms = cell_number(where, "iteration_ms", text, expected, positive=True) if text else math.nan
    model, plan, _ = plans_of(sizes)
    gpus = sizes["gpus"]
    whole = gpus <= GPUS_PER_NODE or gpus % GPUS_PER_NODE == 0
    nodes = Rule(whole, f"gpus is {gpus}; expected up to {GPUS_PER_NODE}, or whole nodes of {GPUS_PER_NODE}")
    located(where, lambda: refuse_broken([nodes, *plan.rules(gpus), *model.rules(plan)]))
    return {**sizes, "iteration_ms": measured_ms}


def a100_nodes(gpus: Amount) -> Machine:
    """Return nodes of eight A100s with the links and the efficiency that were fitted to measurements."""
    inside, outside = A100_NODE_TIERS
    sizes = np.minimum(gpus, GPUS_PER_NODE), np.maximum(np.asarray(gpus) // GPUS_PER_NODE, 1)
    tiers = tuple(tier._replace(size=size) for tier, size in zip((inside, outside), sizes, strict=True))
    return Machine(gpu=GPUS["a100-80"], tiers=tiers).with_efficiency(EFFICIENCIES["eager"])


def plans_of(rows: pd.DataFrame | Mapping[str, int]) -> tuple[Transformer, Parallelism, Machine]:
    """Return all rows as one model, parallelism and machine of arrays, or one row's.

    All layers are computed again on more than one node, none on one: the files do not say. With recomputation, blocks
    of the measured rows of one node would be multiplied faster than an A100 can; without it, most of those of several
    nodes would not fit.
    """
    column = {name: np.asarray(rows[name])[()] for name in COLUMNS}
    several_nodes, padded = np.asarray(column["gpus"]) > GPUS_PER_NODE, 128 * column["tensor_parallel"]
    model = Transformer(
        num_layers=column["layers"],
        hidden=column["hidden"],
        heads=column["heads"],
        sequence=column["sequence"],
        vocabulary=np.where(several_nodes, np.ceil(_VOCABULARY / padded) * padded, _VOCABULARY),
    )
    plan = Parallelism(
        tensor=column["tensor_parallel"],
        data=column["data_parallel"],
        pipeline=column["pipeline_parallel"],
        micro_batch=column["micro_batch"],
        global_batch=column["global_batch"],
        recompute=np.where(several_nodes, "full", "none"),
    )
    return model, plan, a100_nodes(column["gpus"])


def estimate_rows(frame: pd.DataFrame, machine: Machine | None = None) -> Estimate:
    """Return the estimates of all rows, on another machine if one is given (its sizes must be the rows')."""
    model, plan, nodes = plans_of(frame)
    return estimate(model, plan, machine or nodes)


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
    if is_published(table_rows(path, "a table of runs")[0]):
        return pd.DataFrame([{**run.row, **_prediction(run)} for run in read_published(path)])
    return _of_rows(path)


def _of_rows(path: Path) -> pd.DataFrame:
    """Return rows on nodes of eight A100s whose kernels are launched one by one."""
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


def _prediction(run: PublishedRun) -> dict[str, float | str]:
    if run.model is None:
        step_s, memory_gb, remark = math.nan, math.nan, run.reason
    else:
        step_s, remark = float(run.step_s()), PROGRAMS[run.program].remark(run.gpu, run.precision, run.model)
        # What was measured ran, so that it took no more than its GPU has.
        has_bytes = math.inf if math.isnan(run.measured_step_s) else float(run.machine.gpu.memory_bytes)
        memory_gb = min(float(run.estimated().memory.total_bytes), has_bytes) / 1e9
    columns = "measured_step_s", "predicted_step_s", "predicted_memory_gb", "remark"
    return dict(zip(columns, (run.measured_step_s, step_s, memory_gb, remark), strict=True))


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
