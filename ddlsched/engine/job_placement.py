"""Puts jobs on GPUs: asks the placement policy for those that queue, and carries out what is decided."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.all_reduce_costs import Costs
from ddlsched.engine.checked_policies import CheckedPolicies
from ddlsched.engine.loop.from_python import wake
from ddlsched.engine.loop.layout import make_records
from ddlsched.engine.loop.loads import fill_loads
from ddlsched.engine.loop.placement import place_job
from ddlsched.engine.loop.room import next_fitting
from ddlsched.engine.outcome import Residency
from ddlsched.engine.run_state import RunState
from ddlsched.network.topology import Ring
from ddlsched.policies.views import ClusterView, JobView, TransferView
from ddlsched.units import NS_PER_S

__all__ = ["JobPlacement"]

_FEW = 16
"""GPUs with free memory are looked up in a list if they are fewer than one in so many; a scan is faster for more."""


class JobPlacement:
    """Places the jobs of a run; ``restart_ns`` is for how long one that was stopped holds its GPUs before it starts."""

    def __init__(self, state: RunState, asker: CheckedPolicies, costs: Costs, restart_ns: int) -> None:
        self._state, self._asker, self._costs, self._restart_ns = state, asker, costs, restart_ns

    def place_queue(self) -> None:
        """Ask for every queued job, in the queue's order, that some GPUs have room for."""
        state, run = self._state, self._state.run
        view = ClusterView(
            state.gpus,
            state.cluster,
            self._loads,
            self._eligible,
            state.now_ns,
            state.network,
            self._residents,
            self._costs.all_reduce_s,
        )
        queue = state.arrays.queue[: run.num_queued].copy()
        if self._asker.placement_begins_rounds:
            self._asker.begin_round([state.views[number] for number in queue.tolist()], view)
        stays = np.ones(len(queue), bool)
        place = next_fitting(state.arrays, queue, 0)
        while place >= 0:
            number = queue.item(place)
            chosen = self._asker.place(state.views[number], view)
            if chosen is not None:
                self.put(number, chosen, self._restart_ns if state.jobs.restarts.item(number) else 0)
                stays[place] = False
            place = next_fitting(state.arrays, queue, place + 1)
        run.num_queued = run.num_sorted = np.count_nonzero(stays)
        state.arrays.queue[: run.num_queued] = queue[stays]

    def put(self, number: int, chosen: list[int], hold_ns: int) -> None:
        """Give a job its GPUs, in placement order; it starts after ``hold_ns``."""
        state, costs = self._state, self._costs
        servers = tuple(dict.fromkeys(state.server_of_gpu[gpu] for gpu in chosen))
        messages = costs.messages(number)
        ring = state.network.ring(servers) if messages else Ring((), 0.0)
        wire = [costs.wire_bytes(message, len(servers)) for message in messages]
        load_ns = [costs.load_ns(w) if len(servers) > 1 else 0 for w in wire]
        self._make_room(chosen, len(ring.links) * len(messages))
        if len(servers) > 1:
            reduces_ns = sum(costs.reduce_ns(w, ring.latency_s) for w in wire)
            costs.check_service(number, reduces_ns)
            state.jobs.communication_ns[number] = reduces_ns
        place_job(
            state.arrays,
            number,
            len(state.stays),
            np.array(chosen, np.int64),
            len(servers),
            np.array(ring.links, np.int64),
            np.array(wire, np.float64),
            np.full(len(wire), costs.latency_s(ring.latency_s) * NS_PER_S),
            np.array(load_ns, np.int64),
            hold_ns,
        )
        state.stays.append(Residency(number, tuple(chosen), ring.links, state.now_ns, hold_ns))
        state.views[number]._placed(tuple(chosen), servers)
        first = state.jobs.first_transfer.item(number)
        for t in range(first, first + len(messages)):
            view = TransferView(t, state.views[number], ring.links, state.transfers, t, state.now)
            state.transfer_views[t] = view

    def _loads(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of GPUs, nanoseconds."""
        load_ns = np.empty(len(gpus), np.int64)
        fill_loads(self._state.arrays, gpus, load_ns)
        return load_ns

    def _eligible(self, memory_bytes: int) -> np.ndarray:
        """Return the GPUs with so much free memory, ascending, without a look at those of a full cluster."""
        free_bytes = self._state.gpus.free_bytes
        num_open = self._state.now.num_open_gpus.item(0)
        if num_open * _FEW > len(free_bytes):
            return np.flatnonzero(free_bytes >= memory_bytes)
        gpus: np.ndarray = np.sort(self._state.arrays.open_gpus[:num_open])
        large_enough: np.ndarray = gpus[free_bytes[gpus] >= memory_bytes]
        return large_enough

    def _residents(self, gpu: int) -> list[JobView]:
        state = self._state
        workers = state.arrays.residents[gpu, : state.gpus.num_residents.item(gpu)]
        numbers = np.sort(state.arrays.workers.job[workers]).tolist()
        for number in numbers:
            if state.jobs.dormant.item(number):
                wake(state.arrays, number)
        return [state.views[number] for number in numbers]

    def _make_room(self, chosen: list[int], num_entries: int) -> None:
        """Double the arrays that the next placement would overfill."""
        state, arrays = self._state, self._state.arrays
        if state.gpus.num_residents[chosen].max() == arrays.residents.shape[1]:
            residents = np.concatenate([arrays.residents, np.zeros_like(arrays.residents)], axis=1)
            state.arrays = arrays = arrays._replace(residents=residents)
        needed = state.now.num_entries.item(0) + num_entries
        if needed > len(arrays.entries):
            entries = make_records("entry", max(needed, 2 * len(arrays.entries)))
            entries[: len(arrays.entries)] = arrays.entries
            state.arrays = arrays._replace(entries=entries)
