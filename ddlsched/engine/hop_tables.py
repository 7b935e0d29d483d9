"""What the loop needs to choose paths itself: the hops of rings, and the paths that each may take, as records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlsched.engine.records.layout import make_records
from ddlsched.engine.routes import Routes
from ddlsched.engine.run_state import RunState
from ddlsched.network.topology import flows_of_ring

__all__ = ["HopTables"]


class HopTables:
    """Writes hops and paths into a run's arrays; of two servers the paths are written once."""

    def __init__(self, state: RunState, routes: Routes) -> None:
        self._state, self._routes = state, routes
        self._num_hops = self._num_paths = self._num_links = 0
        self._known: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def write(self, number: int, servers: Sequence[int]) -> int:
        """Have the loop choose the paths of a job's transfers, rings over its servers; return the most links of one."""
        state = self._state
        hops = flows_of_ring(sorted(servers)) if len(servers) > 1 else []
        offers = [self._offer(number, source, target) for source, target in hops]
        first, most_links = self._num_hops, len(hops) + sum(longest for *_, longest in offers)
        self._num_hops += len(hops)
        self._make_room("hops", self._num_hops)
        for place, ((source, target), (first_path, num_paths, route, _)) in enumerate(zip(hops, offers, strict=True)):
            state.arrays.hops[first + place] = (number, place, source, target, first_path, num_paths, route, -1)
        job = state.jobs
        own = slice(job.first_transfer.item(number), job.first_transfer.item(number) + job.num_transfers.item(number))
        state.transfers.first_hop[own], state.transfers.num_hops[own] = first, len(hops)
        state.transfers.entry_room[own] = most_links
        return most_links

    def _offer(self, number: int, source: int, target: int) -> tuple[int, int, int, int]:
        """Return the first path from a server to another, how many there are, its own route, and the most links."""
        if (source, target) not in self._known:
            paths, route = self._routes.offered(number, source, target)
            first = self._num_paths
            self._num_paths += len(paths)
            self._make_room("paths", self._num_paths)
            for place, path in enumerate(paths, first):
                begin = self._num_links
                self._num_links += len(path.links)
                self._make_room("path_links", self._num_links)
                self._state.arrays.path_links[begin : self._num_links] = path.links
                self._state.arrays.paths[place] = (begin, len(path.links), path.latency_s)
            longest = max(len(path.links) for path in paths)
            self._known[source, target] = first, len(paths), route, longest
        return self._known[source, target]

    def _make_room(self, name: str, needed: int) -> None:
        """Double an array that would be too short."""
        array = getattr(self._state.arrays, name)
        if needed > len(array):
            length = max(needed, 2 * len(array))
            longer = np.zeros(length, np.int64) if name == "path_links" else make_records(name[:-1], length)
            longer[: len(array)] = array
            self._state.arrays = self._state.arrays._replace(**{name: longer})
