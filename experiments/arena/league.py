"""The league table: means over seeds, changes against a FIFO queue that skips, paired, and Holm's adjustment."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rivals import BASELINE

from ddlsched.comparisons.charts.style import in_style, new_panels, save
from ddlsched.results.paired_comparison import compare_runs, with_holm

METRICS = ("average_jct_s", "p99_jct_s", "average_slowdown", "gpu_utilisation", "jain_index")


def league(summaries: pd.DataFrame, bounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and rival.

    ``average_jct_s`` and the other metrics are means over seeds; ``jct_change`` is the geometric mean of the average
    JCT over the baseline's - 1, with its 95 % interval, paired by seed; ``p_holm`` and ``verdict`` of it are adjusted
    for all rivals of all grounds. ``bound_s`` is the mean over the seeds of what no schedule's average JCT is below,
    which ``bounds`` has for each ground and rival, ``over_bound`` the mean average JCT over it.
    """
    compared = [
        compare_runs(rows, baseline=BASELINE, metrics=METRICS).assign(ground=ground)
        for ground, rows in summaries.groupby("ground", sort=False)
    ]
    both = pd.concat(compared, ignore_index=True)
    jct = with_holm(both[both["metric"] == "average_jct_s"].reset_index(drop=True))
    means = both.pivot_table(index=["ground", "policy"], columns="metric", values="mean", sort=False)[list(METRICS)]
    changes = jct.set_index(["ground", "policy"])[["seeds", "change", "change_low", "change_high", "p_holm"]]
    table = means.join(changes.rename(columns=lambda name: name.replace("change", "jct_change")))
    table["verdict"] = jct.set_index(["ground", "policy"])["verdict_holm"]
    table["bound_s"] = bounds.set_index(["ground", "policy"])["bound_s"]
    return table.assign(over_bound=table["average_jct_s"] / table["bound_s"]).reset_index()


def chart(table: pd.DataFrame, folder: Path) -> Path:
    """Draw each rival's change of the average JCT on each ground, and return the picture's path."""
    grounds = list(table["ground"].drop_duplicates())
    rivals = [name for name in table["policy"].drop_duplicates() if name != BASELINE][::-1]
    with in_style():
        figure, panels = new_panels(0.2 * len(rivals) + 1, len(grounds), width_inches=1.9 * len(grounds) + 1.5)
        for axes, ground in zip(panels, grounds, strict=True):
            rows = table[table["ground"] == ground].set_index("policy").reindex(rivals)
            change, low, high = (100 * rows[f"jct_change{end}"] for end in ("", "_low", "_high"))
            axes.errorbar(change, range(len(rivals)), xerr=[change - low, high - change], fmt="o", markersize=3)
            axes.axvline(0, linewidth=0.8, color="black")
            axes.set(title=ground, xlabel="average JCT (%)")
            axes.set_yticks(range(len(rivals)), rivals if axes is panels[0] else [""] * len(rivals))
        return save(figure, folder / "league")[0]
