"""A comparison as reports show it: the policies and settings that have runs, and the jobs and samples of each run."""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddlsched.comparisons.comparison import Comparison
from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.sweeps.stored_runs import read_jobs, read_samples
from ddlsched.errors import InputError

__all__ = ["ComparedSetting", "Reported"]

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
