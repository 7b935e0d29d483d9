"""Networks of rails: card i of every host of a unit on leaf i; rails, or planes of them, may be apart; pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ddlsched.deferred import nx
from ddlsched.errors import InputError
from ddlsched.network.cables import Cables
from ddlsched.network.topology import Inside, Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import ranged
from topologies.star import GpuPorts


@dataclass(frozen=True, kw_only=True)
class RailOptimised(GpuPorts, who="rail-optimised"):
    """Units of hosts with a card and a leaf switch a rail; every leaf is on every spine.

    With ``nvlink_gbps`` each card is a link of its own, on the leaf of its rail, and the inside of a host takes time.
    Without it a server has one link, so that its cards count together, and the leaves of a unit as one node
    ``"rails u"``. That is exact for jobs on whole hosts whose all-reduce splits its message evenly over the rails, as
    rings of NCCL do: each rail then carries the same share. It does not know that a job on some of a host's GPUs has
    only their cards, that traffic between rails goes over a spine, nor a rail busier than another.

    A transfer to server d of another unit, or to another rail, takes spine d mod ``spines`` (destination-based
    routing); to another pod both pods' spines of that number and their core (d / ``spines``) mod ``cores``.

    Levels: a unit is a ``block``, some may be a ``pod``; where hosts are trays of NVLink domains these are ``tray`` and
    ``rack``.

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
    units_per_pod
        With it ``spines`` are those of a pod, and each is on ``cores`` switches, which join the same spine of all pods:
        a Clos network of three tiers.
    cores
        Core switches above each spine of a pod, from 1 to 1024.
    pod_oversubscription
        Bandwidth of a spine's cables to leaves over that of its cables to cores.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture for DGX H100: 8 x 400 Gbit/s a host, 32 cables down and 32 up a leaf.
    Qian et al., "Alibaba HPN: A Data Center Network for Large Language Model Training", SIGCOMM 2024: planes. Wang et
    al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion Parameters", HOTI 2024.
    """

    hosts_per_unit: int = ranged(32, 1, 1024)
    rails: int = ranged(8, 1, 1024)
    spines: int = ranged(4, 1, 1024)
    rail_gbps: float = ranged(400.0, 0.0, above=True)
    oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    nvlink_gbps: float | None = ranged(None, 0.0, above=True)
    nvlink_latency_s: float = ranged(0.0, 0.0, 1e6)
    hosts_per_domain: int = ranged(1, 1, 1024)
    planes: int = ranged(1, 1, 1024)
    rails_apart: bool = False
    units_per_pod: int | None = ranged(None, 1, 1024)
    cores: int = ranged(4, 1, 1024)
    pod_oversubscription: float = ranged(1.0, 0.0, above=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts_per_unit % self.hosts_per_domain:
            expected = f"expected whole domains of hosts_per_domain={self.hosts_per_domain}"
            raise InputError(f"rail-optimised: hosts_per_unit is {self.hosts_per_unit}; {expected}")
        if self.nvlink_gbps is None and (self.hosts_per_domain > 1 or self.planes > 1 or self.rails_apart):
            expected = "expected it beside hosts_per_domain, planes and rails_apart"
            raise InputError(f"rail-optimised: nvlink_gbps is not given; {expected}")

    @cached_property
    def inside(self) -> Inside | None:
        """The inside of a server: a card a rail."""
        return self._inside(
            cards=self.rails, servers=self.hosts_per_domain, planes=self.planes, by_rail=self.rails_apart
        )

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the unit of each level that each host is in."""
        domains = {"tray": 1, "rack": self.hosts_per_domain} if self.hosts_per_domain > 1 else {}
        pods = {} if self.units_per_pod is None else {"pod": self.hosts_per_unit * self._units}
        sizes = {**domains, "block": self.hosts_per_unit, **pods}
        return {name: neighbours(num_servers, size) for name, size in sizes.items()}

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph of the :meth:`cables`."""
        return nx.from_edgelist(self.cables(num_servers).edges())

    def cables(self, num_servers: int) -> Cables:
        """Return the cables; a unit's leaves are one node ``"rails u"``, or ``"leaf u.rail"``; spines ``"spine i"``.

        Where planes, or rails, are apart, their numbers come before the spine's, and the plane's behind the rail's; the
        pod's comes before all. Core c above a spine is ``"core"``, the spine's number without its pod, and c.
        """
        ports, units, cards = self._ports, -(-num_servers // self.hosts_per_unit), num_servers * self._ports
        rail, server = np.divmod(np.arange(cards), num_servers)
        port, unit, number = (each.ravel() for each in np.indices((ports, units, self.spines)))
        pods = 0 if self.units_per_pod is None else -(-units // self._units)
        pod, spine, core = (each.ravel() for each in np.indices((pods, self._num_spines, self.cores)))
        down = np.stack([server * ports + rail, cards + self._leaves(server, rail)])
        host = unit * self.hosts_per_unit
        up = cards + np.stack([self._leaves(host, port), self._spine(host, port, number)])
        far = cards + np.stack([self._num_cores + pod * self._pod_size + spine, spine * self.cores + core])
        by_rail = np.argsort(np.concatenate([rail, port, np.full(len(pod), ports)]), kind="stable")
        card = (self.rails if self.inside is None else 1) * bytes_per_s_from_gbps(self.rail_gbps / self.planes)
        uplink = card * self.hosts_per_unit / (self.spines * self.oversubscription)
        under = self._units * self.spines * ports / self._num_spines  # leaves under a spine
        to_core = uplink * under / (self.cores * self.pod_oversubscription)
        bytes_per_s = np.repeat([card, uplink, to_core], [len(rail), len(port), len(pod)])
        latency_s = np.full(len(by_rail), self.latency_s)

        def node_of(node: int) -> Node:
            server, port = divmod(node, ports)
            if server < num_servers:
                return server if self.inside is None else (server, port)
            return self._name(node - cards)

        ends = np.concatenate([down, up, far], axis=1).T
        return Cables(ends[by_rail], bytes_per_s[by_rail], latency_s, node_of).as_in_graph()

    @property
    def _ports(self) -> int:
        """How many cards of a host the network knows apart."""
        return 1 if self.inside is None else self.rails * self.planes

    @property
    def _units(self) -> int:
        """How many units a pod has; one more than there can be where all are one pod."""
        return (1 << 20) if self.units_per_pod is None else self.units_per_pod

    @property
    def _num_spines(self) -> int:
        """How many spines a pod has."""
        return self.spines * self.planes * (self.rails if self.rails_apart else 1)

    @property
    def _num_cores(self) -> int:
        return 0 if self.units_per_pod is None else self._num_spines * self.cores

    @property
    def _pod_size(self) -> int:
        return self._num_spines + self._units * self._ports

    def _first_of(self, server: Any) -> Any:
        """Return the number of the first spine of a host's pod; pods are numbered behind the cores."""
        return self._num_cores + server // self.hosts_per_unit // self._units * self._pod_size

    def _spine(self, server: Any, port: Any, number: Any) -> Any:
        """Return the number of a spine above a port's leaf; planes, and rails if they are apart, have their own."""
        rail, plane = port // self.planes, port % self.planes
        return self._first_of(server) + (self.rails_apart * rail * self.planes + plane) * self.spines + number

    def _leaves(self, server: Any, port: Any) -> Any:
        """Return the number of the leaf of a host's port; leaves are numbered behind the spines of their pod."""
        unit = server // self.hosts_per_unit % self._units
        return self._first_of(server) + self._num_spines + unit * self._ports + port

    def _name(self, switch: int) -> str:
        if switch < self._num_cores:
            spine, core = divmod(switch, self.cores)
            return f"core {self._above(spine)}.{core}"
        pod, switch = divmod(switch - self._num_cores, self._pod_size)
        if switch < self._num_spines:
            return "spine " + f"{pod}." * (self.units_per_pod is not None) + self._above(switch)
        unit, port = divmod(switch - self._num_spines, self._ports)
        unit += pod * self._units
        if self.inside is None:
            return f"rails {unit}"
        rail, plane = divmod(port, self.planes)
        return f"leaf {unit}.{rail}" + f".{plane}" * (self.planes > 1)

    def _above(self, spine: int) -> str:
        """Return what tells a spine from others of its pod."""
        above, number = divmod(spine, self.spines)
        rail, plane = divmod(above, self.planes)
        return f"{rail}." * self.rails_apart + f"{plane}." * (self.planes > 1) + f"{number}"

    def switches(self, sources: tuple[np.ndarray, np.ndarray], targets: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return the switches of each route by number; inside a unit, and on one rail, its leaf alone."""
        number, core = targets[0] % self.spines, targets[0] // self.spines % self.cores
        return self._between(sources, targets, number, core)

    def _between(self, source: Any, target: Any, number: Any, core: Any) -> np.ndarray:
        """Return the switches of routes by number, over spines and cores of these numbers where they need such."""
        first, last = self._leaves(*source), self._leaves(*target)
        up, inside = self._spine(source[0], source[1], number), first == last
        if self.units_per_pod is None:
            return np.stack([first, np.where(inside, -1, up), np.where(inside, -1, last)], axis=1)
        down = self._spine(target[0], source[1], number)
        near, far = inside | (up == down), (up - self._num_cores) % self._pod_size * self.cores + core
        third, end = np.where(inside, -1, np.where(near, last, far)), np.where(near, -1, last)
        return np.stack([first, np.where(inside, -1, up), third, np.where(near, -1, down), end], axis=1)

    def _ends(self, source: Any, target: Any) -> Any:
        """Return servers and ports of two nodes."""
        ends = ((source, 0), (target, 0)) if self.inside is None else (source, target)
        return [[np.array([each]) for each in end] for end in ends]

    def route(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Node]:
        """Return the route: inside a unit, and on one rail, over its leaf alone."""
        (host, port), (other, far) = self._ends(source, target)
        return source, *self._names(self.switches((host, port), (other, far))[0]), target

    def _names(self, switches: np.ndarray) -> tuple[str, ...]:
        return tuple(map(self._name, switches[switches >= 0].tolist()))

    def paths(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Sequence[Node]]:
        """Return the path over each spine, between pods each core; inside a unit, and on one rail, the only one."""
        ends = self._ends(source, target)
        leaves = tuple(int(self._leaves(*end)[0]) for end in ends)
        if leaves not in self._between_leaves:
            number, core = (each.ravel() for each in np.indices((self.spines, self.cores)))
            start, end = ([np.repeat(each, len(core)) for each in own] for own in ends)
            found = self._between(start, end, number, core)
            self._between_leaves[leaves] = [*dict.fromkeys(map(self._names, found))]
        return [(source, *names, target) for names in self._between_leaves[leaves]]

    @cached_property
    def _between_leaves(self) -> dict[tuple[int, ...], list[tuple[str, ...]]]:
        """The switches of all paths from one leaf to another, as far as they have been asked for."""
        return {}


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


def rail_clos(
    *,
    units_per_pod: int = 8,
    cores: int = 4,
    spines: int = 4,
    rail_gbps: float = 400.0,
    nvlink_gbps: float = 3600.0,
    oversubscription: float = 1.0,
    pod_oversubscription: float = 1.0,
) -> RailOptimised:
    """Return a Clos network of three tiers: units of 32 hosts on eight rails, pods of units, core switches.

    Parameters
    ----------
    units_per_pod
        Units of a pod, from 1 to 1024.
    cores
        Core switches above each spine of a pod.
    spines
        Spine switches of a pod.
    rail_gbps
        Bandwidth of a card, Gbit/s.
    nvlink_gbps
        Bandwidth of a GPU's port inside its host, one direction, Gbit/s.
    oversubscription
        Bandwidth of a leaf's cables to hosts over that of its cables to spines.
    pod_oversubscription
        Bandwidth of a spine's cables to leaves over that of its cables to cores.
    """
    return RailOptimised(
        units_per_pod=units_per_pod,
        cores=cores,
        spines=spines,
        rail_gbps=rail_gbps,
        nvlink_gbps=nvlink_gbps,
        oversubscription=oversubscription,
        pod_oversubscription=pod_oversubscription,
    )


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
