"""A comparison as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlsched.comparing.tables import SETTING
from ddlsched.results.comparison import METRICS, interval_text, markdown
from ddlsched.results.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.comparing.comparison import Comparison

__all__ = ["comparison_text"]


def comparison_text(comparison: Comparison) -> str:
    """Return a table for each workload and cluster, and what is to be known before they are believed."""
    parts = [
        f"{workload} on {cluster}\n\n{_table(rows, comparison.baseline)}"
        for (workload, cluster), rows in comparison.table().groupby(SETTING, sort=False)
    ]
    parts.append("Means over seeds with 95 % intervals; changes are paired by seed." if parts else "No run finished.")
    return "\n".join(f"{part}\n" for part in [*parts, *comparison.notes()])


def _table(rows: pd.DataFrame, baseline: str) -> str:
    cells = []
    for metric, own in rows.groupby("metric", sort=False):
        for number, row in enumerate(own.to_dict("records")):
            name = METRICS.get(str(metric), str(metric)) if number == 0 else ""
            cells.append({"metric": name, "policy": row["policy"], "seeds": str(row["seeds"]), **_cells(row, baseline)})
    return markdown(cells)


def _cells(row: dict[Any, Any], baseline: str) -> dict[str, str]:
    percent = 100.0 if row["metric"] == "gpu_utilisation" else 1.0
    mean = Interval(row["mean"], row["low"], row["high"], row["seeds"]).scaled(percent)
    change = Interval(row["change"], row["change_low"], row["change_high"], row["seeds"]).scaled(100.0)
    against = row["policy"] != baseline
    return {
        "mean [95 %]": _text(mean, decimals=_decimals(mean.mean)),
        f"against {baseline}, %": _text(change, decimals=1, sign=True)
        if against and change.mean == change.mean
        else "",
        "verdict": "" if not against else "one run" if row["seeds"] == 1 else row["verdict"],
    }


def _text(interval: Interval, *, decimals: int, sign: bool = False) -> str:
    text = interval_text(interval, decimals=decimals, sign=sign)
    return text if interval.low == interval.low else text.partition(" [")[0]  # no interval


def _decimals(value: float) -> int:
    """Return how many decimals show four digits."""
    return max(0, 4 - len(str(int(abs(value)))))
