"""Kueue's balanced placement: in as few domains as can be, the emptiest of which has as many slices as can be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from algorithms.placement.kueue_domains import Domain, Rooms, ordered

__all__ = ["balanced", "fewest", "spread"]


def balanced(rooms: Rooms, count: int, level: int) -> tuple[int, list[Domain]] | None:
    """Return a level, and its domains each with what it gets; None if a balanced placement is not possible."""
    size, slice_level = rooms.size, rooms.slice_level
    needed = count // size
    least, domains = _best(rooms, needed, level)
    if not least:
        return None
    if level < slice_level:
        by_entropy = sorted(domains, key=lambda domain: (-domain.slices, -_entropy(domain.children), domain.path))
        chosen = fewest(by_entropy, needed, size)
        if chosen is None:
            return None
        domains, level = [child for domain in chosen for child in domain.children], level + 1
    chosen = spread(domains, needed, size, least)
    return None if chosen is None else (level, chosen)


def spread(domains: Sequence[Domain], needed: int, size: int, least: int) -> list[Domain] | None:
    """Return as few domains as can be, each with ``least`` slices and the first with those left; None if none can."""
    chosen = fewest(sorted(domains, key=lambda domain: domain.path), needed, size)
    if chosen is None or needed < len(chosen) * least:
        return None
    chosen, extra, shares = ordered(chosen, ascending=False), needed - len(chosen) * least, []
    for domain in chosen:
        more = min(domain.slices - least, extra)
        shares.append(least + more)
        extra -= more
    if extra > 0:
        return None
    for domain, share in zip(chosen, shares, strict=True):
        domain.pods, domain.slices = share * size, share
    return chosen


def _best(rooms: Rooms, needed: int, level: int) -> tuple[int, list[Domain]]:
    """Return the most slices that the emptiest domain can have, and the siblings, less those with fewer."""
    most, fewest, best = 0, 0, list[Domain]()
    size, slice_level = rooms.size, rooms.slice_level
    for siblings in [above.children for above in rooms.domains(level - 1)] if level else [rooms.domains(0)]:
        domains = [domain.copy() for domain in siblings]
        lower = [child for domain in domains for child in domain.children] if level < slice_level else domains
        taken = _greedy(lower, needed)
        threshold = min(needed // len(taken), taken[-1].slices) if taken else 0
        if not taken or threshold < most:
            continue
        _prune(domains, threshold, size, slice_level)
        count = len(_greedy(domains, needed))
        if count and (threshold > most or (threshold == most and count < fewest)):
            most, fewest, best = threshold, count, domains
    return most, best


def _prune(domains: Sequence[Domain], threshold: int, size: int, slice_level: int) -> None:
    for domain in domains:
        for child in domain.children:
            if child.slices < threshold:
                child.clear()
    for domain in domains:
        domain.fill(size, slice_level)
        if domain.slices < threshold:
            domain.clear()


def _greedy(domains: Sequence[Domain], needed: int) -> list[Domain]:
    """Return those with the most room that hold so many slices, or none if all do not."""
    taken = []
    for domain in ordered(domains, ascending=False):
        if needed <= 0 or not domain.slices:
            break
        taken.append(domain)
        needed -= domain.slices
    return taken if needed <= 0 else []


def fewest(domains: Sequence[Domain], needed: int, size: int) -> list[Domain] | None:
    """Return as few domains as can be that hold so many slices, of these sets the first with the least room."""
    most = len(_greedy(domains, needed))
    if not most:
        return None
    found: list[dict[int, list[Domain]]] = [{} for _ in range(most + 1)]
    found[0][needed * size] = []
    for domain in domains:
        for count in range(most, 0, -1):
            for left in sorted(left for left in found[count - 1] if left > 0):
                if domain.slices:
                    found[count].setdefault(left - domain.pods, [*found[count - 1][left], domain])
    fits = [left for left in found[most] if left <= 0]
    return found[most][max(fits)] if fits else None


def _entropy(domains: Sequence[Domain]) -> float:
    total = sum(domain.pods for domain in domains)
    parts = [domain.pods / total for domain in domains if domain.pods] if total else []
    return -sum(part * math.log2(part) for part in parts)
