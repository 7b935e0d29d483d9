"""Tables of servers, as CSV: a row a server, or a row a kind with a count.

Columns: ``gpus, gpu_memory_mb`` and optionally ``servers`` (how many like this, 1 if left out),
``relative_speed`` (1 if left out), ``nic_gbps`` (the topology's if left out), ``gpu_kind`` (for a table of throughputs)
and ``exclusive`` (1 where a GPU has one job at a time, the same in every row; 0 if left out).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlsched.cluster.cluster import MAX_GPUS, Cluster, Server
from ddlsched.errors import InputError, says_unknown_arguments
from ddlsched.io.tables import cell_number, cell_whole, csv_rows, located, readable
from ddlsched.network.topology import Topology

__all__ = ["read_cluster"]

REQUIRED = ("gpus", "gpu_memory_mb")
NUMBERS = ("gpu_memory_mb", "relative_speed", "nic_gbps")
OPTIONAL = ("servers", *NUMBERS[1:], "gpu_kind", "exclusive")


@says_unknown_arguments
def read_cluster(path: str | Path, *, topology: Topology | str = "star", exclusive: bool = False) -> Cluster:
    """Read a table of servers: CSV with the columns of :class:`Server` and optionally ``servers`` and ``exclusive``.

    The cluster is exclusive if ``exclusive`` or the table says so.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    servers, told = readable(Path(path), "a table of servers (CSV)", _read)
    return Cluster(servers=servers, topology=topology, exclusive=exclusive or told)


def _read(path: Path) -> tuple[tuple[Server, ...], bool]:
    servers: list[Server] = []
    told: bool | None = None
    for where, row in csv_rows(path, REQUIRED, OPTIONAL):
        told = _exclusive(where, row, told)
        count = cell_whole(where, "servers", row["servers"], MAX_GPUS) if row.get("servers") else 1
        servers += [_server(where, row)] * count
        if len(servers) > MAX_GPUS:
            raise InputError(f"{where}, column servers: {len(servers)} servers so far; expected at most {MAX_GPUS}")
    if not servers:
        raise InputError(f"{path}: has a header only; expected at least one server")
    return tuple(servers), bool(told)


def _exclusive(where: str, row: dict[str, Any], before: bool | None) -> bool:
    """Return what a row says of the whole cluster; ``before`` is what the rows above said."""
    told = bool(row.get("exclusive")) and cell_whole(where, "exclusive", row["exclusive"], at_most=1, at_least=0) == 1
    if before not in (None, told):
        raise InputError(f"{where}, column exclusive: is {int(told)}; expected the {int(not told)} of the rows above")
    return told


def _server(where: str, row: dict[str, Any]) -> Server:
    numbers = {name: cell_number(where, name, row[name]) for name in NUMBERS if row.get(name)}
    if "gpu_memory_mb" not in numbers:
        raise InputError(f"{where}, column gpu_memory_mb: is empty; expected a number of MB > 0")
    gpus = cell_whole(where, "gpus", row["gpus"], MAX_GPUS)
    kind = row.get("gpu_kind") or None
    return located(where, lambda: Server(gpus=gpus, gpu_kind=kind, **numbers))
