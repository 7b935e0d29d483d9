"""The oracle's stops and moves: what an order's ``stops`` and a placement's ``moves`` do to running jobs.

It shares no code with the engine. Policies read the oracle's own jobs and :class:`ClusterNow`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from reference_network import Transfer

from ddlsched.cluster.disturbances import Disturbances

if TYPE_CHECKING:
    from reference_simulator import RunningJob, Simulation

NS_PER_S = 1e9
UNKNOWN = 2**62


class ClusterNow:
    """What policies read of the cluster, perhaps as if some jobs had left."""

    def __init__(self, simulation: Simulation, gone: tuple[RunningJob, ...] = ()) -> None:
        self.simulation, self.gone = simulation, gone
        self.now_s, self.exclusive = simulation.now_s, simulation.cluster.exclusive
        self.num_gpus, self.num_servers = simulation.cluster.num_gpus, simulation.cluster.num_servers
        self.server_of = simulation.server

    def free_bytes(self, gpu: int) -> int:
        left = [state for state in self.gone if gpu in state.gpus]
        if left and self.exclusive:
            return int(self.simulation.cluster.gpu_memory_bytes[gpu])
        return self.simulation.free_bytes(gpu) + sum(state.job.gpu_memory_bytes for state in left)

    def eligible_gpus(self, job: RunningJob) -> list[int]:
        return [gpu for gpu in range(self.num_gpus) if self.free_bytes(gpu) >= job.job.gpu_memory_bytes]

    def eligible(self, job: RunningJob) -> np.ndarray:
        return np.array(self.eligible_gpus(job), np.int64)

    def without(self, jobs: Iterable[RunningJob]) -> ClusterNow:
        return ClusterNow(self.simulation, (*self.gone, *jobs))


class Moves:
    """Which jobs are to move where, which GPUs are kept for them, and where the state of jobs is that were stopped."""

    def __init__(self, placement: Any, order: Any, disturbances: Disturbances) -> None:
        self.placement = placement
        self.order = order if hasattr(order, "stops") else None
        self.disturbances = disturbances
        self.targets: dict[RunningJob, list[int]] = {}
        self.reserved: dict[RunningJob, set[int]] = {}
        self.state_at: dict[RunningJob, list[int]] = {}

    def running(self, simulation: Simulation) -> list[RunningJob]:
        return sorted((s for s in simulation.residents if not s.finished), key=lambda s: s.number)

    def leave(self, simulation: Simulation) -> None:
        """Move who is due, forget moves of jobs that are gone, and stop whom the order stops."""
        hold_ns = round(self.disturbances.restart_s * NS_PER_S)
        for state in sorted(self.targets, key=lambda s: s.number):
            if state.leaving == 1 and not state.finished:
                continue
            gpus = self.targets.pop(state)
            del self.reserved[state]
            if state.leaving == 2 and state in simulation.residents:
                if any(simulation.server(gpu) in simulation.down for gpu in gpus):
                    state.leaving = 0
                    simulation.advance(state)
                    continue
                self.stop(simulation, state)
                simulation.queue.remove(state)
                simulation.place(state, gpus, hold_ns)
        if self.order and simulation.queue and self.running(simulation):
            queue = sorted(simulation.queue, key=lambda s: simulation.keys.get(s, s))
            stopped = list(self.order.stops(self.running(simulation), queue, ClusterNow(simulation)))
            for state in stopped:
                self.stop(simulation, state)
            if stopped:
                simulation.rank()

    def stop(self, simulation: Simulation, state: RunningJob) -> None:
        self.targets.pop(state, None)
        self.reserved.pop(state, None)
        self.state_at[state] = [simulation.server(gpu) for gpu in state.gpus]
        simulation.stop(state, 1)

    def plan(self, simulation: Simulation) -> None:
        if not self.placement:
            return
        movable = [s for s in self.running(simulation) if not s.leaving and s.restarts_until_ns < 0]
        for state, gpus in list(self.placement.moves(movable, ClusterNow(simulation))):
            self.targets[state], self.reserved[state] = list(gpus), set(gpus) - set(state.gpus)
            state.leaving = 1

    def send_state(self, simulation: Simulation, state: RunningJob, hold_ns: int) -> None:
        """Worker by worker: those that find no state on their server get it from where it is, lowest servers first."""
        sources = self.state_at.pop(state, None)
        if sources is None:
            return
        targets = [simulation.server(gpu) for gpu in state.gpus]
        for server in list(targets):
            if server in sources:
                sources.remove(server)
                targets.remove(server)
        state_mb, share = self.disturbances.state_mb, self.disturbances.state_share
        each_bytes = round(state.job.gpu_memory_bytes * share) if state_mb is None else round(state_mb * 1e6)
        cards = simulation.network.cards
        servers = zip(sorted(sources), sorted(targets), strict=True)
        pairs = [(source, target, place % cards) for place, (source, target) in enumerate(servers)]
        sent = [pair for pair in sorted(set(pairs)) if pair[0] not in simulation.down and each_bytes]
        for place, (source, target, card) in enumerate(sent):
            count = pairs.count((source, target, card))
            way = simulation.network.own_way((source, card), (target, card))
            transfer = Transfer(
                simulation=simulation,
                job=state,
                task=-1 - place,
                place=0,
                links=(source * cards + card, *way.links, target * cards + card),
                shares=(1.0,) * (len(way.links) + 2),
                message_bytes=float(count * each_bytes),
                bytes_kept=float(count * each_bytes),
                latency_left_ns=(simulation.model.latency_s + way.latency_s) * NS_PER_S,
            )
            simulation.transfers.append(transfer)
            simulation.transfers_changed = True
        if sent:
            state.restarts_until_ns, state.hold_ns = UNKNOWN, hold_ns
