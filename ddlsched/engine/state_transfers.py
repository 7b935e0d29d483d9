"""What of a job's state goes over the network when the job goes on elsewhere: which servers, bytes and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, cycle
from typing import NamedTuple

import numpy as np

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.loop.from_python import send_state
from ddlsched.engine.run_state import RunState
from ddlsched.network.collectives import Card
from ddlsched.policies.views import TransferView
from ddlsched.units import NS_PER_S


class StateTransfer(NamedTuple):
    """The state of some of a job's workers, from one network card to another."""

    links: tuple[int, ...]
    size_bytes: int
    cable_latency_s: float


class StateTransfers:
    """Sends the state of jobs, as large as the prices of ``disturbances`` say."""

    def __init__(self, state: RunState, costs: CommunicationCosts, disturbances: Disturbances) -> None:
        self._state, self._costs, self._disturbances = state, costs, disturbances

    def needed(self, number: int, sources: Sequence[int], chosen: Sequence[int]) -> list[StateTransfer]:
        """Return the transfers for a job whose workers have their state on servers ``sources`` and go on on GPUs.

        As many workers as can be find their state on their server; for the others the lowest server sends to the
        lowest one, and so on, by the servers' cards in turn. A server that is absent sends nothing: that state comes
        from outside. Where fewer workers have their state, as those of a job that went on without lost servers, they
        send to the further ones in turn.
        """
        state = self._state
        worker_bytes = self._disturbances.state_bytes(state.workload[number].gpu_memory_bytes)
        if worker_bytes == 0:
            return []
        leaving, coming = Counter(sources), Counter(state.server_of_gpu[gpu] for gpu in chosen)
        sending = chain(sorted((leaving - coming).elements()), cycle(sorted(sources)))
        return self.between(zip(sending, sorted((coming - leaving).elements()), strict=False), worker_bytes)

    def between(self, pairs: Iterable[tuple[int, int]], worker_bytes: int) -> list[StateTransfer]:
        """Return the transfers of so many bytes a pair of servers, from the first to the second, if it is there."""
        cards = self._state.network.cards
        counts = Counter(
            (source, target, worker % cards)
            for worker, (source, target) in enumerate(pairs)
            if source != target and self._state.is_present(source)
        )
        return [
            self._transfer((source, card), (target, card), count * worker_bytes)
            for (source, target, card), count in sorted(counts.items())
            if worker_bytes
        ]

    def _transfer(self, source: Card, target: Card, size_bytes: int) -> StateTransfer:
        """Return a transfer along the topology's own route, both ends' cards included."""
        network = self._state.network
        path = network.own_way(source, target)
        ends = [server * network.cards + card for server, card in (source, target)]
        return StateTransfer((ends[0], *path.links, ends[1]), size_bytes, path.latency_s)

    def send(self, number: int, transfers: Sequence[StateTransfer], hold_ns: int) -> None:
        """Have a job that has just been placed wait for its state, and then hold its GPUs for ``hold_ns``.

        Below 0 it works meanwhile.
        """
        state = self._state
        first = state.jobs.first_flow.item(number)
        for flow, transfer in enumerate(transfers, start=first):
            state.transfers.bytes[flow] = transfer.size_bytes  # before the view, which reads it once
            view = TransferView(flow, state.views[number], transfer.links, state.transfers, flow, state.now)
            state.transfer_views[flow] = view
        send_state(
            state.arrays,
            number,
            hold_ns,
            np.array([link for transfer in transfers for link in transfer.links], np.int64),
            np.cumsum([len(transfer.links) for transfer in transfers]),
            np.array([transfer.size_bytes for transfer in transfers], np.float64),
            np.array([self._costs.latency_s(transfer.cable_latency_s) * NS_PER_S for transfer in transfers]),
        )
