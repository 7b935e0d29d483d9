"""Equal-cost multipath: a hash of the flow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import FlowView, LinkLoads
from ddlsched.ranges import check_fields, ranged

__all__ = ["Ecmp"]


@dataclass(frozen=True, kw_only=True)
class Ecmp:
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

    def __post_init__(self) -> None:
        check_fields(self, "ecmp")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Ecmp:
        """Return the policy with its seed."""
        return self if self.seed is not None else replace(self, seed=int(rng.integers(2**32)))

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the path of the flow's hash."""
        return flow.hash(self.seed or 0) % len(flow.paths)
