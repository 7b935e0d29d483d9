"""Near enough: whole racks, or GPUs on which neither a job nor those beside it take much longer."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import ddlsched
from algorithms.placement.near_enough import NearEnough, _fewest, _tiers
from algorithms.placement.whole_servers import WholeRacks
from ddlsched import Cluster, Server
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.testing import cluster_view, job_view
from ddlsched.workload.generators.microsoft import microsoft_160

CLUSTER = Cluster(num_servers=8, gpus_per_server=2, exclusive=True)
HALF = "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=4"
"""Two servers a rack, whose one cable carries half of what a card does."""
FULL = "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=2"
CARD_BYTES_PER_S = 1.25e9


def placed(job, *held: int, topology: str = HALF, slower: float = 0.1, others=()):
    """Return where the job goes on eight servers of two GPUs, of which some GPUs are held, or none."""
    residents = {gpu: [job_view(number=9)] for gpu in held} | {gpu: [other] for other in others for gpu in other.gpus}
    view = cluster_view(num_servers=8, gpus_per_server=2, residents=residents, topology=topology, exclusive=True)
    return NearEnough(slower=slower).begin(CLUSTER, np.random.default_rng(0)).place(job, view)


def sends(share: float, num_gpus: int, **changes):
    """Return a job whose all-reduce takes this share of an iteration alone."""
    changes |= {"compute_s": 1.0 - share, "message_bytes": share * CARD_BYTES_PER_S}
    return job_view(num_gpus=num_gpus, **changes)


def across(*gpus: int, number: int = 7, size: int = 2):
    """Return a job on some GPUs of two servers of a size, nine tenths of whose time goes to all-reduces."""
    view = sends(0.9, len(gpus), number=number, gpus=gpus, servers=tuple({gpu // size: 0 for gpu in gpus}))
    view._columns.communication_ns[view._place] = 900_000_000
    return view


ONE_A_RACK = (2, 6, 10, 14)
"""Of each rack one server has a free GPU only."""


@pytest.mark.parametrize("held", [(), (0, 1, 6), (2,), (2, 3)])
@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_where_whole_racks_has_room_it_is_whole_racks(gpus, held):
    view = cluster_view(num_servers=8, gpus_per_server=2, residents={gpu: [job_view()] for gpu in held}, exclusive=True)
    expected = WholeRacks(servers_per_rack=2).place(job_view(num_gpus=gpus), view)
    assert expected is not None
    assert placed(job_view(num_gpus=gpus), *held) == expected


def test_racks_that_are_not_alike_are_refused():
    with pytest.raises(InputError, match="the first rack has 3 servers of 8; expected racks of as many"):
        placed(job_view(num_gpus=4), topology="leaf-spine:servers_per_leaf=3,spines=1")


def test_over_slow_cables_it_goes_only_if_it_sends_little():
    """The all-reduce takes twice its time: 5 % more of the iteration for one, 50 % for the other."""
    assert placed(sends(0.05, 4), *ONE_A_RACK) == [0, 1, 4, 5]
    assert placed(sends(0.5, 4), *ONE_A_RACK) is None
    assert placed(sends(0.5, 4), *ONE_A_RACK, slower=0.5) == [0, 1, 4, 5]
    assert placed(sends(0.5, 4), *ONE_A_RACK, topology=FULL, slower=0.0) == [0, 1, 4, 5]


def test_one_larger_than_a_rack_needs_no_whole_racks_where_cables_are_fast():
    assert placed(sends(0.5, 6), *ONE_A_RACK) is None
    assert placed(sends(0.5, 6), *ONE_A_RACK, topology=FULL) == [0, 1, 4, 5, 8, 9]


def test_no_more_rings_leave_a_rack_than_it_has_cables():
    other = across(2, 3, 6, 7)
    assert placed(sends(0.9, 4), 10, 11, 14, 15, topology=FULL, others=[other]) is None
    two = "leaf-spine:servers_per_leaf=2,spines=2,oversubscription=1"
    assert placed(sends(0.9, 4), 10, 11, 14, 15, topology=two, others=[other]) == [0, 1, 4, 5]


def test_neither_it_nor_those_beside_it_lose_much_by_a_shared_card():
    """Free are a GPU of each server of the first rack; a job of two more GPUs there would send over both cards."""
    held = tuple(range(4, 16))
    assert placed(sends(0.05, 2), 0, 2, *held) == [1, 3]
    assert placed(sends(0.5, 2), 0, 2, *held) is None
    assert placed(sends(0.05, 2), *held, others=[across(0, 2)]) is None
    assert placed(sends(0.05, 2), *held, others=[across(0, 2)], slower=1.0) == [1, 3]


def test_those_who_share_a_card_already_lose_less_by_one_more():
    """Two that send nine tenths of a second beside a tenth of compute take 1.9 s together, 2.8 s with a third."""
    pairs = [(0, 4), (1, 5)]
    others = {gpu: [across(*pair, number=number, size=4)] for number, pair in enumerate(pairs) for gpu in pair}
    held = {gpu: [job_view(number=9)] for gpu in (3, *range(7, 16))}
    sizes = {"num_servers": 4, "gpus_per_server": 4, "exclusive": True}
    view = cluster_view(residents=others | held, topology=FULL, **sizes)
    for slower, expected in ((0.46, None), (0.49, [2, 6])):
        policy = NearEnough(slower=slower).begin(Cluster(**sizes), np.random.default_rng(0))
        assert policy.place(sends(0.01, 2), view) == expected


def test_pods_have_cables_too():
    """Racks of two servers, pods of two racks; what leaves a pod has half a card."""
    clos = "clos:servers_per_rack=2,racks_per_pod=2,rack_oversubscription=1,pod_oversubscription=8"
    held = (0, 1, 2, 4, 6, 8, 9, 10, 12, 14)
    assert placed(sends(0.5, 4), *held, topology=clos) is None
    assert placed(sends(0.5, 2), *held, topology=clos) is None
    assert placed(sends(0.001, 6), *held, topology=clos) == [3, 5, 7, 11, 13, 15]


@pytest.mark.long
def test_on_a_fast_network_jobs_wait_less_than_for_whole_racks_and_take_as_long():
    jobs = microsoft_160(seed=2, scale=0.01)
    topology = "leaf-spine:servers_per_leaf=2,spines=2,nic_gbps=1000"
    cluster = Cluster(num_servers=16, topology=topology, exclusive=True)
    options = {"order": "fifo", "contention": "max-min", "communication": "bounded-overlap:limit=99"}
    near, whole = (
        ddlsched.simulate(jobs, cluster, placement=placement, path="least-congested", **options).jobs
        for placement in ("near-enough", "whole-racks:servers_per_rack=2")
    )
    assert near["queueing_s"].mean() < whole["queueing_s"].mean()
    took = [(jobs["finish_s"] - jobs["start_s"]).mean() for jobs in (near, whole)]
    assert took[0] == pytest.approx(took[1], rel=0.02)


def test_on_shared_gpus_it_is_whole_racks_and_servers_must_be_alike():
    there = {gpu: [job_view()] for gpu in ONE_A_RACK}
    view = cluster_view(num_servers=8, gpus_per_server=2, residents=there, topology=HALF)
    policy = NearEnough().begin(CLUSTER, np.random.default_rng(0))
    assert policy.place(job_view(num_gpus=4, message_bytes=1.0), view) is None
    with pytest.raises(InputError, match="servers differ in their GPUs"):
        NearEnough().begin(Cluster(servers=(Server(gpus=2), Server(gpus=4))), np.random.default_rng(0))
    with pytest.raises(InputError, match="near-enough: slower is -1"):
        NearEnough(slower=-1.0)


def test_as_few_units_are_chosen_as_hold_a_job_and_the_last_is_the_one_that_it_fills_best():
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(0, 5, rng.integers(1, 6))
        needed = int(rng.integers(1, 12))
        found = _fewest(counts, needed)
        sets = [[*places] for size in range(1, 6) for places in combinations(range(len(counts)), size)]
        holding = [places for places in sets if counts[places].sum() >= needed]
        assert bool(found) == bool(holding)
        if found:
            assert len({*found}) == len(found) == min(map(len, holding))
            *first, last = found
            assert counts[first].tolist() == sorted(counts, reverse=True)[: len(first)]
            others = {*range(len(counts))} - {*first}
            fitting = [unit for unit in sorted(others) if counts[[*first, unit]].sum() >= needed]
            assert last == min(fitting, key=lambda unit: counts[unit])


def test_racks_of_one_server_are_tiers_too() -> None:
    network = Network(resolve("topology", "leaf-spine:servers_per_leaf=1,spines=1"), 4)
    assert [(tier.gpus, tier.cables, tier.share) for tier in _tiers(network, 4)] == [(4, 1, 1.0)]
