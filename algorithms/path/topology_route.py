"""The topology's own route."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.views import FlowView, LinkLoads

__all__ = ["TopologyRoute"]


@dataclass(frozen=True, kw_only=True)
class TopologyRoute:
    """Every flow takes the route that the topology has for its two servers: what a run without a path policy does."""

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the topology's route."""
        return flow.route
