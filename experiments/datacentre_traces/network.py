"""A network on which no transfer slows another, and what contention costs the jobs of a run: plug-ins of the sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ddlsched.network.contention import TEN_GBE, Flow, Linear, SharedLink, ring_bytes
from ddlsched.network.topology import Network
from ddlsched.results.result import Result


def per_byte_s(gbps: float) -> float:
    """Return the time of a byte alone: that of the preset ``10gbe``, in proportion to the bandwidth."""
    return TEN_GBE["per_byte_s"] * 10.0 / gbps


def linear(gbps: float) -> Linear:
    """Return the linear model with both constants of ``10gbe`` in proportion to the bandwidth."""
    return Linear(per_byte_s=per_byte_s(gbps), penalty_per_byte_s=TEN_GBE["penalty_per_byte_s"] * 10.0 / gbps)


@dataclass(frozen=True, kw_only=True)
class Unshared:
    """The linear model with η = -b: k transfers on a link take k b - (k - 1) b = b a byte, as if each were alone.

    Parameters
    ----------
    per_byte_s
        b, seconds.
    """

    per_byte_s: float
    latency_s: ClassVar[float] = 0.0
    conserves_bytes: ClassVar[bool] = True
    exceeds_links: ClassVar[bool] = True

    @property
    def alone_per_byte_s(self) -> float:
        """b, seconds."""
        return self.per_byte_s

    @property
    def penalty_per_byte_s(self) -> float:
        """-b, which takes away what sharing costs, seconds."""
        return -self.per_byte_s

    def bound_to(self, network: Network) -> Unshared:
        """Return itself."""
        return self

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the whole message, as the linear model does."""
        return message_bytes

    def link_rate(self, transfer: Flow, link: SharedLink) -> float:
        """Return 1 / b, of a link as fast as a network card."""
        k, b = link.num_transfers, self.per_byte_s
        return 1.0 / ((k * b - (k - 1) * b) / link.relative_bandwidth)


def network(result: Result) -> dict[str, float]:
    """Return what the network does to the jobs of a run.

    ``delay_share``: seconds for which all-reduces ran longer than alone, or waited, over all jobs' JCT.
    ``alone_share``: their time alone / JCT. ``several_servers``: jobs on more than one server. ``contended``:
    iterations that were under way while the job shared a GPU or a link, of ``iterations``.
    """
    jobs, model = result.jobs, result.contention
    wire_bytes = [
        job.iterations * ring_bytes(model, job.iteration.message_bytes, int(servers)) if servers > 1 else 0.0
        for job, servers in zip(result.workload, jobs["servers"], strict=True)
    ]
    alone_s = np.array(wire_bytes) * model.alone_per_byte_s
    delay_s = jobs["communication_s"] - alone_s + jobs["network_wait_s"]
    jct_s = jobs["jct_s"].sum()
    return {
        "delay_share": float(delay_s.sum() / jct_s),
        "alone_share": float(alone_s.sum() / jct_s),
        "several_servers": int((jobs["servers"] > 1).sum()),
        "contended": int(result.finished.state.run[0].contended_iterations),
        "iterations": sum(job.iterations for job in result.workload),
    }
