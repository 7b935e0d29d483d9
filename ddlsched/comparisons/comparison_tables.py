"""The tables of a comparison: every policy against the baseline, for each workload and cluster.

Means, changes and verdicts are those of :func:`ddlsched.results.paired_comparison.compare_runs`, paired by seed. Added
here is what only a whole comparison knows: which runs are really several, and what to do where some failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ddlsched.results.paired_comparison import ALL_METRICS, compare_runs, with_holm

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SETTING", "compare_everywhere", "compare_metrics"]

SETTING = ["workload", "cluster"]
"""Columns of what is compared apart."""
_COLUMNS = ["policy", "metric", "seeds", "mean", "low", "high", "change", "change_low", "change_high", "verdict"]
_WITHOUT_MEANING = ["seed", "engine_s"]
"""Numbers that differ between runs that are the same."""


class Compare(Protocol):
    """Compares policies on one workload and cluster."""

    def __call__(self, runs: pd.DataFrame, /, *, baseline: str) -> pd.DataFrame:
        """Return a row a policy and metric, or several."""
        ...


def compare_metrics(runs: pd.DataFrame, *, baseline: str) -> pd.DataFrame:
    """Compare runs by all metrics that they have and that are compared."""
    return compare_runs(runs, baseline=baseline, metrics=[metric for metric in ALL_METRICS if metric in runs])


def compare_everywhere(
    runs: pd.DataFrame, measured: pd.DataFrame, baseline: str, compare: Compare = compare_metrics
) -> pd.DataFrame:
    """Return the comparisons on all workloads and clusters, one below the other.

    A policy of which runs failed is compared on the seeds that it and the baseline have finished; what is left
    is no fair sample, so there is no verdict. Where the runs of all seeds are the same, of the policy and of the
    baseline, nothing random was at work: that is one run, without an interval and without a verdict.

    Parameters
    ----------
    runs
        A row a finished run: policy, workload, cluster, seed, and metrics.
    measured
        What is compared: the same runs, or several rows of each.
    baseline
        A policy.
    compare
        Compares the rows of one workload and cluster.

    Returns
    -------
    DataFrame
        workload, cluster, the columns of ``compare``, and seeds_left_out, those on which only others finished.
    """
    import pandas as pd

    parts = []
    for (workload, cluster), group in runs.groupby(SETTING, sort=False):
        rows = measured[(measured["workload"] == workload) & (measured["cluster"] == cluster)]
        if rows.empty:  # size classes of runs in which no job counts
            continue
        part = _without_false_intervals(_against_baseline(rows, group, baseline, compare), group, baseline)
        parts.append(part.assign(workload=str(workload), cluster=str(cluster)))
    if not parts:
        return pd.DataFrame(columns=[*SETTING, *_COLUMNS])
    table = pd.concat(parts, ignore_index=True)
    return with_holm(table[[*SETTING, *table.columns.drop(SETTING)]])


def _against_baseline(rows: pd.DataFrame, runs: pd.DataFrame, baseline: str, compare: Compare) -> pd.DataFrame:
    """Compare together the policies that have the same seeds; with itself one that shares none with the baseline."""
    import pandas as pd

    seeds = {str(policy): frozenset(own["seed"]) for policy, own in runs.groupby("policy", sort=False)}
    together: dict[tuple[str, frozenset[int]], list[str]] = {}
    for policy, own in seeds.items():
        shared = own & seeds.get(baseline, frozenset())
        together.setdefault((baseline, shared) if shared else (policy, own), []).append(policy)
    parts = []
    for (against, common), policies in together.items():
        chosen = rows["policy"].isin([*policies, against]) & rows["seed"].isin(common)
        part = compare(rows[chosen], baseline=against)
        part = part[part["policy"].isin(policies)]
        part = part.assign(seeds_left_out=part["seeds_left_out"] + len(set(runs["seed"]) - common))
        parts.append(_without(part, part["policy"] != "", "change", "difference") if against != baseline else part)
    table = pd.concat(parts, ignore_index=True)
    unfair = (table["seeds_left_out"] > 0) & (table["policy"] != baseline)
    return _without(table, unfair, "p_")


def _without_false_intervals(table: pd.DataFrame, runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Take back the intervals over seeds that were one run."""
    policies = {str(policy) for policy in runs["policy"]}
    fixed = table["policy"].isin([policy for policy in policies if _is_one_run(runs[runs["policy"] == policy])])
    table.loc[fixed, ["low", "high"]] = np.nan
    if baseline in policies and not _is_one_run(runs[runs["policy"] == baseline]):
        return table
    table.loc[fixed, "seeds"] = 1
    return _without(table, fixed, "change_", "difference_", "p_")


def _is_one_run(runs: pd.DataFrame) -> bool:
    measured = runs.select_dtypes("number").drop(columns=_WITHOUT_MEANING, errors="ignore")
    return bool((measured.nunique(dropna=False) <= 1).all())


def _without(table: pd.DataFrame, where: pd.Series, *beginnings: str) -> pd.DataFrame:
    """Take back the columns that begin so, and with them the verdict."""
    table = table.copy()
    table.loc[where, [name for name in table.columns if name.startswith(beginnings)]] = np.nan
    for name in (name for name in table.columns if name.startswith("verdict")):
        table.loc[where & table[name].isin(["better", "worse"]), name] = "undecided"
    return table
