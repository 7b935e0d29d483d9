"""What communication policies, contention models, topologies and path policies promise, as tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.field_values import SliceKind, TransferState
from ddlsched.network.collectives import KINDS, ROUNDS, Message, Phase, Rank
from ddlsched.network.contention import ContentionModel, Linear, moved_by_ring
from ddlsched.network.rates import rates_of
from ddlsched.network.topology import Network
from ddlsched.network.traffic import phases_of
from ddlsched.policies.promises import promises
from ddlsched.policies.views import TransferView
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.testing.conformance_runs import (
    CLUSTER,
    SEEDS,
    Conformance,
    ExampleFlow,
    assert_linear,
    assert_promises_change_nothing,
    assert_runs_alike,
    begun,
    example_flows,
    example_workload,
    finishes_of,
    python_form,
)
from ddlsched.testing.handmade import example_network, flow_view, job_view, link_loads, network_view, transfer_view


class CommunicationConformance(Conformance):
    """Checks of a communication policy, preemptive or not."""

    def test_is_preemptive_or_not(self) -> None:
        """A policy has one of ``admit``, ``transfer_key`` and ``select``."""
        policy = begun(self.make())
        assert sum(hasattr(policy, form) for form in ("admit", "transfer_key", "select")) == 1

    def test_lets_a_lone_transfer_run(self) -> None:
        """On an empty network nothing waits for ever."""
        policy = begun(self.make())
        transfer = transfer_view(job_view(num_gpus=8, servers=(0, 1)))
        network = network_view(waiting=[transfer])
        if hasattr(policy, "admit"):
            assert policy.admit(transfer, network)
        elif hasattr(policy, "select"):
            assert list(policy.select([transfer], network)) == [transfer]

    def test_refusals_last(self) -> None:
        """``refusal_lasts`` is so, if the class says it."""
        policy, rng = begun(self.make()), np.random.default_rng(5)
        for _ in range(60 if promises(policy, "refusal_lasts") else 0):
            mine, met, elsewhere = (_random_transfer(rng, number, at) for number, at in ((9, 1), (1, 2), (2, 4)))
            alone = [
                network_view(active=others, num_links=6, now_s=s) for others in ([], [elsewhere]) for s in (0.5, 7)
            ]
            assert all(policy.admit(mine, network) for network in alone), "refusal_lasts: one that meets nobody starts"
            waiting = [_random_transfer(rng, 3, 1)]
            before = network_view(active=[met], waiting=[mine], num_links=6, now_s=float(rng.choice([0.0, 0.25, 3.5])))
            if policy.admit(mine, before):
                continue
            for share, others, seconds in product((1.0, 0.4, 0.0), ([], [elsewhere]), (0.0, 0.3, 1.0, 7.7)):
                later = transfer_view(
                    met.job, bytes_left=met.bytes_left * share, message_bytes=met.message_bytes, links=met.links
                )
                now_s = before.now_s + seconds
                for queue in ([mine], [mine, *waiting]):
                    network = network_view(active=[later, *others], waiting=queue, num_links=6, now_s=now_s)
                    assert not policy.admit(mine, network), "refusal_lasts: one that is refused still is, later"

    def test_linear_keys_are(self) -> None:
        """``key_is_linear`` is so, if the class says it, and all transfers of a job have the same first number."""
        policy, network = begun(self.make()), network_view()
        if not promises(policy, "key_is_linear") or not _reads_progress(policy):
            return
        for num_gpus, size in product((2, 3, 4), (1e6, 3e8)):
            jobs = [job_view(num_gpus=num_gpus, servers=(0, 1), iterations_left=left) for left in range(60, 0, -1)]
            keys = [policy.transfer_key(transfer_view(job, message_bytes=size), network) for job in jobs]
            assert_linear(keys)
            other = policy.transfer_key(transfer_view(jobs[0], message_bytes=size / 3, links=(1, 0)), network)
            pair = [key[0] if isinstance(key, tuple) else key for key in (keys[0], other)]
            assert pair[0] == pair[1], "key_is_linear: all transfers of a job have the same first number"

    def test_keys_fall_while_sending(self) -> None:
        """``key_falls_while_sending`` is so, if the class says it."""
        policy = begun(self.make())
        if not promises(policy, "key_falls_while_sending"):
            return
        job = job_view(num_gpus=4, servers=(0, 1))
        transfers = [transfer_view(job, bytes_left=left * 1e6) for left in range(100, -1, -1)]
        for active in (True, False):
            networks = [network_view(active=[transfer] if active else []) for transfer in transfers]
            keys = [policy.transfer_key(*asked) for asked in zip(transfers, networks, strict=True)]
            assert all(after <= before for before, after in pairwise(keys)), "key_falls_while_sending: it never rises"

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run; both forms agree, and promises change nothing."""
        assert_runs_alike("communication", self.make())
        assert_promises_change_nothing("communication", self.make())

    def test_conserves_bytes(self) -> None:
        """Over a run, the recorded rates x times are the bytes of the all-reduces."""
        for seed in SEEDS:
            result = simulate(example_workload(seed), CLUSTER, communication=self.make(), timeline=True)
            _assert_bytes_conserved(result)


def _random_transfer(rng: np.random.Generator, number: int, server: int) -> TransferView:
    """Return a transfer between a server and the next, of which some is sent."""
    job = job_view(number=number, num_gpus=int(rng.integers(2, 9)), servers=(server, server + 1))
    size = float(rng.choice([1e6, 1e8, 5e8]))
    return transfer_view(job, message_bytes=size, bytes_left=size * float(rng.choice([1.0, 0.6, 0.05])))


def _reads_progress(policy: Any) -> bool:
    """Return whether a key depends on how far its job is."""
    jobs = [job_view(num_gpus=4, servers=(0, 1), iterations_left=left) for left in (60, 30, 29, 7)]
    return len({policy.transfer_key(transfer_view(job), network_view()) for job in jobs}) > 1


def _assert_bytes_conserved(result: Result) -> None:
    state = result.finished.state
    sent = np.zeros(len(state.transfers))
    slices = result.finished.slices
    slices = slices[slices["kind"] == SliceKind.TRANSFER]
    np.add.at(sent, slices["owner"], (slices["end_ns"] - slices["start_ns"]) * slices["rate"] / 1e9)
    for transfer, bytes_sent in zip(state.transfers, sent, strict=True):
        iterations = int(state.jobs[transfer.job].iterations)
        expected = transfer.bytes * iterations if transfer.num_entries else 0.0
        # An end falls on the next whole nanosecond, in which less than 2 bytes go at 1.25e9 B/s.
        assert abs(bytes_sent - expected) <= 2.0 * iterations + 1e-9 * expected


class ContentionConformance(Conformance):
    """Checks of a contention model, bound to a network or in need of none, on a star of equal servers."""

    def _bound(self) -> ContentionModel:
        from ddlsched.plugins.names import resolve

        model: ContentionModel = self.make().bound_to(Network(resolve("topology", "star"), 6))
        return model

    def test_a_lone_transfer_has_its_stated_rate(self) -> None:
        """Alone, a byte takes ``alone_per_byte_s``."""
        model, links = self._bound(), example_network()
        flow = example_flows(np.random.default_rng(0), links, 1)
        (rate,) = rates_of(model, flow, [], links)
        assert abs(rate * model.alone_per_byte_s - 1) < 1e-12

    def test_rates_are_finite_and_within_the_links(self) -> None:
        """If bytes are conserved, the rates on a link never add up to more than it carries alone."""
        model, links, rng = self._bound(), example_network(), np.random.default_rng(1)
        for count in range(1, 12):
            flows = example_flows(rng, links, count)
            rates = list(rates_of(model, flows, [], links))
            assert len(rates) == count
            assert all(0 < rate < float("inf") or (rate == 0 and hasattr(model, "level")) for rate in rates)
            for link in range(len(links)) if model.conserves_bytes else ():
                total = sum(rate for rate, flow in zip(rates, flows, strict=True) if link in flow.links)
                assert total * model.alone_per_byte_s <= 1 + 1e-9

    def test_does_not_depend_on_the_order_of_transfers(self) -> None:
        """A pure function of the sets: shuffling the transfers shuffles the rates."""
        model, links, rng = self._bound(), example_network(), np.random.default_rng(2)
        flows = example_flows(rng, links, 9)
        rates = list(rates_of(model, flows, [], links))
        order = rng.permutation(len(flows)).tolist()
        shuffled = list(rates_of(model, [flows[i] for i in order], [], links))
        assert np.allclose(shuffled, [rates[i] for i in order], rtol=1e-12, atol=0), "but for what rounding leaves"

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run; both forms agree."""
        assert_runs_alike("contention", self.make())


class TopologyConformance(Conformance):
    """Checks of a topology."""

    num_servers = (1, 2, 5, 16)

    def test_routes_follow_cables(self) -> None:
        """Every route runs from source to target over edges of the graph, without a detour through a server."""
        topology = self.make()
        for count in self.num_servers:
            graph = topology.graph(count)
            for source, target in permutations(range(count), 2):
                route = list(topology.route(graph, source, target))
                assert route[0] == source
                assert route[-1] == target
                assert all(graph.has_edge(a, b) for a, b in pairwise(route))
                assert not set(route[1:-1]) & set(range(count))

    def test_offers_its_route_among_its_paths(self) -> None:
        """Every path is a way along cables, there is none twice, and the route is one of them."""
        network = Network(self.make(), max(self.num_servers))
        for source, target in permutations(range(max(self.num_servers)), 2):
            paths = network.paths(source, target)
            assert paths[network.place_of_route(source, target)] == network.route(source, target)

    def test_makes_a_network(self) -> None:
        """Every server has one cable, and cables have bandwidth and latency."""
        for count in self.num_servers:
            network = Network(self.make(), count)
            assert len(network.links) >= count
            ring = network.ring(range(count))
            assert len(ring.links) == 0 if count == 1 else set(range(count)) <= set(ring.links)

    def test_no_transfer_is_faster_than_its_links(self) -> None:
        """Under the linear model, the rates on a link add up to at most its share of the network card's pace."""
        network, rng = Network(self.make(), max(self.num_servers)), np.random.default_rng(3)
        model = Linear()
        flows = [
            _flow(network, rng.choice(max(self.num_servers), int(rng.integers(2, 6)), replace=False).tolist())
            for _ in range(12)
        ]
        rates = rates_of(model, flows, [], network.links)
        for number, link in enumerate(network.links):
            carried = sum(rate * flow.links.count(number) for rate, flow in zip(rates, flows, strict=True))
            assert carried * model.alone_per_byte_s <= link.relative_bandwidth * (1 + 1e-9)


def _flow(network: Network, servers: list[int]) -> ExampleFlow:
    return ExampleFlow(servers=tuple(servers), links=network.ring(servers).links)


_CLUSTER = Cluster(num_servers=8, gpus_per_server=2, topology="leaf-spine:servers_per_leaf=2,spines=3")


class PathConformance(Conformance):
    """Checks of a path policy."""

    def test_takes_the_only_path(self) -> None:
        """Inside a leaf there is one, without a link between switches."""
        policy = begun(self.make())
        answer = policy.path(flow_view(job_view(num_gpus=2, servers=(0, 1)), [()]), link_loads())
        assert answer == 0, f"path: answered {answer!r} of 1 paths; expected 0"

    def test_answers_a_path(self) -> None:
        """Whatever is on the links."""
        policy = begun(self.make())
        for number, servers in enumerate([(0, 1), (1, 3), (7, 2)]):
            job = job_view(number=number, num_gpus=2, servers=servers)
            flow = flow_view(job, [(0,), (1, 2), (3,)], source=servers[0], target=servers[1], route=1)
            for loads in (link_loads(), link_loads(jobs={0: 2, 2: 1}), link_loads(flows={1: 7}, jobs={1: 1})):
                answer = policy.path(flow, loads)
                assert answer in range(3), f"path: answered {answer!r} of 3 paths; expected 0, 1 or 2"

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run, recorded or not."""
        for seed in SEEDS:
            given = {"path": self.make(), "seed": seed}
            runs = [simulate(example_workload(seed), _CLUSTER, timeline=kept, **given) for kept in (False, False, True)]
            assert all(finish > 0 for finish in finishes_of(runs[0])), "every job finishes"
            assert finishes_of(runs[0]) == finishes_of(runs[1]), "the same seed gives the same run"
            assert finishes_of(runs[0]) == finishes_of(runs[2]), "recording changed it"

    def test_compiled_it_decides_as_in_python(self) -> None:
        """Where it is asked for each transfer; otherwise it is asked in Python alone."""
        policy = begun(self.make())
        if getattr(policy, "chosen", "placement") == "transfer" and getattr(policy, "compiled", None) is not False:
            for seed in SEEDS:
                forms: list[Any] = [self.make(), python_form(self.make())]
                results = [simulate(example_workload(seed), _CLUSTER, path=form, seed=seed) for form in forms]
                assert finishes_of(results[0]) == finishes_of(results[1]), "both forms agree"

    def test_every_link_carries_what_is_sent_over_it(self) -> None:
        """On each tier as many bytes go up as come down, and no link carries more than it can."""
        result = simulate(example_workload(0), _CLUSTER, path=self.make())
        state = result.finished.state
        assert (state.transfers.state == TransferState.IDLE).all()
        links = result.links
        up = links["bytes"][links["link"].str.startswith("leaf")].sum()
        down = links["bytes"][links["link"].str.startswith("spine")].sum()
        assert abs(up - down) <= 1e-9 * up
        assert (links["utilisation"] <= 1 + 1e-9).all()


_BYTES = 840.0
"""Parts of 1 to 8 ranks are whole."""
_LAYOUTS = ((1, 2), (1, 5), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (2, 3), (3, 2))
"""Servers, and ranks in each."""


class CollectiveConformance(Conformance):
    """Checks that an algorithm sends what its kinds promise, for few ranks in every layout."""

    def _phases(self, kind: str, ranks: Sequence[Rank], message_bytes: float = _BYTES) -> list[Phase]:
        message = Message(message_bytes, lambda members: moved_by_ring(message_bytes, members))
        return phases_of(kind, self.make(), ranks, message, has_inside=True)

    def _sent(self) -> Iterator[tuple[str, list[Rank], list[Phase]]]:
        """Yield what goes of each kind, in every layout."""
        for kind in self.make().kinds:
            for ranks in _groups(kind):
                yield kind, ranks, self._phases(kind, ranks)

    def test_has_kinds(self) -> None:
        """It has at least one of the kinds, and no other."""
        assert set(self.make().kinds) & set(KINDS) == set(self.make().kinds) != set()

    def test_every_cut_carries_what_the_ranks_behind_it_need(self) -> None:
        """From any of the ranks to the others go at least the bytes without which these cannot end with their result.

        Of an all-reduce one message each way; of an all-gather the parts brought, of a reduce-scatter the parts kept.
        """
        for kind, ranks, phases in self._sent():
            for count in range(1, len(ranks)):
                for some in combinations(ranks, count):
                    sent, needed = _sent_by(phases, set(some)), _needed(kind, ranks, set(some))
                    assert sent >= needed * (1 - 1e-12), f"{kind}: {some} send the others {sent} of {needed} bytes"

    def test_steps_are_there_where_bytes_go(self) -> None:
        """What sends takes at least a step."""
        for kind, _, phases in self._sent():
            assert any(phase.flows for phase in phases), f"{kind}: nothing is sent"
            assert sum(phase.steps for phase in phases) > 0, f"{kind}: no step"

    def test_bytes_are_in_proportion_to_the_message(self) -> None:
        """Twice the message, twice the bytes, on the same ways in as many steps."""
        for kind, ranks, once in self._sent():
            for one, other in zip(once, self._phases(kind, ranks, 2 * _BYTES), strict=True):
                assert (one.steps, one.merged) == (other.steps, other.merged)
                for flow, larger in zip(one.flows, other.flows, strict=True):
                    assert flow[:2] == larger[:2]
                    assert abs(2 * flow[2] - larger[2]) <= 1e-9 * larger[2]

    def test_the_closed_form_is_what_it_sends(self) -> None:
        """``round_on``, if it has that, counts the bytes and steps of ranks on servers of their own."""
        algorithm = self.make()
        round_on = getattr(algorithm, "round_on", None)
        sizes = (2, 4, 8) if getattr(algorithm, "powers_of_two", False) else (2, 3, 4, 5, 8)
        for kind in [kind for kind in algorithm.kinds if kind in ROUNDS and round_on]:
            for size in sizes:
                ranks = [Rank(server, 0, 0) for server in range(size)]
                phases = self._phases(kind, ranks)
                most = max(_sent_by(phases, {rank}) for rank in ranks)
                moved, steps = round_on(kind, size)  # type: ignore[misc]
                assert abs(ROUNDS[kind] * moved * _BYTES - most) <= 1e-9 * most, f"{kind} over {size}: bytes"
                assert ROUNDS[kind] * steps == sum(phase.steps for phase in phases), f"{kind} over {size}: steps"


def _groups(kind: str) -> Iterator[list[Rank]]:
    """Yield ranks in every layout, whose GPUs have a card each or one together."""
    for servers, places in _LAYOUTS:
        for own in (True, False):
            ranks = [Rank(server, place, place if own else 0) for server in range(servers) for place in range(places)]
            yield ranks[:: len(ranks) - 1] if kind == "send" else ranks
            if kind != "send":
                yield ranks[::-1]


def _sent_by(phases: Sequence[Phase], some: set[Rank]) -> float:
    """Return the bytes that some ranks send the others; what switches add up counts once."""
    total = 0.0
    for phase in phases:
        amounts = [sent for source, target, sent in phase.flows if source in some and target not in some]
        total += (max if phase.merged else sum)(amounts) if amounts else 0.0
    return total


def _needed(kind: str, ranks: Sequence[Rank], some: set[Rank]) -> float:
    """Return the bytes that the others need of some ranks."""
    part, others = _BYTES / len(ranks), len(ranks) - len(some)
    if kind in ("broadcast", "send"):
        last = ranks[-1] if kind == "send" else next(rank for rank in ranks if rank not in some)
        return _BYTES if ranks[0] in some and last not in some else 0.0
    needed = {"all-reduce": _BYTES, "all-gather": len(some) * part, "reduce-scatter": others * part}
    return needed.get(kind, len(some) * others * part)
