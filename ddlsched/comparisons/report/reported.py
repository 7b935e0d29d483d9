"""What a report shows of a folder of runs, and its numbers as texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ddlsched.comparisons.charts.run_charts import Band, utilisation_bands
from ddlsched.comparisons.comparison import Comparison
from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.sweeps.stored_runs import read_jobs, read_samples
from ddlsched.errors import InputError
from ddlsched.results.metrics import SIZE_CLASSES
from ddlsched.results.paired_comparison import interval_columns
from ddlsched.results.statistics import Interval

_JOBS = ("jct_s", "finish_s", "communication_s", "network_wait_s", "size_class", "counted")
"""The columns that reports need; of all runs together there may be millions of rows."""


class ComparedSetting(NamedTuple):
    """Where policies are compared: on which workload and cluster."""

    workload: str
    cluster: str


class Reported:
    """A comparison of which something has finished.

    Attributes
    ----------
    comparison
        What is reported on.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self._runs: dict[Path, tuple[pd.DataFrame, pd.DataFrame]] = {}
        self._placements: dict[str, pd.DataFrame | None] = {}

    @classmethod
    def open(cls, folder: Path | str) -> Reported:
        """Read a comparison's folder with all runs and placements: whatever is wrong is said before anything is drawn.

        Raises
        ------
        InputError
            It is no comparison's folder, a file is missing or cannot be read, or no run has finished.
        """
        reported = cls(Comparison.open(folder))
        if reported.comparison.runs.empty:
            raise InputError(f"{Path(folder, 'runs.csv')}: has no run; expected at least one that finished")
        for path in reported.comparison.files():
            reported._read_run(path)
        for policy in reported.policies:
            reported.placements(policy)
        return reported

    @cached_property
    def policies(self) -> list[str]:
        """Labels of the policies that have a run, in the order in which they were asked for."""
        there = set(self.comparison.runs["policy"])
        return [label for label in self.comparison.asked["policies"] if label in there]

    @cached_property
    def settings(self) -> list[ComparedSetting]:
        """Pairs of workload and cluster that have a run, in the order in which they were asked for."""
        there = set(self.comparison.runs[["workload", "cluster"]].itertuples(index=False, name=None))
        asked = self.comparison.asked
        return [
            ComparedSetting(*pair) for pair in itertools.product(asked["workloads"], asked["clusters"]) if pair in there
        ]

    def servers(self, cluster: str) -> list[int]:
        """Return the number of GPUs of each server."""
        gpus: list[int] = self.comparison.asked["clusters"][cluster]["gpus"]
        return gpus

    def rows(self, table: pd.DataFrame, setting: ComparedSetting) -> pd.DataFrame:
        """Return the rows of a table of one workload on one cluster."""
        return table[(table["workload"] == setting.workload) & (table["cluster"] == setting.cluster)]

    def jobs(self, setting: ComparedSetting, policy: str) -> list[pd.DataFrame]:
        """Return the finished jobs that count, a table a seed."""
        return [
            jobs[jobs["counted"].astype(bool) & jobs["finish_s"].notna()] for jobs, _ in self._read(setting, policy)
        ]

    def samples(self, setting: ComparedSetting, policy: str) -> list[pd.DataFrame]:
        """Return what was sampled over time, a table a seed."""
        return [samples for _, samples in self._read(setting, policy)]

    def _read(self, setting: ComparedSetting, policy: str) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
        return [self._read_run(path) for path in self.comparison.files(policy=policy, **setting._asdict())]

    def _read_run(self, path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
        if path not in self._runs:
            self._runs[path] = read_jobs(path, _JOBS), read_samples(path)
        return self._runs[path]

    def placements(self, policy: str) -> pd.DataFrame | None:
        """Return where the jobs were in the first seed on the first workload and cluster, if that was kept."""
        if policy not in self._placements:
            there = self.comparison.kept("placements", policy) is not None
            self._placements[policy] = self.comparison.placements(policy) if there else None
        return self._placements[policy]

    def charts(self, setting: ComparedSetting) -> Path:
        """Return the folder of a setting's charts: of several settings, each has one of its own."""
        place = self.comparison.folder / "charts"
        return place / slug(" ".join(setting)) if len(self.settings) > 1 else place

    def intervals(self, setting: ComparedSetting, metric: str) -> dict[str, Interval]:
        """Return a metric of each policy that has it."""
        return self._by_policy(self.rows(self.comparison.table(), setting), "metric", [metric]).get(metric, {})

    def changes(self, setting: ComparedSetting) -> dict[str, dict[str, Interval]]:
        """Return the changes of times against the baseline, in %, by metric and policy."""
        table = self.rows(self.comparison.table(), setting)
        found = self._by_policy(table[table["policy"] != self.comparison.baseline], "metric", CHANGED, "change")
        return {metric: {policy: own.scaled(100) for policy, own in each.items()} for metric, each in found.items()}

    def class_intervals(self, setting: ComparedSetting) -> dict[str, dict[str, Interval]]:
        """Return the average JCT by size class and policy."""
        table = self.rows(self.comparison.classes(), setting)
        return self._by_policy(table[table["metric"] == "average_jct_s"], "size_class", SIZE_CLASSES.values())

    def _by_policy(
        self, table: pd.DataFrame, by: str, groups: Iterable[str], name: str = "mean"
    ) -> dict[str, dict[str, Interval]]:
        """Return the intervals that a table has in the columns of ``name``, by the value in another and by policy."""
        rows = table[table[name].notna()].to_dict("records")
        found = {(row[by], row["policy"]): interval(row, name) for row in rows}
        ordered = {group: {p: found[group, p] for p in self.policies if (group, p) in found} for group in groups}
        return {group: policies for group, policies in ordered.items() if policies}

    def jct_s(self, setting: ComparedSetting) -> dict[str, np.ndarray]:
        """Return the JCT of all jobs of all seeds by policy."""
        found = {policy: self.jobs(setting, policy) for policy in self.policies}
        return {policy: pd.concat(each)["jct_s"].to_numpy() for policy, each in found.items() if any(map(len, each))}

    def network_shares(self, setting: ComparedSetting) -> pd.DataFrame:
        """Return the share of jobs' JCT that went to communicating and waiting for the network.

        A row a policy; a column a size class, and one for all jobs. Each is the mean over seeds of the sum over
        jobs / the sum of their JCT; NaN where no seed has such a job.
        """
        rows = {policy: _policy_shares(self.jobs(setting, policy)) for policy in self.policies}
        shares = pd.DataFrame.from_dict(rows, orient="index")
        there = [size for size in (*SIZE_CLASSES.values(), "all") if size in shares.columns]
        return shares[there].rename(columns=lambda size: "all jobs" if size == "all" else class_name(size))

    def bands(self, setting: ComparedSetting) -> dict[str, Band]:
        """Return the utilisation over time of each policy."""
        samples = {policy: self.samples(setting, policy) for policy in self.policies}
        return utilisation_bands(samples, sum(self.servers(setting.cluster)))


CHANGED = ("average_jct_s", "median_jct_s", "p95_jct_s")
"""Metrics whose changes are drawn."""


def interval(row: Mapping[Any, Any], name: str = "mean") -> Interval:
    """Return the mean of a row of ``comparison.csv``, or its ``change`` or ``difference``.

    Where the table gives no interval, because all seeds were one run, it is that of one seed: a value alone.
    """
    mean, low, high = (float(row[column]) for column in interval_columns(name))
    return Interval(mean, mean, mean, 1) if math.isnan(low) else Interval(mean, low, high, int(row["seeds"]))


def class_name(size_class: str) -> str:
    """Return what charts and tables call a size class."""
    return f"{size_class.replace('-', '–')} GPU{'' if size_class == '1' else 's'}"


def _policy_shares(tables: list[pd.DataFrame]) -> pd.Series:
    each = []
    for jobs in tables:
        totals = jobs.assign(network_s=jobs["communication_s"] + jobs["network_wait_s"])
        sums = totals.groupby("size_class")[["network_s", "jct_s"]].sum()
        sums.loc["all"] = sums.sum()
        each.append(sums["network_s"] / sums["jct_s"].where(sums["jct_s"] > 0))
    return pd.DataFrame(each).mean()
