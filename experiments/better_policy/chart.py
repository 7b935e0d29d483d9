"""The chart of the committed table of all grounds: ``python experiments/better_policy/chart.py``."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from pathlib import Path

import pandas as pd
from policies import KNOWING_RACKS, LEARNING, OURS

from ddlsched.comparisons.charts.style import in_style, new_panels, save

EXPECTED = Path(__file__).parent / "expected"


def chart(table: pd.DataFrame, policies: Sequence[str], folder: Path) -> Path:
    """Draw what the new policy changes against each other one, a panel a ground, cut at 100 %; return its path."""
    grounds = list(table["ground"].drop_duplicates())
    names = list(policies)[::-1]
    drawn = table[table["policy"].isin(names)]
    ends = drawn[[f"{metric}_change_{end}" for metric in ("average", "p99") for end in ("low", "high")]]
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


def main() -> None:
    """Draw it."""
    print(chart(pd.read_csv(EXPECTED / "room.csv"), [*LEARNING, *OURS, *KNOWING_RACKS], EXPECTED))


if __name__ == "__main__":
    main()
