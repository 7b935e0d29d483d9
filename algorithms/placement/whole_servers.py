"""Jobs of several servers on whole free servers of one rack, smaller ones where the fewest GPUs are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.units import is_whole

__all__ = ["WholeServers"]


@dataclass(frozen=True, kw_only=True)
class WholeServers:
    """Best fit, in GPUs of a server and in free servers of a rack; needs to know nothing but a job's GPUs.

    A job that fits on a server goes to the one with the fewest free GPUs that suffice, and never uses the network. A
    larger one takes servers of which every GPU is free, so that it shares no network card, in the rack with the fewest
    such servers that suffice. If no rack has enough, a job that one could hold waits for it; one larger than a rack
    takes from as few racks as it can. Unlike cells that split in halves (HiveD) the servers need not be neighbours.

    Parameters
    ----------
    servers_per_rack
        Servers s to s + n - 1 for s a multiple of it share a rack; 0 for a network on which all servers are alike.
    """

    servers_per_rack: int = 0

    def __post_init__(self) -> None:
        if not is_whole(self.servers_per_rack, 0, 1_000_000):
            given = self.servers_per_rack
            raise InputError(f"whole-servers: servers_per_rack is {given}; expected a whole number from 0")

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait."""
        free: dict[int, list[GpuId]] = {}
        for gpu in cluster.eligible_gpus(job):
            if not cluster.num_residents(gpu):
                free.setdefault(cluster.server_of(gpu), []).append(gpu)
        servers = range(cluster.num_servers)
        if job.num_gpus <= max(len(cluster.gpus_of(server)) for server in servers):
            enough = [(len(gpus), server) for server, gpus in free.items() if len(gpus) >= job.num_gpus]
            return free[min(enough)[1]][: job.num_gpus] if enough else None
        racks: dict[int, list[GpuId]] = {}
        sizes: dict[int, int] = {}
        for server in servers:
            rack = server // (self.servers_per_rack or cluster.num_servers)
            sizes[rack] = sizes.get(rack, 0) + len(cluster.gpus_of(server))
            whole = len(free.get(server, ())) == len(cluster.gpus_of(server))
            racks.setdefault(rack, []).extend(free[server] if whole else ())
        return _of_racks(job.num_gpus, racks, job.num_gpus <= max(sizes.values()))


def _of_racks(num_gpus: int, racks: dict[int, list[GpuId]], one_rack: bool) -> list[GpuId] | None:
    """Return GPUs of the rack with the fewest that suffice; without one, unless it must be one, of those with most."""
    chosen: list[GpuId] = []
    left = dict(racks)
    while len(chosen) < num_gpus and left:
        needed = num_gpus - len(chosen)
        enough = [rack for rack, gpus in left.items() if len(gpus) >= needed]
        if not enough and one_rack:
            return None
        rack = min(enough, key=lambda rack: len(left[rack])) if enough else max(left, key=lambda rack: len(left[rack]))
        chosen += left.pop(rack)[:needed]
    return chosen if len(chosen) == num_gpus else None
