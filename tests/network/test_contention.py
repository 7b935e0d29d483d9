"""Contention models against numbers worked out by hand and against the definition of max-min fairness."""

from __future__ import annotations

import numpy as np
import pytest

from ddlsched.errors import InputError
from ddlsched.network.contention import EqualShare, Linear, MaxMin
from ddlsched.network.rates import rates_of
from ddlsched.network.topology import Link, Network
from ddlsched.testing.examples import ExampleFlow, example_flows, example_network
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
    assert EqualShare().wire_bytes(100.0, 4) == pytest.approx(150.0)
    assert MaxMin().wire_bytes(100.0, 2) == pytest.approx(100.0)


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
        lambda: Linear(penalty_per_byte_s=float("inf")),
        lambda: MaxMin(per_byte_s=0.0),
        lambda: EqualShare(latency_s=-1.0),
        lambda: MaxMin().alone_per_byte_s,
    ],
)
def test_constants_out_of_range_are_refused(make):
    with pytest.raises(InputError):
        make()
