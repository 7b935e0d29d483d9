"""MLTCP: a transfer's share grows as it sends, so that the one that is ahead gets further ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddlsched.network.contention import MaxMin
from ddlsched.network.rates import MOST_PARTS
from ddlsched.ranges import ranged

__all__ = ["Mltcp"]


@dataclass(frozen=True, kw_only=True)
class Mltcp(MaxMin):
    """Weighted max-min sharing by F = slope x (part of the message that is sent) + intercept.

    The fluid form of a congestion control whose window grows by F. F stays as it is from one time that it is asked to
    the next, so that more parts come nearer to the law. With buckets, each all-reduce is a message of its own.

    Assumed, as only part is published: shares are those of F at once, where windows take round trips to get there; an
    iteration's bytes are known, where hosts tell iterations apart by idle gaps.

    Parameters
    ----------
    slope, intercept
        Of F; at least 0, and greater than 0, as a weight of 0 would send nothing. The defaults are not published; they
        only make F go from 1/4 to 2.
    message_parts
        At the end of each of so many equal parts of a message the shares on its links are set anew, as they are when a
        transfer starts or stops there.

    References
    ----------
    Rajasekaran, Narang, Zabreyko, Ghobadi, "MLTCP: A Distributed Technique to Approximate Centralized Flow Scheduling
    For Machine Learning", HotNets 2024.
    """

    slope: float = ranged(1.75, 0.0)
    intercept: float = ranged(0.25, 0.0, above=True)
    message_parts: int = ranged(8, 1, MOST_PARTS)

    def weight(self, transfer: Any) -> Any:
        """Return F."""
        if transfer.message_bytes == 0.0:
            return self.intercept
        return self.slope * (transfer.bytes_sent / transfer.message_bytes) + self.intercept
