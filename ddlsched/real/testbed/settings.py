"""A gate's settings from names, as ``simulate`` takes them, and clusters whose network is scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.errors import InputError, label
from ddlsched.network.topology import Node
from ddlsched.plugins import DEFAULT_BUNDLE
from ddlsched.plugins.names import resolve
from ddlsched.real.gate.gate import GateSettings, begun_policies
from ddlsched.real.gate.transfer_gate import WINDOW
from ddlsched.real.testbed.cabling import refuse_inside
from ddlsched.units import MAX_MESSAGE_BYTES, is_whole

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Scaled", "gate_settings", "scaled"]

_LEAST_CHUNK_BYTES = 1_000
_MOST_WINDOW = 64


def gate_settings(
    cluster: Cluster,
    *,
    scheduler: str = DEFAULT_BUNDLE,
    placement: Any = None,
    order: Any = None,
    communication: Any = None,
    contention: Any = "max-min",
    seed: int = 0,
    chunk_bytes: float | None = None,
    window: int = WINDOW,
    slots: bool = False,
    train: bool = False,
) -> GateSettings:
    """Return the settings of a gate before a cluster; policies are instances or names.

    Raises
    ------
    InputError
        A value out of range.
    UnknownNameError
        A name that nobody has registered.
    """
    if not is_whole(seed, 0):
        raise InputError(f"seed is {seed!r}; expected a whole number >= 0")
    if chunk_bytes is not None and not _LEAST_CHUNK_BYTES <= chunk_bytes <= MAX_MESSAGE_BYTES:
        raise InputError(f"chunk_bytes is {chunk_bytes:g}; expected at least {_LEAST_CHUNK_BYTES} bytes")
    if not is_whole(window, 1, _MOST_WINDOW):
        raise InputError(f"window is {window}; expected a whole number from 1 to {_MOST_WINDOW}")
    if slots and train:
        raise InputError("--slots with --train: training computes when it can; expected one of the two")
    settings = GateSettings.by_name(
        cluster,
        scheduler=scheduler,
        contention=contention,
        policies={"placement": placement, "order": order, "communication": communication},
        seed=seed,
        chunk_bytes=chunk_bytes,
        window=window,
        slots=slots,
        train=train,
    )
    refuse_inside(settings.costs.network)
    _refuse_stops_and_moves(begun_policies(settings))
    return settings


def _refuse_stops_and_moves(policies: CheckedPolicies) -> None:
    for kind, method in (("order", "stops"), ("placement", "moves")):
        if hasattr(getattr(policies, kind), method):
            text = (
                f"{kind} {policies.label(kind)} {method} running jobs, and a real job keeps its processes until its end"
            )
            raise InputError(f"{text}; expected one without {method}() on the testbed (ddlsched simulate runs it)")


@dataclass(frozen=True, kw_only=True, repr=False)
class Scaled:
    """A topology whose cables are ``factor`` times as fast as another's; routes are the same."""

    topology: Any
    factor: float

    def __repr__(self) -> str:
        return f"{label(self.topology)} x {self.factor:g}"

    @property
    def inside(self) -> Any:
        """The inside of servers, if the other states it."""
        return getattr(self.topology, "inside", None)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the other's graph with its rates multiplied."""
        graph: nx.Graph[Any] = self.topology.graph(num_servers).copy()
        for _, _, data in graph.edges(data=True):
            data["bandwidth_bytes_per_s"] *= self.factor
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the other's route."""
        nodes: Sequence[Node] = self.topology.route(graph, source, target)
        return nodes


def scaled(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose network is ``factor`` times as fast.

    Raises
    ------
    InputError
        The factor is not above 0, or above 1000.
    """
    if not 0 < factor <= 1e3:
        raise InputError(f"--scale is {factor}; expected a number above 0, to 1000")
    servers = tuple(
        server if server.nic_gbps is None else replace(server, nic_gbps=server.nic_gbps * factor)
        for server in cluster.servers
    )
    return replace(
        cluster, topology=Scaled(topology=resolve("topology", cluster.topology), factor=factor), servers=servers
    )
