"""How often policies stopped and moved running jobs, and what went over the network and the ports of GPUs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ddlsched.results.result import Result

__all__ = ["COUNTS", "door_counts"]

COUNTS = {
    "stops": "Stops by the order",
    "moves": "Moves by the placement",
    "state_bytes": "State over the network (GB)",
    "inside_bytes": "Over ports of GPUs (GB)",
}
"""What is counted, and what tables call it; bytes in units of 1e9."""


def door_counts(result: Result) -> dict[str, float]:
    """Return the counts of a run, by the keys of :data:`COUNTS`.

    ``stops`` and ``moves`` are of running jobs, by policies; ``state_bytes`` what these jobs were to take along to
    other servers, each byte once; ``inside_bytes`` what went over the ports of GPUs towards others of their server,
    where the topology states the inside of servers, added up over the ports.
    """
    finished = result.finished
    moves = sum(departure.moved for departure in finished.departures)
    port_bytes = finished.state.links.bytes[finished.network.ports]
    return {
        "stops": len(finished.departures) - moves,
        "moves": moves,
        "state_bytes": sum(stay.state_bytes for stay in finished.stays),
        "inside_bytes": float(np.sum(port_bytes)),
    }
