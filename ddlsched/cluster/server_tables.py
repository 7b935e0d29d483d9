"""Tables of servers, as CSV: a row a server, or a row a kind with a count.

Columns: ``gpus, gpu_memory_mb`` and optionally ``servers`` (how many like this, 1 if left out),
``relative_speed`` (1 if left out) and ``nic_gbps`` (the topology's if left out).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlsched.cluster.cluster import MAX_GPUS, Cluster, Server
from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, cell_whole, csv_rows, located, readable
from ddlsched.network.topology import Topology

__all__ = ["read_cluster"]

REQUIRED = ("gpus", "gpu_memory_mb")
OPTIONAL = ("servers", "relative_speed", "nic_gbps")


def read_cluster(path: str | Path, *, topology: Topology | str = "star") -> Cluster:
    """Read a table of servers: CSV with the columns of :class:`Server` and optionally ``servers``, a count.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    return Cluster(servers=readable(Path(path), "a table of servers (CSV)", _read), topology=topology)


def _read(path: Path) -> tuple[Server, ...]:
    servers: list[Server] = []
    for where, row in csv_rows(path, REQUIRED, OPTIONAL):
        count = cell_whole(where, "servers", row["servers"], MAX_GPUS) if row.get("servers") else 1
        servers += [_server(where, row)] * count
        if len(servers) > MAX_GPUS:
            raise InputError(f"{where}, column servers: {len(servers)} servers so far; expected at most {MAX_GPUS}")
    if not servers:
        raise InputError(f"{path}: has a header only; expected at least one server")
    return tuple(servers)


def _server(where: str, row: dict[str, Any]) -> Server:
    numbers = {name: cell_number(where, name, row[name]) for name in ("gpu_memory_mb", *OPTIONAL[1:]) if row.get(name)}
    if "gpu_memory_mb" not in numbers:
        raise InputError(f"{where}, column gpu_memory_mb: is empty; expected a number of MB > 0")
    gpus = cell_whole(where, "gpus", row["gpus"], MAX_GPUS)
    return located(where, lambda: Server(gpus=gpus, **numbers))
