"""The topology's route, or paths by a hash: any (ECMP), or one of the few least loaded, anew each transfer (SGLB)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import FlowView, LinkLoads
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class TopologyRoute:
    """Every flow takes the route that the topology has for its two servers: what a run without a path policy does."""

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the topology's route."""
        return flow.route


@dataclass(frozen=True, kw_only=True)
class Ecmp(Checked, who="ecmp"):
    """A flow takes the path that a hash of its job and its two servers names, whatever else is there.

    Parameters
    ----------
    seed
        Of the hash, from 0 to 2**32 - 1; by default drawn from the run's seed.

    References
    ----------
    Hopps, "Analysis of an Equal-Cost Multi-Path Algorithm", RFC 2992.
    """

    seed: int | None = ranged(None, 0, 2**32 - 1)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Self:
        """Return the policy with its seed."""
        return self if self.seed is not None else replace(self, seed=int(rng.integers(2**32)))

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the path of the flow's hash."""
        return flow.hash(self.seed or 0) % len(flow.paths)


@dataclass(frozen=True, kw_only=True)
class Sglb(Ecmp, who="sglb"):
    """A flow's hash names one of the ``best`` paths of the lowest score: flows now on its links up and down, added up.

    Its authors map flows anew every 10 ms; here a flow gets its path when its transfer becomes ready, and keeps it for
    that transfer.

    Parameters
    ----------
    best
        Among how many paths the hash chooses; K.
    seed
        Of the hash, from 0 to 2**32 - 1; by default drawn from the run's seed.

    References
    ----------
    Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296, whose baseline it is.
    """

    best: int = ranged(4, 1, 1024)
    chosen: ClassVar[str] = "transfer"

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return one of the best paths; of equal scores the first are the best."""
        num_paths, chosen = len(flow.paths), -1
        for _ in range(flow.hash(self.seed or 0) % min(self.best, num_paths) + 1):
            before, chosen = chosen, -1
            for place, links in enumerate(flow.paths):
                mark = sum(network.flows_on(link) for link in links) * num_paths + place  # ascending as the best are
                if mark > before and (chosen < 0 or mark < chosen):
                    chosen = mark
        return chosen % num_paths
