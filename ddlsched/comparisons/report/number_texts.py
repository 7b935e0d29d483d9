"""What charts and tables of a comparison show, as numbers: the same for the files and for the HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ddlsched.comparisons.charts.utilisation import Band, utilisation_bands
from ddlsched.comparisons.report.reported import ComparedSetting, Reported
from ddlsched.results.metrics import SIZE_CLASSES
from ddlsched.results.statistics import Interval

__all__ = [
    "CHANGED",
    "bands",
    "changes_of",
    "class_intervals",
    "class_name",
    "interval",
    "intervals",
    "jct_s",
    "network_shares",
]

CHANGED = ("average_jct_s", "median_jct_s", "p95_jct_s")
"""Metrics whose changes are drawn."""


def interval(row: Mapping[Any, Any], name: str = "") -> Interval:
    """Return the mean of a row of ``comparison.csv``, or its ``change`` or ``difference``.

    Where the table gives no interval, because all seeds were one run, it is that of one seed: a value alone.
    """
    keys = (name, f"{name}_low", f"{name}_high") if name else ("mean", "low", "high")
    mean, low, high = (float(row[key]) for key in keys)
    return Interval(mean, mean, mean, 1) if math.isnan(low) else Interval(mean, low, high, int(row["seeds"]))


def intervals(reported: Reported, setting: ComparedSetting, metric: str) -> dict[str, Interval]:
    """Return a metric of each policy that has it."""
    own = reported.rows(reported.comparison.table(), setting)
    own = own[(own["metric"] == metric) & own["mean"].notna()]
    found = {row["policy"]: interval(row) for row in own.to_dict("records")}
    return {policy: found[policy] for policy in reported.policies if policy in found}


def changes_of(reported: Reported, setting: ComparedSetting) -> dict[str, dict[str, Interval]]:
    """Return the changes of times against the baseline, in %, by metric and policy."""
    own = reported.rows(reported.comparison.table(), setting)
    own = own[own["change"].notna() & (own["policy"] != reported.comparison.baseline)]
    found = {(row["metric"], row["policy"]): interval(row, "change").scaled(100) for row in own.to_dict("records")}
    by_metric = {
        metric: {policy: found[metric, policy] for policy in reported.policies if (metric, policy) in found}
        for metric in CHANGED
    }
    return {metric: policies for metric, policies in by_metric.items() if policies}


def class_name(size_class: str) -> str:
    """Return what charts and tables call a size class."""
    return f"{size_class.replace('-', '–')} GPU{'' if size_class == '1' else 's'}"


def class_intervals(reported: Reported, setting: ComparedSetting) -> dict[str, dict[str, Interval]]:
    """Return the average JCT by size class and policy."""
    own = reported.rows(reported.comparison.classes(), setting)
    own = own[(own["metric"] == "average_jct_s") & own["mean"].notna()]
    found = {(row["size_class"], row["policy"]): interval(row) for row in own.to_dict("records")}
    by_class = {
        size: {policy: found[size, policy] for policy in reported.policies if (size, policy) in found}
        for size in SIZE_CLASSES.values()
    }
    return {size: policies for size, policies in by_class.items() if policies}


def jct_s(reported: Reported, setting: ComparedSetting) -> dict[str, np.ndarray]:
    """Return the JCT of all jobs of all seeds by policy."""
    found = {policy: reported.jobs(setting, policy) for policy in reported.policies}
    return {policy: pd.concat(tables)["jct_s"].to_numpy() for policy, tables in found.items() if any(map(len, tables))}


def network_shares(reported: Reported, setting: ComparedSetting) -> pd.DataFrame:
    """Return the share of jobs' JCT that went to communicating and waiting for the network.

    A row a policy; a column a size class, and one for all jobs. Each is the mean over seeds of the sum over
    jobs / the sum of their JCT; NaN where no seed has such a job.
    """
    rows = {policy: _policy_shares(reported.jobs(setting, policy)) for policy in reported.policies}
    shares = pd.DataFrame.from_dict(rows, orient="index")
    there = [size for size in (*SIZE_CLASSES.values(), "all") if size in shares.columns]
    return shares[there].rename(columns=lambda size: "all jobs" if size == "all" else class_name(size))


def _policy_shares(tables: list[pd.DataFrame]) -> pd.Series:
    each = []
    for jobs in tables:
        totals = jobs.assign(network_s=jobs["communication_s"] + jobs["network_wait_s"])
        sums = totals.groupby("size_class")[["network_s", "jct_s"]].sum()
        sums.loc["all"] = sums.sum()
        each.append(sums["network_s"] / sums["jct_s"].where(sums["jct_s"] > 0))
    return pd.DataFrame(each).mean()


def bands(reported: Reported, setting: ComparedSetting) -> dict[str, Band]:
    """Return the utilisation over time of each policy."""
    samples = {policy: reported.samples(setting, policy) for policy in reported.policies}
    return utilisation_bands(samples, sum(reported.servers(setting.cluster)))
