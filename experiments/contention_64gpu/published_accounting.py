"""The published simulator's accounting as plug-ins: a waiting job that looks at a transfer speeds it up.

In that simulator the function by which AdaDUAL reads a running transfer's remaining bytes also advances the
transfer by a tick, without moving its time stamp, so the usual update counts the tick again. In continuous
time: each waiting job that probes a transfer adds the transfer's rate once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddlsched.network.contention import Flow, Linear
from ddlsched.network.rates import crossings, shared_links
from ddlsched.network.topology import Link
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.results.result import Result
from ddlsched.results.slices import transfer_slices


def probed(servers: Sequence[int], num_on: Callable[[int], int]) -> int | None:
    """Return the server whose transfer a waiting job probes: its first busy one, if none carries two.

    Parameters
    ----------
    servers
        The waiting job's, in placement order.
    num_on
        Running transfers on the network card of a server, which is the link of the same number.
    """
    counts = [num_on(server) for server in servers]
    return servers[counts.index(1)] if max(counts) == 1 else None


@dataclass(frozen=True, kw_only=True)
class PublishedRates(Linear):
    """The linear model, but a transfer goes 1 + (number of waiting jobs that probe it) times as fast.

    It belongs to :class:`PublishedAdaDual`: SRSF(n) reads no remaining bytes, so nothing probes under it.
    """

    conserves_bytes: ClassVar[bool] = False

    def rates(self, active: Sequence[Flow], waiting: Sequence[Flow], links: Sequence[Link]) -> list[float]:
        """Return the linear model's rates times 1 + probes, bytes per second."""
        shared = shared_links(active, links)
        count = Counter({number: link.num_transfers for number, link in shared.items()})
        probes = Counter(probed(flow.servers, count.__getitem__) for flow in waiting)
        rates = [min(self.link_rate(flow, shared[link]) / part for link, part in crossings(flow)) for flow in active]
        factors = (1 + sum(probes[server] for server in flow.servers) for flow in active)
        return [rate * factor for rate, factor in zip(rates, factors, strict=True)]


@dataclass(frozen=True, kw_only=True)
class PublishedAdaDual:
    """AdaDUAL as published: of the transfers that it would meet, it tests only the one on its first busy server."""

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether the transfer starts."""
        probed_server = -1
        for server in transfer.servers:
            count = network.num_on(server)
            if count > 1:
                return False
            if count == 1 and probed_server < 0:
                probed_server = server
        if probed_server < 0:
            return network.most_on_links_of(transfer) == 0
        b, eta = network.per_byte_s, network.penalty_per_byte_s
        cost = transfer.message_bytes * 2.0 * (b + eta)
        return all(cost <= old.bytes_left * b * (1 + 1e-9) for old in network.transfers_on(probed_server))


def faster_than_alone(result: Result) -> dict[str, float]:
    """Return the share of transfers that took less than b M, the time of their bytes without any contention.

    Parameters
    ----------
    result
        Of a run with its whole timeline, of jobs with one all-reduce an iteration, without latency.
    """
    slices = transfer_slices(result)
    took_ns = (slices["end_ns"] - slices["start_ns"]).groupby([slices["job_id"], slices["iteration"]]).sum()
    ns_per_byte = float(result.finished.state.run[0].per_byte_s) * 1e9
    alone_ns = {job.job_id: ns_per_byte * job.dag.tasks[-1].message_bytes for job in result.workload}
    alone = took_ns.index.get_level_values("job_id").map(alone_ns)
    return {"faster_than_alone": float((took_ns < alone - 1.0).mean())}  # the clock counts whole nanoseconds
