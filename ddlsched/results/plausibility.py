"""What a run could not have done: links that carried more than they can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import PluginError, label
from ddlsched.units import NS_PER_S

if TYPE_CHECKING:
    from ddlsched.results.result import Result

__all__ = ["refuse_faster_than_links"]

_ROUNDING = 1.01


def refuse_faster_than_links(result: Result) -> None:
    """Refuse the run of a contention model whose transfers were faster than the links that they crossed.

    A model that is meant to be, such as one of a network without contention, says ``exceeds_links = True``.

    Raises
    ------
    PluginError
        A link carried more bytes than its bandwidth allows in the time in which a transfer was on it.
    """
    meant = getattr(result.contention, "exceeds_links", False)
    if meant or not getattr(result.contention, "conserves_bytes", True):
        return
    links, records = result.finished.network.links, result.finished.state.links
    # A transfer lasts whole nanoseconds, so that many of few bytes seem faster than they were.
    rounded_s = int(result.finished.state.run[0].events) / NS_PER_S
    most_bytes = links.bytes_per_s * (records.busy_ns / NS_PER_S * _ROUNDING + rounded_s)
    for number in np.flatnonzero(records.bytes > most_bytes)[:1].tolist():
        link, carried_bytes, busy_s = links[number], records.bytes.item(number), records.busy_ns.item(number) / NS_PER_S
        raise PluginError(
            f"contention {label(result.contention)}: link {link.name} carried {carried_bytes:.4g} bytes in the "
            f"{busy_s:.4g} s in which it was busy; expected at most its {link.bandwidth_bytes_per_s:.4g} B/s "
            "(a faster card: --topology star:nic_gbps=...)"
        )
