"""The map as one picture: a panel a mix and load, a cell a network, as dark as what placement takes off there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from answers import PARTS, WORTH, counting, earning
from points import GBPS, LOADS, MIXES, OVERSUBSCRIPTION

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, save, shown_figure

OTHERS = PARTS[1:]
COLOURS = dict(zip(OTHERS, ("orange", "vermillion", "green", "purple"), strict=True))
DARK = 0.5
"""From here on a cell is so dark that its number is white."""


def picture(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw the points and return the pictures' paths."""
    counted = counting(table)
    panels = dict(list(counted.groupby(["mix", "load"], sort=False)))
    mixes = [mix for mix in MIXES if any(key[0] == mix for key in panels)]
    loads = [load for load in LOADS if any(key[1] == load for key in panels)]
    with in_style():
        figure = shown_figure(9.5, 2.2 + 2.2 * len(loads))
        for row, load in enumerate(loads):
            for column, mix in enumerate(mixes):
                axes = figure.add_subplot(len(loads), len(mixes), row * len(mixes) + column + 1)
                axes.set_title(f"{mix}, {'a burst' if load == 'burst' else f'load {load}'}")
                for place, cell in panels[mix, load].groupby(["gbps", "oversubscription"]):
                    _draw(axes, GBPS.index(place[0]), OVERSUBSCRIPTION.index(place[1]), cell)
                _label(axes, left=column == 0, low=row == len(loads) - 1)
        figure.suptitle(
            "Slow cards or thin leaves: keep jobs in whole servers and racks. A burst: short jobs first.\n"
            "Shorter average JCT in %: blue, the best placement against first-fit; orange, an order on top\n"
            f"(leaf-spine, one job a GPU, simulated, {table['seeds'].max()} seeds a cell)"
        )
        figure.legend(handles=_legend(counted), loc="outside lower center", ncols=3)
        return save(figure, folder / "map")


def _draw(axes: Any, x: int, y: int, rows: pd.DataFrame) -> None:
    """Draw a point's cell: what placement takes off, and a square each of what else earns."""
    from matplotlib.patches import Rectangle

    sure = rows[earning(rows)].set_index("part")["change"]
    off = -sure.get("placement", 0.0)
    face = _shade(off) if off else "white"
    axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=face, edgecolor=MUTED, linewidth=0.5))
    text = f"{100 * off:.0f}" if off else "–"
    axes.text(x, y + 0.17, text, ha="center", va="center", color="white" if off > DARK else INK)
    others = [part for part in OTHERS if part in sure]
    width = 1.2 / len(OTHERS)
    for number, part in enumerate(others):
        corner = x - width * len(others) / 2 + width * number, y - 0.42
        axes.add_patch(Rectangle(corner, width - 0.02, 0.3, facecolor=PALETTE[COLOURS[part]]))
        middle = corner[0] + width / 2 - 0.01, corner[1] + 0.14
        axes.text(*middle, f"{-100 * sure[part]:.0f}", size="small", ha="center", va="center", color=INK)


def _shade(share: float) -> Any:
    """Return a blue, the darker the more."""
    from matplotlib import colormaps

    return colormaps["Blues"](0.15 + 0.8 * share)


def _label(axes: Any, *, left: bool, low: bool) -> None:
    axes.set(xlim=(-0.55, len(GBPS) - 0.45), ylim=(-0.55, len(OVERSUBSCRIPTION) - 0.45))
    axes.set_xticks(range(len(GBPS)), [f"{each:g}" for each in GBPS] if low else [""] * len(GBPS))
    names = [f"{each:g}:1" for each in OVERSUBSCRIPTION]
    axes.set_yticks(range(len(names)), names if left else [""] * len(names))
    axes.grid(visible=False)
    if low:
        axes.set_xlabel("cards of a server of 8 GPUs, Gbit/s")
    if left:
        axes.set_ylabel("oversubscription of leaves")


def _legend(rows: pd.DataFrame) -> list[Any]:
    from matplotlib.patches import Patch

    seen = set(rows.loc[earning(rows), "part"])
    names = {
        "order": "SRTF, which knows lengths",
        "stops": "Tiresias, which stops jobs",
        "paths": "paths by SGLB",
        "sending": "all-reduces in turn",
    }
    worth = f"more than {100 * WORTH:.0f} % for certain"
    placed = Patch(facecolor=_shade(0.5), label=f"placement: {worth}")
    nothing = Patch(facecolor="white", edgecolor=MUTED, label="placement: not so")
    return [placed, nothing] + [
        Patch(facecolor=PALETTE[COLOURS[part]], label=f"{names[part]}: {worth}, on top")
        for part in OTHERS
        if part in seen
    ]
