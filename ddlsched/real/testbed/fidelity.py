"""Mixes of jobs run for real: the plan of runs, what is kept of each, and going on after a stop."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import pd
from ddlsched.errors import InputError, label
from ddlsched.io.files import made_folder, replacing
from ddlsched.io.tables import read_text, readable
from ddlsched.real.testbed import fidelity_tables
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.real_run import RealRun, gate_settings, run_for_real
from ddlsched.workload.job import Workload


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Jobs that contend, and where.

    Parameters
    ----------
    name
        Unique within a comparison.
    workload, cluster
        The jobs, and the (scaled) cluster that they run on.
    policies
        By name, the arguments of a gate's settings: scheduler, placement, order, communication, chunk_bytes. The first
        one is the baseline of gains.
    """

    name: str
    workload: Workload
    cluster: Cluster
    policies: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Planned:
    """One run of a mix."""

    mix: Mix
    policy: str
    repeat: int

    @property
    def key(self) -> str:
        """What its file is called: everything that decides it."""
        jobs = [(job, job.dag) for job in self.mix.workload]
        given = {name: label(value) for name, value in sorted(self.mix.policies[self.policy].items())}
        topology = label(self.mix.cluster.topology)
        text = repr((self.mix.name, jobs, self.mix.cluster.num_servers, topology, given, self.repeat))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def plan(mixes: Sequence[Mix], repeats: int, *, seed: int = 0) -> list[Planned]:
    """Return all runs, one repeat of all policies after another, so that a machine that slowly changes favours none.

    Policies are shuffled within each. Mixes stay together, since each needs its own network.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; expected at least 1")
    rng = np.random.default_rng(seed)
    runs = []
    for mix in mixes:
        policies = list(mix.policies)
        for repeat in range(repeats):
            runs += [Planned(mix, policies[number], repeat) for number in rng.permutation(len(policies))]
    return runs


@dataclass(frozen=True)
class Runs:
    """A folder in which every finished run is kept, whole or not at all."""

    folder: Path

    def measured(self, planned: Sequence[Planned]) -> pd.DataFrame:
        """Return a row a job of each run that is there: mix, policy, repeat, job_id, jct_s, iteration_s, finish_s, ...

        The last ones say whether the machine kept up: late_share, cpu_busy_share, machine_limited.
        """
        tables = [self.read(run) for run in planned if self._path(run).exists()]
        if not tables:
            raise InputError(f"{self.folder}: holds none of the runs; expected some that were measured")
        return pd.concat(tables, ignore_index=True)

    def read(self, run: Planned) -> pd.DataFrame:
        """Return the rows of one run that is there."""
        table = pd.read_parquet(self._path(run))
        return table.assign(mix=run.mix.name, policy=run.policy, repeat=run.repeat)

    def missing(self, planned: Sequence[Planned]) -> list[Planned]:
        """Return the runs that are still to be made."""
        return [run for run in planned if not self._path(run).exists()]

    def keep(self, planned: Planned, run: RealRun) -> None:
        """Write a finished run, and beside it the times of its all-reduces."""
        jobs = run.jobs
        table = jobs[["job_id", "jct_s", "finish_s", "setup_s", "servers"]].copy()
        table["iteration_s"] = (jobs.finish_s - jobs.began_s) / jobs.iterations
        for name in ("late_share", "cpu_busy_share", "machine_limited"):
            table[name] = run.machine[name]
        path = self._path(planned)
        for target, rows in ((self.folder / "transfers" / path.name, run.transfers), (path, table)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target, "run") as file:
                rows.to_parquet(file, index=False)

    def _path(self, planned: Planned) -> Path:
        return self.folder / "runs" / f"{planned.key}.parquet"


def run_planned(planned: Planned, crew: WorkerCrew, model: str, *, realtime: bool = True) -> RealRun:
    """Make one run for real; ``model`` is the contention model by which policies count."""
    mix = planned.mix
    settings = gate_settings(mix.cluster, contention=model, **mix.policies[planned.policy])
    return run_for_real(mix.workload, settings, crew, realtime=realtime)


def note_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write down what a folder's runs are of; refuse another's.

    Raises
    ------
    InputError
        The folder holds another comparison, or cannot be used.
    """
    path = folder / "comparison.json"
    text = json.dumps(settings, indent=2, sort_keys=True, default=str) + "\n"
    made_folder(folder, "runs")
    if os.path.lexists(path) and readable(path, "a comparison's settings", read_text) != text:
        raise InputError(f"{folder}: holds another comparison ({path.name} differs); expected another folder")
    with replacing(path, "comparison") as file:
        file.write_text(text, encoding="utf-8")


WITHOUT, WITH = "- ", "+ "
"""How the names of models begin that leave something out of another, or add to it; in the tables, and not drawn."""

_ELSEWHERE = (
    "; exponent, window and loss of connection-shares were chosen in experiments/fidelity, at 100 Mbit/s, and so was "
    "the overhead of packet-rings"
)

_ERROR_ENDS = {"mean_abs_jct_error": ("mean_low", "mean_high"), "p95_abs_jct_error": ("p95_low", "p95_high")}
_GAIN_ENDS = {"measured_gain": ("low", "high"), "difference": ("difference_low", "difference_high")}


@dataclass(frozen=True)
class FidelityReport:
    """Tables of :mod:`ddlsched.real.testbed.fidelity_tables`, and the models' constants."""

    models: Mapping[str, object]
    jobs: pd.DataFrame
    errors: pd.DataFrame
    makespans: pd.DataFrame
    ranks: pd.DataFrame
    gains: pd.DataFrame
    spreads: pd.DataFrame
    limited_runs: int
    runs: int

    def text(self) -> str:
        """Return the tables for a terminal, shares in percent."""
        lines = [f"  {name:22}  {model}" for name, model in self.models.items()]
        elsewhere = _ELSEWHERE if "connection-shares" in self.models else ""
        parts = [f"models, fitted to jobs alone and pairs{elsewhere}:", *lines, "", "error of simulated times (%):"]
        parts += [_percent(self.errors, ("model", "policy", "mixes", "jobs"), _ERROR_ENDS), ""]
        if len(self.spreads):
            title = "what repeats of a run differ by, longest less shortest JCT of a job (%):"
            parts += [title, _percent(self.spreads, ("policy", "mixes", "jobs")), ""]
        off = self.makespans.assign(abs_error=self.makespans.error.abs())
        by_model = off.groupby("model", sort=False).abs_error.mean().rename("mean_abs_makespan_error").reset_index()
        parts += ["error of simulated makespans (%):", _percent(by_model, ("model",)), ""]
        if len(self.gains):
            parts += ["agreement on the order of policies:", self.ranks.to_string(index=False, float_format="%.3f"), ""]
            whole = self.gains.mix.nunique() > 1
            shown = fidelity_tables.gain_summary(self.gains) if whole else self.gains
            title = "gain in mean JCT over the first policy (%; differences in points):"
            parts += [title, _percent(shown, ("mix", "policy", "model", "mixes"), _GAIN_ENDS), ""]
        parts += self._of_the_machine()
        return "\n".join(parts).rstrip() + "\n"

    def _of_the_machine(self) -> list[str]:
        """Return what is to be said of runs in which the machine was the limit; they are left out, unless all were."""
        if not self.limited_runs:
            return []
        which = f"In {self.limited_runs} of {self.runs} runs the machine may have been the limit, not the network"
        if self.limited_runs < self.runs:
            return [f"{which}: they are left out."]
        return [f"{which}: the figures say little; expected a machine with nothing else to do."]

    def write(self, folder: Path) -> list[Path]:
        """Write every table as CSV and the charts as PNG and SVG; return the charts' paths.

        The scatter plot has the first and the last model only: with more their points hide each other.
        """
        from ddlsched.comparisons.charts.real_charts import error_distribution, measured_against_simulated
        from ddlsched.comparisons.charts.style import save

        tables = {name: getattr(self, name) for name in ("jobs", "errors", "makespans", "ranks", "gains", "spreads")}
        for name, table in (tables | {"gains_over_mixes": fidelity_tables.gain_summary(self.gains)}).items():
            with replacing(folder / f"{name}.csv", name) as file:
                table.to_csv(file, index=False, float_format="%.6g")
        drawn = self.jobs[~self.jobs.model.str.startswith((WITHOUT, WITH))]
        ends = drawn[drawn.model.isin(drawn.model.iloc[[0, -1]])]
        paths = save(measured_against_simulated(ends), folder / "measured_against_simulated")
        return paths + save(error_distribution(drawn), folder / "error_distribution")


def _percent(table: pd.DataFrame, names: tuple[str, ...], ends: Mapping[str, tuple[str, str]] = {}) -> str:
    """Return a table with all columns but these times 100; ``ends`` are the columns of the intervals of some."""
    shown = table.copy()
    for column in shown.columns.difference(list(names)):
        shown[column] = shown[column] * 100
    for value, (low, high) in ends.items():
        if value in shown:
            rows = zip(shown[value], shown.pop(low), shown.pop(high), strict=True)
            shown[value] = [f"{v:.1f}" if math.isnan(a) else f"{v:.1f} [{a:.1f}, {b:.1f}]" for v, a, b in rows]
    return str(shown.to_string(index=False, float_format="%.1f"))


def report_of(
    measured: pd.DataFrame, simulated: pd.DataFrame, models: Mapping[str, object], baseline: str
) -> FidelityReport:
    """Return what measured and simulated runs say of each other."""
    runs = measured.groupby(["mix", "policy", "repeat"]).machine_limited.max()
    measured = fidelity_tables.judged(measured)
    jobs = fidelity_tables.job_errors(measured, simulated)
    return FidelityReport(
        models=models,
        jobs=jobs,
        errors=fidelity_tables.error_table(jobs),
        makespans=fidelity_tables.makespan_table(measured, simulated),
        ranks=fidelity_tables.rank_table(measured, simulated),
        gains=fidelity_tables.gain_table(measured, simulated, baseline),
        spreads=fidelity_tables.spread_table(measured),
        limited_runs=int(runs.sum()),
        runs=len(runs),
    )
