"""Crux: the paper's printed example, the compression against all cuts, paths, and two jobs on a link by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import ddlsched
from algorithms.contention.crux import (
    Crux,
    Load,
    compressed,
    correction_factor,
    priorities,
    sent_s,
    start_share,
)
from algorithms.path.crux import CruxPaths
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.testing import flow_view, job_view, link_loads, transfer_view
from topologies.star import Star

pytestmark = pytest.mark.long

REFERENCE, OTHER = Load(compute_s=2, network_s=2), Load(compute_s=1, network_s=1)


def test_the_papers_example() -> None:
    """In 12 s the reference sends 6 s if it is first, else 4; the other 6 if it is first, else 3: k = (6-3)/(6-4)."""
    assert sent_s(REFERENCE, OTHER, 12) == (6, 3)
    assert sent_s(OTHER, REFERENCE, 12) == (6, 4)
    assert correction_factor(REFERENCE, OTHER) == 1.5


def test_the_job_with_the_most_traffic_is_the_reference() -> None:
    """Both send half of the time; the one with more an iteration is the reference, and intensities are 1 x GPUs."""
    assert priorities({"reference": REFERENCE, "other": OTHER}) == {"reference": 1.0, "other": 1.5}
    assert priorities({}) == {}


def test_overlap_lowers_the_factor() -> None:
    """Less overlap raises k (the paper's own words): with more overlap a job loses less when it goes second."""
    overlapped = Load(compute_s=1, network_s=1, start_share=0.0)
    assert correction_factor(REFERENCE, overlapped) < correction_factor(REFERENCE, OTHER)


def test_jobs_whose_order_does_not_matter_have_the_factor_one() -> None:
    short = Load(compute_s=10, network_s=1)
    assert correction_factor(short, Load(compute_s=8, network_s=0.5)) == 1.0


def test_factors_have_bounds() -> None:
    """The order of two jobs matters to one of them only."""
    first, other = (Load(compute_s, 1.0, start_share=0.25) for compute_s in (20.0, 10.0))
    assert correction_factor(first, Load(8.0, 8.0, start_share=0.25)) == 1000
    assert correction_factor(Load(3.0, 2.0, start_share=0.25), other) == 0.001


def test_when_communication_may_start() -> None:
    """After forward and, with two buckets, half of backward: 1.5 of 2 s; without collectives never before the end."""
    iteration = ddlsched.DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=1.0, buckets=2)
    assert start_share(iteration.dag()) == 0.75
    assert start_share(job_view().dag) == 1.0


def test_a_cut_by_hand() -> None:
    """Edges 0 to 1 of 5, 1 to 2 of 1, 0 to 2 of 2: of two classes, {0} and {1, 2} cut 7, {0, 1} and {2} cut 3."""
    weights = np.array([[0, 5, 2], [0, 0, 1], [0, 0, 0]], float)
    rng = np.random.default_rng(0)
    assert compressed(weights, 2, 1, rng) == [0, 1, 1]
    assert compressed(weights, 1, 1, rng) == [0, 0, 0]
    assert compressed(weights, 8, 1, rng) == [0, 1, 2]
    assert compressed(np.zeros((0, 0)), 8, 1, rng) == []


def cut_of(weights: np.ndarray, levels: list[int]) -> float:
    """Return the weight of the edges whose ends are in different classes."""
    of = np.asarray(levels)
    return float(weights[of[:, None] != of[None, :]].sum())


@pytest.mark.parametrize("seed", range(8))
def test_in_one_order_the_cut_is_the_best_of_all(seed: int) -> None:
    """All pairs have an edge, so that there is one order; every way to cut it into at most three runs is tried."""
    rng = np.random.default_rng(seed)
    weights = np.triu(rng.uniform(0.1, 1, (7, 7)), 1)
    best = max(
        cut_of(weights, [sum(place >= end for end in ends) for place in range(7)])
        for count in (0, 1, 2)
        for ends in combinations(range(1, 7), count)
    )
    assert cut_of(weights, compressed(weights, 3, 1, rng)) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(8))
def test_no_edge_goes_backwards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = np.triu(rng.uniform(0.1, 1, (9, 9)) * (rng.random((9, 9)) < 0.3), 1)
    levels = compressed(weights, 3, 10, rng)
    assert all(levels[i] <= levels[j] for i, j in zip(*np.nonzero(weights), strict=True))
    assert set(levels) <= {0, 1, 2}


# --- paths


def test_a_flow_goes_round_jobs_of_higher_intensity_before_those_of_lower() -> None:
    """Three jobs took paths 0, 1 and 2; one of an intensity between them takes that of the job below it."""
    policy = CruxPaths().begin(ddlsched.Cluster(), np.random.default_rng(0))
    paths, loads = [(0,), (1,), (2,)], link_loads()
    for number, (compute_s, chosen) in enumerate([(4.0, 0), (1.0, 1), (3.0, 2), (2.0, 1)]):
        job = job_view(number=number, num_gpus=2, compute_s=compute_s, servers=(0, 1))
        assert policy.path(flow_view(job, paths), loads) == chosen


def test_a_job_that_has_left_is_forgotten() -> None:
    policy = CruxPaths().begin(ddlsched.Cluster(), np.random.default_rng(0))
    first = job_view(number=0, num_gpus=2, servers=(0, 1))
    assert policy.path(flow_view(first, [(0,), (1,)]), link_loads()) == 0
    first._placed((), ())
    assert policy.path(flow_view(job_view(number=1, servers=(0, 1)), [(0,), (1,)]), link_loads()) == 0


def test_flows_of_one_job_go_round_each_other() -> None:
    policy = CruxPaths(intensity="sum").begin(ddlsched.Cluster(), np.random.default_rng(0))
    job = job_view(num_gpus=4, servers=(0, 1))
    flows = [flow_view(job, [(0,), (1,)], number=number) for number in (0, 1)]
    assert [policy.path(flow, link_loads()) for flow in flows] == [0, 1]


def test_paths_of_all_jobs_are_chosen_anew_when_one_came_or_left() -> None:
    """Two jobs on paths 0 and 1; the third is of a higher intensity, takes path 0 and drives them on until it ends."""
    policy = CruxPaths(anew=True).begin(ddlsched.Cluster(), np.random.default_rng(0))
    paths = [(0,), (1,), (2,)]
    first, second, third = (
        job_view(number=number, num_gpus=2, compute_s=compute_s, servers=(0, 1), gpus=(number, 9))
        for number, compute_s in enumerate((2.0, 1.0, 3.0))
    )

    def chosen(*jobs: Any, now_s: float) -> list[int]:
        return [policy.path(flow_view(each, paths), link_loads(now_s=now_s)) for each in jobs]

    assert chosen(first, second, now_s=0.0) == [0, 1]
    assert chosen(third, first, second, now_s=1.0) == [0, 1, 2]
    third._placed((), ())
    assert chosen(first, second, now_s=2.0) == [0, 1]


def test_a_job_that_moved_is_known_by_its_new_flows_alone() -> None:
    policy = CruxPaths(anew=True).begin(ddlsched.Cluster(), np.random.default_rng(0))
    moves = job_view(number=0, num_gpus=2, compute_s=2.0, servers=(0, 1), gpus=(0, 1))
    stays = job_view(number=1, num_gpus=2, compute_s=1.0, servers=(0, 1), gpus=(2, 3))
    assert policy.path(flow_view(moves, [(0,), (1,)]), link_loads()) == 0
    assert policy.path(flow_view(stays, [(0,), (1,)]), link_loads()) == 1
    moves._placed((4, 5), (2, 3))
    assert policy.path(flow_view(moves, [(2,), (3,)]), link_loads(now_s=1.0)) == 0
    assert policy.path(flow_view(stays, [(0,), (1,)]), link_loads(now_s=1.0)) == 0


def test_a_job_that_moved_does_not_go_round_the_flows_that_it_had() -> None:
    """Nobody else asked in between, so that what it went round last is still known."""
    policy = CruxPaths(anew=True).begin(ddlsched.Cluster(), np.random.default_rng(0))
    moves = job_view(number=0, num_gpus=2, compute_s=2.0, servers=(0, 1), gpus=(0, 1))
    assert policy.path(flow_view(moves, [(0,), (1,)]), link_loads()) == 0
    moves._placed((4, 5), (2, 3))
    assert policy.path(flow_view(moves, [(0,), (1,)]), link_loads(now_s=1.0)) == 0


def test_the_sum_is_of_all_workers() -> None:
    """8 GPUs x 1 s are 8; 2 GPUs x 1 s and, of 5 x 1.25e9 bytes, 2 x 1/2 x 2 x 5 s of traffic are 12."""
    policy = CruxPaths(intensity="sum", anew=True).begin(ddlsched.Cluster(), np.random.default_rng(0))
    large = job_view(number=0, num_gpus=8, compute_s=1.0, message_bytes=0.0, servers=(0, 1), gpus=(0, 1))
    small = job_view(number=1, num_gpus=2, compute_s=1.0, message_bytes=5 * 1.25e9, servers=(0, 1), gpus=(2, 3))
    assert policy.path(flow_view(large, [(0,), (1,)]), link_loads()) == 0
    assert policy.path(flow_view(small, [(0,), (1,)]), link_loads()) == 0


# --- runs


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Each job a GPU on each of the two servers."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return [job.number, 2 + job.number]


def job(job_id: str, seconds: float, iterations: int) -> ddlsched.Job:
    iteration = ddlsched.DataParallelIteration(forward_s=seconds, backward_s=0.0, message_bytes=seconds * 1e9)
    return ddlsched.Job(
        job_id=job_id, arrival_s=0.0, num_gpus=2, iterations=iterations, iteration=iteration, gpu_memory_mb=1
    )


def finishes(contention: Any) -> list[float]:
    result = ddlsched.simulate(
        ddlsched.Workload.of([job("reference", 2.0, 2), job("other", 1.0, 6)]),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2),
        placement=Beside(),
        order="fifo",
        communication="bounded-overlap:limit=9",
        contention=contention,
    )
    return result.jobs["jct_s"].tolist()


def test_the_example_as_a_run() -> None:
    """The other never waits; the reference sends 2-3, 4-5, 8-9 and 10-11 s, the 4 s of the example."""
    assert finishes("crux:per_byte_s=1e-9") == pytest.approx([11.0, 12.0])


def test_one_class_is_fair_sharing() -> None:
    assert finishes("crux:per_byte_s=1e-9,levels=1") == finishes("max-min:per_byte_s=1e-9")


def test_a_second_run_of_one_instance_knows_nothing_of_the_first() -> None:
    model = Crux(per_byte_s=1e-9)
    assert finishes(model) == finishes(model)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"levels": 0}, "levels is 0; expected a whole number from 1 to 8"),
        ({"levels": 9}, "levels is 9; expected a whole number from 1 to 8"),
        ({"orders": 0}, "orders is 0; expected a whole number from 1 to 1000"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
    ],
)
def test_bad_parameters_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Crux(**given)


def test_an_unknown_intensity_is_refused() -> None:
    with pytest.raises(InputError, match="crux: intensity is 'flops'; expected one of ratio, sum"):
        CruxPaths(intensity="flops")


def test_anew_is_true_or_false() -> None:
    with pytest.raises(InputError, match="crux: anew is 1; expected True or False"):
        CruxPaths(anew=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("left", "servers", "expected"), [(5, (0, 1), 1), (1, (0, 1), 1), (0, (0, 1), 0), (5, (), 0)])
def test_item_27_a_job_counts_until_it_has_no_iterations_or_servers(
    left: int, servers: tuple[int, ...], expected: int
) -> None:
    """The other has three times the compute over the same traffic, so it goes first while the job is there."""
    network = Network(Star(nic_gbps=10.0), 2)
    model = Crux().bound_to(network)
    own, other = (
        job_view(
            number=number,
            num_gpus=2,
            servers=servers if number == 0 else (0, 1),
            gpus=(2 * number, 2 * number + 1),
            compute_s=compute_s,
            iterations_left=left if number == 0 else 5,
        )
        for number, compute_s in enumerate((0.1, 0.3))
    )
    transfers = [transfer_view(job, message_bytes=1e8, links=(0, 1)) for job in (own, other)]
    model.level(transfers[0])
    assert model.level(transfers[1]) == 0
    assert model._classes._classes.get(0, 0) == expected


def test_what_no_run_has_bound_knows_no_jobs() -> None:
    assert Crux().level(transfer_view(job_view(num_gpus=2, servers=(0, 1)), message_bytes=1e8)) == 0


def test_item_27_what_it_keeps_of_a_run_is_no_parameter_and_tells_no_two_apart() -> None:
    bound = Crux(per_byte_s=1e-9).bound_to(Network(Star(nic_gbps=10.0), 2))
    assert bound == Crux(per_byte_s=1e-9)
    assert repr(bound) == repr(Crux(per_byte_s=1e-9))
    with pytest.raises(TypeError, match="_classes"):
        Crux(_classes=None)  # type: ignore[call-arg]
