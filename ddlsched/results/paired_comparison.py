"""Comparisons of policies run on the same seeds: a row a policy and metric, with intervals and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError, did_you_mean
from ddlsched.results import statistics

METRICS = {
    "average_jct_s": "Average JCT (s)",
    "median_jct_s": "Median JCT (s)",
    "p95_jct_s": "95th percentile JCT (s)",
    "makespan_s": "Makespan (s)",
    "gpu_utilisation": "GPU utilisation (%)",
}
"""What runs are compared by, and how tables and axes call it; what is in % is shown x 100."""

SLOWDOWN_AND_FAIRNESS = {
    "average_slowdown": "Average slowdown",
    "median_slowdown": "Median slowdown",
    "p95_slowdown": "95th percentile slowdown",
    "worst_finish_time_fairness": "Worst finish-time fairness ρ",
    "unfair_fraction": "Jobs with ρ > 1 (%)",
    "jain_index": "Jain's index",
}

SHARES = {
    "queueing_share": "Queueing (% of JCT)",
    "computing_share": "Computing (% of JCT)",
    "gpu_wait_share": "Waiting for GPUs (% of JCT)",
    "communication_share": "Communicating (% of JCT)",
    "network_wait_share": "Waiting for the network (% of JCT)",
    "restart_share": "Restarting (% of JCT)",
}
"""Where jobs' time goes. These are not judged: a shorter queue makes the share of all else larger."""

ALL_METRICS = METRICS | SLOWDOWN_AND_FAIRNESS | SHARES | {"unfinished_jobs": "Unfinished jobs"}
"""All that :meth:`Result.summary` and :func:`ddlsched.results.metrics.run_metrics` give and policies differ in."""

BY_DIFFERENCE = {"unfair_fraction", "unfinished_jobs", *SHARES}
"""Judged by value - baseline, because they may be 0; all others by value / baseline, unless one is 0."""

NOT_JUDGED = "not judged"
"""The verdict on shares, and on metrics of a user's own, of which it is not known which way is good."""

_JUDGED = set(ALL_METRICS) - set(SHARES)

_PARTS = {"gpu_utilisation", "jain_index", "unfair_fraction", *SHARES}
"""At most 1."""

_LARGER_IS_BETTER = {"gpu_utilisation", "jain_index"}


def compare_runs(
    runs: pd.DataFrame, *, baseline: str, metrics: Sequence[str] = tuple(METRICS), by: str = "policy"
) -> pd.DataFrame:
    """Return means over seeds and paired changes against a baseline, with 95 % intervals and verdicts.

    Parameters
    ----------
    runs
        A row a run: its ``seed``, its policy in the column ``by``, its metrics; every policy on every seed.
    baseline
        The policy that the others are compared with.
    metrics
        Names of columns, such as ``tuple(ALL_METRICS)``.
    by
        Name of the column that tells the policies apart.

    Returns
    -------
    DataFrame
        A row a policy and metric: ``seeds``, and ``seeds_left_out`` because some policy has no value there;
        ``mean``, ``low``, ``high`` in the metric's unit; ``difference``, ``difference_low``,
        ``difference_high``, the mean of value - baseline over seeds; ``change``, ``change_low``,
        ``change_high``, the geometric mean of value / baseline, - 1 (NaN where one is 0); ``verdict`` of this row
        by itself: better, worse or undecided (shares and metrics of a user's own are not judged); ``p_value`` of
        a paired t-test, ``p_holm`` and ``verdict_holm``, adjusted for all rows (:func:`with_holm`). Numbers are
        NaN without a seed.

    Raises
    ------
    InputError
        A policy lacks a seed, or there is no such baseline or metric.
    """
    tables = statistics.metrics_by_seed(runs, [_known(metric, runs, "metric") for metric in metrics], by=by)
    return compare_tables(tables, baseline=baseline, by=by)


def compare_tables(tables: dict[str, pd.DataFrame], *, baseline: str, by: str = "policy") -> pd.DataFrame:
    """Return what :func:`compare_runs` does, from each metric's table with a row a seed and a column a policy.

    Seeds in which any policy has no value are left out of all, so that all rows are over the same seeds; what
    is then left is no fair sample, so the verdict is "undecided".
    """
    rows = []
    for metric, table in tables.items():
        _known(baseline, table, by)
        complete = table.dropna()
        left_out = len(table) - len(complete)
        numbers = {policy: complete[policy].to_numpy(np.float64) for policy in table.columns}
        for policy in table.columns:
            row = {by: policy, "metric": metric, "seeds": len(complete), "seeds_left_out": left_out}
            row |= _fields("mean", _mean(metric, numbers[policy]))
            row |= _compared(numbers[policy], numbers[baseline], metric)
            if policy == baseline or (left_out and metric in _JUDGED):
                row |= {"verdict": "undecided", "p_value": np.nan}
            rows.append(row)
    return with_holm(pd.DataFrame(rows))


def _known(name: str, table: pd.DataFrame, what: str) -> str:
    if name not in table.columns:
        raise InputError(f"comparison: there is no {what} {name!r}.{did_you_mean(name, map(str, table.columns))}")
    return name


def _mean(metric: str, values: np.ndarray) -> statistics.Interval:
    """Return a mean and its interval, which ends where the metric does: no time is below 0, no share above 1."""
    if not len(values):
        return statistics.NO_SEED
    if metric not in ALL_METRICS:
        return statistics.mean_interval(values)
    return statistics.mean_interval(values, 0.0, 1.0 if metric in _PARTS else inf)


def _compared(values: np.ndarray, baseline: np.ndarray, metric: str) -> dict[str, Any]:
    """Return the paired difference and change, and which of them decides what."""
    if not len(values):
        unknown = dict.fromkeys([*interval_columns("difference"), *interval_columns("change"), "p_value"], np.nan)
        return unknown | {"verdict": "undecided" if metric in _JUDGED else NOT_JUDGED}
    deciding = statistics.paired_difference(values, baseline)
    row = _fields("difference", deciding) | dict.fromkeys(interval_columns("change"), np.nan)
    compared = values - baseline
    if metric not in BY_DIFFERENCE and (values > 0.0).all() and (baseline > 0.0).all():
        deciding = statistics.paired_change(values, baseline)
        row |= _fields("change", deciding)
        compared = statistics.log_ratios(values, baseline)
    if metric not in _JUDGED:
        return row | {"verdict": NOT_JUDGED, "p_value": np.nan}
    found = statistics.verdict(deciding, smaller_is_better=metric not in _LARGER_IS_BETTER)
    return row | {"verdict": found, "p_value": statistics.p_value(compared)}


def interval_columns(name: str) -> tuple[str, str, str]:
    """Return the columns of an interval."""
    return (name, "low", "high") if name == "mean" else (name, f"{name}_low", f"{name}_high")


def _fields(name: str, interval: statistics.Interval) -> dict[str, float]:
    return dict(zip(interval_columns(name), (interval.mean, interval.low, interval.high), strict=True))


def with_holm(comparison: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison, or several put one below the other, with ``p_holm`` and ``verdict_holm`` over all rows.

    Each ``verdict`` errs by itself in about 5 of 100 cases without a difference, so of twenty such rows most
    tables hold a wrong one. A ``verdict_holm`` is the same verdict where it stands among all rows of the table
    together, so that 95 of 100 tables hold no wrong one; else undecided.
    """
    tested = comparison["p_value"].notna()
    adjusted = comparison["p_value"].copy()
    if tested.any():
        adjusted[tested] = statistics.holm(adjusted[tested])
    stands = comparison["verdict"].where(~tested | (adjusted <= 1.0 - statistics.CONFIDENCE), "undecided")
    return comparison.assign(p_holm=adjusted, verdict_holm=stands)


def interval_of(comparison: pd.DataFrame, policy: str, metric: str, *, change: bool = False) -> statistics.Interval:
    """Return a mean, or a change, of a table of :func:`compare_runs`."""
    (row,) = comparison[(comparison["policy"] == policy) & (comparison["metric"] == metric)].to_dict("records")
    mean, low, high = (float(row[name]) for name in interval_columns("change" if change else "mean"))
    return statistics.Interval(mean, low, high, int(row["seeds"]))


def interval_text(interval: statistics.Interval, *, decimals: int = 1, sign: bool = False) -> str:
    """Return ``mean [low, high]``, or the mean if that is all there is; with ``sign``, also of positive numbers."""
    form = f"{'+' if sign else ''}.{decimals}f"
    if np.isnan(interval.low) or interval.seeds == 1:
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of text as a Markdown table whose columns also line up on a terminal."""
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    lines = [names, ["-" * widths[name] for name in names], *([row[name] for name in names] for row in rows)]
    return "\n".join(
        "| " + " | ".join(cell.ljust(widths[name]) for name, cell in zip(names, line, strict=True)) + " |"
        for line in lines
    )


def readable(comparison: pd.DataFrame, *, baseline: str, by: str = "policy", over: str = "seeds") -> str:
    """Return a comparison as a Markdown table: a row a metric and policy, with what one must know to read it.

    Parameters
    ----------
    comparison
        From :func:`compare_runs` or :func:`ddlsched.comparisons.comparison_tables.compare_classes`.
    baseline
        The policy that the others were compared with; without a row of it there are no changes.
    by
        Name of the column that tells the policies apart.
    over
        What the runs of a policy are: seeds, or draws of one trace.
    """
    shown, paired = comparison[~comparison["metric"].isin(_zeros(comparison))], baseline in set(comparison[by])
    rows: list[dict[str, str]] = []
    last: dict[str, str] = {}
    for row in shown.to_dict("records"):
        head = {"GPUs": row["size_class"]} if "size_class" in row else {}
        head["metric"] = ALL_METRICS.get(row["metric"], row["metric"])
        cells = {by: str(row[by]), "mean [95 %]": _mean_text(row)}
        if comparison["seeds"].nunique() > 1:
            cells[over] = str(row["seeds"])
        if paired:
            compared = row[by] != baseline
            cells[f"against {baseline}"] = _against_text(row) if compared else ""
            cells["verdict"] = _verdict_text(row) if compared else ""
        rows.append({name: "" if head == last else text for name, text in head.items()} | cells)
        last = head
    return "\n\n".join([markdown(rows), *_notes(comparison, over, paired)])


def _zeros(comparison: pd.DataFrame) -> list[str]:
    """Return the metrics that are 0 for every policy, unless all are."""
    zero = (comparison["mean"] == 0.0).groupby(comparison["metric"], sort=False).all()
    return [] if zero.all() else zero.index[zero].tolist()


def _percent(metric: str) -> float:
    return 100.0 if "(%" in ALL_METRICS.get(metric, "") else 1.0


def _mean_text(row: Mapping[Any, Any]) -> str:
    interval = statistics.Interval(row["mean"], row["low"], row["high"], row["seeds"]).scaled(_percent(row["metric"]))
    return interval_text(interval, decimals=_decimals(interval)) if row["seeds"] else "-"


def _against_text(row: Mapping[Any, Any]) -> str:
    """Return the change in %; or the difference, in percentage points or the metric's unit, where that is compared."""
    if not row["seeds"] or np.isnan(row["difference"]):  # a baseline that finished on other seeds
        return "-"
    by_difference = row["metric"] in BY_DIFFERENCE or np.isnan(row["change"])
    mean, low, high = (row[name] for name in interval_columns("difference" if by_difference else "change"))
    scale = _percent(row["metric"]) if by_difference else 100.0
    interval = statistics.Interval(mean, low, high, row["seeds"]).scaled(scale)
    unit = "%" if not by_difference else "points" if scale > 1.0 else ""
    decimals = _decimals(interval) if by_difference and scale == 1.0 else 1
    return f"{interval_text(interval, decimals=decimals, sign=True)} {unit}".rstrip()


def _decimals(interval: statistics.Interval) -> int:
    """Return how many decimals show three digits of the larger end."""
    ends = [interval.mean] if np.isnan(interval.low) else [interval.low, interval.high]
    return statistics.decimals_of(max(map(abs, ends)))


def _verdict_text(row: Mapping[Any, Any]) -> str:
    if row["verdict"] == NOT_JUDGED:
        return ""
    if row["seeds"] == 1:
        return "one run"
    return str(row["verdict"]) if row["verdict"] == row["verdict_holm"] else f"{row['verdict']} ?"


def _notes(comparison: pd.DataFrame, over: str, paired: bool) -> list[str]:
    """Return what is true of this table and easily overlooked, a paragraph each."""
    seeds, left_out = comparison["seeds"], comparison["seeds_left_out"]
    span = f"{seeds.max()}" if seeds.nunique() == 1 else f"{seeds.min()} to {seeds.max()}"
    changes = f"; changes are paired by {over[:-1]}" if paired else ""
    means = f"Means over {span} {over} with 95 % intervals{changes}."
    notes = [means if seeds.max() > 1 else "One run: no interval and no verdict."]
    if (comparison["verdict"] != comparison["verdict_holm"]).any():
        notes.append("?: so by itself, but not among all comparisons together (Holm, 5 %).")
    if left_out.any():
        notes.append(
            f"{over.capitalize()} left out for all policies, one having nothing to measure: up to {left_out.max()}."
        )
    if (comparison.loc[comparison["metric"] == "unfinished_jobs", "mean"] > 0.0).any():
        notes.append("Some jobs did not finish; all else is of those that did, so compare the unfinished first.")
    if zeros := _zeros(comparison):
        notes.append(f"Not shown, being 0 everywhere: {', '.join(ALL_METRICS.get(name, name) for name in zeros)}.")
    return notes
