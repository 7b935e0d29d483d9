"""The rates that a contention model gives all active transfers at once, in plain Python, whatever its form.

The event loop computes the same for the transfers that a change can reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ddlsched.network.contention import ContentionModel, Flow, SharedLink, count_per_link
from ddlsched.network.topology import Link
from ddlsched.ranges import check_arguments

LEVELS = 8
"""How many strict levels there are, as many as Ethernet has priorities."""

MOST_PARTS = 1000
"""Into how many parts a model may divide a message."""

WEIGHT_UNIT = 2.0**-20
"""Weights count in whole multiples of this, so that their sums are exact."""

NEGLIGIBLE = 1e-9
"""Rounding leaves as much: less than this part of a link's bandwidth is nothing to lower levels, and shares that differ
by less than this part of them are tied."""

_FORMS: tuple[Literal["rates", "link_rate", "weight"], ...] = ("rates", "link_rate", "weight")


def contention_form(model: ContentionModel) -> Literal["rates", "link_rate", "weight"] | None:
    """Return which of the three forms a model has: that of the class nearest to its own which has one, or None."""
    for kind in type(model).__mro__:
        if not getattr(kind, "_is_protocol", False):
            for form in _FORMS:
                if callable(vars(kind).get(form)):
                    return form
    return None


def message_parts(model: ContentionModel) -> int:
    """Return into how many equal parts a model divides a message, to be asked anew at the end of each; 1: it is not.

    Raises
    ------
    InputError
        It says what is no such number.
    """
    parts = getattr(model, "message_parts", 1)
    check_arguments(f"contention {type(model).__name__}", message_parts=(parts, 1, MOST_PARTS))
    return int(parts)


def shared_links(flows: Sequence[Flow], links: Sequence[Link]) -> dict[int, SharedLink]:
    """Return the links that some transfers cross, by number, as ``link_rate`` sees them."""
    return {
        number: SharedLink(number, count, links[number].relative_bandwidth, links[number].bandwidth_bytes_per_s)
        for number, count in count_per_link(flows).items()
    }


def counted_weight(weight: Any) -> Any:
    """Return one weight or several as they count: the nearest multiple of 2**-20, at least one, at most 2**20."""
    most = np.minimum(np.asarray(weight, np.float64), 2.0**20)
    return np.maximum(np.rint(most / WEIGHT_UNIT), 1.0) * WEIGHT_UNIT


def rates_of(model: Any, active: Sequence[Any], waiting: Sequence[Any], links: Sequence[Link]) -> list[float]:
    """Return the rate of each active transfer, bytes per second."""
    form = contention_form(model)
    if form == "rates":
        return list(model.rates(active, waiting, links))
    if form == "link_rate":
        shared = shared_links(active, links)
        return [min(model.link_rate(flow, shared[link]) / part for link, part in crossings(flow)) for flow in active]
    return _shares(model, active, links)


def crossings(flow: Any) -> Iterator[tuple[int, float]]:
    """Return each link that a transfer crosses, with the part of its bytes that it moves over it: all, if untold."""
    return zip(flow.links, getattr(flow, "shares", None) or (1.0,) * len(flow.links), strict=True)


def slowest_link_bytes_per_s(flow: Any, bytes_per_s: Mapping[int, float]) -> float:
    """Return how fast a transfer goes if each of its links carries so much, all of it for this transfer."""
    parts: dict[int, float] = {}
    for link, part in crossings(flow):
        parts[link] = parts.get(link, 0.0) + part
    return min(bytes_per_s[link] / part for link, part in parts.items())


def _shares(model: Any, active: Sequence[Any], links: Sequence[Link]) -> list[float]:
    """Fill the links level by level."""
    alone_bytes_per_s = 1.0 / model.alone_per_byte_s
    free = {link: alone_bytes_per_s * links[link].relative_bandwidth for link in count_per_link(active)}
    result = [0.0] * len(active)
    levels = [model.level(flow) for flow in active]
    weights = counted_weight([model.weight(flow) for flow in active]).tolist()
    units = [
        [(link, weight if part == 1.0 else _whole_units(weight * part)) for link, part in crossings(flow)]
        for flow, weight in zip(active, weights, strict=True)
    ]
    for level in sorted(set(levels)):
        if level > 0:
            free = {link: _left(free[link], alone_bytes_per_s * links[link].relative_bandwidth) for link in free}
        _fill([i for i, own in enumerate(levels) if own == level], active, weights, units, free, result)
    return result


def _whole_units(weight: float) -> float:
    """Return a weight in whole units, rounded up."""
    return math.ceil(weight / WEIGHT_UNIT) * WEIGHT_UNIT


def weighted_max_min(active: Sequence[Flow], weights: Sequence[float], free: Mapping[int, float]) -> list[float]:
    """Return the rate of each transfer, bytes per second, by its weight and what is free on each link.

    The link of the least share a unit of weight is filled first, ties by number. For models that have ``rates``.
    """
    result = [0.0] * len(active)
    units = [[(link, w * part) for link, part in crossings(flow)] for flow, w in zip(active, weights, strict=True)]
    _fill(list(range(len(active))), active, weights, units, dict(free), result)
    return result


def _left(free: float, bandwidth: float) -> float:
    return 0.0 if free < NEGLIGIBLE * bandwidth else free


def _fill(
    members: list[int],
    active: Sequence[Flow],
    weights: Sequence[float],
    units: Sequence[Sequence[tuple[int, float]]],
    free: dict[int, float],
    result: list[float],
) -> None:
    """Fill the links for some transfers; ``units`` are the weights with which each counts at its crossings.

    A link that has the same share as another that takes from it, but for rounding, keeps that share.
    """
    left = set(members)
    taken_at: dict[int, float] = {}
    tied: dict[int, float] = {}
    while left:
        sums: dict[int, float] = {}
        for i in sorted(left):
            for link, own in units[i]:
                sums[link] = sums.get(link, 0.0) + own
        share, tightest = min((tied.get(link, free[link] / own), link) for link, own in sums.items())
        for i in [i for i in members if i in left and tightest in active[i].links]:
            result[i] = weights[i] * share
            left.remove(i)
            for link, part in crossings(active[i]):
                if taken_at.get(link) != share:
                    tied.pop(link, None)
                    taken_at[link] = share
                    if free[link] / sums[link] <= share * (1.0 + NEGLIGIBLE):
                        tied[link] = share
                free[link] = max(free[link] - result[i] * part, 0.0)
