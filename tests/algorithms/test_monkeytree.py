"""MonkeyTree: edge colourings, the programme against all placements, best fit, rings of a job, and moves in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import examples

import ddlsched
from algorithms.ordering.monkeytree import MonkeyTreeOrder
from algorithms.path.perfect import PerfectRouting, _Colours, edge_colours
from algorithms.placement.monkeytree import (
    MigrationPlanner,
    MonkeyTreePlacement,
    Segment,
    fragmentation,
    planned,
    rings_of,
)
from algorithms.solving import Solver
from ddlsched.engine.routes import Routes
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, flow_view, job_queue, job_view, link_loads
from ddlsched.workload.generators.monkeytree_mix import MODELS, MixedModel, monkeytree_mix


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60))
@example([(0, 1), (0, 0), (1, 2), (1, 0)])  # the last has no colour of the two free at both ends
def test_edges_of_a_colour_share_no_end_and_colours_are_the_fewest(edges: list[tuple[int, int]]) -> None:
    colours = edge_colours(edges)
    for end in (0, 1):
        assert len({(edge[end], colour) for edge, colour in zip(edges, colours, strict=True)}) == len(edges)
    degrees = [max(Counter(edge[end] for edge in edges).values(), default=0) for end in (0, 1)]
    assert len(set(colours)) == max(degrees)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40), st.integers(0, 12))
def test_colours_that_need_not_change_stay(edges: list[tuple[int, int]], least: int) -> None:
    """One edge more turns at most one path; where both ends lack a common colour, nothing."""
    before = edge_colours(edges[:-1], least=least)
    after = edge_colours(edges, before, least)
    for end in (0, 1):
        assert len({(edge[end], colour) for edge, colour in zip(edges, after, strict=True)}) == len(edges)
    degree = max(max(Counter(edge[end] for edge in edges).values()) for end in (0, 1))
    assert max(after) < max(degree, least)
    changed = {colour for old, colour in zip(before, after, strict=False) if old != colour}
    assert len(changed) <= 2
    if least >= len(edges):
        assert after[:-1] == before


def test_flows_between_racks_take_spines_of_their_own() -> None:
    """Racks 0 to 1 twice and 1 to 0 once, over two spines: up links 0 and 1 of rack 0, 10 and 11 of rack 1."""
    policy = PerfectRouting().begin(ddlsched.Cluster(), np.random.default_rng(0))
    there, back = [(0, 20), (1, 21)], [(10, 30), (11, 31)]
    for number in (0, 1):
        job = job_view(number=number, num_gpus=2, servers=(0, 1), gpus=(number, 4 + number))
        policy.path(flow_view(job, there), link_loads(num_links=40))
        policy.path(flow_view(job, back, source=1, target=0), link_loads(num_links=40))
    first, second = (job_view(number=n, num_gpus=2, servers=(0, 1), gpus=(n, 4 + n)) for n in (0, 1))
    for source, target, paths in ((0, 1, there), (1, 0, back)):
        chosen = [
            policy.path(flow_view(job, paths, source=source, target=target), link_loads(num_links=40))
            for job in (first, second)
        ]
        assert sorted(chosen) == [0, 1]


def test_inside_a_rack_there_is_one_path() -> None:
    policy = PerfectRouting().begin(ddlsched.Cluster(), np.random.default_rng(0))
    assert policy.path(flow_view(job_view(), [()]), link_loads()) == 0


# --- the programme


def test_rings_count_on_every_rack_that_a_fragmented_job_touches() -> None:
    segments = [Segment(8, {0: 1, 1: 1}), Segment(1, {1: 2, 2: 1}), Segment(8, {0: 3})]
    assert fragmentation(segments, 3) == [8, 9, 1]


@pytest.mark.long
def test_two_jobs_across_the_same_racks_are_brought_together() -> None:
    """Each has a block on both racks, 8 rings, at most 8: one has to be whole, which swaps a block: 4 changes."""
    segments = [Segment(8, {0: 1, 1: 1}), Segment(8, {0: 1, 1: 1})]
    found = planned(segments, [2, 2], 8, Solver("test", 10.0))
    assert found is not None
    assert sorted(map(len, found)) == [1, 1]
    assert planned(segments, [2, 2], 16, Solver("test", 10.0)) == [{0: 1, 1: 1}, {0: 1, 1: 1}]


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_has_the_fewest_changes_of_all(seed: int) -> None:
    """Against every placement of two jobs of two and three blocks on three racks."""
    rng = np.random.default_rng(seed)
    segments = [Segment(int(rng.integers(1, 3)), {0: 1, 1: 1}), Segment(2, {0: 1, 1: 1, 2: 1})]
    room, most = (rng.integers(2, 4, 3)).tolist(), 2
    ways = [
        [way for way in product(range(segment.size + 1), repeat=3) if sum(way) == segment.size] for segment in segments
    ]

    def changes(choice: tuple[tuple[int, ...], ...]) -> int:
        return sum(
            abs(count - segment.blocks.get(rack, 0))
            for segment, way in zip(segments, choice, strict=True)
            for rack, count in enumerate(way)
        )

    def fits(choice: tuple[tuple[int, ...], ...]) -> bool:
        after = [
            Segment(s.rings, {t: n for t, n in enumerate(way) if n}) for s, way in zip(segments, choice, strict=True)
        ]
        return max(fragmentation(after, 3)) <= most and all(sum(w[t] for w in choice) <= room[t] for t in range(3))

    found = planned(segments, room, most, Solver("test", 10.0))
    assert found is not None
    choice = tuple(tuple(plan.get(rack, 0) for rack in range(3)) for plan in found)
    assert fits(choice)
    assert changes(choice) == min(changes(each) for each in product(*ways) if fits(each))


@pytest.mark.parametrize("seed", range(8))
def test_jobs_move_by_the_fewest_blocks_that_leave_no_rack_too_many_rings(seed: int) -> None:
    """Three jobs anywhere on three racks of four blocks of two GPUs, one spine, against all places that they have."""
    rng = np.random.default_rng(seed)
    order, racks = rng.permutation(12).tolist(), range(3)
    held, free = (order[:2], order[2:4], order[4:7]), order[7:]

    def counts(blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(sum(block // 4 == rack for block in blocks) for rack in racks)

    def rings(places: Sequence[tuple[int, ...]]) -> int:
        return max(sum(place[rack] > 0 and max(place) < sum(place) for place in places) for rack in racks)

    def changes(places: Sequence[tuple[int, ...]]) -> int:
        return sum(abs(n - m) for new, old in zip(places, before, strict=True) for n, m in zip(new, old, strict=True))

    before = [counts(blocks) for blocks in held]
    ways = [
        [way for way in product(range(5), repeat=3) if sum(way) == sum(old) and (way == old or max(old) < sum(old))]
        for old in before
    ]
    fitting = [each for each in product(*ways) if max(map(sum, zip(*each, strict=True))) <= 4 and rings(each) <= 1]
    policy = MonkeyTreePlacement(gpus_per_rack=8, block_gpus=2, spines=1)
    planner = MigrationPlanner(policy, ddlsched.Cluster(num_servers=12, gpus_per_server=2), "test")
    jobs = [job_view(number=number, num_gpus=2 * len(blocks)) for number, blocks in enumerate(held)]
    gpus = [[gpu for block in blocks for gpu in (2 * block, 2 * block + 1)] for blocks in held]
    for swaps in (True, False):
        left = [sorted(block for block in free if block // 4 == rack) for rack in racks]
        targets = planner.targets(dict(zip(jobs, gpus, strict=True)), left, 0.0, swaps=swaps)
        after = [targets.get(number, own) for number, own in enumerate(gpus)]
        blocks = [[gpu // 2 for gpu in own[::2]] for own in after]
        assert [[gpu for block in own for gpu in (2 * block, 2 * block + 1)] for own in blocks] == after
        assert len({block for own in blocks for block in own}) == 7
        new = [set(now) - set(old) for now, old in zip(blocks, held, strict=True)]
        if swaps:
            places = [counts(own) for own in blocks]
            assert rings(places) <= 1
            assert 2 * sum(map(len, new)) == changes(places) == min(map(changes, fitting))
        else:
            assert set[int]().union(*new) <= set(free)
        assert [*targets] == [number for number, own in enumerate(new) if own]


# --- placement: racks of four servers of one block


def begun(**given: Any) -> Any:
    policy = MonkeyTreePlacement(gpus_per_rack=8, block_gpus=2, **given)
    return policy.begin(ddlsched.Cluster(num_servers=8, gpus_per_server=2), np.random.default_rng(0))


def view(*held: int) -> Any:
    other = job_view(number=9, num_gpus=len(held), gpus=held, servers=tuple({gpu // 2 for gpu in held}))
    return cluster_view(num_servers=8, gpus_per_server=2, residents={gpu: [other] for gpu in held})


def test_a_job_goes_to_the_fullest_rack_that_holds_it() -> None:
    starts = begun().place_round(job_queue(job_view(num_gpus=4)), view(8, 9))
    assert [gpus for _, gpus in starts] == [[10, 11, 12, 13]]


def test_a_job_that_no_rack_holds_takes_the_emptiest_first() -> None:
    starts = begun().place_round(job_queue(job_view(num_gpus=12)), view(0, 1, 8, 9, 10, 11))
    assert list(starts) == []
    ((_, gpus),) = begun().place_round(job_queue(job_view(num_gpus=10)), view(0, 1, 8, 9, 10, 11))
    assert gpus == [2, 3, 4, 5, 6, 7, 12, 13, 14, 15]


def test_nobody_passes_the_first_of_the_queue() -> None:
    queue = job_queue(job_view(number=0, num_gpus=16), job_view(number=1, num_gpus=2))
    assert list(begun().place_round(queue, view(0))) == []


def test_rings_of_jobs() -> None:
    """One ring over all; 8 rings of a job of tensor parallelism; 8 in each of two stages, which are segments."""
    plain = job_view(num_gpus=32)
    assert rings_of(plain, 8) == [((0, 1, 2, 3), 1)]
    tensor, staged = (
        MixedModel("x", 1.0, 1e9, 1.0, rings=8, stages=stages).iteration(32 * stages) for stages in (1, 2)
    )
    jobs = [
        ddlsched.Job(job_id="a", arrival_s=0, num_gpus=n, iterations=1, iteration=dag, gpu_memory_mb=1)
        for n, dag in ((32, tensor), (64, staged))
    ]
    views = [job_view(num_gpus=job.num_gpus) for job in jobs]
    for made, job in zip(views, jobs, strict=True):
        object.__setattr__(made, "_job", job)  # which a view refuses to policies
    assert rings_of(views[0], 8) == [((0, 1, 2, 3), 8)]
    assert rings_of(views[1], 8) == [((0, 1, 2, 3), 8), ((4, 5, 6, 7), 8)]


def ring_job(job_id: str, gpus: int, iterations: int, arrival_s: float = 0.0) -> ddlsched.Job:
    iteration = ddlsched.DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=1e9)
    return ddlsched.Job(
        job_id=job_id, arrival_s=arrival_s, num_gpus=gpus, iterations=iterations, iteration=iteration, gpu_memory_mb=1
    )


@pytest.mark.long
def test_jobs_that_meet_are_brought_apart_in_a_run() -> None:
    """Racks of 4 GPUs, one spine. a takes 3 of rack 0, b 2 of rack 1, c the 3 that are left, of both.

    When a and b have ended, d takes 3 of rack 0 and 1 of rack 1: two rings leave each rack, by one spine.
    """
    jobs = [ring_job("a", 3, 2), ring_job("b", 2, 4), ring_job("c", 3, 30, 0.5), ring_job("d", 4, 30, 1.0)]
    cluster = ddlsched.Cluster(
        num_servers=8, gpus_per_server=1, topology="monkeytree:racks=2,servers_per_rack=4,spines=1", exclusive=True
    )

    def run(moves_jobs: bool) -> ddlsched.Result:
        return ddlsched.simulate(
            ddlsched.Workload.of(jobs),
            cluster,
            placement=MonkeyTreePlacement(gpus_per_rack=4, block_gpus=1, spines=1, moves_jobs=moves_jobs),
            order="fifo",
            communication="bounded-overlap:limit=9",
            contention="max-min",
            path="perfect",
        )

    moved, stayed = run(True), run(False)
    assert any(departure.moved for departure in moved.finished.departures)
    for result, whole in ((moved, True), (stayed, False)):
        last = {stay.job: {gpu // 4 for gpu in stay.gpus} for stay in result.finished.stays}
        assert (sum(len(racks) > 1 for racks in (last[2], last[3])) <= 1) == whole


@pytest.mark.long
def test_jobs_swap_places_if_the_order_stops_them() -> None:
    """Two racks of 4 GPUs, full, one spine, two jobs of 4 on both racks, and one that waits: one swap, and no ring.

    a and b take 2 of each rack, c and d 4 GPUs of what they leave: 2 of rack 0 and 2 of rack 1 each.
    """
    a, b = ring_job("a", 2, 2), ring_job("b", 2, 2)
    x, y = ring_job("x", 2, 3), ring_job("y", 2, 3)
    c, d = ring_job("c", 4, 20, 0.5), ring_job("d", 4, 20, 0.6)
    late = ring_job("late", 8, 1, 1.0)
    cluster = ddlsched.Cluster(
        num_servers=8, gpus_per_server=1, topology="monkeytree:racks=2,servers_per_rack=4,spines=1", exclusive=True
    )
    given: dict[str, Any] = {"gpus_per_rack": 4, "block_gpus": 1, "spines": 1}

    def run(order: Any) -> ddlsched.Result:
        return ddlsched.simulate(
            ddlsched.Workload.of([a, x, b, y, c, d, late]),
            cluster,
            placement=MonkeyTreePlacement(**given),
            order=order,
            communication="bounded-overlap:limit=9",
            contention="max-min",
            path="perfect",
        )

    racks = {}
    for name, order in (("swaps", MonkeyTreeOrder(**given)), ("stays", "fifo")):
        result = run(order)
        last = {stay.job: {gpu // 4 for gpu in stay.gpus} for stay in result.finished.stays}
        racks[name] = [len(last[4]), len(last[5])]
        assert (result.jobs["state"] == "finished").all()
    assert racks == {"swaps": [1, 1], "stays": [2, 2]}


def test_the_programme_moves_jobs_that_meet() -> None:
    """As they run: two jobs on both racks, one spine, and two free blocks in rack 0, where one of them goes."""
    policy = MonkeyTreePlacement(gpus_per_rack=4, block_gpus=1, spines=1)
    cluster = ddlsched.Cluster(num_servers=8, gpus_per_server=1)
    moving = policy.begin(cluster, np.random.default_rng(0))
    first, second = (job_view(number=n, num_gpus=2, gpus=gpus, servers=gpus) for n, gpus in enumerate([(0, 4), (1, 5)]))
    there = cluster_view(num_servers=8, gpus_per_server=1, residents={0: [first], 4: [first], 1: [second], 5: [second]})
    moves = moving.moves([first, second], there)
    assert len(moves) >= 1
    assert all(len({gpu // 4 for gpu in gpus}) == 1 for _, gpus in moves)
    assert moving.moves([first, second], there) == []  # nothing came or left


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus_per_rack": 0}, "monkeytree: gpus_per_rack is 0; expected a whole number from 1"),
        ({"gpus_per_rack": 12}, "monkeytree: gpus_per_rack is 12; expected a multiple of block_gpus, 8"),
        ({"spines": 0.5}, "monkeytree: spines is 0.5; expected a whole number from 1"),
        ({"moves_jobs": 1}, "monkeytree: moves_jobs is 1; expected True or False"),
        ({"time_limit_s": 0}, "monkeytree: time_limit_s is 0; expected seconds > 0"),
    ],
)
def test_bad_parameters_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        MonkeyTreePlacement(**given)


def test_racks_must_be_whole() -> None:
    with pytest.raises(InputError, match="the cluster has 64 GPUs; expected a multiple of gpus_per_rack, 48"):
        MonkeyTreePlacement(gpus_per_rack=48).begin(ddlsched.Cluster(), np.random.default_rng(0))


# --- the mix


@pytest.mark.long
def test_the_mix_has_the_load_and_the_jobs_that_it_says() -> None:
    workload = monkeytree_mix(seed=1, jobs=4000, load=0.5)
    by_name = {model.name: model for model in MODELS}
    gpu_s = sum(by_name[job.model or ""].alone_s(job.num_gpus) * job.num_gpus * job.iterations for job in workload)
    assert gpu_s / (workload.jobs[-1].arrival_s * 1024) == pytest.approx(0.5, rel=0.05)
    shares = Counter(job.model for job in workload)
    assert shares["llama2-70b-tp"] / 4000 == pytest.approx(100 / 350, abs=0.03)
    assert {job.num_gpus for job in workload} == set(range(16, 65, 8))
    assert {job.iterations for job in workload} <= set(range(100, 1001))


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples(8, 2)))
def test_flows_that_keep_their_colours_are_not_asked_about_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does that change a run: jobs anywhere, more rings than spines."""
    asked, path = [0], _Colours.path

    def counted(self: _Colours, *about: Any) -> int:
        asked[0] += 1
        return path(self, *about)

    def run() -> tuple[pd.DataFrame, int]:
        asked[0] = 0
        cluster = ddlsched.Cluster(
            num_servers=64,
            gpus_per_server=1,
            topology="monkeytree:racks=4,servers_per_rack=16,spines=4",
            exclusive=True,
        )
        jobs = monkeytree_mix(seed=seed, jobs=10, gpus=64, scale=0.02, most_gpus=32)
        result = ddlsched.simulate(jobs, cluster, placement="random", contention="max-min", path="perfect", seed=seed)
        return result.jobs, asked[0]

    monkeypatch.setattr(_Colours, "path", counted)
    kept, few = run()
    monkeypatch.setattr(Routes, "planned_again", lambda self, number, place, plan: plan(self.asked(number)))
    always, many = run()
    pd.testing.assert_frame_equal(kept, always)
    assert few < many


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_an_iteration_alone_takes_what_the_mix_says(model: MixedModel) -> None:
    gpus = model.sizes[-1]
    job = ddlsched.Job(
        job_id="a", arrival_s=0, num_gpus=gpus, iterations=2, iteration=model.iteration(gpus), gpu_memory_mb=1
    )
    cluster = ddlsched.Cluster(num_servers=64, gpus_per_server=1, topology="star:nic_gbps=400")
    given: dict[str, Any] = {"placement": "first-fit", "contention": "max-min", "order": "fifo"}
    given["communication"] = "bounded-overlap:limit=1000"
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, **given)
    assert result.jobs["jct_s"].item() == pytest.approx(2 * model.alone_s(gpus), rel=1e-6)


@pytest.mark.parametrize("given", [{"jobs": 0}, {"load": 0.0}, {"scale": 0.0}, {"gpus": 8}, {"most_gpus": 8}])
def test_the_mix_refuses_bad_values(given: Any) -> None:
    with pytest.raises(InputError, match=r"monkeytree-mix: (jobs|load|scale|gpus|most_gpus) is "):
        monkeytree_mix(seed=0, **given)


def test_an_edge_keeps_its_colour_though_another_would_do() -> None:
    assert edge_colours([("a", "x"), ("a", "y")], kept=[1]) == [1, 0]
