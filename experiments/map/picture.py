"""The map as one picture: a panel a mix and load, a cell a network: which placement pays there, or is worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from answers import TRIALS, WORTH, counting, earning, worst_placements
from points import BURST, GBPS, LOADS, MIXES, OVERSUBSCRIPTION

from ddlsched.comparisons.charts.style import INK, MUTED, colours, in_style, save, shown_figure

COLOURS = colours(list(TRIALS))
KNOWN = {"SRTF": ", which knows lengths"}
NOTE: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "size": "small", "ha": "right"}
WORSE = "#f7cdb9"
DARK = 0.5
"""From here on a cell is so dark that its text is white."""


def picture(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw the points and return the pictures' paths."""
    mixes = [mix for mix in MIXES if mix in set(table["mix"])]
    loads = [load for load in LOADS if load in set(table["load"])]
    panels = dict(list(table.groupby(["mix", "load"])))
    with in_style():
        figure = shown_figure(9.5, 1.2 + 2.1 * len(loads))
        for row, load in enumerate(loads):
            for column, mix in enumerate(mixes):
                axes = figure.add_subplot(len(loads), len(mixes), row * len(mixes) + column + 1)
                _label(axes, load, left=column == 0, low=row == len(loads) - 1)
                axes.set_title(mix if row == 0 else "", loc="left", weight="bold")
                if (mix, load) in panels:
                    _cells(axes, panels[mix, load])
        figure.suptitle("Who should keep jobs together? Average JCT against first-fit, % (simulated)")
        figure.legend(handles=_legend(table), loc="outside lower center", ncols=2)
        return save(figure, folder / "map")


def _cells(axes: Any, rows: pd.DataFrame) -> None:
    """Draw a cell a network, and above them what else earns, from the least to the most that it takes off."""
    for network in rows.drop_duplicates(["gbps", "oversubscription"]).itertuples():
        _box(axes, network, "white", edgecolor=MUTED, linewidth=0.5)
    counted = counting(rows)
    sure = counted[earning(counted)]
    for best in sure[sure["part"] == "placement"].itertuples():
        _cell(axes, best, _shade(-best.change), "white" if best.change < -DARK else INK)
    for worst in worst_placements(rows).itertuples():
        _cell(axes, worst, WORSE, INK)
    points = len(counted.groupby(["gbps", "oversubscription"]))
    others = sure[sure["part"] != "placement"].groupby("policy", sort=False)["change"]
    for line, (policy, change) in enumerate(others):
        where = "" if len(change) == points else f" at {len(change)} of {points}"
        text = f"{policy} on top: {_percent(change.max())} to {_percent(change.min())} %{where}"
        axes.annotate(text, (1, 1), (0, 4 + 10 * line), color=COLOURS[policy], **NOTE)


def _cell(axes: Any, row: Any, face: Any, ink: str) -> None:
    """Draw a network's cell: the change by a placement, and its name."""
    x, y = _box(axes, row, face)
    axes.text(x, y + 0.14, _percent(row.change), ha="center", va="center", color=ink)
    axes.text(x, y - 0.24, row.policy, size="x-small", ha="center", va="center", color=ink)


def _box(axes: Any, row: Any, face: Any, **edge: Any) -> tuple[int, int]:
    """Draw a network's empty cell and return where it is."""
    from matplotlib.patches import Rectangle

    x, y = GBPS.index(row.gbps), OVERSUBSCRIPTION.index(row.oversubscription)
    axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=face, **edge))
    return x, y


def _percent(change: float) -> str:
    return f"{100 * change:+.0f}".replace("-", "\N{MINUS SIGN}")


def _shade(share: float) -> Any:
    """Return a blue, the darker the more."""
    from matplotlib import colormaps

    return colormaps["Blues"](0.15 + 0.8 * share)


def _label(axes: Any, load: str, *, left: bool, low: bool) -> None:
    axes.set(xlim=(-0.55, len(GBPS) - 0.45), ylim=(-0.55, len(OVERSUBSCRIPTION) - 0.45))
    axes.set_xticks(range(len(GBPS)), [f"{each:,g}" for each in GBPS] if low else [""] * len(GBPS))
    names = [f"{each:g}:1" for each in OVERSUBSCRIPTION]
    axes.set_yticks(range(len(names)), names if left else [""] * len(names))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    if low:
        axes.set_xlabel("network cards of a server of 8 GPUs, Gbit/s")
    if left:
        axes.set_ylabel(f"{'a burst' if load == BURST else f'load {load}'}\noversubscription")


def _legend(rows: pd.DataFrame) -> list[Any]:
    from matplotlib.patches import Patch

    sure = f"more than {100 * WORTH:.0f} %, whole interval"
    seen = set(rows.loc[earning(rows), "policy"])
    return [
        Patch(facecolor=_shade(0.5), label=f"yes: the best placement takes off {sure}"),
        Patch(facecolor=WORSE, label="no: none does, and the one named is worse, whole interval"),
        Patch(facecolor="white", edgecolor=MUTED, label="neither"),
        *(
            Patch(facecolor=COLOURS[name], label=f"{name}{KNOWN.get(name, '')}, on the best placement: {sure}")
            for name in TRIALS
            if name in seen
        ),
    ]
