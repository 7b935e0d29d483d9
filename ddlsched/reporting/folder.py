"""A comparison's folder, read back: what was asked, its tables, and the jobs and samples of each run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddlsched.errors import InputError

__all__ = ["Asked", "ComparisonFolder", "Setting", "slug"]

Content = TypeVar("Content")

_METADATA = b"ddlsched"
_LABELS = ("workload", "cluster", "policy")
_MEASURED = ("seeds", "mean", "low", "high", "change", "change_low", "change_high")
_TABLES = {
    "runs.csv": ((*_LABELS, "file"), ("seed",)),
    "comparison.csv": ((*_LABELS, "metric", "verdict"), _MEASURED),
    "classes.csv": ((*_LABELS, "size_class", "metric", "verdict"), _MEASURED),
    "failures.csv": ((*_LABELS, "message"), ("seed",)),
}
"""Columns of text and of numbers that each table has at least."""
_JOBS = ("jct_s", "finish_s", "communication_s", "network_wait_s", "size_class", "counted")
_SAMPLES = ("time_s", "busy_gpus")
_PLACEMENTS = ("job_id", "gpu", "server", "from_s", "to_s")


class Servers(BaseModel):
    """What the report knows of a cluster."""

    model_config = ConfigDict(extra="allow")
    gpus: list[int] = Field(min_length=1)
    """GPUs of each server."""


class Asked(BaseModel):
    """The content of ``comparison.json``: what was compared, and the command that does it again."""

    model_config = ConfigDict(extra="allow")
    ddlsched: str
    command: list[str] = Field(min_length=1)
    baseline: str
    policies: dict[str, Any] = Field(min_length=1)
    workloads: dict[str, Any] = Field(min_length=1)
    clusters: dict[str, Servers] = Field(min_length=1)
    seeds: list[int]
    working_folder: str | None = None


class Setting(NamedTuple):
    """Where policies are compared: on which workload and cluster."""

    workload: str
    cluster: str


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder that ``ddlsched compare`` wrote.

    Attributes
    ----------
    path
        The folder.
    asked
        What was compared.
    runs, comparison, classes, failures
        The tables of the files of these names.
    """

    path: Path
    asked: Asked
    runs: pd.DataFrame
    comparison: pd.DataFrame
    classes: pd.DataFrame
    failures: pd.DataFrame
    _runs: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = field(default_factory=dict, repr=False)
    _placements: dict[str, pd.DataFrame | None] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path | str) -> ComparisonFolder:
        """Read a folder.

        Raises
        ------
        InputError
            It is no comparison's folder, or a file is missing or cannot be read.
        """
        path = Path(path)
        if not path.is_dir():
            raise InputError(f"{path}: is no folder; expected one that 'ddlsched compare' wrote")
        if not (path / "comparison.json").exists():
            raise InputError(f"{path}: has no comparison.json; expected a folder that 'ddlsched compare' wrote")
        asked = _asked(path / "comparison.json")
        runs, comparison, classes, failures = (_table(path / name, *columns) for name, columns in _TABLES.items())
        folder = cls(path, asked, runs, comparison, classes, failures)
        if runs.empty:
            raise InputError(f"{path / 'runs.csv'}: has no run; expected at least one that finished")
        folder._refuse_unknown_labels()
        folder._read_files()
        return folder

    def _read_files(self) -> None:
        """Read all runs and placements now: whatever is wrong with one is said before anything is drawn."""
        for name in self.runs["file"]:
            self._read_run(name)
        for policy in self.policies:
            self.placements(policy)

    def _refuse_unknown_labels(self) -> None:
        known = {"policy": self.asked.policies, "workload": self.asked.workloads, "cluster": self.asked.clusters}
        for name, table in {"runs.csv": self.runs, "comparison.csv": self.comparison}.items():
            for column, labels in known.items():
                for row, label in enumerate(table[column], start=2):
                    if label not in labels:
                        problem = f"line {row}: {column} is {label!r}; expected one of comparison.json"
                        raise InputError(f"{self.path / name}: {problem}: {', '.join(labels)}")

    @property
    def policies(self) -> list[str]:
        """Labels of the policies that have a run, in the order in which they were asked for."""
        return [label for label in self.asked.policies if label in set(self.runs["policy"])]

    @cached_property
    def settings(self) -> list[Setting]:
        """Pairs of workload and cluster that have a run, in the order in which they were asked for."""
        there = set(zip(self.runs["workload"], self.runs["cluster"], strict=True))
        asked = itertools.product(self.asked.workloads, self.asked.clusters)
        return [Setting(*pair) for pair in asked if pair in there]

    def servers(self, cluster: str) -> list[int]:
        """Return the number of GPUs of each server."""
        return self.asked.clusters[cluster].gpus

    def rows(self, table: pd.DataFrame, setting: Setting) -> pd.DataFrame:
        """Return the rows of a table of one workload on one cluster."""
        return table[(table["workload"] == setting.workload) & (table["cluster"] == setting.cluster)]

    def jobs(self, setting: Setting, policy: str) -> list[pd.DataFrame]:
        """Return the finished jobs that count, a table a seed."""
        return [
            jobs[jobs["counted"].astype(bool) & jobs["finish_s"].notna()] for jobs, _ in self._read(setting, policy)
        ]

    def samples(self, setting: Setting, policy: str) -> list[pd.DataFrame]:
        """Return what was sampled over time, a table a seed."""
        return [samples for _, samples in self._read(setting, policy)]

    def _read(self, setting: Setting, policy: str) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
        own = self.rows(self.runs, setting)
        files = own.loc[own["policy"] == policy, "file"]
        return [self._read_run(name) for name in files.unique()]  # where nothing is random, one run is all seeds'

    def _read_run(self, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        if name not in self._runs:
            self._runs[name] = _run(self.path / name)
        return self._runs[name]

    def placements(self, policy: str) -> pd.DataFrame | None:
        """Return where the jobs were in the first seed on the first workload and cluster, if that was kept."""
        if policy not in self._placements:
            path = self.path / "placements" / f"{slug(policy)}.parquet"
            self._placements[policy] = _parquet(path, _PLACEMENTS) if path.exists() else None
        return self._placements[policy]

    def timeline(self, policy: str) -> Path | None:
        """Return the file of the policy's Perfetto timeline, if there is one."""
        path = self.path / "timelines" / f"{slug(policy)}.json"
        return path if path.exists() else None


def slug(label: str) -> str:
    """Return a label as part of a file's name."""
    return "-".join("".join(c if c.isalnum() else " " for c in label.lower()).split()) or "policy"


def _asked(path: Path) -> Asked:
    raw = _reading(path, "JSON", lambda: json.loads(path.read_text(encoding="utf-8")))
    try:
        asked = Asked.model_validate(raw)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the whole"
        raise InputError(f"{path}: {place}: {fault['msg']}; found {_shortened(fault['input'])}") from None
    if asked.baseline not in asked.policies:
        raise InputError(f"{path}: baseline: is {asked.baseline!r}; expected one of {', '.join(asked.policies)}")
    return asked


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _table(path: Path, text: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    # Only an empty field is missing: a policy may be called "NA".
    kinds = dict.fromkeys((*text, "size_class"), str)
    options: dict[str, Any] = {"dtype": kinds, "keep_default_na": False, "na_values": [""]}
    table: pd.DataFrame = _reading(path, "CSV", lambda: pd.read_csv(path, **options))
    _refuse_missing(path, list(table.columns), (*text, *numbers))
    for column in numbers:
        numeric = pd.to_numeric(table[column], errors="coerce")
        wrong = table[column][numeric.isna() & table[column].notna()]
        if len(wrong):
            place = f"line {wrong.index[0] + 2}: {column}"
            raise InputError(f"{path}: {place}: is {wrong.iloc[0]!r}; expected a number")
    return table


def _run(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    import pyarrow.parquet as pq

    jobs = _parquet(path, _JOBS)
    metadata = _reading(path, "Parquet", lambda: pq.read_schema(path).metadata or {})
    described = _reading(path, "a run's description", lambda: json.loads(metadata[_METADATA]))
    samples = described.get("samples") if isinstance(described, Mapping) else None
    if not isinstance(samples, Mapping):
        raise InputError(f"{path}: has no samples; expected a run that 'ddlsched compare' wrote")
    table = _reading(path, "a run's samples", lambda: pd.DataFrame(dict(samples), dtype=float))
    _refuse_missing(path, list(table.columns), _SAMPLES)
    return jobs, table


def _parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read these columns alone: of all runs together there may be millions of rows."""
    import pyarrow.parquet as pq

    _refuse_missing(path, _reading(path, "Parquet", lambda: pq.read_schema(path)).names, columns)
    return _reading(path, "Parquet", lambda: pd.read_parquet(path, columns=list(columns)))


def _reading(path: Path, what: str, read: Callable[[], Content]) -> Content:
    """Return what ``read`` does, or say in one line that the file is not what it should be."""
    try:
        return read()
    except FileNotFoundError:
        raise InputError(f"{path}: is not there; expected a file that 'ddlsched compare' wrote") from None
    except Exception as error:  # readers raise what they like: ValueError, KeyError, ArrowInvalid, ParserError, ...
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path}: cannot be read as {what} ({problem})") from None


def _refuse_missing(path: Path, there: Sequence[str], columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in there]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; expected {', '.join(columns)}")
