"""Contention models against numbers worked out by hand and against the definition of max-min fairness."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.network.contention import (
    EqualShare,
    Linear,
    MaxMin,
    card_remark,
    gigabit_ethernet,
    measured_gigabit_ethernet,
    ring_bytes,
    ten_gigabit_ethernet,
)
from ddlsched.network.rates import counted_weight, rates_of
from ddlsched.network.topology import Link, Network
from ddlsched.simulation import simulate
from ddlsched.testing.conformance_runs import ExampleFlow, example_flows
from ddlsched.testing.handmade import example_network
from ddlsched.workload.job import Workload
from topologies.leaf_spine import LeafSpine
from topologies.star import Star

LINKS = example_network()


def flow(*links: int) -> ExampleFlow:
    return ExampleFlow(servers=links, links=links)


def test_linear_is_the_papers_formula():
    b, eta = 8.56e-10, 2.35e-10
    rates = rates_of(Linear(), [flow(0, 1), flow(1, 2), flow(1, 3), flow(4, 5)], [], LINKS)
    assert rates[:3] == pytest.approx([1 / (3 * b + 2 * eta)] * 3, rel=1e-12)
    assert rates[3] == pytest.approx(1 / b, rel=1e-12)


def test_linear_transfer_time_is_a_plus_kbm_plus_penalty():
    # T = a + k b M + (k - 1) η M for constant k, here for k = 4 and M = 100 MB.
    model = Linear(latency_s=6.69e-4)
    (rate, *_) = rates_of(model, [flow(0, 1)] * 4, [], LINKS)
    time_s = model.latency_s + 100e6 / rate
    assert time_s == pytest.approx(6.69e-4 + 4 * 8.56e-10 * 100e6 + 3 * 2.35e-10 * 100e6, rel=1e-12)


def test_linear_is_quicker_on_a_faster_link():
    fast = Link(name="uplink", bandwidth_bytes_per_s=5e9, relative_bandwidth=4.0)
    links = [*LINKS, fast]
    b, eta = 8.56e-10, 2.35e-10
    rates = rates_of(Linear(), [flow(0, 6, 1), flow(2, 6, 3)], [], links)
    assert rates == pytest.approx([1 / b] * 2, rel=1e-12)  # the uplink, at (2 b + η) / 4, does not limit
    rates = rates_of(Linear(), [flow(i, 6) for i in range(6)], [], links)
    assert rates == pytest.approx([4 / (6 * b + 5 * eta)] * 6, rel=1e-12)


def test_equal_share_wastes_what_max_min_hands_on():
    # Link 0 has three transfers, link 1 has one of them and one other.
    flows = [flow(0, 2), flow(0, 3), flow(0, 1), flow(1, 4)]
    equal = rates_of(EqualShare(per_byte_s=1.0), flows, [], LINKS)
    fair = rates_of(MaxMin(per_byte_s=1.0), flows, [], LINKS)
    assert equal == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 2])
    assert fair == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_a_ring_that_crosses_a_link_twice_gets_half_of_it():
    for model in (EqualShare(per_byte_s=1.0), MaxMin(per_byte_s=1.0)):
        assert rates_of(model, [flow(0, 0)], [], LINKS) == pytest.approx([0.5])


def test_max_min_meets_its_definition():
    """Every transfer has a full link on which no other goes faster."""
    rng = np.random.default_rng(5)
    for count in range(1, 25):
        flows = example_flows(rng, LINKS, count)
        rates = rates_of(MaxMin(per_byte_s=1.0), flows, [], LINKS)
        used = [sum(r for r, f in zip(rates, flows, strict=True) if link in f.links) for link in range(len(LINKS))]
        assert max(used) <= 1 + 1e-9
        for rate, one in zip(rates, flows, strict=True):
            assert any(
                used[link] > 1 - 1e-9
                and all(rate >= r - 1e-9 for r, f in zip(rates, flows, strict=True) if link in f.links)
                for link in one.links
            )


def test_ring_moves_its_bytes_over_every_link():
    assert Linear().wire_bytes(100.0, 4) == 100.0
    assert ring_bytes(Linear(), 100.0, 4) == 100.0
    assert ring_bytes(EqualShare(), 100.0, 4) == pytest.approx(150.0)
    assert ring_bytes(MaxMin(), 100.0, 2) == pytest.approx(100.0)


def test_a_weight_counts_in_steps_and_within_bounds():
    weights = (0.0, 2.4 / 2**20, 1.0, 2.0**20 + 1.0)
    assert [counted_weight(weight) for weight in weights] == [1 / 2**20, 2 / 2**20, 1.0, 2.0**20]
    assert counted_weight([Fraction(12, 5 * 2**20), *weights[2:]]).tolist() == [2 / 2**20, 1.0, 2.0**20]


def test_ports_come_after_cards_and_before_cables():
    plain = Network(LeafSpine(servers_per_leaf=2), 4, gpus_of_servers=(2, 3, 2, 2))
    assert plain.ports == slice(4, 4)
    stated = Network(Star(nvlink_gbps=100.0), 3, gpus_of_servers=(2, 3, 2))
    assert stated.ports == slice(3, 10)
    names = [link.name for link in stated.links]
    assert names[2:6] == ["server 2, card 0", "server 0, GPU 0", "server 0, GPU 1", "server 1, GPU 0"]


def test_sharing_models_take_their_pace_from_the_network():
    model = MaxMin().bound_to(Network(Star(nic_gbps=25.0), 3))
    assert model.alone_per_byte_s == pytest.approx(8 / 25e9)
    given = EqualShare(per_byte_s=1e-9).bound_to(Network(Star(nic_gbps=25.0), 3))
    assert given.alone_per_byte_s == 1e-9


def test_oversubscribed_uplinks_limit():
    # Four servers a leaf, one spine, 4:1: an uplink is as fast as one network card.
    network = Network(LeafSpine(servers_per_leaf=4, spines=1, oversubscription=4.0), 8)
    rings = [network.ring(pair) for pair in ((0, 4), (1, 5), (2, 3))]
    flows = [ExampleFlow(servers=(0, 1), links=ring.links) for ring in rings]
    rates = rates_of(MaxMin(per_byte_s=1.0), flows, [], network.links)
    assert rates == pytest.approx([0.5, 0.5, 1.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(per_byte_s=0.0),
        lambda: Linear(per_byte_s=float("nan")),
        lambda: Linear(latency_s=-1.0),
        lambda: Linear(card_gbps=0.0),
        lambda: Linear(card_gbps=float("inf")),
        lambda: Linear(penalty_per_byte_s=float("inf")),
        lambda: MaxMin(per_byte_s=0.0),
        lambda: EqualShare(latency_s=-1.0),
        lambda: MaxMin().alone_per_byte_s,
    ],
)
def test_constants_out_of_range_are_refused(make):
    with pytest.raises(InputError):
        make()


# ---- Constants and the topology's card


@pytest.mark.parametrize("make", [gigabit_ethernet, measured_gigabit_ethernet, ten_gigabit_ethernet])
def test_measured_constants_have_no_latency_unless_told(make):
    assert (make().latency_s, make(latency_s=2e-5).latency_s) == (0.0, 2e-5)


def bound(model, gbps):
    return model.bound_to(Network(Star(nic_gbps=gbps), 3))


def test_constants_that_nobody_gave_are_those_of_the_card():
    model = bound(Linear(), 100.0)
    assert (model.per_byte_s, model.penalty_per_byte_s) == pytest.approx((8.56e-11, 2.35e-11), rel=1e-12)
    assert bound(model, 100.0) == model
    assert bound(model, 25.0).per_byte_s == pytest.approx(8.56e-10 * 10 / 25, rel=1e-12)


def test_on_the_card_they_were_measured_on_constants_are_the_same_to_the_bit():
    assert (bound(Linear(), 10.0).per_byte_s, bound(Linear(), 10.0).penalty_per_byte_s) == (8.56e-10, 2.35e-10)


@pytest.mark.parametrize(
    "model",
    [
        Linear(per_byte_s=1e-9),
        Linear(penalty_per_byte_s=0.0),
        Linear(per_byte_s=8.56e-10, penalty_per_byte_s=2.35e-10),
        ten_gigabit_ethernet(),
        measured_gigabit_ethernet(),
    ],
)
def test_given_constants_hold_whatever_the_card(model):
    assert bound(model, 100.0) == model


def test_given_constants_scale_from_the_card_they_belong_to():
    model = bound(Linear(per_byte_s=4e-10, penalty_per_byte_s=1e-10, card_gbps=25.0), 100.0)
    assert (model.per_byte_s, model.penalty_per_byte_s) == pytest.approx((1e-10, 0.25e-10), rel=1e-12)


def test_results_say_what_the_card_did():
    def remark(model, gbps):
        return card_remark(bound(model, gbps), Network(Star(nic_gbps=gbps), 3))

    constants = "b = 8.56e-11 s and η = 2.35e-11 s a byte"
    assert remark(Linear(), 10.0) is None
    assert remark(Linear(), 100.0) == f"Linear contention: {constants}, scaled to the topology's card of 100 Gbit/s."
    assert "as given, whatever the topology's card of 100 Gbit/s" in remark(ten_gigabit_ethernet(), 100.0)
    assert remark(MaxMin(), 100.0) is None


def test_a_faster_card_shortens_a_run():
    # 100 MB between two servers: 85.6 ms at 10 Gbit/s, 8.56 ms at 100, and at 10 x the uplink's speed no sooner.
    job = data_parallel_job(gpus=2, message_bytes=100e6)

    def communication_s(topology, contention="linear"):
        cluster = Cluster(num_servers=2, gpus_per_server=1, topology=topology)
        return simulate(Workload.of([job]), cluster, contention=contention).jobs["communication_s"].item()

    assert communication_s("star") == pytest.approx(0.0856, abs=1e-9)
    assert communication_s("star:nic_gbps=100") == pytest.approx(0.00856, abs=1e-9)
    assert communication_s("star:nic_gbps=100", "10gbe") == pytest.approx(0.0856, abs=1e-9)
    thin = "leaf-spine:servers_per_leaf=1,spines=1,nic_gbps=100,oversubscription=10"
    assert communication_s(thin) == pytest.approx(0.0856, abs=1e-9)
