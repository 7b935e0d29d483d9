"""What a comparison's folder holds: the names of its files, what is in them, and reading them with suspicion.

A run's own file is described in :mod:`ddlsched.comparisons.sweeps.stored_runs`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from ddlsched.errors import InputError, abbreviated
from ddlsched.io.files import read_bytes

Content = TypeVar("Content")

LABELS = ["policy", "workload", "cluster"]
"""Columns that say which runs a row is of; each is a key of the object of its plural in comparison.json."""


class _Columns(NamedTuple):
    """Columns that a table has at least."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]


_MEASURED = ("seeds", "mean", "low", "high", "change", "change_low", "change_high")
_WHOLE = ("seed", "seeds", "most_jobs_on_a_gpu")
TABLES = {
    "runs.csv": _Columns((*LABELS, "file"), ("seed",)),
    "comparison.csv": _Columns((*LABELS, "metric", "verdict"), _MEASURED),
    "classes.csv": _Columns((*LABELS, "size_class", "metric", "verdict"), _MEASURED),
    "failures.csv": _Columns((*LABELS, "message"), ("seed",)),
}
"""The tables, and the columns that are relied on."""

_KEPT = {"placements": ("placements", ".parquet"), "timeline": ("timelines", ".json")}
"""The folder and the suffix of what is kept of each policy's first run."""


class _Servers(BaseModel):
    """A cluster: the number of GPUs of each server."""

    gpus: list[Annotated[int, Field(gt=0)]] = Field(min_length=1)


class _Asked(BaseModel):
    """The fields of comparison.json that are relied on."""

    ddlsched: str
    command: list[str] = Field(min_length=1)
    baseline: str
    policies: dict[str, Any] = Field(min_length=1)
    workloads: dict[str, Any] = Field(min_length=1)
    clusters: dict[str, _Servers] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    options: dict[str, Any]
    drawn_workloads: list[str] = []


def slug(name: str) -> str:
    """Return a policy's name as a file's."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "policy"


def kept_file(folder: Path, kind: str, policy: str) -> Path:
    """Return where the placements or the timeline of a policy's first run are kept."""
    name, suffix = _KEPT[kind]
    return folder / name / f"{slug(policy)}{suffix}"


def kept_files(folder: Path) -> list[Path]:
    """Return all that is kept of first runs."""
    return [path for name, suffix in _KEPT.values() for path in (folder / name).glob(f"*{suffix}")]


def read_asked(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's comparison.json.

    Raises
    ------
    InputError
        There is none, or it is no comparison's.
    """
    path = folder / "comparison.json"
    if not folder.is_dir():
        raise InputError(f"{folder}: is no folder; expected one that 'ddlsched compare' wrote")
    if not path.exists():
        raise InputError(f"{folder}: has no comparison.json; expected a folder that 'ddlsched compare' wrote")
    raw: dict[str, Any] = _reading(path, "JSON", lambda: json.loads(read_bytes(path)))
    try:
        asked = _Asked.model_validate(raw)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the whole"
        raise InputError(f"{path}: {place}: {fault['msg']}; found {abbreviated(fault['input'])}") from None
    if asked.baseline not in asked.policies:
        raise InputError(f"{path}: baseline: is {asked.baseline!r}; expected one of {', '.join(asked.policies)}")
    return raw


def read_table(folder: Path, name: str, asked: dict[str, Any]) -> pd.DataFrame:
    """Return one of :data:`TABLES`.

    Raises
    ------
    InputError
        It is not there, lacks a column, has a text where a number belongs, or a label that comparison.json has not.
    """
    path, columns = folder / name, TABLES[name]
    # A policy "1" is no number, and one called "NA" is not missing: only an empty field is.
    options: dict[str, Any] = {"dtype": dict.fromkeys(columns.texts, str), "keep_default_na": False, "na_values": [""]}
    table: pd.DataFrame = _reading(path, "CSV", lambda: pd.read_csv(io.BytesIO(read_bytes(path)), **options))
    missing = [column for column in (*columns.texts, *columns.numbers) if column not in table.columns]
    if missing:
        expected = ", ".join((*columns.texts, *columns.numbers))
        raise InputError(f"{path}: has no column {missing[0]!r}; expected {expected}")
    for column in table.columns.difference([*columns.texts, "verdict_holm"], sort=False):
        numbers = pd.to_numeric(table[column], errors="coerce")
        _refuse_where(numbers.isna() & table[column].notna(), path, table[column], "a number")
        if column in _WHOLE:
            _refuse_where(~(numbers.abs() < 2**63), path, table[column], "a whole number")
    for column in LABELS:
        labels = asked[f"{column}s" if column != "policy" else "policies"]
        _refuse_where(~table[column].isin(labels), path, table[column], f"one of comparison.json: {', '.join(labels)}")
    return table


def _refuse_where(wrong: pd.Series, path: Path, values: pd.Series, expected: str) -> None:
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        problem = f"line {row + 2}: {values.name}: is {values.tolist()[row]!r}"
        raise InputError(f"{path}: {problem}; expected {expected}")


def _reading(path: Path, what: str, read: Callable[[], Content]) -> Content:
    """Return what ``read`` does, or say in one line that the file is not what it should be."""
    try:
        return read()
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: is not there; expected a file that 'ddlsched compare' wrote") from None
    except (OSError, ValueError, RecursionError) as error:  # among them those of UTF-8, JSON and pandas' parser
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path}: cannot be read as {what} ({problem})") from None
