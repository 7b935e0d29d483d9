"""MonkeyTree's routing: an edge colouring of all flows between racks, a spine a colour."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from algorithms.path.colouring import edge_colours
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import FlowView, JobView, LinkLoads

__all__ = ["PerfectRouting"]


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
        self._colours = dict(zip(self._edges, edge_colours(list(self._edges.values()), kept, spines), strict=True))
