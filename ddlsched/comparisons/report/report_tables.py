"""What a report says in words and tables: verdicts, and estimates with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ddlsched.comparisons.report.reported import ComparedSetting, Reported, class_name, interval
from ddlsched.results.metrics import SIZE_CLASSES
from ddlsched.results.paired_comparison import ALL_METRICS, BY_DIFFERENCE, METRICS, SHARES, SLOWDOWN_AND_FAIRNESS
from ddlsched.results.result import COUNTS
from ddlsched.results.statistics import LEAST_SEEDS, Interval, decimals_of, mean_interval

MAIN = "average_jct_s"
"""The metric of the headline."""


@dataclass(frozen=True)
class TableCell:
    """An estimate: its value and interval, the change against the baseline, and what that says."""

    value: str
    ends: str = ""
    change: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Table:
    """A row a policy and a column a metric or class; a policy without a value has None."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TableCell | None]]]

    @property
    def doubtful(self) -> bool:
        """Whether a verdict is in doubt."""
        return any(cell is not None and cell.verdict.endswith("?") for _, cells in self.rows for cell in cells)


@dataclass(frozen=True)
class Verdict:
    """What the headline says of a policy: of the main metric, and in which others it differs beyond doubt."""

    policy: str
    verdict: str
    sentence: str
    others: str


def verdicts(reported: Reported, setting: ComparedSetting) -> list[Verdict]:
    """Return what is to be said of each policy but the baseline on one workload and cluster."""
    own = reported.rows(reported.comparison.table(), setting)
    result = []
    for policy in reported.policies:
        rows = {row["metric"]: row for row in own[own["policy"] == policy].to_dict("records")}
        if policy != reported.comparison.baseline and MAIN in rows:
            main = rows.pop(MAIN)
            result.append(Verdict(policy, _verdict(main), _sentence(main, reported.comparison.baseline), _others(rows)))
    return result


def _sentence(row: Mapping[Any, Any], baseline: str) -> str:
    if math.isnan(row["change"]):
        return "there is nothing to compare: no average JCT in common with the baseline."
    change = interval(row, "change").scaled(100)
    against = f"average JCT {_percent(change.mean)} against {baseline}"
    if change.seeds < LEAST_SEEDS:
        return f"{against}; no verdict from fewer than {LEAST_SEEDS} seeds."
    if row["verdict"] not in ("better", "worse"):
        ends = f"95 % interval {_percent(change.low)} to {_percent(change.high)}"
        return f"{against}; {ends}, so it may be either way."
    lower = "lower" if change.mean < 0 else "higher"
    low, high = sorted((abs(change.low), abs(change.high)))
    ends = f"95 % interval {low:.1f} to {high:.1f} % {lower}"
    return f"average JCT {abs(change.mean):.1f} % {lower} than {baseline} ({ends})."


def _others(rows: Mapping[str, Mapping[Any, Any]]) -> str:
    """Return in what else a policy differs, without what is in doubt."""
    parts = []
    for word in ("better", "worse"):
        names = [_in_sentence(metric) for metric, row in rows.items() if _verdict(row) == word]
        if names:
            parts.append(f"{word} in {', '.join(names)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _in_sentence(metric: str) -> str:
    """Return a metric's name without its unit, small unless it begins with a name."""
    label = ALL_METRICS.get(metric, metric).partition(" (")[0]
    return label if label.startswith(("GPU", "Jain")) else label[:1].lower() + label[1:]


def overview(reported: Reported) -> Table:
    """Return the change of the main metric of each policy on each workload and cluster, a row each of these."""
    policies = [policy for policy in reported.policies if policy != reported.comparison.baseline]
    rows = []
    for setting in reported.settings:
        own = reported.rows(reported.comparison.table(), setting)
        own = own[own["metric"] == MAIN]
        found = {row["policy"]: row for row in own.to_dict("records")}
        cells = [_change_cell(found.get(policy)) for policy in policies]
        rows.append((f"{setting.workload} on {setting.cluster}", cells))
    return Table(f"Average JCT against {reported.comparison.baseline}", policies, rows)


def _change_cell(row: Mapping[Any, Any] | None) -> TableCell | None:
    if row is None or math.isnan(row["change"]):
        return None
    return TableCell(*_change_text(row), verdict=_verdict(row))


def _change_text(row: Mapping[Any, Any]) -> tuple[str, str]:
    change = interval(row, "change").scaled(100)
    return _percent(change.mean), _signed_ends(change)


def main_table(reported: Reported, setting: ComparedSetting) -> Table:
    """Return the comparison: JCT, makespan and utilisation."""
    return _metrics(reported, setting, "JCT, makespan and utilisation", tuple(METRICS))


def slowdown_table(reported: Reported, setting: ComparedSetting) -> Table:
    """Return slowdown and fairness, and jobs that did not finish, if there are any."""
    runs = reported.rows(reported.comparison.runs, setting)
    unfinished = ["unfinished_jobs"] if (runs.get("unfinished_jobs", pd.Series([0])) > 0).any() else []
    return _metrics(reported, setting, "Slowdown and fairness", (*SLOWDOWN_AND_FAIRNESS, *unfinished))


def phase_table(reported: Reported, setting: ComparedSetting) -> Table:
    """Return where the time of jobs went, per cent of their JCT, without what took none in any run."""
    runs = reported.rows(reported.comparison.runs, setting)
    phases = [phase for phase in SHARES if phase in runs.columns and (runs[phase] > 0).any()]
    rows = []
    for policy in reported.policies:
        shares = [runs.loc[runs["policy"] == policy, phase].dropna() for phase in phases]
        means = [mean_interval(share, 0.0, 1.0).scaled(100) if len(share) else None for share in shares]
        rows.append((policy, [None if mean is None else _cell(mean, 1) for mean in means]))
    names = [SHARES[phase].partition(" (")[0] for phase in phases]
    return Table("Where the time of jobs goes (% of JCT; mean over seeds)", names, rows)


def door_table(reported: Reported, setting: ComparedSetting) -> Table:
    """Return how often running jobs were stopped and moved and the bytes of that, and those inside servers.

    What none of the runs did is left out.
    """
    runs = reported.rows(reported.comparison.runs, setting)
    there = [name for name in COUNTS if name in runs.columns and (runs[name] > 0).any()]
    means = {
        (policy, name): mean_interval(own[name], 0.0).scaled(1e-9 if "_bytes" in name else 1)
        for policy, own in runs.groupby("policy", sort=False)
        for name in there
    }
    largest = {name: max(own.mean for (_, each), own in means.items() if each == name) for name in there}
    decimals = {name: decimals_of(value) for name, value in largest.items()}
    rows = [
        (policy, [_cell(means[policy, name], decimals[name]) if (policy, name) in means else None for name in there])
        for policy in reported.policies
    ]
    return Table("Stops, moves and their bytes (a run; mean over seeds)", [COUNTS[name] for name in there], rows)


def class_tables(reported: Reported, setting: ComparedSetting) -> Iterator[Table]:
    """Yield a table a metric with a column a size class."""
    own = reported.rows(reported.comparison.classes(), setting)
    sizes = [size for size in SIZE_CLASSES.values() if size in set(own["size_class"])]
    for metric in dict.fromkeys(own["metric"]):
        rows = _cells(reported, own[own["metric"] == metric], "size_class", sizes)
        yield Table(f"{ALL_METRICS.get(metric, metric)} by job size", [class_name(size) for size in sizes], rows)


def _metrics(reported: Reported, setting: ComparedSetting, caption: str, metrics: Sequence[str]) -> Table:
    own = reported.rows(reported.comparison.table(), setting)
    there = [metric for metric in metrics if metric in set(own["metric"])]
    return Table(caption, [ALL_METRICS[metric] for metric in there], _cells(reported, own, "metric", there))


def _cells(
    reported: Reported, table: pd.DataFrame, by: str, columns: Sequence[str]
) -> list[tuple[str, list[TableCell | None]]]:
    """Return a row a policy, and a column for each value in ``by``, whose numbers have the same decimals."""
    measured = table[table["mean"].notna()]
    found = {(row["policy"], row[by]): row for row in measured.to_dict("records")}
    largest = (measured["mean"].abs() * measured["metric"].map(_scale)).groupby(measured[by]).max()
    decimals = {column: decimals_of(value) for column, value in largest.items()}
    return [
        (policy, [_compared(found.get((policy, column)), decimals.get(column, 0), reported) for column in columns])
        for policy in reported.policies
    ]


def _compared(row: Mapping[Any, Any] | None, decimals: int, reported: Reported) -> TableCell | None:
    """Return a row of ``comparison.csv`` as a cell; of the baseline itself no change."""
    if row is None:
        return None
    cell = _cell(interval(row).scaled(_scale(row["metric"])), decimals)
    if row["policy"] == reported.comparison.baseline:
        return cell
    by_difference = row["metric"] in BY_DIFFERENCE or math.isnan(row["change"])
    text = " ".join(filter(None, _difference_text(row) if by_difference else _change_text(row)))
    return TableCell(cell.value, cell.ends, text, _verdict(row))


def _scale(metric: str) -> int:
    return 100 if "(%" in ALL_METRICS.get(metric, "") else 1


def _difference_text(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Return a difference in the metric's unit, or in percentage points; nothing if the table has none."""
    if math.isnan(row.get("difference", math.nan)):
        return "", ""
    scale = _scale(row["metric"])
    difference = interval(row, "difference").scaled(scale)
    unit = " pp" if scale > 1 else ""
    return _signed(difference.mean) + unit, _signed_ends(difference)


def _signed_ends(estimate: Interval) -> str:
    return f"[{_signed(estimate.low)}, {_signed(estimate.high)}]" if estimate.seeds > 1 else ""


def _verdict(row: Mapping[Any, Any]) -> str:
    """Return the verdict, in doubt if it does not stand among all those of its table (``verdict_holm``)."""
    word = str(row["verdict"])
    if word not in ("better", "worse", "undecided"):
        return ""
    return word if row.get("verdict_holm", word) == word else f"{word} ?"


def _cell(estimate: Interval, decimals: int) -> TableCell:
    ends = f"[{estimate.low:.{decimals}f}, {estimate.high:.{decimals}f}]" if estimate.seeds > 1 else ""
    return TableCell(f"{estimate.mean:.{decimals}f}", ends)


def _percent(value: float) -> str:
    return f"{_signed(value)} %"


def _signed(value: float) -> str:
    """Return a number with its sign, the typographic one, and so many decimals that it is not 0 unless it is."""
    decimals = 1 if abs(value) >= 0.05 or abs(value) < 1e-9 else min(-math.floor(math.log10(abs(value))), 9)
    return f"{value:+.{decimals}f}".replace("-", "−")
