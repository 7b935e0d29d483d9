"""Which links the flows of a placed job take: the topology's own route, or what a path policy chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.decisions.costs import PlannedTransfer
from ddlsched.engine.loop.from_python import wake
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InputError, label
from ddlsched.io.tables import located
from ddlsched.network.collectives import ROUNDS, Card
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Node, Path, flows_of_ring
from ddlsched.network.traffic import Way, collective_for
from ddlsched.policies.network_views import FlowView, LinkLoads
from ddlsched.workload.job import Workload


def refuse_what_nobody_sends(
    workload: Workload, contention: ContentionModel, routes: Routes, state_moves: bool
) -> None:
    """Raise InputError for collectives that no algorithm has, or that a model which only knows rings cannot rate."""
    only_rings = getattr(contention, "only_rings", False)
    what = f"contention {label(contention)} knows only all-reduces in rings over the servers of jobs"
    if only_rings and routes.chosen:
        raise InputError(f"{what}, on the topology's own routes; expected a run without a path policy")
    if only_rings and state_moves:
        raise InputError(f"{what}, and the state of jobs that stop or move goes otherwise; expected state_mb=0")
    for number, job in enumerate(workload):
        if only_rings and not job.dag.only_rings_of_all:
            raise InputError(f"{workload.where(number)}: job {job.job_id!r} has other collectives, but {what}")
        if not job.dag.only_rings_of_all:
            for kind, algorithm in sorted(job.dag.collectives):
                located(f"{workload.where(number)}: job {job.job_id!r}", partial(collective_for, kind, algorithm))


def beyond_plain_rings(state: RunState) -> str:
    """Return the transfers that are no rings over servers, as messages name them; nothing if there are none."""
    if state.network.inside is not None:
        return "about all transfers, as the inside of servers takes time"
    sent = {each for dag in {id(job.dag): job.dag for job in state.workload}.values() for each in dag.collectives}
    others = {f"{kind} by {algorithm}" for kind, algorithm in sent if kind not in ROUNDS or algorithm != "ring"}
    return f"about transfers that are no rings ({min(others)})" if others else ""


class Routes:
    """Gives the flows of a job their paths when it is placed, or anew whenever one of its transfers becomes ready."""

    def __init__(self, state: RunState, asker: CheckedPolicies) -> None:
        self._state, self._asker = state, asker
        self._candidates: dict[int, None] = {}
        self._version: object = None
        self._plans: dict[tuple[int, int], PlannedTransfer] = {}
        self.chosen = asker.path is not None
        """Whether a policy chooses paths."""
        self.chosen_anew = asker.path_chosen_anew is not None
        """Whether each transfer gets its paths when it becomes ready."""

    def of_job(self, number: int) -> Way | None:
        """Return what says which path a job's flow from card to card takes when the job is placed.

        None is the topology's own route.
        Where transfers choose anew, it is the topology's own route, and :meth:`candidates` has the links of all others.
        """
        network = self._state.network
        if not self.chosen_anew:
            return self.asked(number) if self.chosen else None
        candidates = self._candidates = dict[int, None]()

        def way(source: Card, target: Card) -> Path:
            offered, route = self.offered(number, network.node(source), network.node(target))
            candidates.update(dict.fromkeys(link for path in offered for link in path.links))
            return offered[route]

        return way

    @property
    def candidates(self) -> tuple[int, ...]:
        """The links between switches that the job of the last :meth:`of_job` may cross when it chooses anew."""
        return tuple(self._candidates)

    def asked(self, number: int) -> Way:
        """Return what asks the path policy about each flow of a job once; one that has its path counts for the next."""
        state, network, links_chosen = self._state, self._state.network, Counter[int]()
        loads, paths = self._loads(links_chosen), dict[tuple[Card, Card], Path]()

        def way(source: Card, target: Card) -> Path:
            if (source, target) not in paths:
                offered, route = self.offered(number, network.node(source), network.node(target))
                links = [path.links for path in offered]
                cards = () if network.inside is None else (source[1], target[1])
                view = FlowView(len(paths), state.views[number], source[0], target[0], links, route, cards)
                paths[source, target] = offered[self._asker.choose_path(view, loads)]
                links_chosen.update(paths[source, target].links)
            return paths[source, target]

        return way

    def planned_again(self, number: int, place: int, plan: Callable[[Way], PlannedTransfer]) -> PlannedTransfer:
        """Return what a job's transfer puts on links that chooses anew: what it did before if all answers are as then.

        That a path policy says by an attribute ``paths_version``: while it is the same, so is the answer about a flow.
        """
        if self._version != getattr(self._asker.path, "paths_version", None):
            self._version = getattr(self._asker.path, "paths_version", None)
            self._plans.clear()
        key = self._state.jobs.stay.item(number), place
        if key in self._plans:
            return self._plans[key]
        planned = plan(self.asked(number))
        if self._version is not None and self._version == getattr(self._asker.path, "paths_version", None):
            self._plans[key] = planned
        return planned

    def offered(self, number: int, source: Node, target: Node) -> tuple[Sequence[Path], int]:
        """Return the paths that the topology offers a flow, and which of them is its own route."""
        network, state = self._state.network, self._state
        try:
            return network.paths(source, target), network.place_of_route(source, target)
        except InputError as error:
            raise InputError(f"{error} (job {state.views[number].job_id!r} at {state.now_s} s)") from error

    def _loads(self, chosen: Counter[int]) -> LinkLoads:
        state, flows = self._state, list[np.ndarray]()
        jobs = state.links.num_jobs.item

        def flows_on(link: int) -> int:
            if not flows:
                flows.append(self._flows())
            return int(flows[0].item(link)) + chosen[link]

        return LinkLoads(state.network.links, lambda link: jobs(link) + chosen[link], flows_on, state.now_ns)

    def _flows(self) -> np.ndarray:
        """Return how many crossings each link has of transfers that run, or wait and have their paths."""
        state = self._state
        for number in state.arrays.dormant[: state.now.num_dormant.item(0)].tolist():
            wake(state.arrays, number)
        waiting = state.arrays.waiting[: state.now.num_waiting.item(0)]
        counts = state.links.count.copy()
        for transfer in waiting[state.transfers.unrouted[waiting] == 0].tolist():
            first = state.transfers.first_entry.item(transfer)
            np.add.at(counts, state.arrays.entries.link[first : first + state.transfers.num_entries.item(transfer)], 1)
        on_links: np.ndarray = counts[state.links.leader]  # whose transfers stand for those of others
        return on_links


class HopTables:
    """Writes hops and paths into a run's arrays; of two servers the paths are written once."""

    def __init__(self, state: RunState, routes: Routes) -> None:
        self._state, self._routes = state, routes
        self._num_hops = self._num_paths = self._num_links = 0
        self._known: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def write(self, number: int, rings: Sequence[tuple[Sequence[int], int]], num_links: Sequence[int]) -> int:
        """Have the loop choose the paths of a job's transfers; return the most links of all together.

        ``rings`` has of each transfer the servers in its ring, ascending, and its steps; of another no servers: that
        is Python's, with so many links.
        """
        known, own, most = dict[tuple[int, ...], tuple[int, int, int]](), self._state.transfers, 0
        first = self._state.jobs.first_transfer.item(number)
        for transfer, (servers, steps) in enumerate(rings, first):
            if (key := tuple(servers)) not in known:
                known[key] = self._write(number, servers)
            own.first_hop[transfer], own.num_hops[transfer], room = known[key]
            own.steps[transfer], own.entry_room[transfer] = steps, room
            most += room or num_links[transfer - first]
        return most

    def _write(self, number: int, servers: Sequence[int]) -> tuple[int, int, int]:
        """Write the hops of a ring; return the first, how many there are, and the most links."""
        state = self._state
        hops = flows_of_ring(servers) if len(servers) > 1 else []
        offers = [self._offer(number, source, target) for source, target in hops]
        first, most_links = self._num_hops, len(hops) + sum(longest for *_, longest in offers)
        self._num_hops += len(hops)
        state.make_room("hops", self._num_hops)
        for place, ((source, target), (first_path, num_paths, route, _)) in enumerate(zip(hops, offers, strict=True)):
            state.arrays.hops[first + place] = (number, place, source, target, first_path, num_paths, route, -1)
        return first, len(hops), most_links

    def _offer(self, number: int, source: int, target: int) -> tuple[int, int, int, int]:
        """Return the first path from a server to another, how many there are, its own route, and the most links."""
        if (source, target) not in self._known:
            paths, route = self._routes.offered(number, source, target)
            first = self._num_paths
            self._num_paths += len(paths)
            self._state.make_room("paths", self._num_paths)
            for place, path in enumerate(paths, first):
                begin = self._num_links
                self._num_links += len(path.links)
                self._state.make_room("path_links", self._num_links)
                self._state.arrays.path_links[begin : self._num_links] = path.links
                self._state.arrays.paths[place] = (begin, len(path.links), path.latency_s)
            longest = max(len(path.links) for path in paths)
            self._known[source, target] = first, len(paths), route, longest
        return self._known[source, target]
