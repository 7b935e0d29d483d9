"""Crux's compression: many priorities into few classes, so that as much conflict as possible stays ordered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["compressed", "cut_of"]


def compressed(weights: np.ndarray, levels: int, orders: int, rng: np.random.Generator) -> list[int]:
    """Return the class of each job, 0 for the one served first.

    Of ``orders`` random topological orders, each is cut into ``levels`` runs such that the weight between different
    runs is the most: f(i, k) = max over j < i of f(j, k - 1) + C(j, i), where C(j, i) is the weight from the first j to
    those after them up to i. The best of all orders is taken.

    Parameters
    ----------
    weights
        Shape (jobs, jobs): of the edge from a row's job to a column's, which must go after it; 0 where there is none.
        Without circles.
    levels
        How many classes there are.
    orders
        How many orders are tried; m = 10 in the paper.
    """
    count = len(weights)
    if not count:
        return []
    best, best_cut = [0] * count, -1.0
    for _ in range(orders):
        order = _random_order(weights, rng)
        found, cut = _cut(weights[np.ix_(order, order)], min(levels, count))
        if cut > best_cut:
            best_cut = cut
            best = [level for _, level in sorted(zip(order, found, strict=True))]
    return best


def cut_of(weights: np.ndarray, levels: Sequence[int]) -> float:
    """Return the weight of the edges whose ends are in different classes."""
    of = np.asarray(levels)
    return float(weights[of[:, None] != of[None, :]].sum())


def _random_order(weights: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Return a topological order, breadth first, with those that come free at once in a random order."""
    waits_for = (weights > 0).sum(axis=0)
    order: list[int] = []
    ready = np.flatnonzero(waits_for == 0)
    while len(ready):
        layer = rng.permutation(ready).tolist()
        order += layer
        after = (weights[layer] > 0).sum(axis=0)
        waits_for = waits_for - after
        ready = np.flatnonzero((after > 0) & (waits_for == 0))
    return order


def _cut(weights: np.ndarray, levels: int) -> tuple[list[int], float]:
    """Return the class of each place of an order, and the weight that is cut."""
    count = len(weights)
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = weights.cumsum(axis=0).cumsum(axis=1)
    # Row j, column i: C(j, i), the weight from places before j to places from j up to i.
    between = sums - np.diag(sums)[:, None]
    value = np.full(count + 1, -np.inf)
    value[0] = 0.0
    chosen = []
    for _ in range(levels):
        candidates = value[:, None] + np.where(np.tri(count + 1, k=0, dtype=bool).T, between, -np.inf)
        chosen.append(candidates.argmax(axis=0))
        value = candidates.max(axis=0)
    return _backtrack(chosen, count), float(value[count])


def _backtrack(chosen: list[np.ndarray], count: int) -> list[int]:
    found, end = [0] * count, count
    for level in range(len(chosen) - 1, -1, -1):
        begin = int(chosen[level][end])
        found[begin:end] = [level] * (end - begin)
        end = begin
    return found
