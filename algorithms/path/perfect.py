"""MonkeyTree's routing: an edge colouring of all flows between racks, a spine a colour."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import FlowView, JobView, LinkLoads

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
    made = _Colouring([((False, source), (True, target)) for source, target in edges])
    degree = Counter(end for ends in made.ends for end in ends)
    colours = range(max(least, *degree.values()) if degree else 0)
    for edge, colour in enumerate(kept):
        if colour in colours:
            made.paint(edge, colour)
    for edge, (source, target) in enumerate(made.ends):
        if made.chosen[edge] >= 0:
            continue
        free = next(c for c in colours if c not in made.at[source])
        both = (c for c in colours if c not in made.at[source] and c not in made.at[target])
        wanted = next(both, next(c for c in colours if c not in made.at[target]))
        if wanted in made.at[source]:
            made.turn(target, free, wanted)
            wanted = free
        made.paint(edge, wanted)
    return made.chosen


class _Colouring:
    """The colours of edges so far, -1 for none, and at each node the edge of each colour.

    A node is a pair of whether it is a target, and its name.
    """

    def __init__(self, ends: Sequence[tuple[tuple[bool, Hashable], tuple[bool, Hashable]]]) -> None:
        self.ends, self.chosen = ends, [-1] * len(ends)
        self.at: dict[tuple[bool, Hashable], dict[int, int]] = defaultdict(dict)

    def paint(self, edge: int, colour: int) -> None:
        self.chosen[edge] = colour
        for end in self.ends[edge]:
            self.at[end][colour] = edge

    def turn(self, node: tuple[bool, Hashable], colour: int, other: int) -> None:
        """Swap two colours along the path from a node that begins with the first of them, so that it lacks that."""
        path, wanted = list[int](), colour
        while wanted in self.at[node]:
            path.append(self.at[node][wanted])
            node = self.ends[path[-1]][not node[0]]
            wanted = other if wanted == colour else colour
        for edge in path:
            for end in self.ends[edge]:
                del self.at[end][self.chosen[edge]]
        for edge in path:
            self.paint(edge, other if self.chosen[edge] == colour else colour)


@dataclass(frozen=True, kw_only=True)
class PerfectRouting:
    """Flows from rack to rack are edges; those of one colour share no rack at either end, and take the same spine.

    With at most as many flows in and out of each rack as spines, no two flows share a cable. Otherwise colours are
    counted round the spines. For two tiers: the racks at the ends are known by the first and the last link of a flow's
    paths, which are one a spine, in the same order everywhere.

    Deviation: a job's flows are known from its first transfers on. A new one changes the colours of others only where
    it must: one that changes while its transfer runs meets others until that ends.

    References
    ----------
    Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    chosen: ClassVar[str] = "transfer"

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Colours:
        """Return what remembers the flows of a run."""
        return _Colours()


class _Colours:
    chosen: ClassVar[str] = PerfectRouting.chosen
    compiled: ClassVar[bool] = False  # it keeps the flows of the run by name

    def __init__(self) -> None:
        self._edges: dict[Hashable, tuple[int, int]] = {}
        self._colours: dict[Hashable, int] = {}
        self._jobs: dict[int, tuple[JobView, tuple[int, ...]]] = {}
        self._looked_ns = -1
        self.paths_version = 0
        """How often flows that had a colour got others."""

    def __repr__(self) -> str:
        return repr(PerfectRouting())

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the flow's spine."""
        if len(flow.paths) == 1:
            return 0
        _, gpus = self._jobs.get(flow.job.number, (flow.job, flow.job.gpus))
        if network.now_ns != self._looked_ns or gpus != flow.job.gpus:
            self._looked_ns = network.now_ns
            self._forget()
        name = flow.job.number, flow.source, flow.target, flow.cards
        if name not in self._edges:
            self._jobs[flow.job.number] = flow.job, flow.job.gpus
            self._edges[name] = flow.paths[0][0], flow.paths[0][-1]
            self._paint(len(flow.paths))
        return self._colours[name] % len(flow.paths)

    def _forget(self) -> None:
        """Forget the flows of jobs that have ended or are no longer where they were."""
        gone = {n for n, (job, gpus) in self._jobs.items() if job.gpus != gpus or job.iterations_left == 0}
        if gone:
            self._jobs = {number: kept for number, kept in self._jobs.items() if number not in gone}
            self._edges = {name: edge for name, edge in self._edges.items() if name[0] not in gone}  # type: ignore[index]
            self._colours = {name: colour for name, colour in self._colours.items() if name in self._edges}

    def _paint(self, spines: int) -> None:
        """Colour the flow that has just come, and change others only where they must."""
        kept = [self._colours[name] for name in self._edges if name in self._colours]
        before = self._colours
        self._colours = dict(zip(self._edges, edge_colours(list(self._edges.values()), kept, spines), strict=True))
        self.paths_version += any(self._colours[name] != colour for name, colour in before.items())
