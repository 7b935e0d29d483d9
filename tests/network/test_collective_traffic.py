"""What collectives put on links: worked out by hand, and message by message."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.errors import InputError
from ddlsched.network.collectives import Rank
from ddlsched.network.contention import EqualShare, Linear, ring_bytes
from ddlsched.network.topology import Inside, Network, Topology
from ddlsched.network.traffic import TaskMessage, Traffic, traffic_of
from ddlsched.network.tuple_traffic import Tuples, TupleTraffic, _alike_rows
from topologies.leaf_spine import LeafSpine
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

MESSAGE = 840.0  # divisible by 1 to 8
STAR = Star(nic_gbps=100.0, nvlink_gbps=1600.0)
RAILS = RailOptimised(hosts_per_unit=2, rails=4, spines=2, rail_gbps=400.0, nvlink_gbps=3600.0)


def bytes_by_hand(message_bytes: float, members: int) -> float:
    return message_bytes * (2 * (members - 1) / members)


def network_of(topology: Topology, num_servers: int, gpus: int) -> Network:
    return Network(topology, num_servers, None, [gpus] * num_servers)


def traffic(
    kind: str,
    workers: Sequence[tuple[int, int]],
    network: Network,
    *,
    algorithm: str = "ring",
    message_bytes: float = MESSAGE,
) -> Traffic:
    """Return the traffic over workers given as (server, place of its GPU)."""
    ranks = [network.rank(*worker) for worker in workers]
    return traffic_of(network, TaskMessage(kind, algorithm, message_bytes), ranks, bytes_by_hand, network.own_way)


def by_link(found: Traffic, network: Network) -> dict[str, float]:
    """Return the bytes on each link, by its name."""
    sent: dict[str, float] = defaultdict(float)
    for link, share in zip(found.links, found.shares, strict=True):
        sent[network.links[link].name] += found.wire_bytes * share
    return {name: pytest.approx(amount) for name, amount in sent.items()}


def on(names: str, amount: float) -> dict[str, float]:
    """Return so many bytes on each of the links named ``"0.1 0.2"`` (ports) or ``"0:1"`` (cards)."""
    named = [name.replace(".", ", GPU ").replace(":", ", card ") for name in names.split()]
    return {f"server {name}": amount for name in named}


ONE_SERVER = [(0, 0), (0, 1), (0, 2), (0, 3)]
TWO_SERVERS = [(0, 0), (0, 1), (1, 0), (1, 1)]
PORTS = "0.0 0.1 1.0 1.1"


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        # 4 ranks, 840 bytes. All-reduce: 3 steps of reduce-scatter and 3 of all-gather, a quarter each: 6 x 210.
        ("all-reduce", 1260.0),
        ("all-gather", 630.0),
        ("reduce-scatter", 630.0),
        # Each rank sends a quarter to each of 3 others.
        ("all-to-all", 630.0),
        ("broadcast", 840.0),
    ],
)
def test_in_one_server(kind: str, each: float) -> None:
    network = network_of(STAR, 2, 4)
    for algorithm in ("ring", "hierarchical"):
        found = traffic(kind, ONE_SERVER, network, algorithm=algorithm)
        assert by_link(found, network) == on("0.0 0.1 0.2 0.3", each)
        # A port is 16 times as fast as a card: what a card would move in that time is a sixteenth.
        assert found.wire_bytes == pytest.approx(each / 16)


@pytest.mark.parametrize(
    ("kind", "algorithm", "expected"),
    [
        # In one ring over 4 ranks everything crosses every card and every port.
        ("all-reduce", "ring", on("0:0 1:0", 1260.0) | on(PORTS, 1260.0)),
        # Inside 2 ranks: 2 x 1/2 x 840. Between, 2 lanes over the same card, each of 420 bytes: 2 x 2 x 1/2 x 420.
        ("all-reduce", "hierarchical", on("0:0 1:0", 840.0) | on(PORTS, 840.0)),
        ("all-gather", "ring", on("0:0 1:0", 630.0) | on(PORTS, 630.0)),
        ("all-gather", "hierarchical", on("0:0 1:0", 420.0) | on(PORTS, 420.0)),
        ("reduce-scatter", "hierarchical", on("0:0 1:0", 420.0) | on(PORTS, 420.0)),
        # Each rank sends 210 to its neighbour and 2 x 210 to the other server.
        ("all-to-all", "ring", on("0:0 1:0", 840.0) | on(PORTS, 210.0)),
        ("broadcast", "ring", on("0:0 1:0", 840.0) | on(PORTS, 840.0)),
    ],
)
def test_over_two_servers_with_a_card_each(kind: str, algorithm: str, expected: dict[str, float]) -> None:
    network = network_of(STAR, 2, 4)
    assert by_link(traffic(kind, TWO_SERVERS, network, algorithm=algorithm), network) == expected


def test_a_send_uses_the_two_cards_or_the_two_ports() -> None:
    network = network_of(RAILS, 4, 4)
    assert by_link(traffic("send", [(0, 1), (0, 3)], network), network) == on("0.1 0.3", MESSAGE)
    assert by_link(traffic("send", [(0, 1), (1, 1)], network), network) == on("0:1 1:1", MESSAGE)
    # From rail 1 to rail 3: over spine 1 (target's number mod 2).
    cables = {"leaf 0.1 to spine 1": MESSAGE, "spine 1 to leaf 0.3": MESSAGE}
    assert by_link(traffic("send", [(0, 1), (1, 3)], network), network) == on("0:1 1:3", MESSAGE) | cables


def test_a_ring_over_whole_hosts_uses_every_rail() -> None:
    network = network_of(RAILS, 2, 4)
    found = traffic("all-reduce", [(server, place) for server in range(2) for place in range(4)], network)
    # 8 ranks: 2 x 7/8 x 840 = 1470 through every port, a quarter of that over each of 4 cards.
    ports = " ".join(f"{server}.{place}" for server in range(2) for place in range(4))
    assert by_link(found, network) == on(ports, 1470.0) | on(ports.replace(".", ":"), 1470.0 / 4)
    # A port has 9 times the bandwidth of a card, and 4 times its bytes.
    assert found.wire_bytes == pytest.approx(1470.0 / 4)


def test_a_group_across_hosts_uses_the_cards_of_its_own_gpus() -> None:
    network = network_of(RAILS, 4, 4)
    found = traffic("all-reduce", [(0, 2), (1, 2)], network)
    assert by_link(found, network) == on("0:2 1:2", MESSAGE)
    # To another unit its rail goes over a spine, both ways.
    far = by_link(traffic("all-reduce", [(0, 2), (2, 2)], network), network)
    up_and_down = ["leaf 0.2 to spine 0", "spine 0 to leaf 1.2", "leaf 1.2 to spine 0", "spine 0 to leaf 0.2"]
    assert far == on("0:2 2:2", MESSAGE) | dict.fromkeys(up_and_down, MESSAGE)


def test_an_all_to_all_by_rail_leaves_no_rail() -> None:
    network = network_of(RAILS, 2, 2)
    ranks = [(0, 0), (0, 1), (1, 0), (1, 1)]
    straight, by_rail = (
        by_link(traffic("all-to-all", ranks, network, algorithm=algorithm), network)
        for algorithm in ("ring", "hierarchical")
    )
    # GPUs 0 and 1 of 2 use cards 0 and 2 of 4. Each card sends 2 x 210, half of it to the other rail, over a spine.
    cards = on("0:0 0:2 1:0 1:2", 420.0)
    assert straight == cards | on("0.0 0.1 1.0 1.1", 210.0) | {
        "leaf 0.0 to spine 0": 210.0,
        "leaf 0.2 to spine 0": 210.0,
        "spine 0 to leaf 0.0": 210.0,
        "spine 0 to leaf 0.2": 210.0,
        "leaf 0.0 to spine 1": 210.0,
        "leaf 0.2 to spine 1": 210.0,
        "spine 1 to leaf 0.0": 210.0,
        "spine 1 to leaf 0.2": 210.0,
    }
    # By rail the part for the other rail goes to the neighbour first: 210 more through each port.
    assert by_rail == cards | on("0.0 0.1 1.0 1.1", 420.0)


def test_without_an_inside_a_server_counts_as_one_rank() -> None:
    network = Network(Star(nic_gbps=100.0), 3)
    ranks = [(0, 0), (0, 1), (1, 0), (2, 0)]
    # A ring over 3 servers: 2 x 2/3 x 840 for an all-reduce, half of it for its halves.
    for kind, each in (("all-reduce", 1120.0), ("all-gather", 560.0), ("reduce-scatter", 560.0), ("broadcast", 840.0)):
        assert by_link(traffic(kind, ranks, network), network) == {f"server {n}": each for n in range(3)}
    # 2 ranks send 210 to each of 2 others out of server 0; from 1 and from 2 210 go to each of 3 others.
    expected = {"server 0": 840.0, "server 1": 630.0, "server 2": 630.0}
    assert by_link(traffic("all-to-all", ranks, network), network) == expected
    for kind in ("all-reduce", "all-to-all", "broadcast", "send"):
        assert traffic(kind, ranks[:2], network).links == ()


def test_the_linear_model_counts_an_all_reduce_whole_and_its_halves_half() -> None:
    network = Network(Star(), 4)
    ranks = [Rank(server, 0, 0) for server in range(4)]
    for model, whole in ((Linear(), 840.0), (EqualShare(), 1260.0)):
        for kind, sent in (("all-reduce", whole), ("all-gather", whole / 2), ("broadcast", 840.0)):
            task = TaskMessage(kind, "ring", MESSAGE)
            found = traffic_of(network, task, ranks, partial(ring_bytes, model), network.own_way)
            assert found.wire_bytes == sent


@dataclass(frozen=True, kw_only=True)
class EvenAndOdd:
    """Servers with even numbers at one switch, with odd ones at another, and a cable between these."""

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        graph = nx.Graph([("even", "odd", {"bandwidth_bytes_per_s": 1.25e9, "latency_s": 1e-5})])
        for server in range(num_servers):
            graph.add_edge(server, ("even", "odd")[server % 2], bandwidth_bytes_per_s=1.25e9, latency_s=1e-5)
        return graph

    def route(self, graph: Any, source: Any, target: Any) -> list[Any]:
        switches = [("even", "odd")[end % 2] for end in (source, target)]
        return [source, *dict.fromkeys(switches), target]


def test_a_ring_that_crosses_a_link_twice_has_it_twice() -> None:
    """Servers 0 and 2 both send from the even switch to the odd one, where a link's transfers are counted."""
    network = Network(EvenAndOdd(), 4)
    found = traffic("all-reduce", [(server, 0) for server in range(4)], network)
    names = Counter(network.links[link].name for link in found.links)
    assert (names["even to odd"], names["odd to even"]) == (2, 2)
    assert (found.links, found.shares) == (network.ring((0, 1, 2, 3)).links, (1.0,) * 8)
    assert (found.wire_bytes, found.latency_s) == (1260.0, pytest.approx(6 * 3e-5))


def test_latency_is_that_of_the_steps() -> None:
    network = network_of(Star(nic_gbps=100.0, latency_s=1e-5, nvlink_gbps=1600.0, nvlink_latency_s=1e-6), 2, 4)
    within, across = [(0, n) for n in range(4)], [(s, n) for s in range(2) for n in range(4)]
    steps = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "broadcast": 1}
    for kind, rounds in steps.items():
        assert traffic(kind, within, network).latency_s == pytest.approx(rounds * 3 * 1e-6)
        assert traffic(kind, across, network).latency_s == pytest.approx(rounds * 7 * 2e-5)
    assert traffic("all-reduce", across, network, algorithm="hierarchical").latency_s == pytest.approx(2 * 2e-5 + 6e-6)
    assert traffic("all-to-all", across, network).latency_s == pytest.approx(2e-5)
    assert traffic("send", within[:2], network).latency_s == pytest.approx(1e-6)


def test_an_empty_message_has_the_shares_of_another() -> None:
    network = network_of(RAILS, 2, 4)
    full, empty = (traffic("all-to-all", TWO_SERVERS, network, message_bytes=size) for size in (1.0, 0.0))
    assert (empty.links, empty.shares, empty.wire_bytes) == (full.links, full.shares, 0.0)


# ---- message by message


class Wires:
    """Counts what goes through each port and card, in each direction."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.out: Counter[int] = Counter()
        self.into: Counter[int] = Counter()

    def inside(self, source: Rank, target: Rank, amount: float) -> None:
        self.out[self.network.port(source.server, source.place)] += amount
        self.into[self.network.port(target.server, target.place)] += amount

    def between(self, source: Rank, target: Rank, amount: float) -> None:
        cards = self.network.cards
        self.out[source.server * cards + source.card] += amount
        self.into[target.server * cards + target.card] += amount

    def most(self) -> dict[int, float]:
        return {link: pytest.approx(max(self.out[link], self.into[link])) for link in {*self.out, *self.into}}


def carried(found: Traffic) -> dict[int, float]:
    return {link: found.wire_bytes * share for link, share in zip(found.links, found.shares, strict=True)}


def ring_by_messages(wires: Wires, ranks: list[Rank], chunk: float, steps: int, lanes: int) -> None:
    """Pass chunks on from rank to rank in several rings, which leave a server by the card by which they enter it."""
    servers = sorted({rank.server for rank in ranks})
    for lane in range(lanes):
        order = []
        for server in servers:
            own = sorted(rank for rank in ranks if rank.server == server)
            first = next(n for n, rank in enumerate(own) if rank.card == sorted({r.card for r in own})[lane])
            order += own[first:] + own[:first]
        for _ in range(steps):
            for place, source in enumerate(order):
                target = order[(place + 1) % len(order)]
                if source.server == target.server:
                    wires.inside(source, target, chunk / lanes)
                    continue
                gate = next(rank for rank in order if rank.server == source.server)
                if gate != source:
                    wires.inside(source, gate, chunk / lanes)
                wires.between(gate, target, chunk / lanes)


@pytest.mark.parametrize(("servers", "gpus"), [(1, 4), (2, 1), (2, 2), (3, 4), (4, 2)])
@pytest.mark.parametrize(("kind", "rounds"), [("all-reduce", 2), ("all-gather", 1), ("reduce-scatter", 1)])
def test_rings_message_by_message(servers: int, gpus: int, kind: str, rounds: int) -> None:
    """A rank passes on a part of 1/n in each of n - 1 steps a round; every rail has its own ring."""
    network = network_of(RailOptimised(rails=gpus, nvlink_gbps=3600.0), servers, gpus)
    workers = [(server, place) for server in range(servers) for place in range(gpus)]
    ranks = [network.rank(*worker) for worker in workers]
    wires = Wires(network)
    steps = rounds * (len(ranks) - 1)
    ring_by_messages(wires, ranks, MESSAGE / len(ranks), steps, gpus if servers > 1 else 1)
    found = traffic(kind, workers, network)
    assert {
        link: found.wire_bytes * share for link, share in zip(found.links, found.shares, strict=True)
    } == wires.most()


@pytest.mark.long
@given(st.data())
def test_all_to_alls_message_by_message(data: st.DataObject) -> None:
    """Whatever the layout: each ordered pair of ranks sends a part of 1/n."""
    rails, gpus = data.draw(st.sampled_from([(1, 3), (2, 2), (2, 4), (3, 3)]))
    network = network_of(RailOptimised(rails=rails, spines=1, hosts_per_unit=8, nvlink_gbps=3600.0), 3, gpus)
    places = [(server, place) for server in range(3) for place in range(gpus)]
    workers = data.draw(st.lists(st.sampled_from(places), min_size=2, unique=True))
    by_rail = data.draw(st.booleans())
    wires, ranks = Wires(network), [network.rank(*worker) for worker in workers]
    part = MESSAGE / len(ranks)
    for source in ranks:
        for target in ranks:
            if source.server == target.server and source != target:
                wires.inside(source, target, part)
            elif source.server != target.server:
                gates = [r for r in sorted(ranks) if (r.server, r.card) == (source.server, target.card)]
                gate = gates[0] if by_rail and gates and source.card != target.card else source
                if gate != source:
                    wires.inside(source, gate, part)
                wires.between(gate, target, part)
    found = traffic("all-to-all", workers, network, algorithm="hierarchical" if by_rail else "ring")
    ends = {link: sent for link, sent in carried(found).items() if network.links[link].name.startswith("server")}
    assert ends == wires.most()


TRAYS = RailOptimised(
    hosts_per_unit=4,
    rails=4,
    spines=2,
    rail_gbps=400.0,
    nvlink_gbps=3600.0,
    hosts_per_domain=2,
    planes=2,
    rails_apart=True,
)


@pytest.mark.long
@pytest.mark.parametrize(
    "topology",
    [STAR, RAILS, TRAYS, Star(), LeafSpine(servers_per_leaf=2, spines=2)],
    ids=["star", "rails", "trays", "star without inside", "leaves"],
)
@given(data=st.data())
def test_item_27_tuples_that_lie_alike_put_on_links_what_each_does_alone(
    topology: Topology, data: st.DataObject
) -> None:
    network = network_of(topology, 8, 4)
    at = data.draw(st.permutations([(server, place) for server in range(8) for place in range(4)]))
    at = sorted(at) if data.draw(st.booleans()) else at
    cuts = sorted({0, 32, *(2 * n for n in data.draw(st.lists(st.integers(1, 15), max_size=6)))})
    tuples = [range(*cut) for cut in pairwise(cuts)]
    kind = data.draw(st.sampled_from(["all-reduce", "all-gather", "all-to-all", "broadcast", "reduce-scatter"]))
    asked: list[tuple[Any, Any]] = []
    in_turn: list[tuple[Any, Any]] = []

    def way_noted_in(noted: list[tuple[Any, Any]]) -> Any:
        def way(source: Any, target: Any) -> Any:
            noted.append((source, target))
            return network.own_way(source, target)

        return way

    ranks = network.ranks(*np.array(at).T)
    finder = TupleTraffic(network, ranks, bytes_by_hand, {}, way_noted_in(asked))
    found = finder.of(kind, "ring", MESSAGE, Tuples.of(tuples))
    first = np.concatenate([[0], np.cumsum(found.counts)])
    for number, own in enumerate(tuples):
        its = [network.rank(*at[worker]) for worker in own]
        alone = traffic_of(network, TaskMessage(kind, "ring", MESSAGE), its, bytes_by_hand, way_noted_in(in_turn))
        crossed = slice(first[number], first[number + 1])
        sent = dict(zip(found.links[crossed].tolist(), found.shares[crossed].tolist(), strict=True))
        assert sent == dict(zip(alone.links, alone.shares, strict=True))
        assert found.wire_bytes[number] == alone.wire_bytes
        assert found.latency_s[number] == alone.latency_s
    if network.inside is not None:
        in_turn = list(dict.fromkeys(in_turn))
    assert asked == in_turn


@given(st.data())
def test_what_enters_the_network_leaves_it(data: st.DataObject) -> None:
    """On the cables between switches, as many bytes as the cards send, once for each cable of the route."""
    topology = data.draw(st.sampled_from([LeafSpine(servers_per_leaf=2, spines=2), RAILS]))
    network = network_of(topology, 4, 4)
    places = [(server, place) for server in range(4) for place in range(4)]
    workers = data.draw(st.lists(st.sampled_from(places), min_size=2, unique=True))
    kind = data.draw(st.sampled_from(["all-to-all", "broadcast"]))
    found = traffic(kind, workers, network)
    into: Counter[str] = Counter()
    for link, share in zip(found.links, found.shares, strict=True):
        name = network.links[link].name
        if " to " in name:
            source, target = name.split(" to ")
            into[target] += found.wire_bytes * share
            into[source] -= found.wire_bytes * share
    assert all(abs(amount) < 1e-6 for node, amount in into.items() if node.startswith("spine"))


def test_item_27_an_inside_of_which_only_the_speed_is_told_takes_no_time_else() -> None:
    assert Inside(gpu_gbps=1.0) == Inside(gpu_gbps=1.0, cards=1, latency_s=0.0, servers=1, planes=1, by_rail=False)


def test_what_is_no_inside_is_refused() -> None:
    for make, fault in (
        (lambda: Inside(gpu_gbps=0.0), "gpu_gbps is 0.0; expected Gbit/s > 0"),
        (lambda: Inside(gpu_gbps=1.0, cards=0), "cards is 0; expected a whole number from 1 to 1024"),
        (lambda: Inside(gpu_gbps=1.0, planes=1025), "planes is 1025; expected a whole number from 1 to 1024"),
        (lambda: Inside(gpu_gbps=1.0, latency_s=-1.0), "latency_s is -1.0; expected seconds from 0"),
        (lambda: Star(nvlink_gbps=-1.0), "star: nvlink_gbps is -1.0; expected Gbit/s > 0"),
        (lambda: RailOptimised(nvlink_gbps=0.0), "rail-optimised: nvlink_gbps is 0.0"),
        (lambda: Star(nvlink_latency_s=1e-6), "star: nvlink_latency_s is 1e-06; expected nvlink_gbps beside it"),
        (lambda: Star(nvlink_gbps=1.0, nvlink_latency_s=-1.0), "nvlink_latency_s is -1.0; expected seconds from 0"),
    ):
        with pytest.raises(InputError, match=fault):
            make()


def test_rows_whose_sums_are_equal_are_told_apart() -> None:
    first, second = np.random.default_rng(0).integers(1 << 62, size=2).tolist()  # the weights
    rows = np.array([[0, first], [second, 0], [0, first]])
    assert [each.tolist() for each in _alike_rows(rows)] == [[0, 2], [1]]
