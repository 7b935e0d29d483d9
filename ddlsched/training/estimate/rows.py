"""Measured or planned runs as rows of a CSV file, and their predicted times on nodes of eight A100s.

Columns: ``gpus, global_batch, micro_batch, hidden, heads, layers, sequence, tensor_parallel, data_parallel,
pipeline_parallel``, whole numbers, and optionally ``iteration_ms``, empty where a row was not measured; others are kept
and not read.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, cell_whole, located, read_text, readable
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule, refuse_broken
from ddlsched.training.estimate.presets import A100_NODE_TIERS, EFFICIENCIES, GPUS
from ddlsched.training.estimate.step_estimate import Estimate, estimate

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLUMNS",
    "GPUS_PER_NODE",
    "ReadRows",
    "TableRow",
    "a100_nodes",
    "estimate_rows",
    "plans_of",
    "read_rows",
    "refuse_longer",
    "table_rows",
]

TableRow: TypeAlias = Mapping[str | None, Any]
"""Cells by column; None where the row ends before."""

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
    import pandas as pd

    header, rows = table_rows(path)
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
    measured_ms = cell_number(where, "iteration_ms", text, expected) if text else math.nan
    if measured_ms == 0:
        raise InputError(f"{where}: iteration_ms is {text}; {expected}")
    model, plan, _ = plans_of(sizes)
    gpus = sizes["gpus"]
    whole = gpus <= GPUS_PER_NODE or gpus % GPUS_PER_NODE == 0
    nodes = Rule(whole, f"gpus is {gpus}; expected up to {GPUS_PER_NODE}, or whole nodes of {GPUS_PER_NODE}")
    located(where, lambda: refuse_broken([nodes, *plan.rules(gpus), *model.rules(plan)]))
    return {**sizes, "iteration_ms": measured_ms}


def table_rows(path: Path) -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a CSV file; values beyond the header's are under None.

    Raises
    ------
    InputError
        It cannot be read, or is no CSV.
    """
    reader = csv.DictReader(io.StringIO(readable(path, "a table of runs", read_text)), skipinitialspace=True)
    try:
        return list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is no CSV ({error}); expected a table of runs") from None


def refuse_longer(row: TableRow) -> None:
    """Refuse a row with values that the header has no name for: those before them may be shifted."""
    if any(row.get(None) or ()):
        raise InputError("has more fields than the header; expected a name for each")


def a100_nodes(gpus: Amount) -> Machine:
    """Return nodes of eight A100s with the links and the efficiency that were fitted to measurements."""
    inside, outside = A100_NODE_TIERS
    sizes = np.minimum(gpus, GPUS_PER_NODE), np.maximum(np.asarray(gpus) // GPUS_PER_NODE, 1)
    tiers = tuple(dataclasses.replace(tier, size=size) for tier, size in zip((inside, outside), sizes, strict=True))
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
