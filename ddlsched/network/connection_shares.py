"""Shares of connections: a job's transfers have one between them, and links that several rings cross carry less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddlsched.network.rates import crossings, slowest_link_bytes_per_s, weighted_max_min
from ddlsched.network.size_shares import LARGEST_EXPONENT, SizeShares
from ddlsched.network.topology import Link
from ddlsched.ranges import ranged

__all__ = ["ConnectionShares"]


@dataclass(frozen=True, kw_only=True)
class ConnectionShares(SizeShares):
    """Weighted max-min sharing among connections, by (bytes in flight) ^ exponent; of a ring that others cross, less.

    gloo has a connection to each neighbour in a job's ring, which all its all-reduces share: those of several buckets
    have one share between them, by the bytes of their steps, and have that in flight together. A link that several
    jobs cross carries less, as each ring waits at other links, too, while the others are not always there to fill in.
    Both were found on a testbed's training mixes (experiments/fidelity).

    Asked in Python at each change of the transfers: for small clusters.

    Parameters
    ----------
    loss
        Of a link with k jobs: it carries 1 / (1 + loss (k - 1)) of what it carries for one.
    wait
        What each further server of a ring adds to the time of a byte, as a share of it: a ring over n servers is at
        most 1 / (1 + wait (n - 1)) as fast as its links, as its servers wait for each other. Others fill these gaps.
    """

    exponent: float = ranged(0.25, 0.0, LARGEST_EXPONENT)
    loss: float = ranged(0.0, 0.0, 1.0)
    wait: float = ranged(0.0, 0.0, 1.0)

    def rates(self, active: Sequence[Any], waiting: Sequence[Any], links: Sequence[Link]) -> list[float]:
        """Return the rate of each active transfer, bytes per second."""
        own = [self.step_bytes(transfer) for transfer in active]
        together: dict[int, float] = {}
        jobs: dict[int, set[int]] = {}
        for transfer, step_bytes in zip(active, own, strict=True):
            number = transfer.job.number
            together[number] = together.get(number, 0.0) + step_bytes
            for link in transfer.links:
                jobs.setdefault(link, set()).add(number)
        whole = [together[transfer.job.number] for transfer in active]
        weights = [self.weight_of(all_bytes) * mine / all_bytes for all_bytes, mine in zip(whole, own, strict=True)]
        alone = {link: links[link].relative_bandwidth / self.alone_per_byte_s for link in jobs}
        free = {link: alone[link] / (1.0 + self.loss * (len(jobs[link]) - 1)) for link in jobs}
        bounds: dict[tuple[int, tuple[int, ...]], int] = {}
        bounded = []
        for transfer in active:
            bound = bounds.setdefault((transfer.job.number, transfer.links), -1 - len(bounds))
            slowest = slowest_link_bytes_per_s(transfer, alone)
            free[bound] = slowest / (1.0 + self.wait * (len(transfer.servers) - 1))
            parts = (*(part for _, part in crossings(transfer)), 1.0)
            bounded.append(_Bounded(transfer.servers, (*transfer.links, bound), parts))
        return weighted_max_min(bounded, weights, free)


class _Bounded(NamedTuple):
    """A transfer over its links and one of its ring's own, which bounds it; real ones have numbers from 0."""

    servers: Sequence[int]
    links: tuple[int, ...]
    shares: tuple[float, ...]
