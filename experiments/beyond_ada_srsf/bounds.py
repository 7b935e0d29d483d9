"""How far policies are from the lower bound of the average JCT (docs/bound.md)."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

import ddlsched
from algorithms.bound import average_jct_bound_s
from ddlsched import Cluster
from ddlsched.network.contention import ten_gigabit_ethernet
from ddlsched.results.paired_comparison import interval_text, markdown
from ddlsched.results.statistics import by_seed, mean_interval


def bound_s(seed: int, scale: float, *, exclusive: bool) -> float:
    """Return the bound of a job set of the 64-GPU experiment, seconds at full size."""
    workload = ddlsched.microsoft_160(seed=seed, scale=scale)
    return average_jct_bound_s(workload, Cluster(exclusive=exclusive), ten_gigabit_ethernet()) / scale


def distances(summaries: pd.DataFrame, scale: float, shared: Collection[str]) -> pd.DataFrame:
    """Return a row a policy and seed: its average JCT (s), the bound (s), and the former over the latter.

    ``summaries`` has ``policy``, ``seed`` and ``average_jct_s`` at full size; those of ``shared`` run on GPUs that jobs
    share, for which the bound is lower.
    """
    jct_s = by_seed(summaries, "average_jct_s")
    bounds = {
        exclusive: {seed: bound_s(seed, scale, exclusive=exclusive) for seed in jct_s.index}
        for exclusive in {policy not in shared for policy in jct_s}
    }
    rows = [
        {"policy": policy, "seed": seed, "average_jct_s": value, "bound_s": bounds[policy not in shared][seed]}
        for policy in jct_s
        for seed, value in jct_s[policy].items()
    ]
    table = pd.DataFrame(rows)
    return table.assign(over_bound=table["average_jct_s"] / table["bound_s"])


def distance_table(found: pd.DataFrame) -> str:
    """Return a row a policy: the mean bound and the mean distance to it, with their intervals."""
    rows = [
        {
            "policy": policy,
            "Bound (s)": interval_text(mean_interval(of_policy["bound_s"].to_numpy()), decimals=0),
            "Average JCT / bound": interval_text(mean_interval(of_policy["over_bound"].to_numpy()), decimals=2),
        }
        for policy, of_policy in found.groupby("policy", sort=False)
    ]
    return f"## Average JCT over the lower bound\n\n{markdown(rows)}\n"


def small_gaps(optimum_s: pd.Series, lower_s: pd.Series) -> str:
    """Return how far the bound is below the optimum of small instances."""
    ratios = optimum_s / lower_s
    found = interval_text(mean_interval(ratios.to_numpy()), decimals=2)
    return f"Optimum / lower bound of the {len(ratios)} proven instances: {found}, at most {ratios.max():.2f}"
