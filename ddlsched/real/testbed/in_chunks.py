"""Preemption as a gate carries it out, in a simulation: what of a paused transfer is under way still ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import communication_form
from ddlsched.errors import InputError
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.real.gate.transfer_gate import CHUNK_BYTES, WINDOW
from ddlsched.workload.tasks import CollectiveTask

__all__ = ["InChunks"]

_LEAST_WAIT_S = 1e-4
"""A chunk's end is awaited by looking again when it could be there at full rate, but not more often than this."""
_PART_OF_A_BYTE = 1e-3
"""Which floats may leave of a chunk that has ended."""


@dataclass(frozen=True, kw_only=True)
class InChunks:
    """Another policy that pauses transfers, of messages that go in chunks: those under way are sent to their end.

    So a message of at most ``window`` chunks cannot be paused once it has begun.

    Parameters
    ----------
    policy
        An instance with ``transfer_key`` or ``select``.
    chunk_bytes, window
        Of the gate: the largest part of what is reduced that goes at a time, bytes, and how many are under way at once.
    """

    policy: Any
    chunk_bytes: float = CHUNK_BYTES
    window: int = WINDOW

    def __post_init__(self) -> None:
        if communication_form(self.policy) not in ("transfer_key", "select"):
            raise InputError(f"InChunks: policy is {self.policy!r}; expected one with transfer_key or select")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Agent:
        """Return the agent of a run."""
        policy = self.policy.begin(cluster, rng) if hasattr(self.policy, "begin") else self.policy
        return _Agent(policy, self.chunk_bytes, self.window)


class _Agent:
    """Remembers up to where transfers are sent that the policy has paused."""

    def __init__(self, policy: Any, chunk_bytes: float, window: int) -> None:
        self._policy, self._chunk_bytes, self._window = policy, chunk_bytes, window
        self._told_bytes: dict[int, float] = {}
        self._wake_s: float | None = None

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        """Return what the policy chooses, and what it pauses that still has chunks under way."""
        chosen = self._chosen(transfers, network)
        numbers = {transfer.number for transfer in chosen}
        paused = [transfer for transfer in transfers if transfer.is_active and transfer.number not in numbers]
        told = {each.number: self._told_bytes.get(each.number, self._granted_bytes(each)) for each in paused}
        going = [each for each in paused if told[each.number] - each.bytes_sent > _PART_OF_A_BYTE]
        self._told_bytes = {each.number: told[each.number] for each in going}
        least_s = [(told[each.number] - each.bytes_sent) * network.per_byte_s for each in going]
        self._wake_s = network.now_s + max(min(least_s), _LEAST_WAIT_S) if going else None
        return [*chosen, *going]

    def _granted_bytes(self, transfer: TransferView) -> float:
        """Return how many bytes a transfer will have sent once its chunks under way have ended."""
        chunks = max(math.ceil(_reduced_bytes(transfer) / self._chunk_bytes), 1)
        chunk_bytes = transfer.message_bytes / chunks
        ended = math.floor((transfer.bytes_sent + _PART_OF_A_BYTE) / chunk_bytes)
        return min(ended + self._window, chunks) * chunk_bytes

    def _chosen(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        if communication_form(self._policy) == "select":
            return list(self._policy.select(transfers, network))
        taken: set[int] = set()
        chosen = []
        for transfer in sorted(transfers, key=lambda each: (self._policy.transfer_key(each, network), each.number)):
            if taken.isdisjoint(transfer.links):
                taken.update(transfer.links)
                chosen.append(transfer)
        return chosen

    def wake_s(self, now_s: float) -> float | None:
        """Return when a chunk may end after which a transfer pauses, or the policy's own time."""
        own = self._policy.wake_s(now_s) if hasattr(self._policy, "wake_s") else None
        return min((wake_s for wake_s in (own, self._wake_s) if wake_s is not None), default=None)


def _reduced_bytes(transfer: TransferView) -> float:
    """Return what a transfer reduces: the largest message of its job that its ring can carry with the bytes it moves.

    A contention model may move more, for what steps cost. Of a job without collectives,
    whose state moves, it is all that moves.
    """
    servers = len(transfer.servers)
    most_bytes = transfer.message_bytes * servers / (2 * max(servers - 1, 1)) * (1 + 1e-9)
    sizes = sorted(task.message_bytes for task in transfer.job.dag.tasks if isinstance(task, CollectiveTask))
    return max([size for size in sizes if size <= most_bytes] or sizes[:1], default=transfer.message_bytes)
