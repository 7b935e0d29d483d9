"""Where a job went and what it sent, for a reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["itinerary_text"]

_MOST = 6


def itinerary_text(stays: pd.DataFrame, transfers: pd.DataFrame) -> str:
    """Return lines on stays if there are several, on the paths of the last, and on kinds of transfers if several."""
    lines = [*_stays(stays), *_paths(stays), *_transfers(transfers)]
    return "".join(f"{line}\n" for line in lines)


def _stays(stays: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each of the last stays: when, where, what came along and why it ended."""
    if len(stays) < 2:
        return
    yield ""
    yield f"On GPUs {len(stays)} times" + (f", the last {_MOST}:" if len(stays) > _MOST else ":")
    for stay in stays.tail(_MOST).to_dict("records"):
        until = "" if stay["to_s"] != stay["to_s"] else f" to {stay['to_s']:.3f}"
        state = f", {stay['state_bytes'] / 1e9:.3f} GB of state over the network" if stay["state_bytes"] else ""
        ending = f", {stay['ended_by']}" if stay["ended_by"] else ""
        yield f"  {stay['from_s']:.3f}{until} s on GPUs {_some(list(map(str, stay['gpus'])))}{state}{ending}"


def _paths(stays: pd.DataFrame) -> Iterator[str]:
    """Yield the links between switches that flows cross; of a job that chooses anew, all that they crossed."""
    if len(stays) and (names := stays.iloc[-1]["paths"]):
        yield ""
        yield f"Paths between switches: {_some(names)}"


def _transfers(transfers: pd.DataFrame) -> Iterator[str]:
    """Yield for how long each collective and the state were on the network; together that may be longer than both."""
    if len(transfers) < 2:
        return
    yield ""
    yield "On the network (collectives may overlap):"
    longest = transfers.sort_values("seconds", ascending=False, kind="stable")
    for row in longest.head(_MOST).to_dict("records"):
        tuples = f", {row['tuples']} tuples" if row["tuples"] > 1 else ""
        what = row["task"] if row["kind"] == row["task"] else f"{row['task']} ({row['kind']}{tuples})"
        yield f"  {row['seconds']:>12.3f} s  {what}"
    if len(transfers) > _MOST:
        yield f"  and {len(transfers) - _MOST} shorter ones"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
