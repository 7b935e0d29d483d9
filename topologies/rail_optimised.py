"""Networks of rails: card i of every host of a unit on leaf i; rails, or planes of them, may be apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.network.cables import Cables
from ddlsched.network.inside import Inside, refuse_bad_port
from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours, refuse_bad_cables, refuse_bad_counts

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["RailOptimised", "nvl72", "rail_only"]


@dataclass(frozen=True, kw_only=True)
class RailOptimised:
    """Units of hosts with a card and a leaf switch a rail; every leaf is on every spine.

    With ``nvlink_gbps`` each card is a link of its own, on the leaf of its rail, and the inside of a host takes time.
    Without it a server has one link, so that its cards count together, and the leaves of a unit as one node
    ``"rails u"``. That is exact for jobs on whole hosts whose all-reduce splits its message evenly over the rails, as
    rings of NCCL do: each rail then carries the same share. It does not know that a job on some of a host's GPUs has
    only their cards, that traffic between rails goes over a spine, nor a rail busier than another.

    A transfer to server d of another unit, or to another rail, takes spine d mod ``spines`` (destination-based
    routing).

    Levels: a unit is a ``block``; where hosts are trays of NVLink domains these are ``tray`` and ``rack``.

    Parameters
    ----------
    hosts_per_unit
        From 1 to 1024; 32 in the published network.
    rails
        Network cards of a host, and leaves of a unit, from 1 to 1024; 8 in the published network.
    spines
        Spine switches, from 1 to 1024.
    rail_gbps
        Bandwidth of a card, Gbit/s.
    oversubscription
        Bandwidth of a leaf's cables to hosts over that of its cables to spines; 1 in the published network.
    latency_s
        Of each cable, seconds.
    nvlink_gbps
        Bandwidth of a GPU's port towards the others of its host, one direction, Gbit/s; 3600 in an H100 host.
    nvlink_latency_s
        Of a step from GPU to GPU inside a server, seconds; nothing without ``nvlink_gbps``.
    hosts_per_domain
        Neighbours that NVLink joins, of one unit; above 1 needs ``nvlink_gbps``.
    planes
        Networks apart, each with its own leaves and ``spines``: a card has a port of ``rail_gbps`` / ``planes`` on each
        (HPN's dual plane: 2). Above 1 needs ``nvlink_gbps``.
    rails_apart
        Whether each rail has spines of its own, so that what is for another rail changes over inside the host
        (rail-only). Needs ``nvlink_gbps``.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture for DGX H100: 8 x 400 Gbit/s a host, 32 cables down and 32 up a leaf.
    Qian et al., "Alibaba HPN: A Data Center Network for Large Language Model Training", SIGCOMM 2024: planes. Wang et
    al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion Parameters", HOTI 2024.
    """

    hosts_per_unit: int = 32
    rails: int = 8
    spines: int = 4
    rail_gbps: float = 400.0
    oversubscription: float = 1.0
    latency_s: float = 0.0
    nvlink_gbps: float | None = None
    nvlink_latency_s: float = 0.0
    hosts_per_domain: int = 1
    planes: int = 1
    rails_apart: bool = False

    def __post_init__(self) -> None:
        refuse_bad_counts("rail-optimised", hosts_per_unit=self.hosts_per_unit, rails=self.rails, spines=self.spines)
        refuse_bad_counts("rail-optimised", hosts_per_domain=self.hosts_per_domain, planes=self.planes)
        if self.hosts_per_unit % self.hosts_per_domain:
            raise InputError(
                f"rail-optimised: hosts_per_unit is {self.hosts_per_unit}; "
                f"expected whole domains of hosts_per_domain={self.hosts_per_domain}"
            )
        if self.nvlink_gbps is None and (self.hosts_per_domain > 1 or self.planes > 1 or self.rails_apart):
            raise InputError(
                "rail-optimised: nvlink_gbps is not given; expected it beside hosts_per_domain, planes and rails_apart"
            )
        bandwidths = {"rail_gbps": self.rail_gbps, "oversubscription": self.oversubscription}
        refuse_bad_cables("rail-optimised", latency_s=self.latency_s, **bandwidths)
        refuse_bad_port("rail-optimised", self.nvlink_gbps, self.nvlink_latency_s)

    @cached_property
    def inside(self) -> Inside | None:
        """The inside of a server: a card a rail."""
        if self.nvlink_gbps is None:
            return None
        return Inside(
            gpu_gbps=self.nvlink_gbps,
            cards=self.rails,
            latency_s=self.nvlink_latency_s,
            servers=self.hosts_per_domain,
            planes=self.planes,
            by_rail=self.rails_apart,
        )

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the unit of each level that each host is in."""
        domains = {"tray": 1, "rack": self.hosts_per_domain} if self.hosts_per_domain > 1 else {}
        sizes = {**domains, "block": self.hosts_per_unit}
        return {name: neighbours(num_servers, size) for name, size in sizes.items()}

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph of the :meth:`cables`."""
        import networkx as nx

        graph: nx.Graph[Any] = nx.Graph()
        graph.add_edges_from(self.cables(num_servers).edges())
        return graph

    def cables(self, num_servers: int) -> Cables:
        """Return the cables; a unit's leaves are one node ``"rails u"``, or ``"leaf u.rail"``; spines ``"spine i"``.

        Where planes, or rails, are apart, their numbers come before the spine's, and the plane's behind the rail's.
        """
        ports, units = self._ports, -(-num_servers // self.hosts_per_unit)
        rail, server = np.divmod(np.arange(ports * num_servers), num_servers)
        port, unit, number = (each.ravel() for each in np.indices((ports, units, self.spines)))
        down = np.stack([server * ports + rail, num_servers * ports + self._leaves(server, rail)], axis=1)
        up = num_servers * ports + np.stack([self._leaves(unit * self.hosts_per_unit, port), self._spine(port, number)])
        by_rail = np.argsort(np.concatenate([rail, port]), kind="stable")
        card = (self.rails if self.inside is None else 1) * bytes_per_s_from_gbps(self.rail_gbps / self.planes)
        uplink = card * self.hosts_per_unit / (self.spines * self.oversubscription)
        bytes_per_s = np.repeat([card, uplink], [len(rail), len(port)])
        latency_s = np.full(len(by_rail), self.latency_s)

        def node_of(node: int) -> Node:
            server, port = divmod(node, ports)
            if server < num_servers:
                return server if self.inside is None else (server, port)
            return self._name(node - num_servers * ports)

        return Cables(np.concatenate([down, up.T])[by_rail], bytes_per_s[by_rail], latency_s, node_of).as_in_graph()

    @property
    def _ports(self) -> int:
        """How many cards of a host the network knows apart."""
        return 1 if self.inside is None else self.rails * self.planes

    @property
    def _num_spines(self) -> int:
        return self.spines * self.planes * (self.rails if self.rails_apart else 1)

    def _spine(self, port: Any, number: Any) -> Any:
        """Return the number of a spine above a port's leaf; planes, and rails if they are apart, have their own."""
        rail, plane = port // self.planes, port % self.planes
        return (self.rails_apart * rail * self.planes + plane) * self.spines + number

    def _leaves(self, server: Any, port: Any) -> Any:
        """Return the number of the leaf of a host's port; leaves are numbered behind all spines."""
        return self._num_spines + server // self.hosts_per_unit * self._ports + port

    def _name(self, switch: int) -> str:
        if switch < self._num_spines:
            above, number = divmod(switch, self.spines)
            rail, plane = divmod(above, self.planes)
            return "spine " + f"{rail}." * self.rails_apart + f"{plane}." * (self.planes > 1) + f"{number}"
        unit, port = divmod(switch - self._num_spines, self._ports)
        if self.inside is None:
            return f"rails {unit}"
        rail, plane = divmod(port, self.planes)
        return f"leaf {unit}.{rail}" + f".{plane}" * (self.planes > 1)

    def switches(self, sources: tuple[np.ndarray, np.ndarray], targets: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return the leaves and the spine of each route by number; inside a unit, and on one rail, its leaf alone."""
        first, last = self._leaves(*sources), self._leaves(*targets)
        spine = self._spine(sources[1], targets[0] % self.spines)
        return np.stack([first, np.where(first == last, -1, spine), np.where(first == last, -1, last)], axis=1)

    def _ends(self, source: Any, target: Any) -> Any:
        """Return servers and ports of two nodes."""
        return ((source, 0), (target, 0)) if self.inside is None else (source, target)

    def route(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Node]:
        """Return the route: inside a unit, and on one rail, over its leaf alone."""
        (host, port), (other, far) = (np.array([end]).T for end in self._ends(source, target))
        switches = self.switches((host, port), (other, far))[0]
        return source, *map(self._name, switches[switches >= 0].tolist()), target

    def paths(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Sequence[Node]]:
        """Return the path over each spine; inside a unit, and on one rail, the only one."""
        (host, port), (other, far) = self._ends(source, target)
        first, last = self._leaves(host, port), self._leaves(other, far)
        if first == last:
            return [(source, self._name(first), target)]
        above = [self._name(self._spine(port, number)) for number in range(self.spines)]
        return [(source, self._name(first), spine, self._name(last), target) for spine in above]


def rail_only(
    *, hosts_per_unit: int = 32, rails: int = 8, spines: int = 4, rail_gbps: float = 400.0, nvlink_gbps: float = 3600.0
) -> RailOptimised:
    """Return a rail-only network: rails that meet nowhere but inside hosts.

    Parameters
    ----------
    hosts_per_unit
        Hosts of a unit, from 1 to 1024.
    rails
        Network cards of a host, from 1 to 1024.
    spines
        Spine switches of each rail.
    rail_gbps
        Bandwidth of a card, Gbit/s.
    nvlink_gbps
        Bandwidth of a GPU's port inside its host, one direction, Gbit/s.
    """
    sizes = {"hosts_per_unit": hosts_per_unit, "rails": rails, "spines": spines}
    return RailOptimised(**sizes, rail_gbps=rail_gbps, nvlink_gbps=nvlink_gbps, rails_apart=True)


def nvl72(
    *, racks_per_block: int = 8, card_gbps: float = 400.0, spines: int = 4, oversubscription: float = 1.0
) -> RailOptimised:
    """Return racks of 18 trays of 4 GPUs that are one NVLink domain each (GB200, GB300 NVL72).

    A GPU has 900 GB/s towards its rack in one direction, and a card of its own outside: 400 Gbit/s in GB200, 800 in
    GB300. Card i of every tray of a block is on leaf i, as in NVIDIA's SuperPODs.

    Parameters
    ----------
    racks_per_block
        Racks of a block.
    card_gbps
        Bandwidth of a GPU's card, Gbit/s.
    spines
        Spine switches.
    oversubscription
        Bandwidth of a leaf's cables to trays over that of its cables to spines.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture for DGX GB200: 8 racks a scalable unit, four rails.
    """
    return RailOptimised(
        hosts_per_unit=18 * racks_per_block,
        rails=4,
        spines=spines,
        rail_gbps=card_gbps,
        oversubscription=oversubscription,
        nvlink_gbps=7200.0,
        hosts_per_domain=18,
    )
