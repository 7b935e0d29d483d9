"""The engine with placements that know who waits, against the reference simulator, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reference_backfilling import NAMES
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import Setting, settings
from tiers import examples

from ddlsched.workload.job import Workload


@st.composite
def backfilling_settings(draw: st.DrawFn) -> Setting:
    """Return a run of jobs with time limits, too short and too long ones."""
    setting = draw(settings())
    limits_s = st.sampled_from((0.01, 0.05, 0.1, 0.1234567, 0.5, 2.0))
    jobs = tuple(replace(job, time_limit_s=draw(limits_s)) for job in setting.workload)
    return replace(setting, workload=Workload(jobs), placement=draw(st.sampled_from(NAMES)))


@pytest.mark.long
@given(backfilling_settings())
@hypothesis_settings(max_examples=examples(35, by_default=6))
def test_agrees_with_the_reference(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))
