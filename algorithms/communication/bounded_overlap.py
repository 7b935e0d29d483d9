"""At most n transfers on a link: the (n) of SRSF(n)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.errors import InputError
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.units import is_whole

__all__ = ["BoundedOverlap"]


@dataclass(frozen=True, kw_only=True)
class BoundedOverlap:
    """A transfer starts if each of its links carries fewer than ``limit``.

    On a star the links are the servers' network cards, as in the paper.

    Parameters
    ----------
    limit
        1 never overlaps, 2 always accepts a second, and so on.

    References
    ----------
    Wang, Shi, Wang, Chu, arXiv 2002.10105, SRSF(n).
    """

    limit: int = 1
    refusal_lasts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_whole(self.limit, 1, 2**31):
            raise InputError(f"bounded-overlap: limit is {self.limit}; expected a whole number from 1 to 2**31")

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether no link of the transfer is full."""
        return network.most_on_links_of(transfer) < self.limit
