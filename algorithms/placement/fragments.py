"""MonkeyTree's programme: where the blocks of fragmented jobs go, so that no rack has too many rings that leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from algorithms.solving import Solver

__all__ = ["Segment", "fragmentation", "planned"]


@dataclass(frozen=True)
class Segment:
    """A part of a job whose rings are its own: all of it, or a pipeline stage.

    Parameters
    ----------
    rings
        How many independent rings it has.
    blocks
        How many of its blocks are in each rack.
    """

    rings: int
    blocks: Mapping[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Blocks in all."""
        return sum(self.blocks.values())

    @property
    def is_fragmented(self) -> bool:
        """Whether it is in more than one rack."""
        return len(self.blocks) > 1


def fragmentation(segments: Sequence[Segment], racks: int) -> list[int]:
    """Return the rings of fragmented segments on each rack."""
    on = [0] * racks
    for segment in segments:
        for rack in segment.blocks if segment.is_fragmented else ():
            on[rack] += segment.rings
    return on


def planned(
    segments: Sequence[Segment], room: Sequence[int], most: int, solver: Solver, now_s: float = 0.0
) -> list[dict[int, int]] | None:
    """Return the blocks of each fragmented segment on each rack, with the fewest moves; None if none was found.

    Whole w: blocks; binary x: presence on a rack; binary y: the rack is its only one; d at least the change of w. The
    sum of d is minimised; all blocks are placed; racks hold their room; the rings of segments with another rack, too,
    are at most ``most`` on each rack.

    Parameters
    ----------
    segments
        The fragmented ones.
    room
        Blocks of each rack that no other segment holds.
    most
        λ, as many as a rack has cables to spines.
    """
    from ortools.math_opt.python import mathopt

    model, racks = mathopt.Model(name="monkeytree"), range(len(room))
    total, moved = mathopt.fast_sum, []
    w = [[model.add_integer_variable(lb=0, ub=min(s.size, room[t])) for t in racks] for s in segments]
    x = [[model.add_binary_variable() for _ in racks] for _ in segments]
    y = [[model.add_binary_variable() for _ in racks] for _ in segments]
    for i, segment in enumerate(segments):
        model.add_linear_constraint(total(w[i]) == segment.size)
        for t in racks:
            model.add_linear_constraint(w[i][t] <= min(segment.size, room[t]) * x[i][t])
            model.add_linear_constraint(x[i][t] <= w[i][t])
            model.add_linear_constraint(y[i][t] <= x[i][t])
            others = total(x[i][u] for u in racks if u != t)
            model.add_linear_constraint(others + (len(room) - 1) * y[i][t] <= len(room) - 1)
            moved.append(_change(model, w[i][t], segment.blocks.get(t, 0), segment.size))
    for t in racks:
        model.add_linear_constraint(total(w[i][t] for i in range(len(segments))) <= room[t])
        cut = total(s.rings * (x[i][t] - y[i][t]) for i, s in enumerate(segments))
        model.add_linear_constraint(cut <= most)
    model.minimize(total(moved))
    result = solver.solve(model, now_s, f"{len(segments)} fragmented segments", is_whole=True)
    if result is None:
        return None
    values = result.variable_values()
    return [{t: count for t in racks if (count := round(values[row[t]]))} for row in w]


def _change(model: Any, blocks: Any, before: int, most: int) -> Any:
    change = model.add_integer_variable(lb=0, ub=most)
    model.add_linear_constraint(change >= blocks - before)
    model.add_linear_constraint(change >= before - blocks)
    return change
