"""The engine with orders that stop jobs and placements that move them, against the reference simulator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from movers import FirstFitAndWhims, StopsLongest, StopsOnAWhim, Whims
from policies_of_users import LateRush
from reference_simulator import reference_simulate
from runs_of_settings import assert_agrees, run_engine
from strategies import Setting, settings
from tiers import examples

from algorithms.ordering.srtf import StoppingShortestRemainingTimeFirst
from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.results.result import Result
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload
from topologies.star import Star


@dataclass(frozen=True, kw_only=True)
class MovingSetting:
    """A run whose order stops jobs, whose placement moves them, or both."""

    setting: Setting
    whims: Whims | None


@st.composite
def moving_settings(draw: st.DrawFn) -> MovingSetting:
    """Return a run in which state takes time, or none, and servers may fail meanwhile."""
    setting = draw(settings())
    share = st.sampled_from((0.0, 0.02, 1.0)).map(lambda share: {"state_share": share})
    fixed = st.sampled_from((0.0, 3.0, 12.3456789)).map(lambda state_mb: {"state_mb": state_mb})
    disturbances = replace(setting.disturbances, **draw(st.one_of(share, fixed)))
    seed, until_s = st.integers(0, 99), st.sampled_from((0.2, 0.6))
    whims = draw(st.one_of(st.none(), st.builds(Whims, seed=seed, until_s=until_s)))
    gains = st.builds(StoppingShortestRemainingTimeFirst, least_gain_s=st.sampled_from((0.0001, 0.05, 0.5)))
    stopping = [st.just(StopsLongest()), gains, st.builds(StopsOnAWhim, seed=seed, until_s=until_s)]
    order = draw(st.one_of(*stopping, *([st.just(setting.order)] if whims else [])))
    return MovingSetting(setting=replace(setting, order=order, disturbances=disturbances), whims=whims)


def run_moving(moving: MovingSetting, **options: Any) -> Result:
    setting = moving.setting
    if moving.whims is not None:
        setting = replace(setting, placement=FirstFitAndWhims(whims=moving.whims))
    return run_engine(setting, **options)


def run_reference(moving: MovingSetting) -> Any:
    given = {field.name: getattr(moving.setting, field.name) for field in dataclasses.fields(moving.setting)}
    if moving.whims is not None:
        given["placement"] = "first-fit"
    return reference_simulate(**given, moves=moving.whims)


@pytest.mark.long
@given(moving_settings())
@hypothesis_settings(max_examples=examples(25, by_default=10))
def test_agrees_with_the_reference(moving: MovingSetting) -> None:
    assert_agrees(run_moving(moving), run_reference(moving))


@pytest.mark.long
@given(moving_settings())
@hypothesis_settings(max_examples=examples(6))
def test_recorded_asked_in_python_or_compiled_a_run_is_the_same(moving: MovingSetting) -> None:
    results = [run_moving(moving), run_moving(moving, timeline=True), run_moving(moving, python=True)]
    for result in results[1:]:
        for field in ("start_ns", "finish_ns", "lost_ns", "restarts", "network_wait_ns", "communicating_ns"):
            assert (result.finished.state.jobs[field] == results[0].finished.state.jobs[field]).all()
        np.testing.assert_allclose(result.links["bytes"], results[0].links["bytes"], rtol=1e-9)


def test_state_that_is_sent_again_has_all_its_parts_to_send() -> None:
    """A model that is asked anew at each part of a message, and jobs that move more than once."""
    jobs = [
        Job(
            job_id=f"j{number}",
            arrival_s=arrival_s,
            num_gpus=1,
            iterations=iterations,
            iteration=DataParallelIteration(forward_s=forward_s, backward_s=backward_s, message_bytes=0.0),
            gpu_memory_mb=0.0,
        )
        for number, (arrival_s, iterations, forward_s, backward_s) in enumerate(
            [(0.0, 3, 0.0123456785, 0.03), (0.05, 5, 0.0, 0.01), (0.0, 14, 0.0, 0.0123456785)]
        )
    ]
    setting = Setting(
        workload=Workload.of(jobs),
        cluster=Cluster(
            servers=tuple(
                Server(gpus=gpus, gpu_memory_mb=1000.0, relative_speed=speed)
                for gpus, speed in ((3, 2.0), (1, 2.0), (1, 1.0), (1, 2.0))
            )
        ),
        topology=Star(),
        contention=LateRush(),
        placement="first-fit",
        order=StopsLongest(),
        communication="bounded-overlap:limit=2",
        load_per_byte_s=None,
        disturbances=Disturbances(state_mb=12.3456789),
        until_s=None,
        seed=0,
    )
    moving = MovingSetting(setting=setting, whims=Whims(seed=4, until_s=0.2))
    result = run_moving(moving)
    assert result.jobs["restarts"].max() > 1
    assert_agrees(result, run_reference(moving))
