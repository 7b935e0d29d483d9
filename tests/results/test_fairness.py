"""Contention, finish-time fairness and Jain's index: by hand, by brute force, and what must hold of any numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.results.metrics import average_contention, finish_time_fairness, jain_index

# What a test before left open is told when memory is collected, which may be during one of these.
pytestmark = pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")

NAN = float("nan")
TIMES = st.integers(0, 40).map(lambda tenths: tenths / 10)  # few, so that jobs come and go at the same instants


@st.composite
def lives(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Return arrivals and finishes; some finish as they arrive, some never."""
    arrival_s = draw(st.lists(TIMES, min_size=1, max_size=12))
    ends = [draw(st.one_of(TIMES.map(lambda life, s=s: s + life), st.just(NAN))) for s in arrival_s]
    return np.array(arrival_s), np.array(ends)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, np.ndarray]:
    arrival_s, finish_s = draw(lives())
    shape = {"min_size": len(arrival_s), "max_size": len(arrival_s)}
    alone_s = draw(st.lists(st.sampled_from((0.0, 0.1, 1.0, 2.5)), **shape))
    gpus = draw(st.lists(st.integers(1, 16), **shape))
    return {"arrival_s": arrival_s, "finish_s": finish_s, "alone_s": np.array(alone_s), "gpus": np.array(gpus)}


# ---- Contention


def test_contention_by_hand():
    """Alone for 2 s, with another for 2 s; the other never alone; one that never ends counts too."""
    assert average_contention(np.array([0.0, 2.0]), np.array([4.0, 4.0])).tolist() == [1.5, 2.0]
    found = average_contention(np.array([0.0, 3.0]), np.array([4.0, NAN]))
    assert found[0] == 1.25
    assert np.isnan(found[1])


@pytest.mark.long
@given(lives())
def test_contention_is_the_sum_of_overlaps(life):
    arrival_s, finish_s = life
    ends = np.where(np.isnan(finish_s), np.inf, finish_s)
    for number, found in enumerate(average_contention(arrival_s, finish_s)):
        begin, end = arrival_s[number], ends[number]
        if np.isinf(end):
            assert np.isnan(found)
        elif end == begin:
            assert found == 1.0
        else:
            overlaps = np.clip(np.minimum(ends, end) - np.maximum(arrival_s, begin), 0.0, None)
            assert found == pytest.approx(overlaps.sum() / (end - begin))


def test_contention_of_many_jobs_keeps_its_precision():
    """80,000 jobs over a year, a hundred at any time: rounding must not show in a second-long life."""
    arrival_s = np.arange(80_000) * 400.0
    finish_s = arrival_s + 40_000.0
    finish_s[-1] = arrival_s[-1] + 1.0
    assert average_contention(arrival_s, finish_s)[[40_000, -1]] == pytest.approx([100.0, 100.0], rel=1e-6)


# ---- Finish-time fairness


def fairness(jobs: dict[str, np.ndarray], num_gpus: int = 16) -> np.ndarray:
    return finish_time_fairness(**jobs, num_gpus=num_gpus)


def columns(*rows: tuple[float, float, float, int]) -> dict[str, np.ndarray]:
    return dict(zip(("arrival_s", "finish_s", "alone_s", "gpus"), map(np.array, zip(*rows, strict=True)), strict=True))


def test_a_job_by_itself_is_treated_fairly():
    assert fairness(columns((1.0, 3.0, 2.0, 16))).tolist() == [1.0]


def test_by_hand_two_jobs_on_four_gpus():
    """A share is two GPUs. The job of four takes 2 x 3 s there, the job of one 3 s; both took 6 s."""
    both = columns((0.0, 6.0, 3.0, 4), (0.0, 6.0, 3.0, 1))
    assert fairness(both, num_gpus=4).tolist() == [1.0, 2.0]


def test_jobs_that_run_one_after_the_other():
    """First come, first served on the whole cluster: the first got more than its share, the last no less."""
    rho = fairness(columns((0.0, 1.0, 1.0, 4), (0.0, 2.0, 1.0, 4)), num_gpus=4)
    assert rho == pytest.approx([0.5, 2 / 1.5])


def test_it_is_unknown_for_jobs_without_end_and_without_work():
    rho = fairness(columns((0.0, NAN, 1.0, 1), (0.0, 2.0, 0.0, 1), (0.0, 0.0, 0.0, 1)))
    assert np.isnan(rho).all()


@pytest.mark.long
@given(jobs(), st.sampled_from((0.25, 3.0, 1024.0)))
def test_fairness_does_not_depend_on_the_unit_of_time(some, factor):
    scaled = {name: values * (factor if name.endswith("_s") else 1) for name, values in some.items()}
    assert fairness(scaled) == pytest.approx(fairness(some), nan_ok=True)


@pytest.mark.long
@given(jobs(), st.randoms(use_true_random=False))
def test_fairness_does_not_depend_on_the_order_of_jobs(some, random):
    order = random.sample(range(len(some["gpus"])), len(some["gpus"]))
    shuffled = {name: values[order] for name, values in some.items()}
    assert fairness(shuffled) == pytest.approx(fairness(some)[order], nan_ok=True)


@pytest.mark.long
@given(jobs())
def test_fairness_lies_between_that_of_the_cluster_to_itself_and_slowdown(some):
    rho, life_s = fairness(some), some["finish_s"] - some["arrival_s"]
    known = ~np.isnan(rho)
    slowdown = life_s[known] / some["alone_s"][known]
    most = np.maximum(1.0, some["gpus"][known] * len(rho) / 16)
    assert (rho[known] <= slowdown * (1 + 1e-9)).all()
    assert (rho[known] >= slowdown / most * (1 - 1e-9)).all()


# ---- Jain's index

SHARES = st.lists(st.floats(0.0, 1e200), min_size=1, max_size=20).map(np.array).filter(np.any)


def test_jain_by_hand():
    assert jain_index(np.array([2.0, 2.0, 2.0])) == 1.0
    assert jain_index(np.array([5.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain_index(np.array([1.0, 3.0])) == pytest.approx(16 / 20)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0]])
def test_jain_of_nothing_is_unknown(values):
    assert np.isnan(jain_index(np.array(values)))


@pytest.mark.long
@given(SHARES)
def test_jain_is_between_one_for_all_and_all_alike(values):
    assert (1 - 1e-12) / len(values) <= jain_index(values) <= 1 + 1e-12


@pytest.mark.long
@given(SHARES, st.sampled_from((1e-90, 0.5, 7.0)), st.randoms(use_true_random=False))
def test_jain_depends_on_neither_scale_nor_order(values, factor, random):
    changed = np.array(random.sample((values * factor).tolist(), len(values)))
    assert not changed.any() or jain_index(changed) == pytest.approx(jain_index(values), rel=1e-6)


@given(SHARES, st.integers(2, 4))
def test_jain_of_copies_is_the_same(values, copies):
    assert jain_index(np.repeat(values, copies)) == pytest.approx(jain_index(values))
