"""What compiled code has to know of a run to start its jobs: bytes and loads by the number of servers, and routes."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.batched_runs import RunParts
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.loop.batch.runs import placing_address
from ddlsched.engine.loop.batch.starts import StartTables
from ddlsched.errors import InputError, PluginError
from ddlsched.network.topology import Network

__all__ = ["no_tables", "with_run"]

_MOST_SERVERS = 64
"""Routes are looked up beforehand on so many; between more, Python plans what jobs send."""


def no_tables(num_runs: int, num_servers: int) -> StartTables:
    """Return tables that know no run yet."""
    whole, real = np.zeros(0, np.int64), np.zeros(0)
    return StartTables(
        wire_bytes=np.zeros((num_runs, 0, 2)),
        load_ns=np.zeros((num_runs, 0, 2), np.int64),
        most_servers=np.ones(num_runs, np.int64),
        first_links=whole,
        path_links=whole,
        latency_s=real,
        servers=np.zeros(num_servers, np.int64),
        job_links=whole,
        links=whole,
        shares=real,
        num_links=whole,
        bytes=real,
        latency_ns=real,
        loads_ns=whole,
        placing_address=placing_address(),
    )


def with_run(tables: StartTables, number: int, parts: RunParts) -> StartTables:
    """Return the tables with a run in a place; those of all runs are of one cluster."""
    state, costs = parts.state, parts.placing.costs
    if not len(tables.first_links):
        tables = _with_routes(tables, state.network)
    most = min(len(tables.servers), int(state.jobs.num_gpus.max())) if _has_routes(tables) else 1
    tables = _with_room(tables, len(state.transfers.job), int(state.jobs.num_transfers.max()), most)
    tables.most_servers[number] = 1 if parts.settings.path is not None else most
    known: dict[float, tuple[list[float], list[int]]] = {}
    for job in range(len(state.workload)):
        first, count = state.jobs.first_transfer.item(job), state.jobs.num_transfers.item(job)
        dag = state.workload[job].dag
        if state.run.rerouting or not costs.has_plain_rings(dag) or not all(dag.messages):
            tables.wire_bytes[number, first : first + count, 0] = -1.0
            continue
        for transfer, message_bytes in enumerate(dag.messages, first):
            if message_bytes not in known:
                known[message_bytes] = _by_servers(costs, message_bytes, most)
            wire_bytes, load_ns = known[message_bytes]
            tables.wire_bytes[number, transfer, : most + 1] = wire_bytes
            tables.load_ns[number, transfer, : most + 1] = load_ns
    return tables


def _by_servers(costs: CommunicationCosts, message_bytes: float, most: int) -> tuple[list[float], list[int]]:
    """Return what a message puts on each link of a ring over 0, 1, 2 ... servers, and what that counts in loads."""
    wire_bytes = [0.0, *(costs.wire_bytes(message_bytes, count) for count in range(1, most + 1))]
    return wire_bytes, [0, *map(costs.bytes_load_ns, wire_bytes[1:])]


def _has_routes(tables: StartTables) -> bool:
    return len(tables.latency_s) > 0


def _with_routes(tables: StartTables, network: Network) -> StartTables:
    """Return the tables with the topology's own routes; without any if there are too many, or one cannot be had."""
    servers = range(len(tables.servers))
    first_links, path_links, latency_s = [0], list[int](), list[float]()
    if len(servers) > _MOST_SERVERS or network.inside is not None:
        return tables._replace(first_links=np.zeros(1, np.int64))
    try:
        for source in servers:
            for target in servers:
                if source != target:
                    path = network.own_way((source, 0), (target, 0))
                    path_links += path.links
                latency_s.append(0.0 if source == target else path.latency_s)
                first_links.append(len(path_links))
    except (InputError, PluginError):  # which the job says that meets it
        return tables._replace(first_links=np.zeros(1, np.int64))
    return tables._replace(
        first_links=np.array(first_links, np.int64),
        path_links=np.array(path_links, np.int64),
        latency_s=np.array(latency_s),
    )


def _with_room(tables: StartTables, num_transfers: int, of_a_job: int, most_servers: int) -> StartTables:
    """Return tables with room for runs of so many transfers, of jobs of so many, on so many servers."""
    runs, before, width = tables.wire_bytes.shape
    if num_transfers > before or most_servers >= width:
        shape = runs, max(num_transfers, before), max(most_servers + 1, width)
        wire_bytes, load_ns = np.zeros(shape), np.zeros(shape, np.int64)
        wire_bytes[:, :before, :width], load_ns[:, :before, :width] = tables.wire_bytes, tables.load_ns
        tables = tables._replace(wire_bytes=wire_bytes, load_ns=load_ns)
    longest = int(np.diff(tables.first_links).max()) if _has_routes(tables) else 0
    ring = len(tables.servers) * (1 + longest)
    if of_a_job > len(tables.num_links) or not len(tables.links):
        count = max(of_a_job, 1)
        tables = tables._replace(
            job_links=np.zeros(ring, np.int64),
            links=np.zeros(ring * count, np.int64),
            shares=np.ones(ring * count),
            num_links=np.zeros(count, np.int64),
            bytes=np.zeros(count),
            latency_ns=np.zeros(count),
            loads_ns=np.zeros(count, np.int64),
        )
    return tables
