"""What is tried at a point, what each part of a scheduler earns there with its interval, and what that adds up to."""

from __future__ import annotations

from typing import Any

import pandas as pd
from points import MIXES, Point

from ddlsched.results.statistics import by_seed, paired_change
from experiments.baseline import PLAIN

WORTH = 0.05
"""What a part of the scheduler must take off the average JCT to count."""
SCATTERED = "first-fit"
PLACEMENTS = {
    "first-fit": "first-fit",
    "LWF-1": "lwf",
    "HiveD": "hived",
    "whole racks": "whole-racks:servers_per_rack={servers_per_leaf}",
}
"""Under FIFO; none knows a length."""
TRIALS: dict[str, tuple[str, dict[str, str]]] = {
    "SRTF": ("order", {"order": "srtf"}),
    "Tiresias": ("stops", {"order": "stopping-tiresias:{tiresias}"}),
    "SGLB": ("paths", {"path": "sglb"}),
    "shortest first, in turn": ("sending", {"communication": "preemptive:by=time"}),
}
"""What else is tried, each on the point's best placement: the part of the scheduler that it differs in, and how."""
PARTS = ("placement", *(part for part, _ in TRIALS.values()))


def placements_of(point: Point) -> dict[str, dict[str, Any]]:
    """Return the options of each placement under FIFO, by its name."""
    return {name: point.options() | PLAIN | {"placement": _placed(point, name)} for name in PLACEMENTS}


def trials_of(point: Point, placement: str) -> dict[str, dict[str, Any]]:
    """Return the options of what else is tried at a point whose best placement is known, by its name."""
    base = point.options() | PLAIN | {"placement": _placed(point, placement)}
    numbers = MIXES[point.mix].tiresias
    return {
        name: base | {door: text.format(tiresias=numbers) for door, text in differs.items()}
        for name, (_, differs) in TRIALS.items()
    }


def _placed(point: Point, name: str) -> str:
    return PLACEMENTS[name].format(servers_per_leaf=MIXES[point.mix].servers_per_leaf)


def best_placement(placements: pd.DataFrame) -> str:
    """Return the placement of the lowest mean of the average JCT; rows are runs: policy, seed, average_jct_s."""
    return str(placements.groupby("policy")["average_jct_s"].mean().idxmin())


def rows_of(point: Point, placement: str, runs: pd.DataFrame) -> list[dict[str, object]]:
    """Return a row a policy of a point: its axes, and the change of the average JCT against what it is held against.

    ``change`` is a geometric mean over seeds less 1, ``low`` and ``high`` its 95 % interval, paired by seed; ``on`` is
    the placement, ``jct_s`` the policy's own average.
    """
    jct = by_seed(runs, "average_jct_s")
    held = [(name, "placement", SCATTERED, name) for name in PLACEMENTS if name != SCATTERED]
    held += [(name, part, placement, placement) for name, (part, _) in TRIALS.items()]
    rows = []
    for name, part, against, on in held:
        change = paired_change(jct[name], jct[against])
        row = {**point.axes, "policy": name, "part": part, "against": against, "on": on, "seeds": change.seeds}
        row |= {"change": change.mean, "low": change.low, "high": change.high, "jct_s": float(jct[name].mean())}
        rows.append(row | {"best_placement": placement})
    return rows


def counting(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each point one row a part: of placement the best one's, none where that is first-fit."""
    return rows[(rows["part"] != "placement") | (rows["policy"] == rows["best_placement"])]


def earning(rows: pd.DataFrame) -> pd.Series:
    """Return whether each row takes more than ``WORTH`` off with its whole interval."""
    return rows["high"] < -WORTH


def worst_placements(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each point where no placement earns, and some is worse than first-fit by its interval, the worst."""
    keys = ["mix", "load", "gbps", "oversubscription"]
    placed = rows[rows["part"] == "placement"]
    best = placed[earning(placed)].set_index(keys).index
    worse = placed[(placed["low"] > 0) & ~placed.set_index(keys).index.isin(best)]
    return worse.loc[worse.groupby(keys, sort=False)["change"].idxmax()]


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each mix and load how many points there are, and at how many each part earns."""
    keys = ["mix", "load"]
    points = rows.groupby([*keys, "gbps", "oversubscription"], sort=False).size().groupby(keys, sort=False).size()
    counted = counting(rows)
    won = counted[earning(counted)].groupby([*keys, "part"], sort=False).size().unstack(fill_value=0)
    table = won.reindex(index=points.index, columns=list(PARTS), fill_value=0)
    return table.assign(points=points).rename_axis(columns=None).reset_index()[[*keys, "points", *PARTS]]
