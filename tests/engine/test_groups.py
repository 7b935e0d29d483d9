"""Collectives over groups of workers and the inside of servers: the engine against the reference, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import Setting, examples, settings

from ddlsched.engine import build, driver


@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(60))
def test_agrees_with_the_reference(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(20))
def test_agrees_with_the_reference_when_every_policy_is_called_in_python(setting: Setting) -> None:
    assert_agrees(run_engine(setting, python=True), run_reference(setting))


@given(settings(grouped=True))
@hypothesis_settings(max_examples=examples(20))
def test_agrees_with_the_reference_when_every_array_has_to_grow(setting: Setting) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FIRST_RESIDENTS", 1)
        patch.setattr(build, "_FIRST_ENTRIES", 1)
        patch.setattr(driver, "_SLICES", 8)
        assert_agrees(run_engine(setting, timeline=True), run_reference(setting))
