"""AdaDUAL: overlap two transfers only if that beats waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import NetworkView, TransferView


@dataclass(frozen=True, kw_only=True)
class AdaDual:
    """On free links start, next to one transfer start if much smaller than what that has left, else wait.

    For two transfers in isolation, of m2 bytes new and m1 bytes left: waiting costs 2 b m1 + b m2 summed over
    both, overlapping b m1 + (3 b + 2 η) m2; so overlap iff m2 / m1 <= b / (2 (b + η)).

    References
    ----------
    Wang, Shi, Wang, Chu, arXiv 2002.10105, AdaDUAL.
    """

    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether the transfer starts."""
        most = network.most_on_links_of(transfer)
        if most != 1:
            return most == 0
        b, eta = network.per_byte_s, network.penalty_per_byte_s
        cost = transfer.message_bytes * 2.0 * (b + eta)
        # The slack lets a transfer exactly on the threshold start in spite of rounding.
        return all(cost <= old.bytes_left * b * (1 + 1e-9) for old in network.met_by(transfer))
