"""Decides which all-reduces run, and tells every rank of a job, in the same order, which chunk to send next.

Why no chunk ever waits for another for ever: collectives of a process group match by the order in which each rank
issues them. If ranks choose the next chunk themselves, by what they have just finished, two transfers of a job that are
in flight together are issued in one order here and in another there, and both sides wait. So the gate alone orders:
it tells a job's ranks the same sequence of chunks, over connections that keep the order, and a chunk that was told is
always sent. A transfer pauses by not being told more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ddlsched.engine.decisions.checked_policies import CheckedPolicies, choose_transfers
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.records import Columns, make_records
from ddlsched.errors import TestbedError
from ddlsched.policies.network_views import TransferState
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.real.gate.live_jobs import LiveJob, LiveTransfer, SentRow
from ddlsched.units import NS_PER_S, s_from_ns

CHUNK_BYTES = 400_000
"""Of a message under a policy that pauses transfers, unless another size is given."""
MOST_CHUNKS = 1_000_000
WINDOW = 2
"""Chunks of a transfer that are under way at a time: the next is at hand when one ends."""


class TransferGate:
    """The communication policy of a run, and the transfers that it decides on.

    Parameters
    ----------
    policies
        The run's, of which the order and the communication policy are asked.
    costs
        The contention model by whose account bytes count.
    record
        Told of each all-reduce that has ended.
    chunk_bytes
        Largest part of a message that cannot be paused; None sends whole messages if the policy never pauses one.
    window
        Chunks of a transfer under way at a time.
    """

    def __init__(
        self,
        policies: CheckedPolicies,
        costs: CommunicationCosts,
        record: Callable[[SentRow], None],
        *,
        chunk_bytes: float | None = None,
        window: int = WINDOW,
    ) -> None:
        self._policies, self._costs, self._record = policies, costs, record
        pauses = policies.communication_form != "admit"
        self._chunk_bytes = CHUNK_BYTES if chunk_bytes is None and pauses else chunk_bytes
        self._window = window
        self.clock = Columns(make_records("run", 1))
        self._count = np.zeros(len(costs.network.links), np.int64)
        self.active: list[LiveTransfer] = []
        self.waiting: list[LiveTransfer] = []
        self.changed = False
        self._asked_about: dict[int, LiveTransfer] = {}

    def ready(self, job: LiveJob, rank: int, task: int, iteration: int, message_bytes: float, now_ns: int) -> None:
        """Note that a rank is ready; once all are, the transfer waits for the policy.

        Raises
        ------
        TestbedError
            Ranks differ in the size of the message, it comes in too many chunks, or the last one is not sent yet.
        """
        transfer = job.transfer(task, self.clock)
        heard = transfer.heard.setdefault(iteration, {})
        heard[rank] = message_bytes
        if len(heard) < len(job.ranks):
            return
        del transfer.heard[iteration]
        if len(set(heard.values())) > 1:
            raise TestbedError(
                f"job {job.job.job_id!r}, all-reduce {transfer.name!r}: its ranks would send "
                f"{', '.join(f'{size:g}' for _, size in sorted(heard.items()))} bytes; expected the same on every rank"
            )
        chunks = 1 if self._chunk_bytes is None else max(math.ceil(message_bytes / self._chunk_bytes), 1)
        if transfer.state != TransferState.IDLE or chunks > MOST_CHUNKS:
            raise TestbedError(
                f"job {job.job.job_id!r}, all-reduce {transfer.name!r}: {message_bytes:g} bytes in {chunks:,} chunks "
                f"are ready; expected at most {MOST_CHUNKS:,}, once those of the iteration before have been sent"
            )
        wire = self._costs.wire_bytes(message_bytes, len(job.view.servers))
        transfer.begin(iteration, message_bytes, wire, chunks, now_ns)
        self.waiting.append(transfer)
        if transfer.view.links:
            self.changed = True
        else:  # it meets nobody, and no policy is asked
            self._start(transfer, now_ns)

    def sent(self, job: LiveJob, task: int, iteration: int, chunk: int, now_ns: int) -> None:
        """Note that a rank has sent a chunk; once all have, the next one may go.

        Raises
        ------
        TestbedError
            Nobody told it to send that.
        """
        transfer = job.transfer(task, self.clock)
        if iteration != transfer.iteration or not 0 <= chunk < transfer.granted:
            raise TestbedError(
                f"job {job.job.job_id!r}: chunk {chunk} of {transfer.name!r}, iteration {iteration}, was sent untold"
            )
        transfer.sent_by[chunk] += 1
        if transfer.sent_by[chunk] < len(job.ranks):
            return
        transfer.completed += 1
        if transfer.completed == transfer.chunks:
            self._end(transfer, now_ns)
            return
        transfer.columns.bytes_left[0] = transfer.view.message_bytes * (1 - transfer.completed / transfer.chunks)
        if transfer.state == TransferState.ACTIVE:
            self._fill_window(transfer, now_ns)

    def _end(self, transfer: LiveTransfer, now_ns: int) -> None:
        if transfer.state == TransferState.ACTIVE:
            self._stop(transfer)
        if transfer in self.waiting:  # paused while its last chunks were under way
            self.waiting.remove(transfer)
        transfer.state = TransferState.IDLE
        transfer.times_ended += 1
        transfer.columns.bytes_left[0] = 0.0
        self._record(transfer.row(now_ns))
        self.changed = True

    def forget(self, job: LiveJob) -> None:
        """Drop the transfers of a job that is gone."""
        for transfer in job.transfers.values():
            if transfer.state == TransferState.ACTIVE:
                self._stop(transfer)
            elif transfer.state == TransferState.WAITING:
                self.waiting.remove(transfer)
            transfer.state = TransferState.IDLE
        self.changed = True

    def decide(self, now_ns: int) -> None:
        """Ask the policy which of the ready transfers run from now on, and tell the ranks."""
        self.changed = False
        self.clock.now_ns[0] = now_ns
        ready = self.waiting if self._policies.communication_form == "admit" else [*self.waiting, *self.active]
        self._asked_about = {transfer.view.number: transfer for transfer in ready if transfer.view.links}
        order = self._policies.in_order((one.job.view for one in self._asked_about.values()), s_from_ns(now_ns))
        place = {number: place for place, number in enumerate(order)}
        candidates = sorted(self._asked_about.values(), key=lambda one: (place[one.job.number], one.task))
        choose_transfers(self._policies, [transfer.view for transfer in candidates], self)
        self._estimate(now_ns)

    def start(self, transfer: TransferView) -> None:
        """Let a transfer send."""
        self._start(self._asked_about[transfer.number], self.clock.now_ns.item(0))

    def pause(self, transfer: TransferView) -> None:
        """Let a transfer wait, once its chunks that are under way have arrived."""
        paused = self._asked_about[transfer.number]
        self._stop(paused)
        paused.state = TransferState.WAITING
        self.waiting.append(paused)

    def _start(self, transfer: LiveTransfer, now_ns: int) -> None:
        self.waiting.remove(transfer)
        self.active.append(transfer)
        transfer.state = TransferState.ACTIVE
        np.add.at(self._count, list(transfer.view.links), 1)
        if transfer.granted_ns < 0:
            transfer.granted_ns = now_ns
        self._fill_window(transfer, now_ns)

    def _stop(self, transfer: LiveTransfer) -> None:
        self.active.remove(transfer)
        np.subtract.at(self._count, list(transfer.view.links), 1)
        transfer.columns.rate[0] = 0.0

    def _fill_window(self, transfer: LiveTransfer, now_ns: int) -> None:
        while transfer.granted < transfer.chunks and transfer.in_flight < self._window:
            message = {
                "do": "send",
                "task": transfer.task,
                "iteration": transfer.iteration,
                "chunk": transfer.granted,
                "chunks": transfer.chunks,
            }
            transfer.granted += 1
            transfer.told_ns = now_ns
            for rank in transfer.job.ranks:
                rank.send(message)

    def _estimate(self, now_ns: int) -> None:
        """Guess how far whole messages come from now on: by an equal share of the links, as nothing says it.

        What is left of a message in chunks is known by those that have arrived.
        """
        for transfer in self.active:
            columns = transfer.columns
            if transfer.chunks > 1:
                continue
            columns.bytes_left[0] = transfer.view.bytes_left
            links = self._costs.network.links
            shares = (self._count.item(link) / links[link].relative_bandwidth for link in transfer.view.links)
            ns_per_byte = self._costs.model.alone_per_byte_s * NS_PER_S * max(shares, default=1.0)
            columns.since_ns[0], columns.ns_per_byte[0], columns.rate[0] = now_ns, ns_per_byte, NS_PER_S / ns_per_byte

    def network(self) -> NetworkView:
        """Return what a communication policy sees of the network now."""
        return NetworkView(
            self._costs.network.links,
            self._count,
            lambda: [transfer.view for transfer in self.active],
            lambda: [transfer.view for transfer in self.waiting],
            self._costs.model.alone_per_byte_s,
            self._costs.model.penalty_per_byte_s,
            self.clock.now_ns.item(0),
        )

    def who_waits_for_whom(self, now_ns: int) -> list[str]:
        """Return a line for each waiting transfer: since when, on which links, beside whom."""
        lines = []
        for transfer in self.waiting:
            mine: frozenset[Any] = frozenset(transfer.view.links)
            met = [other for other in [*self.active, *self.waiting] if other is not transfer]
            names = sorted({other.job.job.job_id for other in met if not mine.isdisjoint(other.view.links)})
            links = ", ".join(self._costs.network.links[link].name for link in sorted(mine))
            waited_s = s_from_ns(now_ns - transfer.ready_ns)
            lines.append(
                f"job {transfer.job.job.job_id!r} has waited {waited_s:.1f} s for {links}"
                + (f", which jobs {', '.join(names)} want too" if names else ", which nobody else wants")
            )
        return lines
