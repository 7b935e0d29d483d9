"""Iterations that are skipped over: nothing that a run reports depends on it."""

from __future__ import annotations

import pandas as pd
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from strategies import Setting, examples, settings
from test_engine import run_engine

from ddlsched.results.result import Result


def assert_equal_tables(result: Result, expected: Result) -> None:
    for table in ("jobs", "gpus", "links", "samples", "placements"):
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, rtol=1e-12)
    assert result.summary()["events"] == expected.summary()["events"]


@given(settings())
@hypothesis_settings(max_examples=examples(150))
def test_every_table_is_as_without_skipping(setting: Setting) -> None:
    assert_equal_tables(run_engine(setting), run_engine(setting, timeline=True))
