"""The cluster: servers, their GPUs, memory and speed, and the topology of the network between them.

:mod:`ddlsched.cluster.cluster_files` reads one from a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from ddlsched.deferred import np
from ddlsched.errors import InputError, says_unknown_arguments
from ddlsched.network.topology import Network, Topology, bytes_per_s_from_gbps
from ddlsched.ranges import Checked, check_fields, ranged
from ddlsched.units import MAX_NS, bytes_from_mb

_MOST = 1e9


@dataclass(frozen=True, kw_only=True)
class Throughputs:
    """The throughput of each model on each kind of GPU, as iterations or samples a second, or relative.

    Parameters
    ----------
    values
        Model, kind and throughput, finite and > 0.
    reference_kind
        The kind on which jobs take the times that the workload says; by default a throughput of 1 means those times.
    source
        The file, for messages.

    Raises
    ------
    InputError
        A throughput that is none, a pair twice, or a model without one on the reference kind.
    """

    values: tuple[tuple[str, str, float], ...]
    reference_kind: str | None = None
    source: str = "throughputs"

    def __post_init__(self) -> None:
        for model, kind, throughput in self.values:
            if not 1 / _MOST <= throughput <= _MOST:
                raise InputError(
                    f"{self.source}: the throughput of model {model!r} on {kind!r} is {throughput}; expected a number "
                    f"from {1 / _MOST:g} to {_MOST:g}"
                )
        if len(self._by_pair) < len(self.values):
            raise InputError(f"{self.source}: has a model and kind twice; expected each once")
        if self.reference_kind is not None:
            for model, _, _ in self.values:
                self._of(model, self.reference_kind, f"{self.source}")

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], float]:
        return {(model, kind): throughput for model, kind, throughput in self.values}

    @property
    def models(self) -> list[str]:
        """The models, in the order of the values."""
        return list(dict.fromkeys(model for model, _, _ in self.values))

    @property
    def kinds(self) -> list[str]:
        """The kinds, in the order of the values."""
        return list(dict.fromkeys(kind for _, kind, _ in self.values))

    def speed(self, model: str | None, kind: str, where: str) -> float:
        """Return how many times as fast a job of a model computes on a kind as its times say.

        Raises
        ------
        InputError
            There is no throughput of the pair; ``where`` is the job's place in the workload, for the message.
        """
        if model is None:
            raise InputError(f"{where}, column model: is empty; expected one of the models of {self.source}")
        reference = 1.0 if self.reference_kind is None else self._of(model, self.reference_kind, where)
        return self._of(model, kind, where) / reference

    def _of(self, model: str, kind: str, where: str) -> float:
        if (model, kind) not in self._by_pair:
            row = f"row of model {model!r}, column {kind!r}"
            raise InputError(
                f"{where}: {self.source} has no throughput in the {row}; expected a number > 0 for each model of the "
                "workload and each kind of GPU"
            )
        return self._by_pair[model, kind]


MAX_GPUS = 10_000_000
MAX_SPEED = 1e6


@dataclass(frozen=True, kw_only=True)
class Server(Checked, who="server"):
    """One server; all its GPUs are alike.

    Parameters
    ----------
    gpus
        How many, at least 1.
    gpu_memory_mb
        Memory of each GPU, MB (1e6 B).
    relative_speed
        How many times as fast its GPUs compute as the job's times say.
    nic_gbps
        Bandwidth of its network card, Gbit/s; by default the topology's.
    gpu_kind
        What its GPUs are called in a table of throughputs, if the cluster has one.
    levels
        Pairs of a level and the server's unit of it, from the narrowest level, in place of the topology's. All servers
        of a cluster have the same levels.
    """

    gpus: int = ranged(4, 1, MAX_GPUS)
    gpu_memory_mb: float = ranged(32768.0, 0.0, MAX_NS / 1e6, above=True)
    relative_speed: float = ranged(1.0, 1 / MAX_SPEED, MAX_SPEED)
    nic_gbps: float | None = ranged(None, 0.0, above=True)
    gpu_kind: str | None = None
    levels: tuple[tuple[str, str], ...] = ()


# Its docstring is also the help of the command line (ddlsched/cli/dataclass_options.py).
@says_unknown_arguments
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Servers of one kind, by default those of the 64-GPU experiment, or any that are listed.

    GPUs are numbered server by server.

    Parameters
    ----------
    num_servers
        Number of servers.
    gpus_per_server
        GPUs of each server.
    gpu_memory_mb
        Memory of each GPU, MB (1e6 B).
    topology
        Network between the servers, e.g. ``leaf-spine:servers_per_leaf=4,spines=2``; in Python also an instance.
    servers
        Servers that may differ, in place of the three above.
    exclusive
        Whether a GPU has one job at a time; by default as many as its memory holds.
    throughputs
        How fast each model trains on each kind of GPU; by default each as fast as its server says.

    Examples
    --------
    >>> from ddlsched import Cluster, Server
    >>> Cluster(num_servers=8, gpus_per_server=4, topology="leaf-spine:servers_per_leaf=4,spines=2").num_gpus
    32
    >>> Cluster(servers=(Server(gpus=8, gpu_memory_mb=81920), Server(gpus=4, gpu_memory_mb=16384))).num_gpus
    12
    """

    num_servers: int = ranged(16, 1)
    gpus_per_server: int = ranged(4, 1)
    gpu_memory_mb: float = ranged(32768.0, 0.0, MAX_NS / 1e6, above=True)
    topology: Topology | str = "star"
    servers: tuple[Server, ...] = ()
    exclusive: bool = False
    throughputs: Throughputs | None = None

    def __post_init__(self) -> None:
        if self.servers:
            self._take_over_servers()
        if self.throughputs is not None:
            self._refuse_unknown_kinds(self.throughputs)
        check_fields(self, "cluster")
        if self.num_gpus > MAX_GPUS:
            raise InputError(f"cluster: {self.num_gpus} GPUs; expected at most {MAX_GPUS}")

    def _refuse_unknown_kinds(self, throughputs: Throughputs) -> None:
        for number, server in enumerate(self.servers or (Server(),)):
            if server.gpu_kind not in throughputs.kinds:
                raise InputError(
                    f"cluster: the gpu_kind of server {number} is {server.gpu_kind!r}; expected one of the kinds "
                    f"{', '.join(throughputs.kinds)} of {throughputs.source}, from a table of servers"
                )

    def _take_over_servers(self) -> None:
        """Let the counts of equal servers say the most that any of the listed has."""
        object.__setattr__(self, "servers", tuple(self.servers))
        for server in self.servers:
            if not isinstance(server, Server):
                raise InputError(f"cluster: servers holds {server!r}; expected objects of the class Server")
        if len(known := {tuple(level for level, _ in server.levels) for server in self.servers}) > 1:
            raise InputError(f"cluster: servers have the levels {sorted(known)}; expected the same of each")
        object.__setattr__(self, "num_servers", len(self.servers))
        object.__setattr__(self, "gpus_per_server", max(server.gpus for server in self.servers))
        object.__setattr__(self, "gpu_memory_mb", max(float(server.gpu_memory_mb) for server in self.servers))

    @cached_property
    def num_gpus(self) -> int:
        """GPUs of all servers."""
        return sum(server.gpus for server in self.servers) or self.num_servers * self.gpus_per_server

    @cached_property
    def first_gpus(self) -> np.ndarray:
        """Number of the first GPU of each server, and behind the last server the number of all GPUs."""
        return np.concatenate([[0], np.cumsum(self.gpus_of_servers, dtype=np.int64)])

    @property
    def gpus_of_servers(self) -> list[int]:
        """GPUs of each server."""
        return [server.gpus for server in self.servers] or [self.gpus_per_server] * self.num_servers

    @cached_property
    def common_multiple(self) -> int:
        """Least common multiple of the servers' numbers of GPUs."""
        return lcm(*{server.gpus for server in self.servers} or {self.gpus_per_server})

    @cached_property
    def server_of_gpu(self) -> np.ndarray:
        """Server of each GPU."""
        return np.repeat(np.arange(self.num_servers), np.diff(self.first_gpus))

    @cached_property
    def gpu_memory_bytes(self) -> np.ndarray:
        """Memory of each GPU, bytes (int64)."""
        sizes_mb = [server.gpu_memory_mb for server in self.servers] or [self.gpu_memory_mb] * self.num_servers
        by_gpu: np.ndarray = np.array([bytes_from_mb(size_mb) for size_mb in sizes_mb], np.int64)[self.server_of_gpu]
        return by_gpu

    @property
    def network_cards(self) -> dict[int, float]:
        """Bandwidth, bytes per second, of those servers' network cards that differ from the topology's."""
        given = {number: server.nic_gbps for number, server in enumerate(self.servers)}
        return {number: bytes_per_s_from_gbps(gbps) for number, gbps in given.items() if gbps is not None}

    @property
    def levels(self) -> dict[str, tuple[int, ...]]:
        """Of each level that servers have in place of the topology's, the unit that each server is in."""
        found = {}
        for column in zip(*(server.levels for server in self.servers), strict=True):
            numbers = {unit: number for number, unit in enumerate(dict.fromkeys(column))}
            found[column[0][0]] = tuple(numbers[unit] for unit in column)
        return found

    def network(self, topology: Topology) -> Network:
        """Return the network between the servers, of an instance of the topology."""
        name = self.topology if isinstance(self.topology, str) else ""
        return Network(topology, self.num_servers, self.network_cards, self.gpus_of_servers, self.levels, name)

    @cached_property
    def relative_speed(self) -> np.ndarray:
        """How many times as fast each GPU computes as the jobs' times say (float64)."""
        speeds = [server.relative_speed for server in self.servers] or [1.0] * self.num_servers
        by_gpu: np.ndarray = np.array(speeds, np.float64)[self.server_of_gpu]
        return by_gpu

    @property
    def kinds(self) -> list[str]:
        """The kinds of its GPUs, in the order of the table of throughputs; none without one."""
        if self.throughputs is None:
            return []
        there = {server.gpu_kind for server in self.servers}
        return [kind for kind in self.throughputs.kinds if kind in there]

    @property
    def models_on_all_kinds(self) -> list[str]:
        """The models that have a throughput on each of :attr:`kinds`; none without a table of throughputs."""
        if self.throughputs is None:
            return []
        there = {(model, kind) for model, kind, _ in self.throughputs.values}
        return [model for model in self.throughputs.models if all((model, kind) in there for kind in self.kinds)]

    def refuse_without_throughput(self, jobs: Iterable[tuple[str, str, str | None]]) -> None:
        """Refuse the first job whose model lacks a throughput on a kind of the GPUs.

        ``jobs`` are the place in the workload, the id and the model of each.

        Raises
        ------
        InputError
            With the job's place and the row and column of the table.
        """
        if self.throughputs is not None:
            for where, job_id, model in jobs:
                for kind in self.kinds:
                    self.throughputs.speed(model, kind, f"{where}: job {job_id!r}")

    @cached_property
    def kind_of_gpu(self) -> np.ndarray:
        """The place in :attr:`kinds` of each GPU's kind; 0 without a table of throughputs."""
        places = {kind: place for place, kind in enumerate(self.kinds)}
        by_server = [places.get(server.gpu_kind or "", 0) for server in self.servers] or [0] * self.num_servers
        by_gpu: np.ndarray = np.array(by_server, np.int64)[self.server_of_gpu]
        return by_gpu
