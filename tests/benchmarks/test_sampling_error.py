"""The error that sampled runs state is the one that was measured."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import sampling_error

from ddlsched.results.sampled import STATED


def test_what_is_stated_of_a_class_is_what_the_table_has_rounded_up() -> None:
    table = pd.read_csv(sampling_error.TABLE)
    classes = table[table["cluster"] == "all"].set_index("class")
    assert set(classes.index) == set(STATED)
    for name, stated in STATED.items():
        assert stated.average_percent == math.ceil(10 * classes.loc[name, "average_rms"]) / 10
        assert stated.jobs_percent == math.ceil(10 * classes.loc[name, "job_p95"]) / 10


@pytest.mark.slow
def test_the_table_is_what_the_command_writes(tmp_path: Path) -> None:
    sampling_error.main(["--out", str(tmp_path / "table.csv")])
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table.csv"), pd.read_csv(sampling_error.TABLE))
