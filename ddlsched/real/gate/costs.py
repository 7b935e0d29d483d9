"""What all-reduces take alone by a contention model, as policies and GPU loads count it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Network
from ddlsched.units import ns_from_s, s_from_ns

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """A contention model, bound to a network."""

    model: ContentionModel
    network: Network

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the bytes that a message puts on each link of its ring."""
        return float(self.model.wire_bytes(message_bytes, num_servers))

    def reduce_ns(self, message_bytes: float, servers: Sequence[int]) -> int:
        """Return what an all-reduce between servers takes alone, nanoseconds; 0 on one server."""
        if len(servers) < 2:
            return 0
        latency_s = self.model.latency_s + self.network.ring(servers).latency_s
        return ns_from_s(latency_s + self.model.alone_per_byte_s * self.wire_bytes(message_bytes, len(servers)))

    def all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        """Return what an all-reduce over the first so many servers takes alone, seconds."""
        return s_from_ns(self.reduce_ns(message_bytes, range(num_servers)))

    def load_ns(self, message_bytes: float, num_servers: int) -> int:
        """Return what an all-reduce counts in the load of a GPU, nanoseconds; 0 on one server."""
        if num_servers < 2:
            return 0
        return ns_from_s(self.model.alone_per_byte_s * self.wire_bytes(message_bytes, num_servers))
