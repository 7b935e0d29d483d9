"""The profile of conservative backfilling: against a search by hand, and kept against made anew in each round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from runs_of_settings import run_engine
from strategies import Setting, settings
from tiers import examples

from algorithms.placement import conservative_backfill
from algorithms.placement.conservative_backfill import NEVER, ConservativeBackfill, FreeProfile
from ddlsched.workload.job import Workload

JOBS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), max_size=25)


def searched(free_from: list[int], now: int, jobs: list[tuple[int, int]]) -> list[int]:
    """Return the earliest time of each job beside those before it, moment by moment."""
    end = max([now, *free_from]) + sum(run for _, run in jobs)
    free = [sum(each <= time for each in free_from) for time in range(now, end + 1)]
    starts = []
    for gpus, run in jobs:
        fits = (t for t in range(len(free)) if all(count >= gpus for count in free[t : t + run]))
        start = next(fits, None) if gpus <= len(free_from) else None
        starts.append(int(NEVER) if start is None else now + start)
        for t in range(start or 0, (start or 0) + run if start is not None else 0):
            free[t : t + 1] = [count - gpus for count in free[t : t + 1]]
    return starts


@pytest.mark.long
@given(st.lists(st.integers(5, 30), min_size=1, max_size=5), JOBS, JOBS, st.integers(0, 20))
@hypothesis_settings(max_examples=examples(60, by_default=20))
def test_jobs_get_the_earliest_times(free_from: list[int], jobs: Any, later: Any, passed: int) -> None:
    profile = FreeProfile(np.array(free_from), 5)

    def reserved(some: list[tuple[int, int]]) -> list[int]:
        gpus, runs = np.array(some, np.int64).reshape(-1, 2).T
        return profile.reserve(np.ascontiguousarray(gpus), np.ascontiguousarray(runs)).tolist()

    assert reserved(jobs) == searched(free_from, 5, jobs)
    # As time goes on the profile is that of running jobs and reservations, each a GPU for some time.
    taken = [(start, start + run, gpus) for start, (gpus, run) in zip(searched(free_from, 5, jobs), jobs, strict=True)]
    profile.go_on(5 + passed)
    times = range(5 + passed, 5 + passed + 60)
    free = [sum(each <= t for each in free_from) - sum(n for a, b, n in taken if a <= t < b) for t in times]
    for gpus, run in later:
        fits = [t for t in range(60) if all(count >= gpus for count in free[t : t + run])]
        if fits and fits[0] + run < 60:
            assert FreeProfile.reserve(_copy(profile), np.array([gpus]), np.array([run])).tolist() == [times[fits[0]]]


def _copy(profile: FreeProfile) -> FreeProfile:
    made = FreeProfile(np.zeros(0, np.int64), 0)
    vars(made).update({name: np.copy(value) if name != "_length" else value for name, value in vars(profile).items()})
    return made


# ---- Kept, or made anew in each round


@st.composite
def planned_settings(draw: st.DrawFn) -> Setting:
    """Return a run of jobs with time limits, too short and too long ones, or with estimates, and servers that fail."""
    setting = draw(settings())
    limits_s = st.sampled_from((0.01, 0.05, 0.1, 0.1234567, 0.5, 2.0, 20.0))
    jobs = tuple(replace(job, time_limit_s=draw(limits_s)) for job in setting.workload)
    policy = ConservativeBackfill(error_sigma=draw(st.sampled_from((None, None, 0.0, 0.7))))
    return replace(setting, workload=Workload(jobs), placement=policy)


KEPT: list[bool] = []


class Anew(conservative_backfill._Conservative):
    def _reserve(self, queue: Any, cluster: Any, *, as_expected: bool) -> Any:
        return super()._reserve(queue, cluster, as_expected=False)


class Counted(conservative_backfill._Conservative):
    def _reserve(self, queue: Any, cluster: Any, *, as_expected: bool) -> Any:
        before = self._profile
        starts_ns = super()._reserve(queue, cluster, as_expected=as_expected)
        KEPT.append(self._profile is before)
        return starts_ns


@given(planned_settings())
@hypothesis_settings(max_examples=examples(60, by_default=25))
def _same_either_way(setting: Setting) -> None:
    found = []
    for kind in (Counted, Anew):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConservativeBackfill, "asked", kind)
            found.append(run_engine(setting, timeline=True))
    kept, anew = (result.finished for result in found)
    assert kept.reservations == anew.reservations
    assert kept.state.jobs.finish_ns.tolist() == anew.state.jobs.finish_ns.tolist()


@pytest.mark.long
@pytest.mark.drawn
def test_a_profile_that_is_kept_gives_the_reservations_of_one_made_anew() -> None:
    KEPT.clear()
    _same_either_way()
    assert KEPT.count(True) > 10
    assert KEPT.count(False) > 10
