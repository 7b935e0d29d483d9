"""CASSINI: circles turned by hand, the theorem of relative shifts on random jobs, slots, jobs that no longer meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ddlsched
from algorithms.communication.cassini import (
    ANGLES,
    Cassini,
    Profile,
    best_rotations,
    demand,
    is_a_forest,
    job_shifts,
    merged_links,
    score,
)
from algorithms.placement.cassini import CassiniPlacement
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view, network_view, transfer_view

HALF = Profile(period_ticks=100, start_ticks=50, length_ticks=50)


def test_a_circle_is_filled_as_often_as_its_job_repeats() -> None:
    """On 200 ticks a job of 100 sends twice, from 50 to 100 and from 150 to 200: steps 18-35 and 54-71 of 72."""
    steps = demand(HALF, 200)
    assert steps == pytest.approx(np.tile(np.repeat([0.0, 1.0], 18), 2))
    assert demand(HALF, 200, shift_ticks=50) == pytest.approx(np.tile(np.repeat([1.0, 0.0], 18), 2))


def test_the_score_is_the_mean_of_what_is_too_much() -> None:
    """Together they ask for twice the link during half of the time; apart never more than it has."""
    assert score([demand(HALF, 100), demand(HALF, 100)]) == pytest.approx(0.5)
    assert score([demand(HALF, 100), demand(HALF, 100, 50)]) == pytest.approx(1.0)
    assert score([demand(HALF, 100)] * 4) == pytest.approx(-0.5)


def test_two_halves_fit() -> None:
    fit = best_rotations([HALF, HALF])
    assert (fit.score, fit.shifts_ticks, fit.perimeter_ticks) == (pytest.approx(1.0), (0.0, pytest.approx(50.0)), 100)


def test_a_job_of_twice_the_period_cannot_avoid_one_that_always_comes_back() -> None:
    """The second sends 100 of 200 ticks in a row, half of which the first sends, too: 50 of 200 are too much."""
    assert best_rotations([HALF, Profile(200, 100, 100)]).score == pytest.approx(0.75)


def test_of_too_many_combinations_one_job_is_turned_at_a_time() -> None:
    """Five jobs of a fifth each, 72^4 combinations: they all fit."""
    fit = best_rotations([Profile(100, 80, 20)] * 5)
    assert fit.score > 0.97


def test_links_of_the_same_jobs_count_once() -> None:
    shared = {3: frozenset({0, 1}), 1: frozenset({0, 1}), 2: frozenset({1, 2}), 4: frozenset({5})}
    assert merged_links(shared) == {1: frozenset({0, 1}), 2: frozenset({1, 2})}


def test_a_circle_of_jobs_and_links_is_found() -> None:
    chain = {0: frozenset({0, 1}), 1: frozenset({1, 2})}
    assert is_a_forest(chain)
    assert not is_a_forest(chain | {2: frozenset({0, 2})})
    assert is_a_forest({})


@st.composite
def forests(draw: st.DrawFn) -> tuple[dict[int, Profile], dict[int, frozenset[int]]]:
    """Jobs, and links that join them in trees: each link takes new jobs to at most one that is there."""
    periods = st.sampled_from([60, 90, 120, 180])
    profiles, jobs_on = dict[int, Profile](), dict[int, frozenset[int]]()
    for link in range(draw(st.integers(1, 5))):
        new = range(len(profiles), len(profiles) + draw(st.integers(1 if profiles else 2, 2)))
        old = [draw(st.sampled_from(sorted(profiles)))] if profiles and draw(st.booleans() | st.just(True)) else []
        for job in new:
            period = draw(periods)
            length = draw(st.integers(1, period - 1))
            profiles[job] = Profile(period, draw(st.integers(0, period - length)), length)
        jobs_on[link] = frozenset([*new, *old])
    return profiles, {link: jobs for link, jobs in jobs_on.items() if len(jobs) > 1}


@pytest.mark.long
@given(forests(), st.randoms(use_true_random=False))
def test_relative_shifts_are_kept_on_every_link(forest: Any, random: Any) -> None:
    """The paper's theorem: with one shift a job, each link has the pattern of its own shifts, begun at another time.

    Held against the demands: on each link those of the jobs' shifts are those of the link's, turned by one time.
    """
    profiles, jobs_on = forest
    assume(jobs_on)
    assert is_a_forest(jobs_on)
    on_link = {
        (job, link): random.randrange(profiles[job].period_ticks) for link, jobs in jobs_on.items() for job in jobs
    }
    periods = {job: profile.period_ticks for job, profile in profiles.items()}
    shifts = job_shifts(jobs_on, on_link, periods)
    assert set(shifts) == set().union(*jobs_on.values())
    for link, jobs in jobs_on.items():
        perimeter = math.lcm(*(periods[job] for job in jobs))
        own = [demand(profiles[job], perimeter, on_link[job, link]) for job in sorted(jobs)]
        turns = {(shifts[job] - on_link[job, link]) for job in jobs}
        turned = [
            sum(demand(profiles[job], perimeter, on_link[job, link] + turn) for job in jobs) for turn in sorted(turns)
        ]
        ours = sum(demand(profiles[job], perimeter, shifts[job]) for job in jobs)
        assert any(np.allclose(ours, each) for each in turned), (link, own)


def test_shifts_by_hand() -> None:
    """0 -l0- 1 -l1- 2: t1 = 0 - 10 + 30, t2 = 20 - 40 + 5 mod 60."""
    on_link = {(0, 0): 10.0, (1, 0): 30.0, (1, 1): 40.0, (2, 1): 5.0}
    jobs_on = {0: frozenset({0, 1}), 1: frozenset({1, 2})}
    assert job_shifts(jobs_on, on_link, {0: 100, 1: 100, 2: 60}) == {0: 0.0, 1: 20.0, 2: 45.0}


# --- slots


def begun(policy: Any, cluster: Any = None) -> Any:
    return policy.begin(cluster or ddlsched.Cluster(), np.random.default_rng(0))


def sender(number: int, compute_s: float = 0.5, communication_s: float = 0.5) -> Any:
    job = job_view(number=number, num_gpus=2, compute_s=compute_s, servers=(0, 1), gpus=(number, 4 + number))
    job._columns.communication_ns[0] = round(communication_s * 1e9)
    return transfer_view(job)


def test_a_job_that_shares_no_link_goes_at_once() -> None:
    agent = begun(Cassini())
    assert agent.admit(sender(0), network_view(now_s=0.5))
    assert agent.wake_s(0.5) is None


def test_jobs_wait_for_their_slots() -> None:
    """Both are known from 10 s on: the first's slot is at 10.5 + n, the second's half an iteration later, 10 + n."""
    agent = begun(Cassini())
    assert agent.admit(sender(0), network_view(now_s=9.5))
    assert agent.admit(sender(1), network_view(now_s=10.0))
    assert not agent.admit(sender(0), network_view(now_s=11.2))
    assert agent.wake_s(11.2) == pytest.approx(11.5)
    assert not agent.admit(sender(1), network_view(now_s=11.2))
    assert not agent.admit(sender(0), network_view(now_s=11.4))
    assert agent.admit(sender(0), network_view(now_s=11.5))
    assert agent.wake_s(11.5) == pytest.approx(12.0)


@pytest.mark.parametrize(("late_s", "goes"), [(0.0, True), (0.05, True), (0.06, False), (0.99, False)])
def test_a_drift_of_a_twentieth_is_let_through(late_s: float, goes: bool) -> None:
    agent = begun(Cassini())
    agent.admit(sender(0), network_view(now_s=9.5))
    agent.admit(sender(1), network_view(now_s=10.0))
    first_ns, _ = agent._slots_ns[0]
    now_s = first_ns / 1e9 + 3 + late_s
    assert agent.admit(sender(0), network_view(now_s=now_s)) == goes
    if not goes:
        assert agent.wake_s(now_s) == pytest.approx(first_ns / 1e9 + 4)
        assert agent.admit(sender(0), network_view(now_s=agent.wake_s(now_s)))


def test_jobs_that_fit_too_badly_are_not_held() -> None:
    agent = begun(Cassini())
    assert agent.admit(sender(0, 0.1, 0.9), network_view(now_s=0.1))
    assert agent.admit(sender(1, 0.1, 0.9), network_view(now_s=0.3))


# --- runs


@dataclass(frozen=True, kw_only=True)
class Beside:
    def place(self, job: Any, cluster: Any) -> list[int]:
        return [job.number, 2 + job.number]


def jct_s(communication: Any, iterations: int = 20) -> list[float]:
    iteration = ddlsched.DataParallelIteration(forward_s=1.0, backward_s=0.0, message_bytes=1e9)
    jobs = [
        ddlsched.Job(
            job_id=name, arrival_s=0.0, num_gpus=2, iterations=iterations, iteration=iteration, gpu_memory_mb=1
        )
        for name in ("a", "b")
    ]
    return (
        ddlsched.simulate(
            ddlsched.Workload.of(jobs),
            ddlsched.Cluster(num_servers=2, gpus_per_server=2, exclusive=True),
            placement=Beside(),
            order="fifo",
            communication=communication,
            contention="max-min:per_byte_s=1e-9",
        )
        .jobs["jct_s"]
        .tolist()
    )


@pytest.mark.long
def test_shifted_jobs_run_as_if_alone() -> None:
    """Alone 2 s an iteration; in step both send at once and take 3. Shifted, only the first wait for a slot costs."""
    assert jct_s("bounded-overlap:limit=9") == pytest.approx([60.0, 60.0])
    assert max(jct_s(Cassini())) <= 44.0


# --- placement


def test_the_candidate_on_whose_links_jobs_fit_is_taken() -> None:
    """Servers of 2 GPUs, and a job on 0 and 1 that nearly always sends: beside it, or on the idle servers 2 and 3."""
    running = job_view(number=0, num_gpus=2, compute_s=0.1, message_bytes=1e9, servers=(0, 1), gpus=(0, 2))
    running._columns.communication_ns[0] = 900_000_000
    view = cluster_view(
        num_servers=4,
        gpus_per_server=2,
        residents={0: [running], 2: [running]},
    )
    job = job_view(number=1, num_gpus=2, compute_s=0.1, message_bytes=1e9)
    chooser = begun(CassiniPlacement())
    chooser._others = [Picks((1, 3)), Picks((4, 6))]
    assert chooser.place(job, view) == (4, 6)
    chooser._others = [Picks((1, 3)), Picks((1, 3))]
    assert chooser.place(job, view) == (1, 3)


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [((0.5, 0.5 + 4e-10), 0), ((0.5, 0.5 + 6e-10), 1), ((0.5, 0.25), 0), ((0.25, 0.5, 0.5), 1), ((0.25, 0.5, 0.75), 2)],
)
def test_of_scores_alike_to_nine_decimals_the_first_is_taken(scores: tuple[float, ...], chosen: int) -> None:
    job, chooser = job_view(number=1, num_gpus=2), begun(CassiniPlacement())
    chooser._others = [Picks((gpu, gpu + 2)) for gpu in range(len(scores))]
    chooser._score = lambda job, gpus, running, cluster: scores[gpus[0]]
    assert chooser.place(job, cluster_view(num_servers=4, gpus_per_server=2)) == (chosen, chosen + 2)


@dataclass(frozen=True)
class Picks:
    gpus: tuple[int, ...]

    def place(self, job: Any, cluster: Any) -> tuple[int, ...]:
        return self.gpus


@pytest.mark.parametrize(
    ("policy", "given", "said"),
    [
        (Cassini, {"tick_s": 0.0}, "cassini: tick_s is 0.0; expected seconds from 1e-6"),
        (Cassini, {"drift": 1.5}, "cassini: drift is 1.5; expected a number from 0 to 1"),
        (Cassini, {"least_score": 2.0}, "cassini: least_score is 2.0; expected a number from -1e9 to 1"),
        (CassiniPlacement, {"tick_s": 0.0}, "cassini: tick_s is 0.0; expected seconds from 1e-6"),
        (CassiniPlacement, {"candidates": "+".join(["lwf"] * 11)}, "candidates has 11 placements; expected 1 to 10"),
        (CassiniPlacement, {"candidates": "muri"}, "candidate 'muri' decides about the whole queue"),
    ],
)
def test_bad_parameters_are_refused(policy: Any, given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy(**given)


def test_turns_are_the_best_of_all_that_are_tried() -> None:
    """Two jobs of different periods: every turn of the second in steps of 5 degrees."""
    one, other = Profile(120, 60, 60), Profile(180, 100, 80)
    perimeter = 360
    best = max(
        score([demand(one, perimeter), demand(other, perimeter, step * perimeter / ANGLES)])
        for (step,) in product(range(ANGLES * 180 // perimeter))
    )
    assert best_rotations([one, other]).score == pytest.approx(best)
