"""Mixes of jobs run for real: the plan of runs, what is kept of each, and going on after a stop.

How far simulated runs are from measured ones: tables of errors, agreement on ranks, and gains.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import pd
from ddlsched.errors import InputError, label
from ddlsched.io.files import made_folder, replacing
from ddlsched.io.tables import read_text, readable
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.real_run import RealRun, gate_settings, run_for_real
from ddlsched.results.statistics import Interval, mean_interval
from ddlsched.workload.job import Workload

# Measured: a row a (mix, policy, repeat, job_id) with jct_s, iteration_s, finish_s.
# Simulated: a row a (mix, model, policy, job_id) with the same.
_JOB = ["mix", "policy", "job_id"]
_RUN = ["mix", "policy", "repeat"]
_LEAST_APART = 0.02
"""Mean JCTs that are closer are not told apart: the same jobs under the same policy differ as much from run to run."""
_RESAMPLES = 2000
_LEAST_MIXES = 5


def judged(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the runs in which the machine kept up; of all runs, if it never did."""
    kept_up = ~measured.machine_limited.astype(bool)
    return measured[kept_up] if kept_up.any() else measured


def job_errors(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Return for each job, policy and model what was measured (median of the repeats), simulated, and the errors.

    Parameters
    ----------
    measured
        Columns mix, policy, repeat, job_id, jct_s, iteration_s.
    simulated
        Columns mix, model, policy, job_id, jct_s, iteration_s.

    Returns
    -------
    pandas.DataFrame
        Columns mix, policy, job_id, model, measured_jct_s, simulated_jct_s, jct_error, measured_iteration_s,
        simulated_iteration_s, iteration_error; an error is simulated / measured - 1.
    """
    middle = measured.groupby(_JOB, sort=False)[["jct_s", "iteration_s"]].median().reset_index()
    both = middle.merge(simulated, on=_JOB, suffixes=("_measured", "_simulated"), validate="one_to_many")
    table = both[[*_JOB, "model"]].copy()
    for name in ("jct", "iteration"):
        table[f"measured_{name}_s"] = both[f"{name}_s_measured"]
        table[f"simulated_{name}_s"] = both[f"{name}_s_simulated"]
        table[f"{name}_error"] = both[f"{name}_s_simulated"] / both[f"{name}_s_measured"] - 1
    return table


def spread_table(measured: pd.DataFrame) -> pd.DataFrame:
    """Return by policy how far the repeats of a run are apart: what no simulation can know.

    Columns: policy, mixes, jobs (of mixes that ran several times), mean_spread and most_spread of the jobs, where a
    job's spread is (longest - shortest) / median of its JCTs.
    """
    jcts = measured.groupby(_JOB, sort=False).jct_s.agg(["count", "min", "median", "max"]).reset_index()
    several = jcts[jcts["count"] > 1]
    spreads = several.assign(spread=(several["max"] - several["min"]) / several["median"])
    grouped = spreads.groupby("policy", sort=False)
    table = grouped.agg(
        mixes=("mix", "nunique"), jobs=("spread", "size"), mean_spread=("spread", "mean"), most_spread=("spread", "max")
    )
    return table.reset_index()


def error_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the errors by model and policy, and by model over all policies.

    Columns: model, policy ("all" for all), mixes, jobs, mean_abs_jct_error, p95_abs_jct_error, mean_jct_error (its sign
    says whether simulated jobs take longer), mean_abs_iteration_error. The first two errors have 95 % intervals
    (mean_low, mean_high, p95_low, p95_high): percentiles over resampled mixes, whose jobs depend on each other; NaN
    for fewer than five mixes.
    """
    every = errors.assign(policy="all")
    rows = []
    for (model, policy), part in pd.concat([errors, every]).groupby(["model", "policy"], sort=False):
        rows.append(
            {
                "model": model,
                "policy": policy,
                "mixes": part.mix.nunique(),
                "jobs": len(part),
                **_with_interval("mean", part, np.mean),
                **_with_interval("p95", part, lambda errors: float(np.quantile(errors, 0.95))),
                "mean_jct_error": part.jct_error.mean(),
                "mean_abs_iteration_error": part.iteration_error.abs().mean(),
            }
        )
    return pd.DataFrame(rows)


def _with_interval(name: str, part: pd.DataFrame, statistic: Callable[[np.ndarray], float]) -> dict[str, float]:
    """Return a statistic of absolute errors with the ends of its interval."""
    of_mixes = [own.abs().to_numpy() for _, own in part.groupby("mix").jct_error]
    low, high = _resampled(of_mixes, lambda chosen: statistic(np.concatenate(chosen)))
    return {f"{name}_abs_jct_error": statistic(np.concatenate(of_mixes)), f"{name}_low": low, f"{name}_high": high}


def _resampled(of_mixes: Sequence[Any], statistic: Callable[[list[Any]], float]) -> tuple[float, float]:
    """Return the 2.5th and 97.5th percentile of a statistic of mixes drawn with replacement."""
    if len(of_mixes) < _LEAST_MIXES:
        return float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(len(of_mixes), size=(_RESAMPLES, len(of_mixes)))
    low, high = np.quantile([statistic([of_mixes[number] for number in draw]) for draw in draws], [0.025, 0.975])
    return float(low), float(high)


def makespan_table(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Return mix, policy, model, measured_s (median of the repeats), simulated_s and error of each makespan."""
    whole = measured.groupby(_RUN, sort=False).finish_s.max()
    middle = whole.groupby(["mix", "policy"], sort=False).median().rename("measured_s").reset_index()
    ours = simulated.groupby(["mix", "policy", "model"], sort=False).finish_s.max().rename("simulated_s").reset_index()
    table = middle.merge(ours, on=["mix", "policy"])
    return table.assign(error=table.simulated_s / table.measured_s - 1)


def _means(measured: pd.DataFrame) -> pd.Series:
    """Return the mean JCT of each run."""
    return measured.groupby(_RUN).jct_s.mean()


def gain_table(measured: pd.DataFrame, simulated: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return what each policy gains in mean JCT over the baseline, measured with a 95 % interval, and simulated.

    Columns: mix, policy, model, measured_gain, low, high, simulated_gain; 0.1 is a JCT a tenth shorter. Repeats are
    paired by number; with fewer than three of them there is no interval (NaN), with none no row.
    """
    runs = _means(measured).unstack("policy")  # NaN where a repeat was not run
    means = simulated.groupby(["mix", "model", "policy"], sort=False).jct_s.mean()
    rows = []
    for (mix, model), part in means.groupby(["mix", "model"], sort=False):
        ours = part.droplevel(["mix", "model"])
        if mix not in runs.index.get_level_values("mix") or baseline not in runs or baseline not in ours:
            continue
        for policy in ours.index.intersection(runs.columns, sort=False).drop(baseline):
            own = runs.xs(mix, level="mix")
            gains = (1 - own[policy] / own[baseline]).dropna().to_numpy()
            if len(gains):
                rows.append((mix, policy, model, *_interval(gains), 1 - ours[policy] / ours[baseline]))
    columns = ["mix", "policy", "model", "measured_gain", "low", "high", "simulated_gain"]
    return pd.DataFrame(rows, columns=columns)


def gain_summary(gains: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of :func:`gain_table` over all mixes, each of which counts the same.

    Columns: policy, model, mixes, measured_gain, low, high, simulated_gain, difference (simulated - measured),
    difference_low, difference_high, mean_abs_difference (of a mix); intervals of 95 %, NaN for fewer than three mixes.
    """
    rows = []
    for (policy, model), part in gains.groupby(["policy", "model"], sort=False):
        off = (part.simulated_gain - part.measured_gain).to_numpy()
        measured, difference = _interval(part.measured_gain.to_numpy()), _interval(off)
        simulated = part.simulated_gain.mean()
        rows.append((policy, model, len(part), *measured, simulated, *difference, float(np.abs(off).mean())))
    ends = ["low", "high"]
    columns = ["policy", "model", "mixes", "measured_gain", *ends, "simulated_gain"]
    columns += ["difference", *(f"difference_{end}" for end in ends), "mean_abs_difference"]
    return pd.DataFrame(rows, columns=columns)


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    if len(values) < 3:
        return float(values.mean()), float("nan"), float("nan")
    found: Interval = mean_interval(values)
    return found.mean, found.low, found.high


def rank_table(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Return by model how well the order of policies agrees, in the mixes that ran under several.

    Columns: model, mixes, mean_rank_correlation (Spearman's, over the policies of a mix), pairs (of policies of a mix
    whose measured mean JCTs differ by more than the repeats do, and by 2 %), pairs_right (of those, simulated in the
    same order), right_share with low and high (95 %, over resampled mixes; NaN for fewer than five), mean_regret (how
    much longer the measured mean JCT is under the policy that the simulation would choose).
    """
    runs = _means(measured)
    several = [mix for mix, own in runs.groupby("mix") if own.index.get_level_values("policy").nunique() > 1]
    simulated_means = (
        simulated[simulated.mix.isin(several)].groupby(["model", "mix", "policy"], sort=False).jct_s.mean()
    )
    rows = []
    for model, of_model in simulated_means.groupby("model", sort=False):
        found = [_agreement(runs[mix], part.droplevel(["model", "mix"])) for mix, part in of_model.groupby("mix")]
        correlations = [one.correlation for one in found if not np.isnan(one.correlation)]
        low, high = _resampled(found, _right_share)
        rows.append(
            {
                "model": model,
                "mixes": len(found),
                "mean_rank_correlation": float(np.mean(correlations)) if correlations else float("nan"),
                "pairs": sum(one.pairs for one in found),
                "pairs_right": sum(one.right for one in found),
                "right_share": _right_share(found),
                "low": low,
                "high": high,
                "mean_regret": float(np.mean([one.regret for one in found])),
            }
        )
    return pd.DataFrame(rows)


class _Agreement(NamedTuple):
    """Of one mix: rank correlation, decided pairs, those simulated rightly, and regret."""

    correlation: float
    pairs: int
    right: int
    regret: float


def _right_share(found: Sequence[_Agreement]) -> float:
    pairs = sum(one.pairs for one in found)
    return sum(one.right for one in found) / pairs if pairs else float("nan")


def _agreement(runs: pd.Series, simulated: pd.Series) -> _Agreement:
    from scipy.stats import spearmanr

    spans = {policy: part.to_numpy() for policy, part in runs.groupby("policy")}
    middle = {policy: float(np.median(values)) for policy, values in spans.items()}
    policies = [policy for policy in simulated.index if policy in spans]
    ours, theirs = [simulated[policy] for policy in policies], [middle[policy] for policy in policies]
    distinct = len(set(ours)) > 1 and len(set(theirs)) > 1
    correlation = float(spearmanr(ours, theirs).statistic) if distinct else float("nan")
    decided = [(a, b) for a, b in itertools.combinations(policies, 2) if _apart(spans[a], spans[b])]
    right = sum((middle[a] < middle[b]) == (simulated[a] < simulated[b]) for a, b in decided)
    chosen = min(policies, key=lambda policy: simulated[policy])
    return _Agreement(correlation, len(decided), right, middle[chosen] / min(theirs) - 1)


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether all repeats of one are shorter than all of the other, and the medians more than 2 % apart."""
    short, long = sorted((one, other), key=np.median)
    return bool(short.max() < long.min() and np.median(long) / np.median(short) > 1 + _LEAST_APART)


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
    """Tables of :mod:`ddlsched.real.testbed.fidelity`, and the models' constants."""

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
            shown = gain_summary(self.gains) if whole else self.gains
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
        for name, table in (tables | {"gains_over_mixes": gain_summary(self.gains)}).items():
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
    measured = judged(measured)
    jobs = job_errors(measured, simulated)
    return FidelityReport(
        models=models,
        jobs=jobs,
        errors=error_table(jobs),
        makespans=makespan_table(measured, simulated),
        ranks=rank_table(measured, simulated),
        gains=gain_table(measured, simulated, baseline),
        spreads=spread_table(measured),
        limited_runs=int(runs.sum()),
        runs=len(runs),
    )
