"""The map as one picture: a panel a kind of cluster, a cell a point, in it a square a door that earns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from answers import WORTH, best_changes, earning, undecided
from doors import DOORS
from points import LEVELS, Point

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, new_panels, save

COLOURS = dict(zip(DOORS, ("blue", "orange", "vermillion", "green", "purple", "sky"), strict=True))
KINDS = (
    ("one job a GPU,\npower-of-two sizes", (1, 0.0, "powers of two")),
    ("one job a GPU,\nany sizes", (1, 0.0, "any")),
    ("4 jobs a GPU, a free turn each,\npower-of-two sizes", (4, 0.0, "powers of two")),
    ("4 jobs a GPU, 60 % slower\nfor each other, power-of-two sizes", (4, 0.6, "powers of two")),
)
OVERSUBSCRIPTION = 4.0
SEEDS = 20
"""Of a point; one with fewer says so."""
_SIDE = 0.27


def picture(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw the points of the oversubscribed network and return the pictures' paths."""
    groups = dict(list(table.fillna({"trace": ""}).groupby(list(Point.__dataclass_fields__), sort=False)))
    cells = {Point(**dict(zip(Point.__dataclass_fields__, place, strict=True))): rows for place, rows in groups.items()}
    with in_style():
        figure, panels = new_panels(3.6, len(KINDS), width_inches=10.5)
        levels = {axis: _met(axis, cells) for axis in ("gbps", "load")}
        for axes, (title, kind) in zip(panels, KINDS, strict=True):
            axes.set_title(title)
            for point, rows in cells.items():
                if _is_of(point, kind):
                    corner = levels["gbps"].index(point.gbps), levels["load"].index(point.load)
                    _draw(axes, corner, rows)
            _label(axes, levels, first=axes is panels[0])
        figure.suptitle(
            f"What takes more than {100 * WORTH:.0f} % off the average JCT: placement against first-fit, all else on "
            "top of the best placement\n64 GPUs, leaf-spine 4:1, simulated; numbers: % off on average"
        )
        figure.legend(handles=_legend(), loc="outside lower center", ncols=len(DOORS) + 2)
        return save(figure, folder / "map")


def _is_of(point: Point, kind: tuple[int, float, str]) -> bool:
    of_kind = (point.jobs_per_gpu, point.interference, point.sizes) == kind
    return of_kind and point.oversubscription == OVERSUBSCRIPTION and not point.trace


def _met(axis: str, points: Iterable[Point]) -> list[Any]:
    """Return the levels of an axis that the points of the panels have, in order."""
    met = {getattr(point, axis) for point in points if any(_is_of(point, kind) for _, kind in KINDS)}
    return [level for level in LEVELS[axis] if level in met]


def _draw(axes: Any, place: tuple[int, int], rows: pd.DataFrame) -> None:
    """Draw a point's cell, and in it a square, always at the same place, for each door that earns or may.

    In a square is what the best policy of the door takes off, %; below, how many seeds there are if fewer than asked.
    """
    from matplotlib.patches import Rectangle

    x, y = place
    axes.add_patch(Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, facecolor="white", edgecolor=MUTED, linewidth=0.5))
    sure, maybe, changes = earning(rows), undecided(rows), best_changes(rows)
    if rows["seeds"].max() < SEEDS:
        axes.text(x, y - 0.42, f"{rows['seeds'].max()} seeds", size="xx-small", ha="center", va="bottom", color=MUTED)
    for number, door in enumerate(DOORS):
        if door in sure | maybe:
            corner = x - 0.41 + 0.28 * (number % 3), y + 0.06 - 0.4 * (number // 3)
            colour = PALETTE[COLOURS[door]]
            face = colour if door in sure else "none"
            axes.add_patch(Rectangle(corner, _SIDE, 0.34, facecolor=face, edgecolor=colour, linewidth=0.8))
            middle = corner[0] + _SIDE / 2, corner[1] + 0.17
            ink = "white" if door in sure else colour
            axes.text(*middle, f"{-100 * changes[door]:.0f}", size="x-small", ha="center", va="center", color=ink)


def _label(axes: Any, levels: dict[str, list[Any]], *, first: bool) -> None:
    gbps, loads = levels["gbps"], levels["load"]
    axes.set(xlim=(-0.6, len(gbps) - 0.4), ylim=(-0.6, len(loads) - 0.4), xlabel="network card (Gbit/s)")
    axes.set_xticks(range(len(gbps)), [f"{each:g}" for each in gbps])
    axes.set_yticks(range(len(loads)), loads if first else [""] * len(loads))
    axes.set_facecolor("#eeeeee")
    if first:
        axes.set_ylabel("load of a steady stream, or a burst")


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    doors = [Patch(facecolor=PALETTE[COLOURS[door]], label=door) for door in DOORS]
    open_ = Patch(facecolor="none", edgecolor=INK, label="on average, undecided")
    return [*doors, open_, Patch(facecolor="#eeeeee", label="not simulated")]
