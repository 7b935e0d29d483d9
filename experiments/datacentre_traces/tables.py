"""The tables: what contention costs, what a bundle gains, what a placement gains."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from regimes import ALONE, BASELINE, CONSOLIDATED, SPREAD

from ddlsched.results.statistics import Interval, mean_interval, paired_change, verdict

GROUP = ["trace", "regime", "gbps", "scale"]


def values(summaries: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run: what was measured, times as they would be at the traced durations."""
    scale = summaries["scale"].astype(float)
    columns = ["trace", "part", "seed", "regime", "gbps", "scale", "policy", "gpus", "jobs", "several_servers"]
    table = summaries[[*columns, "iterations", "contended"]].copy()
    table["average_jct_s"] = summaries["average_jct_s"] / scale
    table["queueing_s"] = summaries["average_jct_s"] * summaries["queueing_share"] / scale
    table["gpu_utilisation"] = summaries["gpu_utilisation"]
    return table.assign(alone_share=summaries["alone_share"], delay_share=summaries["delay_share"])


def regime_table(runs: pd.DataFrame, *, by_part: bool = False) -> pd.DataFrame:
    """Return a row a trace, regime, bandwidth and policy, over windows; or ``by_part``, a row a part too.

    ``caused``: by how much the average JCT is less without contention (geometric mean over windows). ``delay``: the
    share of JCT for which jobs' own all-reduces ran longer than alone, or waited; what is caused beyond it is in jobs
    that queue longer. ``change`` is that of the average JCT against SRSF(1). Intervals are paired by window.
    """
    groups = runs.groupby([*GROUP, "part"] if by_part else GROUP, sort=False)
    return pd.DataFrame(row for _, group in groups for row in _rows(group, by_part=by_part))


def _rows(group: pd.DataFrame, *, by_part: bool) -> Iterator[dict[str, object]]:
    by_policy = {name: own.sort_values("part") for name, own in group.groupby("policy", sort=False)}
    alone, baseline = (by_policy[name]["average_jct_s"].to_numpy() for name in (ALONE, BASELINE))
    for policy, own in by_policy.items():
        jct_s = own["average_jct_s"].to_numpy()
        change = paired_change(jct_s, baseline)
        yield {
            **own.iloc[0][[*GROUP, *(["part", "gpus"] if by_part else []), "policy"]].to_dict(),
            "windows": len(own),
            "average_jct_s": jct_s.mean(),
            "queueing_s": own["queueing_s"].mean(),
            "gpu_utilisation": own["gpu_utilisation"].mean(),
            "several_servers": own["several_servers"].sum() / own["jobs"].sum(),
            "contended": own["contended"].sum() / own["iterations"].sum(),
            **_columns("caused", _less(jct_s, alone)),
            **_columns("delay", mean_interval(own["delay_share"].round(12))),
            **_columns("change", change),
            "verdict": verdict(change) if policy not in (ALONE, BASELINE) else "",
        }


def _less(jct_s: pd.Series, alone: pd.Series) -> Interval:
    """Return 1 - JCT without contention / JCT."""
    change = paired_change(alone, jct_s)
    return Interval(0.0 - change.mean, 0.0 - change.high, 0.0 - change.low, change.seeds)


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def placement_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the change of the average JCT from first-fit to LWF-1 on the same servers."""
    rows = []
    for key, group in runs.groupby(["trace", "gbps", "policy"], sort=False):
        jct_s = group.pivot(index="part", columns="regime", values="average_jct_s")
        change = paired_change(jct_s[CONSOLIDATED.name], jct_s[SPREAD.name])
        labels = dict(zip(("trace", "gbps", "policy"), key, strict=True))
        rows.append(labels | {"windows": len(jct_s)} | _columns("change", change) | {"verdict": verdict(change)})
    return pd.DataFrame(rows)
