"""Tables that compare policies run on the same seeds: for files, and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.results.statistics import Interval, by_seed, mean_interval, paired_change, verdict

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["METRICS", "compare_runs", "interval_of", "interval_text", "markdown"]

METRICS = {
    "average_jct_s": "Average JCT (s)",
    "median_jct_s": "Median JCT (s)",
    "p95_jct_s": "95th percentile JCT (s)",
    "makespan_s": "Makespan (s)",
    "gpu_utilisation": "GPU utilisation (%)",
}
"""What runs are compared by, and how tables and axes call it; utilisation is shown x 100."""

_LARGER_IS_BETTER = {"gpu_utilisation"}


def compare_runs(
    runs: pd.DataFrame, *, baseline: str, metrics: Sequence[str] = tuple(METRICS), by: str = "policy"
) -> pd.DataFrame:
    """Return means over seeds and paired changes against a baseline, with 95 % intervals.

    Parameters
    ----------
    runs
        A row a run: its ``seed``, its policy in the column ``by``, its metrics; every policy on every seed.
    baseline
        The policy that the others are compared with.
    metrics
        Names of columns.
    by
        Name of the column that tells the policies apart.

    Returns
    -------
    DataFrame
        A row a policy and metric: ``mean``, ``low``, ``high`` in the metric's unit; ``change``,
        ``change_low``, ``change_high``, the mean of value / baseline - 1 over seeds (NaN where the baseline
        is 0); ``verdict`` better, worse or undecided; ``seeds``.

    Raises
    ------
    InputError
        A policy lacks a seed.
    """
    import pandas as pd

    rows = []
    for metric in metrics:
        table = by_seed(runs, metric, by=by)
        for policy in table.columns:
            mean = mean_interval(table[policy])
            row = {
                by: policy,
                "metric": metric,
                "seeds": mean.seeds,
                "mean": mean.mean,
                "low": mean.low,
                "high": mean.high,
            }
            rows.append(row | _change(table[policy], table[baseline], metric))
    return pd.DataFrame(rows)


def _change(values: pd.Series, baseline: pd.Series, metric: str) -> dict[str, float | str]:
    if not baseline.all():
        return {"change": np.nan, "change_low": np.nan, "change_high": np.nan, "verdict": "undecided"}
    change = paired_change(values, baseline)
    answer = verdict(change, smaller_is_better=metric not in _LARGER_IS_BETTER)
    return {"change": change.mean, "change_low": change.low, "change_high": change.high, "verdict": answer}


def interval_of(
    comparison: pd.DataFrame, policy: str, metric: str, *, change: bool = False, by: str = "policy"
) -> Interval:
    """Return a mean, or a change, of a table of :func:`compare_runs`."""
    (row,) = comparison[(comparison[by] == policy) & (comparison["metric"] == metric)].to_dict("records")
    names = ("change", "change_low", "change_high") if change else ("mean", "low", "high")
    mean, low, high = (float(row[name]) for name in names)
    return Interval(mean, low, high, int(row["seeds"]))


def interval_text(interval: Interval, *, decimals: int = 1, sign: bool = False) -> str:
    """Return ``mean [low, high]``; with ``sign``, also of positive numbers."""
    form = f"{'+' if sign else ''}.{decimals}f"
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
