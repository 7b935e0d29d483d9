"""A comparison's folder: written when its runs are done, and read back."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddlsched.comparisons.comparison_tables import (
    SETTING,
    class_metrics,
    compare_classes,
    compare_everywhere,
    conditions,
)
from ddlsched.comparisons.folder import LABELS, TABLES, kept_file, kept_files, read_asked, read_table
from ddlsched.comparisons.sweeps.stored_runs import read_jobs, read_metadata, read_placements, remove_leftovers, store
from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.plugins.names import Charts
from ddlsched.results.paired_comparison import METRICS
from ddlsched.results.result import COUNTS
from ddlsched.results.statistics import LEAST_SEEDS

if TYPE_CHECKING:
    from ddlsched.comparisons.sweeps.sweep import Sweep

_SHOWN = ["mean", "low", "high", "change", "change_low", "change_high", "verdict"]
_ASKED = ("policies", "workloads", "seeds", "draws", "clusters", "options", "baseline", "timeline")
"""What makes a comparison another."""


class Comparison:
    """What :func:`ddlsched.compare` returns: policies run on the same workloads, clusters and seeds.

    Attributes
    ----------
    folder
        Where everything is; :meth:`open` reads it back.
    asked
        What was compared: the content of comparison.json.
    plot
        Charts: ``comparison.plot.average_jct()``, ``changes()``, ``jct()``, ``jct_by_size()``, ``network()``,
        ``placements(policy)``, ``utilisation()``
        (:class:`ddlsched.comparisons.report.comparison_charts.ComparisonCharts`).
    """

    plot = Charts("comparison")

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder = folder
        self.asked = asked
        self._tables: dict[str, pd.DataFrame] = {}

    def __repr__(self) -> str:
        runs, policies = len(self.runs), len(self.asked["policies"])
        of = "1 policy" if policies == 1 else f"{policies} policies"
        return f"<comparison: {'1 run' if runs == 1 else f'{runs} runs'} of {of} in {self.folder}>"

    def _repr_html_(self) -> str:
        table = self.table()
        parts = [f"<p><b>{html.escape(repr(self)[1:-1])}</b></p>"]
        for (workload, cluster), rows in table[table["metric"].isin(METRICS)].groupby(SETTING, sort=False):
            shown = rows.drop(columns=SETTING).set_index(["metric", "policy"])[_SHOWN]
            told = f"<p>{html.escape(f'{workload} on {cluster}')}</p>"
            parts += [told, shown.to_html(border=0, float_format="{:.4g}".format)]
        return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in self.notes())])

    @classmethod
    def open(cls, folder: Path | str) -> Comparison:
        """Read the folder of a finished comparison; the files of its runs are read when they are asked for.

        Raises
        ------
        InputError
            It is none, or not finished, or a table cannot be read.
        """
        folder = Path(folder)
        comparison = cls(folder, read_asked(folder))
        for name in TABLES:
            comparison._read(name)
        return comparison

    @property
    def baseline(self) -> str:
        """The policy that the others are compared with."""
        return str(self.asked["baseline"])

    @property
    def runs(self) -> pd.DataFrame:
        """A row a finished run: policy, workload, cluster, seed, file (in the folder), metrics, most_jobs_on_a_gpu.

        And those of :data:`ddlsched.results.result.COUNTS` that are not 0 in all of them.
        """
        return self._read("runs.csv")

    @property
    def failures(self) -> pd.DataFrame:
        """A row a run that raised: policy, workload, cluster, seed, message."""
        return self._read("failures.csv")

    def table(self) -> pd.DataFrame:
        """Return means, paired changes against the baseline and verdicts.

        A row a workload, cluster, metric and policy, with the columns of
        :func:`ddlsched.comparisons.comparison_tables.compare_everywhere`.
        """
        return self._read("comparison.csv")

    def classes(self) -> pd.DataFrame:
        """Return the same for each size class of jobs by itself, with a column size_class."""
        return self._read("classes.csv")

    def files(self, **labels: str | int) -> list[Path]:
        """Return the files of the runs with the given policy, workload, cluster and seed.

        A run that stands for several seeds, because nothing in it is random, is there once.

        Raises
        ------
        UnknownNameError
            There is no such label, or no such column of labels.
        """
        return [self.folder / row["file"] for row in self._distinct_runs(labels)]

    def jobs(self, **labels: str | int) -> pd.DataFrame:
        """Return the jobs of the runs that :meth:`files` gives: a row a job, with its run's labels and first seed."""
        names = [*LABELS, "seed"]
        frames = [
            read_jobs(self.folder / row["file"]).assign(**{name: row[name] for name in names})
            for row in self._distinct_runs(labels)
        ]
        return pd.concat(frames, ignore_index=True)

    def _distinct_runs(self, labels: Mapping[str, str | int]) -> list[dict[Any, Any]]:
        runs = rows = self._read("runs.csv")
        for name, value in labels.items():
            if name not in (*LABELS, "seed"):
                raise UnknownNameError(f"comparison: runs have no {name!r}.{did_you_mean(name, (*LABELS, 'seed'))}")
            if value not in set(runs[name]):
                hint = did_you_mean(str(value), set(map(str, runs[name])))
                raise UnknownNameError(f"comparison: no {name} is {value!r}.{hint}")
            rows = rows[rows[name] == value]
        return rows.drop_duplicates([*LABELS, "file"]).to_dict("records")

    def placements(self, policy: str) -> pd.DataFrame:
        """Return where jobs were in a policy's first run: job_id, gpu, server, from_s, to_s.

        Raises
        ------
        InputError
            That run failed.
        """
        return read_placements(kept_file(self.folder, "placements", policy))

    def kept(self, kind: str, policy: str) -> Path | None:
        """Return the file of the placements or of the timeline of a policy's first run, if there is one."""
        path = kept_file(self.folder, kind, policy)
        return path if path.exists() else None

    def notes(self) -> list[str]:
        """Return what is to be known before the tables are believed, a sentence each."""
        notes = []
        table, seeds = self.table(), self.asked["seeds"]
        drawn = self.asked.get("drawn_workloads", [])
        counts = {"draw": self.asked["draws"]} if drawn else {}
        counts |= {"seed": len(seeds)} if len(drawn) < len(self.asked["workloads"]) else {}
        for what, count in counts.items():
            if count < LEAST_SEEDS:
                many = f"{count} {what}{'' if count == 1 else 's'}"
                notes.append(f"{many}: no verdict is given with fewer than {LEAST_SEEDS}.")
        if drawn:
            what = f"{', '.join(drawn)}: {self.asked['draws']} draws of the jobs' lengths (0.1 %, or one iteration)"
            notes.append(f"{what}, no seeds: intervals say how far a hair moves this trace, nothing of other traces.")
        if self.asked["options"].get("sample"):
            notes.append("Sampled: a part of the contended iterations is computed (docs/statistics.md#sampled-runs).")
        alone = dict.fromkeys(table[table["seeds"] == 1]["workload"]) if len(seeds) > 1 else {}
        notes += [f"{workload}: {self._why_one_run(workload)}." for workload in alone]
        for (workload, cluster), rows in table.groupby(SETTING, sort=False):
            if self.baseline not in set(rows["policy"]):
                notes.append(f"{workload} on {cluster}: {self.baseline}, the baseline, has no finished runs.")
        if len(table) and table["seeds_left_out"].any():
            notes.append("Where runs failed, a policy is compared on the seeds that are left, and has no verdict.")
        return [*notes, *conditions(self.asked, self.runs)]

    def _why_one_run(self, workload: str) -> str:
        """Return why the seeds of a workload count as one run: nothing drew, or what was drawn changed no metric."""
        runs = self.runs
        files = runs[runs["workload"] == workload].groupby(["policy", "cluster"])["file"].nunique()
        if (files > 1).any():
            return "all seeds came out the same, which leaves no spread for an interval or a verdict"
        return (
            "neither the jobs nor the policy draw random numbers, so all seeds are one run, without an interval or a "
            "verdict (--draws 10 gives both; jobs that differ by seed: docs/traces.md#a-trace-with-seeds)"
        )

    def _read(self, name: str) -> pd.DataFrame:
        """Read a table once; a caller gets a copy, so that what it changes stays its own."""
        if name not in self._tables:
            self._tables[name] = read_table(self.folder, name, self.asked)
        return self._tables[name].copy()


def begin(folder: Path, asked: Mapping[str, Any], as_yaml: str | None) -> bool:
    """Write down what is compared, and return whether the folder held another comparison.

    The tables of another are taken away; its runs are kept, and used where they fit.

    Raises
    ------
    InputError
        The folder holds something else, or cannot be written.
    """
    try:
        before = read_asked(folder) if (folder / "comparison.json").exists() else None
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
    for path in (*(folder / name for name in TABLES), *kept_files(folder)):
        path.unlink(missing_ok=True)


def finish(comparison: Comparison, done: Sweep) -> None:
    """Write the tables of what has finished and of what failed, and what is kept of first runs."""
    folder = comparison.folder
    rows, classes = [], []
    for run, path in done.finished:
        labels, told = {**run.labels, "seed": run.seed}, read_metadata(path)
        shared = {"most_jobs_on_a_gpu": told["most_jobs_on_a_gpu"], **told["door_counts"]}
        rows.append({**labels, "file": f"runs/{path.name}", **told["summary"], **shared})
        classes += [labels | row for row in class_metrics(read_jobs(path)).to_dict("records")]
        for kind, kept in run.files(path.parent, path.stem).items():
            if kind != "run":
                _publish(kept, kept_file(folder, kind, run.labels["policy"]))
    runs = pd.DataFrame(rows, columns=None if rows else [*LABELS, "seed", "file"])
    by_class = pd.DataFrame(classes, columns=None if classes else [*LABELS, "seed", "size_class"])
    unused = [name for name in COUNTS if name in runs and not runs[name].any()]
    runs = runs.drop(columns=unused)
    _write(folder / "runs.csv", runs)
    _write(folder / "comparison.csv", compare_everywhere(runs, runs, comparison.baseline))
    compared = compare_everywhere(runs, by_class, comparison.baseline, compare_classes)
    _write(folder / "classes.csv", compared if len(compared) else compared.assign(size_class=[]))
    failures = [{**each.run.labels, "seed": each.run.seed, "message": each.message} for each in done.failures]
    _write(folder / "failures.csv", pd.DataFrame(failures, columns=[*LABELS, "seed", "message"]))


def _publish(kept: Path, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    store(path, kept.read_bytes())


def _write(path: Path, table: pd.DataFrame) -> None:
    store(path, table.to_csv(index=False, lineterminator="\n").encode())
