"""Measured or planned runs as rows of a CSV file, and their predicted times on nodes of eight A100s.

Columns: ``gpus, global_batch, micro_batch, hidden, heads, layers, sequence, tensor_parallel, data_parallel,
pipeline_parallel``, whole numbers, and optionally ``iteration_ms``, empty where a row was not measured; others are kept
and not read.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.reading import read_bytes
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule
from ddlsched.training.estimate.presets import A100_NODE_TIERS, EFFICIENCIES, GPUS
from ddlsched.training.estimate.step_estimate import Estimate, estimate

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "GPUS_PER_NODE", "a100_nodes", "estimate_rows", "plans_of", "predicted_ms", "read_rows"]

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
"""GPT-2's, not padded: the files do not say. It is what the settings of the measured rows' source name, and output
layers that are odd without tensor parallelism, and there three times as slow, are what the rows show."""


def read_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a file, checked.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(io.BytesIO(read_bytes(path)), skipinitialspace=True, dtype=str)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); expected a CSV file") from None
    except (ValueError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no CSV file ({reason}); expected a header with {', '.join(COLUMNS)}") from None
    missing = [column for column in COLUMNS if column not in frame]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; expected the columns {', '.join(COLUMNS)}")
    if frame.empty:
        raise InputError(f"{path}: has no rows; expected at least one")
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(f"{path}: its rows have more fields than its header; expected a name for each")
    for column in COLUMNS:
        frame[column] = _whole(path, frame, column)
    if "iteration_ms" in frame:
        frame["iteration_ms"] = _measured(path, frame)
    _refuse_broken_rows(path, frame)
    return frame


def _whole(path: Path, frame: pd.DataFrame, column: str) -> pd.Series[int]:
    import pandas as pd

    values = pd.to_numeric(frame[column], errors="coerce")
    good = (values >= 1) & (values <= _MOST) & (values % 1 == 0)
    _refuse_bad(path, frame[column], good, f"a whole number from 1 to {_MOST:,}")
    return values.astype("int64")


def _measured(path: Path, frame: pd.DataFrame) -> pd.Series[float]:
    """Return the measured times; NaN where a row has none."""
    import pandas as pd

    values = pd.to_numeric(frame["iteration_ms"], errors="coerce")
    good = frame["iteration_ms"].isna() | ((values > 0) & (values < np.inf))
    _refuse_bad(path, frame["iteration_ms"], good, "milliseconds > 0, or nothing")
    return values


def _refuse_bad(path: Path, column: pd.Series[str], good: pd.Series[bool], expected: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(f"{path}, row {row + 1}: {column.name} is {column.iloc[row]}; expected {expected}")


def _refuse_broken_rows(path: Path, frame: pd.DataFrame) -> None:
    """Refuse the first row that no cluster of whole nodes can run, with the rule that it breaks."""
    kept = np.all(np.broadcast_arrays(*(rule.holds for rule in _rules(frame))), axis=0)
    if not kept.all():
        row = int(np.argmin(kept))
        broken = next(rule for rule in _rules(frame, row) if not np.all(rule.holds))
        raise InputError(f"{path}, row {row + 1}: {broken.text}")


def _rules(frame: pd.DataFrame, row: int | None = None) -> list[Rule]:
    """Return the rules of all rows at once, or, with their text in numbers, of one."""
    model, plan, _ = plans_of(frame, row)
    gpus = frame["gpus"].to_numpy() if row is None else int(frame["gpus"].iloc[row])
    whole = (np.asarray(gpus) <= GPUS_PER_NODE) | (np.mod(gpus, GPUS_PER_NODE) == 0)
    nodes = Rule(whole, f"gpus is {gpus}; expected up to {GPUS_PER_NODE}, or whole nodes of {GPUS_PER_NODE}")
    return [nodes, *plan.rules(gpus), *model.rules(plan)]


def a100_nodes(gpus: Amount) -> Machine:
    """Return nodes of eight A100s with the links and the efficiency that were fitted to measurements."""
    inside, outside = A100_NODE_TIERS
    sizes = np.minimum(gpus, GPUS_PER_NODE), np.maximum(np.asarray(gpus) // GPUS_PER_NODE, 1)
    tiers = tuple(dataclasses.replace(tier, size=size) for tier, size in zip((inside, outside), sizes, strict=True))
    return Machine(gpu=GPUS["a100-80"], tiers=tiers).with_efficiency(EFFICIENCIES["eager"])


def plans_of(frame: pd.DataFrame, row: int | None = None) -> tuple[Transformer, Parallelism, Machine]:
    """Return all rows as one model, parallelism and machine of arrays, or one row's.

    All layers are computed again on more than one node, none on one: the files do not say. With recomputation, blocks
    of the measured rows of one node would be multiplied faster than an A100 can; without it, most of those of several
    nodes would not fit.
    """
    column = {name: frame[name].to_numpy() if row is None else int(frame[name].iloc[row]) for name in COLUMNS}
    model = Transformer(
        num_layers=column["layers"],
        hidden=column["hidden"],
        heads=column["heads"],
        sequence=column["sequence"],
        vocabulary=_VOCABULARY,
    )
    plan = Parallelism(
        tensor=column["tensor_parallel"],
        data=column["data_parallel"],
        pipeline=column["pipeline_parallel"],
        micro_batch=column["micro_batch"],
        global_batch=column["global_batch"],
        recompute=np.where(np.asarray(column["gpus"]) > GPUS_PER_NODE, "full", "none"),
    )
    return model, plan, a100_nodes(column["gpus"])


def estimate_rows(frame: pd.DataFrame, machine: Machine | None = None) -> Estimate:
    """Return the estimates of all rows, on another machine if one is given (its sizes must be the rows')."""
    model, plan, nodes = plans_of(frame)
    return estimate(model, plan, machine or nodes)


def predicted_ms(frame: pd.DataFrame) -> np.ndarray:
    """Return the predicted time of each row's step, milliseconds."""
    milliseconds: np.ndarray = 1e3 * np.broadcast_to(estimate_rows(frame).step_s, len(frame))
    return milliseconds
