"""Which links the flows of a placed job take: the topology's own route, or what a path policy chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ddlsched.engine.checked_policies import CheckedPolicies
from ddlsched.engine.loop.from_python import wake
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InputError
from ddlsched.network.collectives import Card
from ddlsched.network.topology import Node, Path, Ring, flows_of_ring, ring_along
from ddlsched.network.traffic import Way
from ddlsched.policies.path_views import FlowView, LinkLoads

__all__ = ["Routes"]


class Routes:
    """Gives the flows of a job their paths when it is placed."""

    def __init__(self, state: RunState, asker: CheckedPolicies) -> None:
        self._state, self._asker = state, asker

    @property
    def _policy(self) -> Any:
        return self._asker.path

    def ring(self, number: int, servers: Sequence[int]) -> Ring:
        """Return the ring of a job over its servers, in ascending order; on one server it crosses nothing."""
        network = self._state.network
        if self._policy is None or len(servers) < 2:
            return network.ring(servers)
        ordered, way = sorted(servers), self.of_job(number)
        paths = [way((source, 0), (target, 0)) for source, target in flows_of_ring(ordered)]
        return ring_along(ordered, paths, len(ordered))

    def of_job(self, number: int) -> Way:
        """Return what says which path a job's flow from card to card takes, the same for all its collectives.

        The path policy is asked when a flow occurs first; one that has its path counts for the next.
        """
        state, network, links_chosen = self._state, self._state.network, Counter[int]()
        if self._policy is None:
            return network.own_way
        loads, paths = self._loads(links_chosen), dict[tuple[Card, Card], Path]()

        def way(source: Card, target: Card) -> Path:
            if (source, target) not in paths:
                offered, route = self._offered(number, network.node(source), network.node(target))
                links = [path.links for path in offered]
                cards = () if network.inside is None else (source[1], target[1])
                view = FlowView(len(paths), state.views[number], source[0], target[0], links, route, cards)
                paths[source, target] = offered[self._asker.choose_path(view, loads)]
                links_chosen.update(paths[source, target].links)
            return paths[source, target]

        return way

    def _offered(self, number: int, source: Node, target: Node) -> tuple[Sequence[Path], int]:
        """Return the paths that the topology offers a flow, and which of them is its own route."""
        network, state = self._state.network, self._state
        try:
            return network.paths(source, target), network.place_of_route(source, target)
        except InputError as error:
            raise InputError(f"{error} (job {state.views[number].job_id!r} at {state.now_s} s)") from error

    def _loads(self, chosen: Counter[int]) -> LinkLoads:
        state = self._state
        jobs = state.links.num_jobs.item
        return LinkLoads(
            state.network.links,
            lambda link: jobs(link) + chosen[link],
            lambda link: self._flows_on(link) + chosen[link],
            state.now_ns,
        )

    def _flows_on(self, link: int) -> int:
        """Return how many crossings of running and waiting transfers a link has."""
        state = self._state
        for number in state.arrays.dormant[: state.now.num_dormant.item(0)].tolist():
            wake(state.arrays, number)
        arrays = state.arrays
        count: int = state.links.count.item(link)
        entry = state.links.waiting_head.item(link)
        while entry >= 0:
            count, entry = count + 1, arrays.entries.next.item(entry)
        return count
