"""The options that the commands of ``ddlsched testbed`` have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddlsched.cli.dataclass_options import like, option
from ddlsched.cluster.cluster import Cluster

__all__ = ["Access", "GateOptions", "NetworkOfNamespaces", "Place"]


@dataclass(frozen=True, kw_only=True)
class NetworkOfNamespaces:
    """Servers, and the network between them."""

    servers: int = option(4, "Number of servers.")
    gpus_per_server: int = like(Cluster, "gpus_per_server")
    topology: str = like(Cluster, "topology")
    scale: float = option(0.01, "What every rate is multiplied by: 10 Gbit/s become 100 Mbit/s.", metavar="FACTOR")
    exclusive: bool = option(False, "One job a GPU at a time, however little memory it needs.", flag="--exclusive")

    def cluster(self) -> Cluster:
        """Return the cluster with its scaled network."""
        from ddlsched.real.testbed.scaling import scaled

        plain = Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            topology=self.topology,
            exclusive=self.exclusive,
        )
        return scaled(plain, self.scale)


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """How transfers are cut, and what else the gate decides on."""

    contention: str = option("max-min", "By which model policies count bytes, and the time of an all-reduce alone.")
    seed: int = option(0, "Of the policies' randomness.")
    chunk_bytes: float | None = option(
        None,
        "Largest part of a message that cannot be paused.",
        shown="400 kB under a policy that pauses transfers, else whole messages",
    )
    window: int = option(2, "Chunks of a transfer that are under way at a time.")
    train: bool = option(
        False,
        "Jobs train a model with DDP, of gradients as large as their messages, in place of timed computes.",
        flag="--train",
    )
    slots: bool = option(False, "Compute of jobs that share a GPU goes one after the other.", flag="--slots")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run takes place, and what it writes."""

    hosts: Path | None = option(
        None, "Hosts, with an agent's HOST:PORT a line.", metavar="FILE", shown="namespaces of this machine"
    )
    token_file: Path | None = option(None, "File with the agents' token.", metavar="FILE")
    no_realtime: bool = option(False, "Do not run workers ahead of other processes.", flag="--no-realtime")
    out: Path | None = option(None, "Folder for jobs.parquet and transfers.parquet.", metavar="DIR")
    as_json: bool = option(False, "Print the metrics as one JSON object.", flag="--json")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may join a gate."""

    token_file: Path | None = option(None, "File with a token of at least 16 characters.", metavar="FILE")
