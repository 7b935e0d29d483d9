"""At most n transfers on a link: the (n) of SRSF(n)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class BoundedOverlap(Checked, who="bounded-overlap"):
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

    limit: int = ranged(1, 1, 2**31)
    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether no link of the transfer is full."""
        return network.most_on_links_of(transfer) < self.limit
