"""Policies as a user would write them: twins of built-in ones, and the README's example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["Linear", "OneAtATime", "ShorterFirst", "SmallerFirst", "TwoIfMuchSmaller"]


@dataclass(frozen=True, kw_only=True)
class ShorterFirst:
    """Twin of srsf."""

    key_is_linear: ClassVar[bool] = True

    def key(self, job, now_s):
        """Return the remaining service."""
        return job.remaining_service_ns


@dataclass(frozen=True, kw_only=True)
class TwoIfMuchSmaller:
    """Twin of adadual."""

    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer, network):
        """Return whether the transfer starts."""
        most = network.most_on_links_of(transfer)
        if most != 1:
            return most == 0
        cost = transfer.message_bytes * 2.0 * (network.per_byte_s + network.penalty_per_byte_s)
        return all(cost <= old.bytes_left * network.per_byte_s * (1 + 1e-9) for old in network.met_by(transfer))


@dataclass(frozen=True, kw_only=True)
class OneAtATime:
    """Twin of preemptive:by=time."""

    key_is_linear: ClassVar[bool] = True

    def transfer_key(self, transfer, network):
        """Return the job's remaining time."""
        return transfer.job.remaining_time_ns


@dataclass(frozen=True, kw_only=True)
class SmallerFirst:
    """The README's example, to the letter."""

    limit: int = 2

    def admit(self, transfer, network):
        """Return whether the transfer starts."""
        met = network.met_by(transfer)
        return len(met) < self.limit and all(transfer.message_bytes <= other.bytes_left for other in met)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Twin of 10gbe."""

    latency_s: float = 0.0
    per_byte_s: float = 8.56e-10
    penalty_per_byte_s: float = 2.35e-10
    conserves_bytes: ClassVar[bool] = True

    @property
    def alone_per_byte_s(self):
        """Time of a byte alone."""
        return self.per_byte_s

    def bound_to(self, network):
        """Return itself."""
        return self

    def wire_bytes(self, message_bytes, num_servers):
        """Return the whole message."""
        return message_bytes

    def link_rate(self, transfer, link):
        """Return 1 / (k b + (k - 1) η)."""
        k = link.num_transfers
        return 1.0 / ((k * self.per_byte_s + (k - 1) * self.penalty_per_byte_s) / link.relative_bandwidth)
