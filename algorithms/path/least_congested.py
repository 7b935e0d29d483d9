"""The path on whose busiest link the fewest jobs send."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.views import FlowView, LinkLoads


@dataclass(frozen=True, kw_only=True)
class LeastCongested:
    """A flow takes the path whose busiest link has the fewest placed jobs for its bandwidth; ties: the first such.

    Chosen when the job is placed, and kept. Flows of the same job that have their path count.

    References
    ----------
    Cao et al., "Crux", SIGCOMM 2024, which does not say how it measures congestion: this is the measure of the
    re-implementation of Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296, the most flows on any link of a path.
    """

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the least congested path."""
        most = [
            max((network.jobs_on(link) / network.links[link].relative_bandwidth for link in links), default=0.0)
            for links in flow.paths
        ]
        return most.index(min(most))
