"""A comparison as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlsched.comparisons.comparison_tables import SETTING
from ddlsched.results.paired_comparison import METRICS, readable, with_holm

if TYPE_CHECKING:
    from ddlsched.comparisons.comparison import Comparison

__all__ = ["SHOWN", "comparison_text"]

SHOWN = (*METRICS, "average_slowdown", "worst_finish_time_fairness", "jain_index", "unfinished_jobs")
"""The metrics that a terminal shows; comparison.csv has all."""


def comparison_text(comparison: Comparison) -> str:
    """Return a table for each workload and cluster, and what is to be known before they are believed."""
    table = comparison.table()
    drawn, baseline = comparison.asked.get("drawn_workloads", ()), comparison.baseline
    parts = [
        f"{workload} on {cluster}\n\n"
        + readable(with_holm(rows), baseline=baseline, over="draws" if workload in drawn else "seeds")
        for (workload, cluster), rows in table[table["metric"].isin(SHOWN)].groupby(SETTING, sort=False)
    ]
    return "\n".join(f"{part}\n" for part in [*(parts or ["No run finished."]), *comparison.notes()])
