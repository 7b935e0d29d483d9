"""Conformance classes: what every plug-in of a door must do. Subclass one and give it ``make``."""

from __future__ import annotations

import dataclasses
from itertools import pairwise, product
from typing import Any

import numpy as np

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.interference import MAX_PENALTY_SHARE, InterferenceModel
from ddlsched.engine.allocation_checks import what_is_wrong_with
from ddlsched.engine.loop.codes import SliceKind
from ddlsched.network.contention import ContentionModel, Linear
from ddlsched.network.rates import rates_of
from ddlsched.network.topology import Network, Topology
from ddlsched.policies.promises import PROMISES, promises
from ddlsched.policies.views import TransferView
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.testing.examples import (
    example_elastic_workload,
    example_flows,
    example_network,
    example_workload,
    long_workload,
    python_form,
    without_promises,
)
from ddlsched.testing.handmade import (
    capacity_view,
    cluster_view,
    elastic_job_view,
    job_view,
    network_view,
    transfer_view,
)
from ddlsched.workload.rescale import ConstantRescaleCost

__all__ = [
    "AllocationConformance",
    "CommunicationConformance",
    "ContentionConformance",
    "InterferenceConformance",
    "OrderingConformance",
    "PlacementConformance",
    "TopologyConformance",
]

_SEEDS = range(4)
_CLUSTER = Cluster(num_servers=4, gpus_per_server=3)
_COMPILED_DOORS = ("order", "communication", "contention")


def _run(seed: int, **plugins: Any) -> Result:
    return simulate(example_workload(seed), _CLUSTER, seed=seed, **plugins)


def _finishes(result: Result) -> list[int]:
    finishes: list[int] = result.finished.state.jobs.finish_ns.tolist()
    return finishes


def _assert_frozen_dataclass(plugin: object) -> None:
    assert dataclasses.is_dataclass(plugin), "a plug-in is a dataclass: its parameters are its fields"
    parameters = getattr(type(plugin), "__dataclass_params__")  # noqa: B009
    assert parameters.frozen, "a plug-in is frozen: nothing may change between runs"
    assert all(field.kw_only for field in dataclasses.fields(plugin)), "parameters are keyword-only"
    hash(plugin)


def _begun(policy: Any, cluster: Cluster = _CLUSTER) -> Any:
    return policy.begin(cluster, np.random.default_rng(0)) if hasattr(policy, "begin") else policy


def _assert_runs_alike(door: str, plugin: object) -> None:
    """Assert: same seed, same run, to the bit; and the compiled form, if stated, is the Python form."""
    for seed in _SEEDS:
        finishes = _finishes(_run(seed, **{door: plugin}))
        assert all(finish > 0 for finish in finishes), "every job finishes"
        assert finishes == _finishes(_run(seed, **{door: plugin})), "the same seed gives the same run"
        if door in _COMPILED_DOORS and getattr(plugin, "compiled", None) is not False:
            assert finishes == _finishes(_run(seed, **{door: python_form(plugin)})), "both forms agree"


def _assert_promises_change_nothing(door: str, plugin: object) -> None:
    """Assert: a run that takes shortcuts by what the class promises is the run without."""
    made = [name for name in PROMISES if promises(plugin, name)]
    for seed in range(2 * len(_SEEDS)) if made else ():
        for workload in (example_workload(seed), long_workload(seed)):
            kinds: list[Any] = [plugin, without_promises(plugin)]
            plugins: list[dict[str, Any]] = [{door: kind} for kind in kinds]
            finishes = [_finishes(simulate(workload, _CLUSTER, seed=seed, **given)) for given in plugins]
            assert finishes[0] == finishes[1], f"what the class promises is so: {' and '.join(made)}"


def _assert_linear(keys: list[Any]) -> None:
    """Assert what ``key_is_linear`` promises of keys after equally many iterations each."""
    parts = [key if isinstance(key, tuple | list) else (key,) for key in keys]
    first = [part[0] for part in parts]
    assert all(isinstance(number, int | np.integer) for number in first), "key_is_linear: the first number is whole"
    steps = {after - before for before, after in pairwise(first)}
    assert len(steps) <= 1, f"key_is_linear: the first number changes by the same amount, not {sorted(steps)[:3]}"
    others = {tuple(part[1:]) for part in parts}
    assert len(others) == 1, f"key_is_linear: the other numbers stay the same, not {sorted(others)[:3]}"


class PlacementConformance:
    """Checks of a placement policy."""

    def make(self) -> Any:
        """Return the policy to test."""
        raise NotImplementedError("give the conformance class a make() that returns the policy")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

    def test_answers_none_or_that_many_fitting_gpus(self) -> None:
        """GPUs are different, as many as asked for, and have the memory."""
        rng = np.random.default_rng(7)
        for _ in range(50):
            policy = _begun(self.make(), Cluster(num_servers=4, gpus_per_server=4))  # as that of the view
            free_mb, load_s = rng.choice([500.0, 4000.0], 16).tolist(), rng.choice([0.0, 1.5, 7.0], 16).tolist()
            cluster = cluster_view(free_memory_mb=free_mb, load_s=load_s)
            job = job_view(num_gpus=int(rng.integers(1, 9)), gpu_memory_mb=1000.0)
            answer = policy.place(job, cluster)
            if answer is not None:
                assert len(answer) == len(set(answer)) == job.num_gpus
                assert all(cluster.fits(job, gpu) for gpu in answer)

    def test_waits_when_no_gpu_has_the_memory(self) -> None:
        """A job that does not fit now is answered None."""
        policy = _begun(self.make(), Cluster(num_servers=4, gpus_per_server=4))
        assert policy.place(job_view(), cluster_view(free_memory_mb=10.0)) is None

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run."""
        _assert_runs_alike("placement", self.make())


class OrderingConformance:
    """Checks of an ordering policy."""

    def make(self) -> Any:
        """Return the policy to test."""
        raise NotImplementedError("give the conformance class a make() that returns the policy")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

    def test_keys_are_totally_ordered(self) -> None:
        """Any two keys compare one way only, and a key equals itself."""
        policy = _begun(self.make())
        jobs = [job_view(number=n, num_gpus=n % 5 + 1, iterations_left=9 * n % 100) for n in range(20)]
        keys = [policy.key(job, 3.0) for job in jobs]
        for a in keys:
            assert a == a
            assert all((a < b) + (b < a) + (a == b) == 1 for b in keys)

    def test_linear_keys_are(self) -> None:
        """``key_is_linear`` is so, if the class says it."""
        policy = _begun(self.make())
        for num_gpus, servers in product((1, 3, 4), ((), (0, 1)) if promises(policy, "key_is_linear") else ()):
            jobs = [job_view(num_gpus=num_gpus, servers=servers, iterations_left=left) for left in range(60, 0, -1)]
            _assert_linear([policy.key(job, 3.0) for job in jobs])

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run; both forms agree, and promises change nothing."""
        _assert_runs_alike("order", self.make())
        _assert_promises_change_nothing("order", self.make())


class CommunicationConformance:
    """Checks of a communication policy, preemptive or not."""

    def make(self) -> Any:
        """Return the policy to test."""
        raise NotImplementedError("give the conformance class a make() that returns the policy")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

    def test_is_preemptive_or_not(self) -> None:
        """A policy has one of ``admit``, ``transfer_key`` and ``select``."""
        policy = _begun(self.make())
        assert sum(hasattr(policy, form) for form in ("admit", "transfer_key", "select")) == 1

    def test_lets_a_lone_transfer_run(self) -> None:
        """On an empty network nothing waits for ever."""
        policy = _begun(self.make())
        transfer = transfer_view(job_view(num_gpus=8, servers=(0, 1)))
        network = network_view(waiting=[transfer])
        if hasattr(policy, "admit"):
            assert policy.admit(transfer, network)
        elif hasattr(policy, "select"):
            assert list(policy.select([transfer], network)) == [transfer]

    def test_refusals_last(self) -> None:
        """``refusal_lasts`` is so, if the class says it."""
        policy, rng = _begun(self.make()), np.random.default_rng(5)
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
        policy, network = _begun(self.make()), network_view()
        if not promises(policy, "key_is_linear") or not _reads_progress(policy):
            return
        for num_gpus, size in product((2, 3, 4), (1e6, 3e8)):
            jobs = [job_view(num_gpus=num_gpus, servers=(0, 1), iterations_left=left) for left in range(60, 0, -1)]
            keys = [policy.transfer_key(transfer_view(job, message_bytes=size), network) for job in jobs]
            _assert_linear(keys)
            other = policy.transfer_key(transfer_view(jobs[0], message_bytes=size / 3, links=(1, 0)), network)
            pair = [key[0] if isinstance(key, tuple) else key for key in (keys[0], other)]
            assert pair[0] == pair[1], "key_is_linear: all transfers of a job have the same first number"

    def test_keys_fall_while_sending(self) -> None:
        """``key_falls_while_sending`` is so, if the class says it."""
        policy = _begun(self.make())
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
        _assert_runs_alike("communication", self.make())
        _assert_promises_change_nothing("communication", self.make())

    def test_conserves_bytes(self) -> None:
        """Over a run, the recorded rates x times are the bytes of the all-reduces."""
        for seed in _SEEDS:
            result = simulate(example_workload(seed), _CLUSTER, communication=self.make(), timeline=True)
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


class ContentionConformance:
    """Checks of a contention model on a star of equal servers."""

    def make(self) -> ContentionModel:
        """Return the model to test, bound to a network or in need of none."""
        raise NotImplementedError("give the conformance class a make() that returns the model")

    def _bound(self) -> ContentionModel:
        from ddlsched.plugins.names import resolve

        return self.make().bound_to(Network(resolve("topology", "star"), 6))

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

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
            assert all(0 < rate < float("inf") for rate in rates)
            for link in range(len(links)) if model.conserves_bytes else ():
                total = sum(rate for rate, flow in zip(rates, flows, strict=True) if link in flow.links)
                assert total * model.alone_per_byte_s <= 1 + 1e-9

    def test_does_not_depend_on_the_order_of_transfers(self) -> None:
        """A pure function of the sets: shuffling the transfers shuffles the rates."""
        model, links, rng = self._bound(), example_network(), np.random.default_rng(2)
        flows = example_flows(rng, links, 9)
        rates = list(rates_of(model, flows, [], links))
        order = rng.permutation(len(flows)).tolist()
        assert list(rates_of(model, [flows[i] for i in order], [], links)) == [rates[i] for i in order]

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run; both forms agree."""
        _assert_runs_alike("contention", self.make())


class InterferenceConformance:
    """Checks of a model of interference."""

    def make(self) -> InterferenceModel:
        """Return the model to test; it must know the models ``a``, ``b`` and jobs without one."""
        raise NotImplementedError("give the conformance class a make() that returns the model")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

    def test_penalties_are_shares(self) -> None:
        """From 0 to 1000, and the same when asked again."""
        model = self.make()
        for pair in product((None, "a", "b"), repeat=2):
            share = model.penalty_share(*pair)
            assert 0 <= share <= MAX_PENALTY_SHARE
            assert share == model.penalty_share(*pair)

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run."""
        _assert_runs_alike("interference", self.make())


class TopologyConformance:
    """Checks of a topology."""

    num_servers = (1, 2, 5, 16)

    def make(self) -> Topology:
        """Return the topology to test."""
        raise NotImplementedError("give the conformance class a make() that returns the topology")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

    def test_routes_follow_cables(self) -> None:
        """Every route runs from source to target over edges of the graph, without a detour through a server."""
        topology = self.make()
        for count in self.num_servers:
            graph = topology.graph(count)
            for source in range(count):
                for target in set(range(count)) - {source}:
                    route = list(topology.route(graph, source, target))
                    assert route[0] == source
                    assert route[-1] == target
                    assert all(graph.has_edge(a, b) for a, b in pairwise(route))
                    assert not set(route[1:-1]) & set(range(count))

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


def _flow(network: Network, servers: list[int]) -> Any:
    from ddlsched.testing.examples import ExampleFlow

    return ExampleFlow(servers=tuple(servers), links=network.ring(servers).links)


class AllocationConformance:
    """Checks of an allocation policy."""

    def make(self) -> Any:
        """Return the policy to test."""
        raise NotImplementedError("give the conformance class a make() that returns the policy")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())

    def test_answers_what_can_be_carried_out(self) -> None:
        """Numbers of GPUs and batches are allowed, and there are as many GPUs; with any jobs, also none."""
        rng = np.random.default_rng(7)
        for count in [*range(12), 40]:
            held = {n: [2 * n, 2 * n + 1] for n in range(min(count, 4)) if rng.random() < 0.5}
            jobs = [
                elastic_job_view(number=n, gpus=held.get(n, ()), batch=64 if n in held else 0, max_gpus=2 + n % 5)
                for n in range(count)
            ]
            capacity = capacity_view(held=[gpu for gpus in held.values() for gpu in gpus])
            answer = _begun(self.make()).allocate(jobs, capacity, 0.0)
            assert what_is_wrong_with(answer, jobs, capacity) is None

    def test_every_job_ends_though_servers_come_and_go(self) -> None:
        """Every job finishes or is dropped, and the same seed gives the same run, to the bit."""
        capacity = CapacityTrace.of([(0, 0, 1e9), (1, 0, 400), (1, 900, 1e9), (2, 300, 1e9), (3, 0, 200)])
        options: dict[str, Any] = {"capacity": capacity, "rescale_cost": ConstantRescaleCost.restart(5.0)}
        for seed in _SEEDS:
            runs = [
                simulate(example_elastic_workload(seed), _CLUSTER, seed=seed, allocation=self.make(), **options)
                for _ in range(2)
            ]
            assert set(runs[0].jobs["state"]) <= {"finished", "dropped"}
            assert _finishes(runs[0]) == _finishes(runs[1]), "the same seed gives the same run"
