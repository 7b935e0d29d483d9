"""The charts: what contention causes by regime and bandwidth, and what the bundles change."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from regimes import BASELINE, BUNDLES
from tables import interval

from ddlsched.comparisons.charts.jct_charts import Change, changes
from ddlsched.comparisons.charts.style import PALETTE, save

COLOURS = {"10 Gbit/s": PALETTE["vermillion"], "25 Gbit/s": PALETTE["orange"], "100 Gbit/s": PALETTE["blue"]}


def draw(regimes: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw all charts of the table of regimes."""
    drawn = []
    for trace, own in regimes.groupby("trace", sort=False):
        rows = _rows(own[own["policy"] == "Ada-SRSF"], "caused", own["gbps"].unique(), "gbps", " Gbit/s")
        axis = f"{trace}: part of the average JCT that contention\ncauses under Ada-SRSF (%)"
        drawn += save(changes(rows, axis=axis.replace("\n", "\n"), colour=COLOURS), folder / f"{trace}_caused".lower())
        others = [name for name in BUNDLES if name != BASELINE]
        for gbps in own["gbps"].unique():
            rows = _rows(own[own["gbps"] == gbps], "change", others, "policy")
            axis = f"{trace}, {gbps} Gbit/s: change of the average JCT\nagainst {BASELINE} (%)"
            drawn += save(changes(rows, axis=axis), folder / f"{trace}_bundles_{gbps}gbps".lower())
    return drawn


def _rows(own: pd.DataFrame, value: str, names: list[str], column: str, unit: str = "") -> list[Change]:
    """Return a row a regime, with an estimate of ``value`` for each of the ``names`` in ``column``."""
    result = []
    for regime, group in own.groupby("regime", sort=False):
        measured = {f"{name}{unit}": interval(group[group[column] == name].iloc[0], value) for name in names}
        result.append(Change(str(regime).replace(", ", ",\n", 1), measured))
    return result
