"""Which points come next: where the answer changes between neighbours, what lies halfway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product

from points import BURST, LEVELS, SIZES, Point

START = {"load": ("0.8", BURST, "0.5"), "gbps": (400.0, 25.0, 1.0), "oversubscription": (4.0,)}
PUBLISHED = {"load": (BURST,), "gbps": (10.0,), "oversubscription": (1.0,)}
"""The 64-GPU experiment of the Ada-SRSF paper, but for its star and its model of contention."""
NOT_OVERSUBSCRIBED = {"load": ("0.8",), "gbps": (25.0,), "oversubscription": (1.0,)}
KINDS = ((1, 0.0, SIZES[0]), (1, 0.0, SIZES[1]), (4, 0.0, SIZES[0]), (4, 0.6, SIZES[0]))
"""Jobs a GPU, interference and sizes with which the map starts; the fastest network first, whose runs are short."""
UNCROWDED = {"load": ("0.5",), "gbps": (400.0,), "oversubscription": (1.0,)}
"""Where the network has least to do."""
FURTHER = {"load": ("0.95", "0.5", "0.8"), "gbps": (100.0, 10.0), "oversubscription": (4.0,)}
FURTHER_KINDS = ((1, 0.0, SIZES[0]), (2, 0.0, SIZES[0]), (2, 0.3, SIZES[0]), (4, 0.3, SIZES[0]))
"""Levels of the axes between those of ``START``, which the choice halfway reaches only where the answer changes."""
QUICK = {"load": ("0.8",), "gbps": (10.0, 100.0), "oversubscription": (4.0,)}


def grid(axes: Mapping[str, tuple], kinds: tuple[tuple[int, float, str], ...] = KINDS) -> list[Point]:
    """Return the points of all combinations."""
    return [
        Point(
            gbps=gbps,
            load=load,
            oversubscription=over,
            jobs_per_gpu=per_gpu,
            interference=interference,
            sizes=sizes,
        )
        for (load, gbps, over), (per_gpu, interference, sizes) in product(product(*axes.values()), kinds)
    ]


def halfway(answers: Mapping[Point, frozenset[str]]) -> list[Point]:
    """Return the points halfway between two that differ on one axis and in their answer, those of most change first.

    Pairs with a known point between them, and those that are neighbours already, have none.
    """
    wanted: dict[Point, int] = {}
    for one, other in combinations(sorted(point for point in answers if not point.trace), 2):
        changed = len(answers[one] ^ answers[other])
        between = _between(one, other, answers)
        if changed and between is not None:
            wanted[between] = max(wanted.get(between, 0), changed)
    return sorted(wanted, key=lambda point: (-wanted[point], point))


def _between(one: Point, other: Point, known: Mapping[Point, object]) -> Point | None:
    axes = [axis for axis in LEVELS if getattr(one, axis) != getattr(other, axis)]
    if len(axes) != 1:
        return None
    (axis,) = axes
    first, last = sorted(LEVELS[axis].index(getattr(point, axis)) for point in (one, other))
    inner = [replace(one, **{axis: level}) for level in LEVELS[axis][first + 1 : last]]
    if not inner or any(point in known for point in inner):
        return None
    return inner[len(inner) // 2]
