"""Runs some of whose decisions are carried out from outside of the driver, many of them beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.driver import RunParts
from ddlsched.engine.loop.batch.runs import placing_address
from ddlsched.engine.loop.batch.starts import StartTables
from ddlsched.engine.records import State
from ddlsched.engine.run_options import RunSettings
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InputError, PluginError
from ddlsched.network.topology import Network
from ddlsched.policies.doors import Allocation
from ddlsched.units import MAX_NS
from ddlsched.workload.elastic_job import ConstantRescaleCost


class BatchedRun:
    """A run under way, whose state before its first event is kept if it may be begun again.

    Raises
    ------
    InputError
        The order is asked in Python, between what is decided and what follows.
    """

    def __init__(self, parts: RunParts) -> None:
        if parts.state.run.order_ranked:
            raise InputError("the order is asked in Python, or remembers what it was asked; expected a compiled one")
        self._state, forms, settings = parts.state, parts.forms, parts.settings
        self.may_begin_again = forms.all_compiled and not forms.have_memory and _is_alike_each_time(settings)
        """Whether another run of the same jobs is the same until its first decision, whatever its seed."""
        self._arrays: State = parts.state.arrays
        self._first: list[tuple[np.ndarray, np.ndarray]] = []

    def remember(self) -> None:
        """Keep the state before the first event, to begin with it again."""
        if self.may_begin_again:
            self._arrays = self._state.arrays
            arrays = [_bytes_of(array) for array in self._arrays if array is not self._arrays.snapshots]
            self._first = [(array, array.copy()) for array in arrays if len(array)]

    def begin_again(self) -> State:
        """Put everything back to before the first event."""
        state = self._state
        self._arrays.snapshots[: state.now.num_words.item(0)] = 0  # too large to be written whole
        for array, first in self._first:
            array[:] = first
        if state.stays:
            for view in state.views:
                view._placed((), ())
            state.stays.clear()
            state.transfer_views.clear()
        state.arrays = self._arrays
        return self._arrays

    def note(self) -> None:
        """Make what Python looks at of what compiled code has done since."""


class StartedRun(BatchedRun):
    """Starts jobs of a run, whose Python objects are made of its arrays whenever Python is to look.

    Raises
    ------
    InputError
        Jobs may also leave their GPUs.
    """

    def __init__(self, parts: RunParts) -> None:
        _refuse_stops(parts.state, parts.settings)
        super().__init__(parts)
        self._placing = parts.placing

    def start(self, number: int, gpus: list[int]) -> None:
        """Start a job on GPUs, in placement order."""
        self.note()
        self._placing.put(number, gpus)

    def place(self, number: int) -> list[int] | None:
        """Ask the placement policy for the GPUs of a job."""
        self.note()
        return self._placing.place(number)

    def num_gpus(self, number: int) -> int:
        """Return how many GPUs a job needs."""
        return int(self._state.jobs.num_gpus.item(number))

    def note(self) -> None:
        """Make what Python looks at of the jobs that compiled code has started since."""
        self._placing.note_starts()


class ResizedRun(BatchedRun):
    """Gives the jobs of a run, all of them elastic, their GPUs, a round whenever jobs came or left."""

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        resizing, settings = parts.resizing, parts.settings
        costs = {type(job.rescale_cost) for job in resizing.jobs.all_jobs} | {type(settings.rescale_cost)}
        if not costs <= {type(None), ConstantRescaleCost}:
            self.may_begin_again = False
        self._resizing = resizing

    def begin_again(self) -> State:
        """Put everything back to before the first event."""
        self._resizing.begin_again()
        return super().begin_again()

    def open_round(self) -> tuple[list[int], list[int], list[int], int]:
        """Return who is there, by number, in the order of arrival, and how many GPUs there are.

        Between them: how many GPUs each has, and until when it makes no progress, ns.
        """
        self._resizing.take_in()
        there = self._resizing.jobs.there.values()
        num_gpus = int(np.count_nonzero(self._state.gpus.free_bytes >= -1))  # -1 where a job has the GPU for itself
        held = [len(holding.gpus) for holding in there]
        return [*self._resizing.jobs.there], held, [holding.hold_until_ns for holding in there], num_gpus

    def close_round(self, given: Sequence[int]) -> None:
        """Give the jobs that are there so many GPUs each."""
        there = self._resizing.jobs.there.values()
        answer = {
            holding.job.job_id: Allocation(num_gpus) for holding, num_gpus in zip(there, given, strict=True) if num_gpus
        }
        self._resizing.carry_out(answer)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return an array's own bytes, which are copied at once; records would be, field by field."""
    return array.reshape(-1).view(np.ndarray).view(np.uint8)


def _is_alike_each_time(settings: RunSettings) -> bool:
    """Return whether nothing is drawn, or begun anew, for each run."""
    policies = settings.order, settings.communication, settings.contention
    return (
        settings.disturbances == Disturbances()
        and settings.capacity is None
        and settings.window is None
        and settings.path is None
        and settings.options["watch"] is None
        and (settings.span.warmup_ns, settings.span.until_ns) == (0, MAX_NS)
        and not any(hasattr(policy, "begin") for policy in policies)
    )


def _refuse_stops(state: RunState, settings: RunSettings) -> None:
    """Raise InputError if jobs may leave their GPUs before they end."""
    stops = state.run.asks_moves or hasattr(settings.order, "stops") or settings.admission is not None
    hindrances = {
        "servers come and go": settings.disturbances.servers_fail or settings.capacity is not None,
        "jobs are stopped or moved": stops,
        "jobs are elastic": state.run.elastic,
        "the run is recorded": settings.window is not None,
    }
    for why, hinders in hindrances.items():
        if hinders:
            raise InputError(f"{why}; expected a run whose jobs start once")


# --- what compiled code has to know of runs to start their jobs: bytes and loads by the number of servers, and routes

_MOST_SERVERS = 64
"""Routes are looked up beforehand on so many; between more, Python plans what jobs send."""


def no_tables(num_runs: int, num_servers: int) -> StartTables:
    """Return tables that know no run yet."""
    whole = "first_links", "path_links", "job_links", "links", "num_links", "loads_ns"
    real = "latency_s", "shares", "bytes", "latency_ns"
    return StartTables(
        wire_bytes=np.zeros((num_runs, 0, 2)),
        load_ns=np.zeros((num_runs, 0, 2), np.int64),
        most_servers=np.ones(num_runs, np.int64),
        servers=np.zeros(num_servers, np.int64),
        placing_address=placing_address(),
        **dict.fromkeys(whole, np.zeros(0, np.int64)),
        **dict.fromkeys(real, np.zeros(0)),
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
    grouped = state.jobs.grouped
    for job in range(len(state.workload)):
        first, count = state.jobs.first_transfer.item(job), state.jobs.num_transfers.item(job)
        dag = state.workload[job].dag
        if state.run.rerouting or grouped.item(job) or not costs.has_plain_rings(dag) or not all(dag.messages):
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
