"""The map as one picture: a panel a kind of cluster, a cell a point, as dark as what placement takes off there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from answers import WORTH, best_changes, earning, undecided
from doors import DOORS
from points import LEVELS, Point

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, save, shown_figure

OTHERS = DOORS[1:]
COLOURS = dict(zip(OTHERS, ("orange", "vermillion", "green", "purple", "sky"), strict=True))
OVERSUBSCRIPTION = 4.0
KINDS = (
    ("one job a GPU", (OVERSUBSCRIPTION, 1, 0.0, "powers of two")),
    ("one job a GPU,\njobs of any size", (OVERSUBSCRIPTION, 1, 0.0, "any")),
    ("one job a GPU,\nnot oversubscribed (1:1)", (1.0, 1, 0.0, "powers of two")),
    ("2 jobs a GPU at no cost", (OVERSUBSCRIPTION, 2, 0.0, "powers of two")),
    ("2 jobs a GPU,\n30 % slower for the other", (OVERSUBSCRIPTION, 2, 0.3, "powers of two")),
    ("4 jobs a GPU at no cost", (OVERSUBSCRIPTION, 4, 0.0, "powers of two")),
    ("4 jobs a GPU,\n30 % slower for each other", (OVERSUBSCRIPTION, 4, 0.3, "powers of two")),
    ("4 jobs a GPU,\n60 % slower for each other", (OVERSUBSCRIPTION, 4, 0.6, "powers of two")),
)
COLUMNS = 4
SEEDS = 20
"""Of a point; one with fewer says so."""
DARK = 0.55
"""From here on a cell is so dark that its number is white."""


def picture(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw the points of the mix and return the pictures' paths."""
    groups = dict(list(table.fillna({"trace": ""}).groupby(list(Point.__dataclass_fields__), sort=False)))
    cells = {Point(**dict(zip(Point.__dataclass_fields__, place, strict=True))): rows for place, rows in groups.items()}
    drawn = {point: rows for point, rows in cells.items() if any(_is_of(point, kind) for _, kind in KINDS)}
    levels = {axis: _met(axis, drawn) for axis in ("gbps", "load")}
    kinds = [(title, kind) for title, kind in KINDS if any(_is_of(point, kind) for point in drawn)]
    with in_style():
        figure = shown_figure(10.5, 5.4)
        for number, (title, kind) in enumerate(kinds):
            axes = figure.add_subplot(-(-len(kinds) // COLUMNS), COLUMNS, number + 1)
            axes.set_title(title)
            for point, rows in drawn.items():
                if _is_of(point, kind):
                    _draw(axes, (levels["gbps"].index(point.gbps), levels["load"].index(point.load)), rows)
            _label(axes, levels, left=number % COLUMNS == 0, low=number >= len(kinds) - COLUMNS)
        figure.suptitle(_title(drawn))
        figure.legend(handles=_legend(_seen(drawn)), loc="outside lower center", ncols=3 + len(_seen(drawn)))
        return save(figure, folder / "map")


def _is_of(point: Point, kind: tuple[float, int, float, str]) -> bool:
    return (point.oversubscription, point.jobs_per_gpu, point.interference, point.sizes) == kind and not point.trace


def _met(axis: str, points: Iterable[Point]) -> list[Any]:
    """Return the levels of an axis that points have, in order."""
    met = {getattr(point, axis) for point in points}
    return [level for level in LEVELS[axis] if level in met]


def _seen(cells: Mapping[Point, pd.DataFrame]) -> list[str]:
    """Return the doors but placement that earn at some point, or may."""
    met = frozenset[str]().union(*(earning(rows) | undecided(rows) for rows in cells.values()))
    return [door for door in OTHERS if door in met]


def _title(cells: Mapping[Point, pd.DataFrame]) -> str:
    nowhere = ", ".join(door for door in OTHERS if door not in _seen(cells))
    return (
        "What placement takes off the average JCT (%, against first-fit), and what takes more than "
        f"{100 * WORTH:.0f} % off on top of the best placement\n"
        "64 GPUs, leaf-spine 4:1 but for one panel, powers of two but for one, simulated"
        + (f"; nowhere more than {100 * WORTH:.0f} %: {nowhere}" if nowhere else "")
    )


def _draw(axes: Any, place: tuple[int, int], rows: pd.DataFrame) -> None:
    """Draw a point's cell with what placement takes off, and in its lower half the other doors that earn or may."""
    from matplotlib.patches import Rectangle

    x, y = place
    sure, maybe, changes = earning(rows), undecided(rows), best_changes(rows)
    off = -changes["placement"]
    face = _shade(off) if "placement" in sure else "white"
    axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=face, edgecolor=MUTED, linewidth=0.5))
    ink = "white" if "placement" in sure and off > DARK else INK
    axes.text(x, y + 0.2, f"{100 * off:.0f}", size="medium", ha="center", va="center", color=ink)
    if rows["seeds"].max() < SEEDS:
        axes.text(x, y - 0.45, f"{rows['seeds'].max()} seeds", size="xx-small", ha="center", va="bottom", color=ink)
    others = [door for door in OTHERS if door in sure | maybe]
    for number, door in enumerate(others):
        colour = PALETTE[COLOURS[door]]
        width = 0.86 / max(2, len(others))
        corner = x - width * len(others) / 2 + width * number, y - 0.42
        badge = {"facecolor": colour if door in sure else "white", "edgecolor": colour}
        axes.add_patch(Rectangle(corner, width - 0.02, 0.38, linewidth=0.9, **badge))
        middle = corner[0] + width / 2, corner[1] + 0.18
        axes.text(*middle, f"{-100 * changes[door]:.0f}", size="x-small", ha="center", va="center", color=INK)


def _shade(share: float) -> Any:
    """Return a blue, the darker the more."""
    from matplotlib import colormaps

    return colormaps["Blues"](0.15 + 0.8 * share)


def _label(axes: Any, levels: dict[str, list[Any]], *, left: bool, low: bool) -> None:
    gbps, loads = levels["gbps"], levels["load"]
    axes.set(xlim=(-0.6, len(gbps) - 0.4), ylim=(-0.6, len(loads) - 0.4))
    axes.set_xticks(range(len(gbps)), [f"{each:g}" for each in gbps])
    axes.set_yticks(range(len(loads)), loads if left else [""] * len(loads))
    axes.set_facecolor("#eeeeee")
    if low:
        axes.set_xlabel("network card (Gbit/s)")
    if left:
        axes.set_ylabel("load, or a burst")


def _legend(others: list[str]) -> list[Any]:
    from matplotlib.patches import Patch

    placement = Patch(facecolor=_shade(0.5), label="placement: the darker, the more")
    not_sure = Patch(facecolor="white", edgecolor=MUTED, label=f"its interval reaches below {100 * WORTH:.0f} %")
    doors = [Patch(facecolor=PALETTE[COLOURS[door]], label=f"{door} (open: undecided)") for door in others]
    return [placement, not_sure, *doors, Patch(facecolor="#eeeeee", label="not simulated")]
