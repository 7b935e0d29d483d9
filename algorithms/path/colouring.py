"""Edge colouring of a bipartite multigraph with as many colours as its largest degree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

__all__ = ["edge_colours"]

Node = TypeVar("Node", bound=Hashable)


def edge_colours(edges: Sequence[tuple[Node, Node]], kept: Sequence[int] = (), least: int = 0) -> list[int]:
    """Return a colour of each edge, from 0, such that no two edges of one colour share an end.

    There are as many colours as edges at the busiest node, which is the fewest (König). An edge between nodes that lack
    different colours turns the path on which these two alternate.

    Parameters
    ----------
    edges
        Source and target; a source and a target of the same name are different nodes.
    kept
        The colours of the first edges, from a colouring of them; they change only where they must.
    least
        So many colours may be used if fewer would do.
    """
    degree: dict[tuple[bool, Node], int] = defaultdict(int)
    for source, target in edges:
        degree[False, source] += 1
        degree[True, target] += 1
    colours = range(max(least, *degree.values()) if degree else 0)
    at: dict[tuple[bool, Node], dict[int, int]] = defaultdict(dict)
    chosen = [-1] * len(edges)

    def paint(edge: int, colour: int) -> None:
        chosen[edge] = colour
        at[False, edges[edge][0]][colour] = at[True, edges[edge][1]][colour] = edge

    stays = [edge for edge, colour in enumerate(kept) if colour in colours]
    for edge in stays:
        paint(edge, kept[edge])
    for edge, (source, target) in enumerate(edges):
        if chosen[edge] >= 0:
            continue
        free = next(c for c in colours if c not in at[False, source])
        both = (c for c in colours if c not in at[False, source] and c not in at[True, target])
        wanted = next(both, next(c for c in colours if c not in at[True, target]))
        if wanted in at[False, source]:
            _turn(edges, at, chosen, (True, target), free, wanted)
            wanted = free
        paint(edge, wanted)
    return chosen


def _turn(
    edges: Sequence[tuple[Node, Node]],
    at: dict[tuple[bool, Node], dict[int, int]],
    chosen: list[int],
    node: tuple[bool, Node],
    colour: int,
    other: int,
) -> None:
    """Swap two colours along the path from a node that begins with the first of them, so that it lacks that."""
    path, wanted = [], colour
    while wanted in at[node]:
        edge = at[node][wanted]
        path.append(edge)
        node = (not node[0], edges[edge][0 if node[0] else 1])
        wanted = other if wanted == colour else colour
    for edge in path:
        for end in ((False, edges[edge][0]), (True, edges[edge][1])):
            del at[end][chosen[edge]]
    for edge in path:
        chosen[edge] = other if chosen[edge] == colour else colour
        for end in ((False, edges[edge][0]), (True, edges[edge][1])):
            at[end][chosen[edge]] = edge
