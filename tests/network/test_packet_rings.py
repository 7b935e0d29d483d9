"""Rings by packets: what queues, windows and the ring's own order make of all-reduces that share links."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reference_packets import Packets
from tiers import examples

from ddlsched import Cluster, Job, Workload, simulate
from ddlsched.errors import InputError
from ddlsched.network import packet_rings, packet_simulation
from ddlsched.network.packet_queues import QueueState, Rings
from ddlsched.network.packet_rings import PacketRings
from ddlsched.network.rates import contention_form
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.policies.views import TransferView
from ddlsched.testing import job_view, transfer_view
from ddlsched.workload.dag import DataParallelIteration

PER_BYTE_S = 8e-8
STAR = Network(resolve("topology", "star:nic_gbps=0.1"), 6)
LEAVES = Network(resolve("topology", "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=2,nic_gbps=0.1"), 4)
THIN_LEAVES = Network(resolve("topology", "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=4,nic_gbps=0.1"), 4)
MODEL = PacketRings(per_byte_s=PER_BYTE_S, react_s=1e-4)
SHORT = PacketRings(per_byte_s=PER_BYTE_S, react_s=1e-4, queue_bytes=30_000.0, recover_s=0.2)
OF_ONE = PacketRings(per_byte_s=PER_BYTE_S, packet_bytes=15_000.0, queue_bytes=15_000.0)
COSTLY = PacketRings(per_byte_s=PER_BYTE_S, react_s=1e-4, step_s=1e-3, overhead=0.05, wait=0.1)


def transfer(job: int, servers: tuple[int, ...], megabytes: float, network: Network = STAR) -> TransferView:
    """Return a transfer of a message of so many MB."""
    view = job_view(number=job, num_gpus=len(servers), servers=servers)
    wire_bytes = MODEL.wire_bytes(megabytes * 1e6, len(servers))
    return transfer_view(view, message_bytes=wire_bytes, links=network.ring(servers).links)


def rates(*active: TransferView, model: PacketRings = MODEL, network: Network = STAR) -> list[float]:
    """Return rates as parts of a card's."""
    found = model.bound_to(network).rates(active, [], network.links)
    return [rate * PER_BYTE_S for rate in found]


def test_it_is_asked_for_all_rates() -> None:
    assert contention_form(MODEL) == contention_form(MODEL.bound_to(STAR)) == "rates"
    with pytest.raises(InputError, match=r"call bound_to\(network\) first"):
        MODEL.rates([transfer(0, (0, 1), 1.0)], [], STAR.links)


def test_a_transfer_that_meets_none_has_its_links_but_for_the_wait() -> None:
    apart = transfer(0, (0, 1), 1.0), transfer(1, (2, 3, 4), 0.2)
    assert rates(*apart) == [1.0, 1.0]
    waits = PacketRings(per_byte_s=PER_BYTE_S, wait=0.1)
    assert rates(*apart, model=waits) == pytest.approx([1 / 1.1, 1 / 1.2])


@pytest.mark.long
def test_rings_that_are_alike_have_equal_shares_of_nearly_all() -> None:
    """Rings of three servers: there is nearly always somebody who sends."""
    for count in (2, 3):
        found = rates(*(transfer(job, (0, 1, 2), 2.0) for job in range(count)))
        assert found == [found[0]] * count
        assert 0.93 < sum(found) <= 1.0001


@pytest.mark.long
def test_a_small_message_beside_a_large_one_has_less_than_its_share() -> None:
    """It has less in the queues."""
    small, large = rates(transfer(0, (0, 1), 0.1), transfer(1, (0, 1), 2.0))
    assert small < 0.4
    assert large > 0.6
    assert small + large <= 1.0001


@pytest.mark.long
def test_rings_that_overlap_in_part_wait_for_each_other() -> None:
    """By max-min the ring of three that meets two others would have half of its cards, and leave them half."""
    middle, *others = rates(transfer(0, (1, 2, 3), 0.7), transfer(1, (0, 1), 1.0), transfer(2, (2, 4), 1.0))
    assert middle < 0.45
    assert all(middle + other < 0.98 for other in others)


@pytest.mark.long
def test_the_messages_of_a_job_have_one_connection() -> None:
    """Beside three buckets of one job another has more than a quarter, which it has beside three jobs."""
    buckets = [transfer(0, (0, 1), 1.0) for _ in range(3)]
    *own, other = rates(*buckets, transfer(1, (0, 1), 1.0))
    assert own == [own[0]] * 3
    assert other > 1.3 * own[0]
    of_jobs = rates(*(transfer(job, (0, 1), 1.0) for job in range(4)))
    assert of_jobs == [of_jobs[0]] * 4
    assert of_jobs[0] < other


@pytest.mark.long
def test_a_full_queue_costs_time() -> None:
    """Six large messages on two cards: with a short queue packets are lost, and their flows pause."""
    active = [transfer(job, (0, 1), 2.0) for job in range(6)]
    assert sum(rates(*active, model=SHORT)) < 0.9 * sum(rates(*active))


@pytest.mark.long
@pytest.mark.parametrize("megabytes", [5.0, 500.0])
def test_item_5_a_message_beside_one_of_more_packets_than_are_simulated_has_its_share(megabytes: float) -> None:
    servers = (0, 1, 2, 3)
    own, large = rates(transfer(0, servers, megabytes), transfer(1, servers, 500.0))
    assert 0.3 < own <= large < 0.7
    assert 0.93 < own + large <= 1.0001


@pytest.mark.parametrize(
    ("megabytes", "count", "expected"), [(0.1, 2, 2), (4.19, 2, 2), (4.2, 2, 3), (25.0, 2, 12), (25.0, 8, 3)]
)
def test_segments_have_a_mebibyte_at_most(megabytes: float, count: int, expected: int) -> None:
    assert packet_rings._Message(tuple(range(count)), round(megabytes * 1e6)).num_segments == expected


@pytest.mark.long
def test_a_queue_of_one_packet_takes_it_whatever_was_there_before() -> None:
    """Rounding leaves parts of a byte of what odd sizes add and take away."""
    buckets = [transfer(0, (0, 2, 3), megabytes) for megabytes in (29e-6, 199e-6, 0.096465, 0.910853)]
    assert sum(rates(*buckets, model=OF_ONE)) > 0.2


def test_of_more_packets_than_there_is_memory_for_some_wait() -> None:
    found = rates(*[transfer(0, (0, 1), 1e-3)] * 60, model=OF_ONE)
    assert found == [found[0]] * 60
    assert 0.93 < sum(found) <= 1.0001


@pytest.mark.parametrize(("network", "share"), [(LEAVES, 0.5), (THIN_LEAVES, 0.25)])
def test_switches_have_queues_too(network: Network, share: float) -> None:
    """Two rings over both leaves, on servers of their own, share the cable between them, of a card's speed or half."""
    active = transfer(0, (0, 2), 1.0, network), transfer(1, (1, 3), 1.0, network)
    assert rates(*active, network=network) == pytest.approx([share, share], rel=0.06)


sets_of_rings = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True), st.floats(0.02, 3.0)),
    min_size=2,
    max_size=6,
)


@pytest.mark.long
@given(sets_of_rings)
@hypothesis_settings(max_examples=examples(25, by_default=8), deadline=None)
def test_no_link_carries_more_than_it_can(sets: Sequence[tuple[list[int], float]]) -> None:
    active = [transfer(job, tuple(sorted(servers)), size) for job, (servers, size) in enumerate(sets)]
    found = rates(*active)
    assert all(0 < rate <= 1 for rate in found)
    carried = np.zeros(6)
    for own, rate in zip(active, found, strict=True):
        carried[list(own.links)] += rate
    assert carried.max() <= 1.0001  # messages of parts of a byte are rounded


@given(sets_of_rings)
@hypothesis_settings(max_examples=examples(10, by_default=4), deadline=None)
def test_rates_do_not_depend_on_what_was_asked_before_or_on_the_order(sets: Sequence[tuple[list[int], float]]) -> None:
    active = [transfer(job, tuple(sorted(servers)), size) for job, (servers, size) in enumerate(sets)]
    bound = MODEL.bound_to(STAR)
    first = bound.rates(active, [], STAR.links)
    assert bound.rates(active, [], STAR.links) == MODEL.bound_to(STAR).rates(active, [], STAR.links) == first
    assert bound.rates(active[::-1], [], STAR.links)[::-1] == first


KEPT = {
    "alike": (
        [transfer(job, (0, 1, 2), 2.0) for job in range(3)],
        MODEL,
        STAR,
        [0.327028472563, 0.327028472563, 0.327028472563],
    ),
    "a small one": (
        [transfer(0, (0, 1), 0.1), transfer(1, (0, 1), 2.0)],
        MODEL,
        STAR,
        [0.246577871439, 0.708311521359],
    ),
    "in part": (
        [transfer(0, (1, 2, 3), 0.7), transfer(1, (0, 1), 1.0), transfer(2, (2, 4), 1.0)],
        MODEL,
        STAR,
        [0.312173973295, 0.591611070009, 0.545548747177],
    ),
    "buckets": (
        [*[transfer(0, (0, 1), 1.0)] * 3, transfer(1, (0, 1), 1.0)],
        MODEL,
        STAR,
        [0.192594866927, 0.192594866927, 0.192594866927, 0.388524102889],
    ),
    "losses": (
        [transfer(job, (0, 1), 2.0) for job in range(3)],
        SHORT,
        STAR,
        [0.225772958426, 0.225772958426, 0.225772958426],
    ),
    "one packet": (
        [transfer(0, (0, 2, 3), size) for size in (199e-6, 0.096465, 0.910853)],
        OF_ONE,
        STAR,
        [5.14883182243e-05, 0.0207049444894, 0.199397102078],
    ),
    "switches": (
        [transfer(0, (0, 2), 1.0, THIN_LEAVES), transfer(1, (1, 3), 0.5, THIN_LEAVES)],
        MODEL,
        THIN_LEAVES,
        [0.255234494737, 0.232445274597],
    ),
    "costs": ([transfer(0, (0, 1, 2), 3.0), transfer(1, (1, 2), 9.0)], COSTLY, STAR, [0.461497049738, 0.313118834967]),
}
"""Rates of this release, to notice a change of what packets do: by physics they are not known so exactly."""


@pytest.mark.parametrize(("active", "model", "network", "expected"), KEPT.values(), ids=KEPT)
def test_item_27_rates_stay_as_they_are(
    active: list[TransferView], model: PacketRings, network: Network, expected: list[float]
) -> None:
    assert rates(*active, model=model, network=network) == pytest.approx(expected, rel=1e-9)


@dataclass(frozen=True)
class Drawn:
    """Rings over a few servers, some through a switch's one cable."""

    rings: Rings
    limits: dict[str, float]


def drawn(seed: int) -> Drawn:
    chance = random.Random(seed)
    servers = chance.randint(2, 4)
    members = [chance.sample(range(servers), chance.choice([2, min(servers, 3)])) for _ in range(chance.randint(1, 2))]
    ring_of = [ring for ring in range(len(members)) for _ in range(chance.randint(1, 2))]
    packet_bytes = chance.choice([1448.0, 4e3, 15e3])
    flows = [flow for ring in members for flow in zip(ring, ring[1:] + ring[:1], strict=True)]

    def ways(between: list[tuple[int, int]]) -> list[list[int]]:
        return [[a, *([2 * servers] if (a + b) % 2 else []), servers + b] for a, b in between]

    rings = Rings(
        num_ranks=np.array([len(ring) for ring in members]),
        ring_of=np.array(ring_of),
        num_segments=np.array([chance.randint(2, 3) for _ in ring_of]),
        segment_bytes=np.array([packet_bytes * chance.uniform(0.3, 1.4) for _ in ring_of]),
        forth=packet_rings._filled(ways(flows)),
        back=packet_rings._filled(ways([(b, a) for a, b in flows])),
        per_byte_s=np.array([chance.choice([8e-8, 4e-8]) for _ in range(2 * servers + 1)]),
    )
    return Drawn(
        rings,
        {
            "queue_bytes": packet_bytes * chance.choice([1, 2, 5]),
            "packet_bytes": packet_bytes,
            "react_s": chance.choice([1e-4, 1.5e-3]),  # else, in lockstep, two may lose packets for ever
            "recover_s": chance.choice([0.025, 0.001]),
        },
    )


@pytest.mark.long
@pytest.mark.drawn
def test_item_27_packets_take_as_long_as_one_by_one() -> None:
    for seed in range(examples(30, by_default=4)):
        case = drawn(seed)
        found = packet_simulation.mean_durations_s(case.rings, **case.limits).tolist()
        rounds = packet_simulation.WARM_ROUNDS, packet_simulation.ROUNDS
        assert found == pytest.approx(Packets(case.rings, **case.limits).durations_s(*rounds), rel=1e-9)


@pytest.mark.long
def test_where_all_packets_that_there_is_room_for_are_under_way_full_queues_lose_some() -> None:
    """Two rings of two send more small segments than a flow may have packets, half of them beyond a link's queue."""
    messages = 2 * 7
    rings = Rings(
        num_ranks=np.array([2, 2]),
        ring_of=np.repeat([0, 1], messages // 2),
        num_segments=np.full(messages, 2),
        segment_bytes=np.full(messages, 140.0),
        forth=np.array([[0, 3], [1, 2]] * 2),
        back=np.array([[1, 2], [0, 3]] * 2),
        per_byte_s=np.full(4, PER_BYTE_S),
    )
    limits = {"queue_bytes": 1448.0, "packet_bytes": 1448.0, "react_s": 1e-4, "recover_s": 0.001}
    found = packet_simulation.mean_durations_s(rings, **limits).tolist()
    rounds = packet_simulation.WARM_ROUNDS, packet_simulation.ROUNDS
    assert found == pytest.approx(Packets(rings, **limits).durations_s(*rounds), rel=1e-9)


def test_item_27_of_what_was_never_counted_it_is_known_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages of a ring of two; the first has been reduced three times and a half in 14 s."""
    rings = Rings(
        num_ranks=np.array([2]),
        ring_of=np.array([0, 0]),
        num_segments=np.array([3, 2]),
        segment_bytes=np.array([1e4, 1e3]),
        forth=np.array([[0, 3], [1, 2]]),
        back=np.array([[1, 2], [0, 3]]),
        per_byte_s=np.full(4, 8e-8),
    )

    def ended(state: QueueState) -> float:
        state.counts["rounds"] = 3, 0
        state.ranks["received_bytes"] = [[2e4, 4e4], [0.0, 0.0]]
        return 14.0

    monkeypatch.setattr(packet_simulation, "_run", ended)
    limits = {"queue_bytes": 2e5, "packet_bytes": 1.5e4, "react_s": 0.0, "recover_s": 0.025}
    assert packet_simulation.mean_durations_s(rings, **limits).tolist() == [4.0, 14.0 * 8]


def test_what_is_no_ring_is_refused() -> None:
    view = job_view(number=0, num_gpus=2, servers=(0, 1))
    elsewhere = transfer_view(view, message_bytes=1e6, links=(0, 1, 2))
    with pytest.raises(InputError, match=r"is no ring over its servers .* expected jobs without groups"):
        rates(elsewhere, transfer(1, (0, 1), 1.0))
    inside = Network(resolve("topology", "star:nvlink_gbps=100"), 2)
    with pytest.raises(InputError, match="the inside of its servers"):
        MODEL.bound_to(inside)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"react_s": -1.0}, "react_s is -1.0; expected seconds from 0 to 1e"),
        ({"recover_s": 0.0}, "recover_s is 0.0; expected seconds > 0 to 1e"),
        ({"wait": 1.5}, "wait is 1.5; expected a number from 0 to 1"),
        ({"packet_bytes": 100.0}, "packet_bytes is 100.0 and queue_bytes 200000.0; expected 1448 <= packet_bytes"),
        ({"queue_bytes": 10_000.0}, "queue_bytes 10000.0; expected 1448 <= packet_bytes <= queue_bytes"),
    ],
)
def test_parameters_out_of_range_are_refused(given_: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PacketRings(**given_)


def test_a_run_under_it_is_repeatable_and_slower_than_max_min() -> None:
    cluster = Cluster(num_servers=4, gpus_per_server=2, topology="star:nic_gbps=1")
    iteration = DataParallelIteration(forward_s=0.005, backward_s=0.01, message_bytes=2e6)
    jobs = Workload.of(
        Job(job_id=f"j{n}", arrival_s=0.0, num_gpus=2, iterations=6 + n, iteration=iteration, gpu_memory_mb=1.0)
        for n in range(3)
    )
    runs = [
        simulate(jobs, cluster, contention=name, placement="random", communication="bounded-overlap:limit=9", seed=3)
        for name in ("packet-rings", "packet-rings", "max-min")
    ]
    jcts_s = [run.jobs.jct_s.to_numpy() for run in runs]
    assert (jcts_s[0] == jcts_s[1]).all()
    assert jcts_s[0].mean() > jcts_s[2].mean()


def test_compiled_code_is_stale_once_a_source_of_its_folder_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, folder = packet_simulation._stamp(), Path(packet_simulation.__file__).parent
    shutil.copytree(folder, tmp_path / "packets", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(packet_simulation, "__file__", str(tmp_path / "packets" / "packet_simulation.py"))
    assert packet_simulation._stamp() == before
    with (tmp_path / "packets" / "packet_queues.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert packet_simulation._stamp() != before


def test_the_busiest_link_is_the_one_with_the_least_bandwidth_for_what_it_carries() -> None:
    model = PacketRings(per_byte_s=PER_BYTE_S).bound_to(THIN_LEAVES)  # whose uplinks have half a card's bandwidth
    across = packet_rings._Message((0, 2), 1_000_000)
    alone_s = model.wire_bytes(1e6, 2) * PER_BYTE_S
    assert model._most_load([across], np.array([alone_s])) == pytest.approx(2.0)


def test_a_queue_has_at_most_a_gigabyte() -> None:
    PacketRings(queue_bytes=1e9)
    with pytest.raises(InputError, match="packet_bytes <= queue_bytes <= 1e9"):
        PacketRings(queue_bytes=1e9 + 0.5)
