"""A comparison's folder: written when its runs are done, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddlsched.comparing.settings import slug
from ddlsched.comparing.tables import compare_everywhere
from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.results.classes import class_metrics, compare_classes
from ddlsched.results.statistics import LEAST_SEEDS
from ddlsched.sweeps.stored_runs import read_jobs, read_metadata, remove_leftovers, store

if TYPE_CHECKING:
    from ddlsched.sweeps.sweep import Sweep

__all__ = ["LABELS", "Comparison", "begin", "finish", "read_asked"]

LABELS = ["policy", "workload", "cluster"]
"""Columns that say which runs a row is of; each is a key of the object of its plural in comparison.json."""
_ASKED = ("policies", "workloads", "seeds", "clusters", "options", "baseline", "timeline")
"""What makes a comparison another."""
_TABLES = ("runs.csv", "comparison.csv", "classes.csv", "failures.csv")
_KEPT = {"placements": ("placements", ".parquet"), "timeline": ("timelines", ".json")}
"""The folder and the suffix of what is kept of each policy's first run."""


class Comparison:
    """What :func:`ddlsched.compare` returns: policies run on the same workloads, clusters and seeds.

    Attributes
    ----------
    folder
        Where everything is; :meth:`open` reads it back.
    asked
        What was compared: the content of comparison.json.
    """

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder = folder
        self.asked = asked

    def __repr__(self) -> str:
        return f"<comparison: {len(self.runs)} runs of {len(self.asked['policies'])} policies in {self.folder}>"

    @classmethod
    def open(cls, folder: Path | str) -> Comparison:
        """Read the folder of a finished comparison.

        Raises
        ------
        InputError
            It is none, or not finished.
        """
        folder = Path(folder)
        asked = read_asked(folder)
        if asked is None:
            raise InputError(f"{folder}: holds no comparison; expected the --out of 'ddlsched compare'")
        for name in _TABLES:
            if not (folder / name).is_file():
                raise InputError(f"{folder}: has no {name}; expected a comparison that has come to its end")
        return cls(folder, asked)

    @property
    def baseline(self) -> str:
        """The policy that the others are compared with."""
        return str(self.asked["baseline"])

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row a finished run: policy, workload, cluster, seed, file (within the folder), and all its metrics."""
        return self._read("runs.csv")

    @cached_property
    def failures(self) -> pd.DataFrame:
        """A row a run that raised: policy, workload, cluster, seed, message."""
        return self._read("failures.csv")

    def table(self) -> pd.DataFrame:
        """Return means, paired changes against the baseline and verdicts.

        A row a workload, cluster, metric and policy, with the columns of
        :func:`ddlsched.comparing.tables.compare_everywhere`.
        """
        return self._read("comparison.csv")

    def classes(self) -> pd.DataFrame:
        """Return the same for each size class of jobs by itself, with a column size_class."""
        return self._read("classes.csv")

    def jobs(self, **labels: str | int) -> pd.DataFrame:
        """Return the jobs of all runs with the given policy, workload, cluster and seed: a row a job.

        A run that stands for several seeds, because nothing in it is random, is there once.

        Raises
        ------
        UnknownNameError
            There is no such label, or no such column of labels.
        """
        rows = self.runs
        for name, value in labels.items():
            if name not in (*LABELS, "seed"):
                raise UnknownNameError(f"comparison: runs have no {name!r}.{did_you_mean(name, (*LABELS, 'seed'))}")
            if value not in set(self.runs[name]):
                hint = did_you_mean(str(value), set(map(str, self.runs[name])))
                raise UnknownNameError(f"comparison: no {name} is {value!r}.{hint}")
            rows = rows[rows[name] == value]
        names = [*LABELS, "seed"]
        frames = [
            read_jobs(self.folder / row["file"]).assign(**{name: row[name] for name in names})
            for row in rows.drop_duplicates([*LABELS, "file"]).to_dict("records")
        ]
        return pd.concat(frames, ignore_index=True)

    def placements(self, policy: str) -> pd.DataFrame:
        """Return where jobs were in a policy's first run: job_id, gpu, server, from_s, to_s.

        Raises
        ------
        InputError
            That run failed.
        """
        return read_jobs(self.folder / "placements" / f"{slug(policy)}.parquet")

    def notes(self) -> list[str]:
        """Return what is to be known before the tables are believed, a sentence each."""
        notes = []
        table, seeds = self.table(), self.asked["seeds"]
        if len(seeds) < LEAST_SEEDS:
            notes.append(f"{len(seeds)} seeds: no verdict is given with fewer than {LEAST_SEEDS}.")
        alone = dict.fromkeys(table[table["seeds"] == 1]["workload"]) if len(seeds) > 1 else {}
        if alone:
            what = "neither the jobs nor the policy draw random numbers, so all seeds are one run"
            notes.append(f"{', '.join(alone)}: {what}, which has no interval and no verdict.")
        if len(table) and table["seeds_left_out"].any():
            notes.append("Where runs failed, a policy is compared on the seeds that are left, and has no verdict.")
        return notes

    def _read(self, name: str) -> pd.DataFrame:
        # A policy "1" is no number, and one called "NA" is not missing: only an empty field is.
        texts = dict.fromkeys([*LABELS, "metric", "verdict", "size_class", "file", "message"], str)
        return pd.read_csv(self.folder / name, dtype=texts, keep_default_na=False, na_values=[""])


def read_asked(folder: Path) -> dict[str, Any] | None:
    """Return the content of a folder's comparison.json, or None if there is none.

    Raises
    ------
    InputError
        It is no comparison's.
    """
    path = folder / "comparison.json"
    if not path.exists():
        return None
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(asked["policies"], dict):
            raise TypeError("policies are no object")
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: cannot be read ({why}); expected what 'ddlsched compare' wrote") from None
    return dict(asked)


def begin(folder: Path, asked: Mapping[str, Any], as_yaml: str | None) -> bool:
    """Write down what is compared, and return whether the folder held another comparison.

    The tables of another are taken away; its runs are kept, and used where they fit.

    Raises
    ------
    InputError
        The folder holds something else, or cannot be written.
    """
    try:
        before = read_asked(folder)
        if before is None and folder.exists() and any(map(_is_strange, folder.iterdir())):
            raise InputError(f"{folder}: holds something else than a comparison; expected a new or an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); expected a folder to write to") from None
    remove_leftovers(folder)
    another = before is not None and any(before.get(name) != asked[name] for name in _ASKED)
    if another:
        _remove_tables(folder)
    store(folder / "comparison.json", (json.dumps(asked, indent=2, ensure_ascii=False) + "\n").encode())
    if as_yaml is not None:
        store(folder / "compare.yaml", as_yaml.encode())
    return another


def _is_strange(path: Path) -> bool:
    return path.name != "runs" and path.suffix != ".part"


def _remove_tables(folder: Path) -> None:
    for name in _TABLES:
        (folder / name).unlink(missing_ok=True)
    for name, suffix in _KEPT.values():
        for path in (folder / name).glob(f"*{suffix}"):
            path.unlink()


def finish(comparison: Comparison, done: Sweep) -> None:
    """Write the tables of what has finished and of what failed, and what is kept of first runs."""
    folder = comparison.folder
    rows, classes = [], []
    for run, path in done.finished:
        labels = {**run.labels, "seed": run.seed}
        rows.append({**labels, "file": f"runs/{path.name}", **read_metadata(path)["summary"]})
        classes += [labels | row for row in class_metrics(read_jobs(path)).to_dict("records")]
        for kind, kept in run.files(path.parent, path.stem).items():
            if kind in _KEPT:
                _publish(kept, folder, kind, run.labels["policy"])
    runs = pd.DataFrame(rows, columns=None if rows else [*LABELS, "seed", "file"])
    by_class = pd.DataFrame(classes, columns=None if classes else [*LABELS, "seed", "size_class"])
    _write(folder / "runs.csv", runs)
    _write(folder / "comparison.csv", compare_everywhere(runs, runs, comparison.baseline))
    compared = compare_everywhere(runs, by_class, comparison.baseline, compare_classes)
    _write(folder / "classes.csv", compared)
    failures = [{**each.run.labels, "seed": each.run.seed, "message": each.message} for each in done.failures]
    _write(folder / "failures.csv", pd.DataFrame(failures, columns=[*LABELS, "seed", "message"]))


def _publish(kept: Path, folder: Path, kind: str, policy: str) -> None:
    name, suffix = _KEPT[kind]
    (folder / name).mkdir(exist_ok=True)
    store(folder / name / f"{slug(policy)}{suffix}", kept.read_bytes())


def _write(path: Path, table: pd.DataFrame) -> None:
    store(path, table.to_csv(index=False, lineterminator="\n").encode())
