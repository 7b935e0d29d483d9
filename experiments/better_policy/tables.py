"""What is left of the runs: a row a ground and policy, with what the new policy changes against it; the chart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, floor
from pathlib import Path
from typing import Any

import pandas as pd

from ddlsched.comparisons.charts.style import in_style, new_panels, save
from ddlsched.results.statistics import by_seed, paired_change

METRICS = {"average_jct_s": "average", "p99_jct_s": "p99"}


def compared(summaries: pd.DataFrame, new: str, bounds_s: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return a row a ground and policy.

    ``average_jct_s``, ``p99_jct_s`` and ``stops_a_job`` are means over the policy's seeds, ``bound_s`` is that of the
    lower bounds, and ``over_bound`` the first over it. ``average_change`` and ``p99_change`` are what the new policy
    changes against this one, %, the geometric mean over these seeds, each with its 95 % interval, paired by seed. Of
    each ground ``bounds_s`` has the lower bound of each seed.
    """
    rows = []
    for ground, runs in summaries.groupby("ground", sort=False):
        for policy, own in runs.groupby("policy", sort=False):
            row = {"ground": ground, "policy": policy, "seeds": len(own)}
            row |= {name: own[name].mean() for name in (*METRICS, "stops_a_job")}
            row["bound_s"] = own["seed"].map(bounds_s[str(ground)]).mean()
            row["over_bound"] = row["average_jct_s"] / row["bound_s"]
            for metric, name in METRICS.items() if policy != new else ():
                pair = runs[runs["policy"].isin([new, policy]) & runs["seed"].isin(own["seed"])]
                values = by_seed(pair, metric)
                change = paired_change(values[new], values[policy]).scaled(100.0)
                row |= {
                    f"{name}_change": change.mean,
                    f"{name}_change_low": change.low,
                    f"{name}_change_high": change.high,
                }
            rows.append(row)
    return pd.DataFrame(rows)


def shown(table: pd.DataFrame) -> str:
    """Return the table as Markdown: seconds, and changes in %, those of one seed without an interval."""
    head = "| ground | policy | seeds | average JCT (s) | p99 (s) | / bound | stops a job | average, % | p99, % |"
    lines = [head, "|" + "---|" * 9]
    for row in table.to_dict("records"):
        cells = [
            row["ground"],
            row["policy"],
            str(row["seeds"]),
            f"{row['average_jct_s']:.1f}",
            f"{row['p99_jct_s']:.0f}",
        ]
        cells += [f"{row['over_bound']:.2f}", f"{row['stops_a_job']:.2f}", *(_change(row, n) for n in METRICS.values())]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _change(row: Mapping[str, Any], name: str) -> str:
    values = [row[f"{name}_change{end}"] for end in ("", "_low", "_high")]
    if pd.isna(values[0]):
        return ""
    interval = f" [{values[1]:+.1f}, {values[2]:+.1f}]" if row["seeds"] > 1 else ""
    return f"{values[0]:+.1f}{interval}"


def standings(table: pd.DataFrame, new: str, rivals: Collection[str], knowing: Collection[str]) -> str:
    """Return as Markdown how far the new policy, the best rival and the best that knows lengths are from the bound.

    A row a ground; the best are those of least average JCT of the policies that ran on all of the new policy's seeds.
    The change is that of the average that the new policy makes against the best rival, %; what is left is by how much,
    %, any schedule could be below the better of these two at most.
    """
    columns = "ground | policy / bound | best rival | its / bound | policy against it, % | best that knows lengths"
    lines = [f"| {columns} | its / bound | left, % |", "|" + "---|" * 8]
    for ground, rows in table.groupby("ground", sort=False):
        (ours,) = rows[rows["policy"] == new].to_dict("records")
        same = rows[rows["seeds"] == ours["seeds"]]
        rival, best = (_nearest(same, names) for names in (rivals, knowing))
        left = 100 * (1 - 1 / min(ours["over_bound"], rival["over_bound"]))
        cells = [
            ground,
            f"{ours['over_bound']:.2f}",
            rival["policy"],
            f"{rival['over_bound']:.2f}",
            _change(rival, "average"),
        ]
        cells += [best["policy"], f"{best['over_bound']:.2f}", f"{left:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _nearest(rows: pd.DataFrame, names: Collection[str]) -> dict[str, Any]:
    """Return the row of the policy of these that is nearest to the bound."""
    found: dict[str, Any] = rows[rows["policy"].isin(names)].sort_values("over_bound").iloc[0].to_dict()
    return found


def chart(table: pd.DataFrame, policies: Sequence[str], folder: Path) -> Path:
    """Draw what the new policy changes against each other one, a panel a ground, cut at 100 %; return its path."""
    grounds = list(table["ground"].drop_duplicates())
    names = list(policies)[::-1]
    drawn = table[table["policy"].isin(names)]
    ends = drawn[[f"{metric}_change_{end}" for metric in METRICS.values() for end in ("low", "high")]]
    limits = max(-100, 10 * floor(ends.min(axis=None) / 10)), min(100, 10 * ceil(ends.max(axis=None) / 10))
    with in_style():
        figure, panels = new_panels(0.28 * len(names) + 1, len(grounds), width_inches=1.6 * len(grounds) + 2)
        for axes, ground in zip(panels, grounds, strict=True):
            rows = table[table["ground"] == ground].set_index("policy").reindex(names)
            for shift, (name, marker) in zip((0.15, -0.15), (("average", "o"), ("p99", "s")), strict=True):
                change, low, high = (rows[f"{name}_change{end}"] for end in ("", "_low", "_high"))
                places = [place + shift for place in range(len(names))]
                errors = [(change - low).clip(0), (high - change).clip(0)]
                axes.errorbar(change, places, xerr=errors, fmt=marker, markersize=3, label=name)
            axes.axvline(0, linewidth=0.8, color="black")
            axes.set(title=ground, xlabel="change (%)", xlim=limits, ylim=(-0.6, len(names) - 0.4))
            axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        panels[0].legend(fontsize="x-small", loc="upper right")
        return save(figure, folder / "better_policy")[0]
