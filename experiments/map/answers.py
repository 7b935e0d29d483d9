"""What each door earns at each point, with its interval, and what that adds up to."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pandas as pd
from doors import DOORS, PLACEMENTS, SCATTERED, TRIALS
from points import Point

from ddlsched.results.statistics import Interval, by_seed, paired_change

WORTH = 0.05
"""What a door must take off the average JCT to count."""
NOTHING = "nothing"


def best_placement(placements: pd.DataFrame) -> str:
    """Return the placement of the lowest average JCT, as a geometric mean over seeds, under FIFO.

    ``placements`` has a row a run: policy, seed, average_jct_s.
    """
    jct = by_seed(placements, "average_jct_s")
    changes = {name: paired_change(jct[name], jct[SCATTERED]).mean for name in PLACEMENTS}
    return min(changes, key=lambda name: changes[name])


def rows_of(point: Point, placement: str, runs: pd.DataFrame) -> list[dict[str, object]]:
    """Return a row a policy of a point: its axes, and the change of the average JCT against what it is held against.

    ``change`` is a geometric mean over seeds less 1, ``low`` and ``high`` its 95 % interval, paired by seed; NaN, with
    the seeds that ended, if a run of either failed. ``p95_change`` is that of the 95th percentile; ``on`` is the
    placement, ``jct_s`` the policy's own average.
    """
    jct, tail = (_by_seed(runs, metric) for metric in ("average_jct_s", "p95_jct_s"))
    held = [(name, "placement", SCATTERED, SCATTERED, "durations" if name == "blocks" else "nothing", True)
            for name in PLACEMENTS]  # fmt: skip
    for trial in TRIALS:
        on = SCATTERED if trial.scattered else placement
        held.append((trial.name, trial.door, trial.against or on, on, trial.knows, trial.priced))
    rows = []
    for name, door, against, on, knows, priced in held:
        change = _change(jct, name, against)
        row = {**point.axes, "policy": name, "door": door, "against": against, "on": on, "knows": knows}
        row |= {"priced": priced, "seeds": change.seeds, "change": change.mean, "low": change.low, "high": change.high}
        row |= {
            "p95_change": _change(tail, name, against).mean,
            "jct_s": float(jct.reindex(columns=[name])[name].mean()),
        }
        rows.append(row | {"best_placement": placement})
    return rows


def _by_seed(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row a seed and a column a policy; NaN where a run failed."""
    return runs.pivot_table(index="seed", columns="policy", values=metric).reindex(columns=runs["policy"].unique())


def _change(table: pd.DataFrame, name: str, against: str) -> Interval:
    """Return the paired change; of a policy of which a run failed, NaN: the seeds left are no fair sample."""
    pair = table.reindex(columns=[name, against])
    if pair.isna().any(axis=None):
        return Interval(nan, nan, nan, int(pair.notna().all(axis=1).sum()))
    return paired_change(pair[name], pair[against])


def counting(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by which doors earn: those with a price, on the best placement, and the placements themselves."""
    of_a_door = rows["door"].isin(DOORS) & rows["priced"].astype(bool)
    placed = (rows["door"] == "placement") | (rows["on"] == rows["best_placement"])
    return rows[placed & of_a_door]


def best_changes(rows: pd.DataFrame) -> dict[str, float]:
    """Return of each door of a point the least change by any of its policies that count."""
    least: dict[str, float] = counting(rows).groupby("door")["change"].min().to_dict()
    return least


def earning(rows: pd.DataFrame) -> frozenset[str]:
    """Return the doors of a point of which some policy takes more than ``WORTH`` off, whole interval."""
    chosen = counting(rows)
    return frozenset(chosen.loc[chosen["high"] < -WORTH, "door"])


def undecided(rows: pd.DataFrame) -> frozenset[str]:
    """Return the doors that do not earn for certain, but by the mean of some policy."""
    chosen = counting(rows)
    return frozenset(chosen.loc[chosen["change"] < -WORTH, "door"]) - earning(rows)


def answers(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a point: its axes, and the doors that earn and that may, as texts."""
    axes = list(Point.__dataclass_fields__)
    rows = []
    for place, of_point in table.fillna({"trace": ""}).groupby(axes, sort=False):
        row = dict(zip(axes, place, strict=True))
        row |= {"best_placement": of_point["best_placement"].iloc[0], "seeds": int(of_point["seeds"].max())}
        row |= {"earns": _text(earning(of_point)), "may_earn": _text(undecided(of_point))}
        rows.append(row)
    return pd.DataFrame(rows)


def _text(doors: frozenset[str]) -> str:
    return ", ".join(door for door in DOORS if door in doors) or NOTHING


def shares(points: pd.DataFrame, by: Sequence[str] = ("jobs_per_gpu", "interference", "sizes")) -> pd.DataFrame:
    """Return of each kind of cluster how many points there are, and at how many each door earns."""
    columns = {door: points["earns"].str.split(", ").map(lambda doors, door=door: door in doors) for door in DOORS}
    columns["none but placement"] = ~points["earns"].str.contains("|".join(DOORS[1:]))
    counted = points[list(by)].assign(points=1, **columns)
    return counted.groupby(list(by), sort=False).sum().reset_index()
