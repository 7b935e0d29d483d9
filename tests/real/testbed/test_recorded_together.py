"""The recorded jobs on the testbed, each alone and all at once, and the table that is made of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from real_testbed import ours

pytestmark = pytest.mark.testbed
pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]


def test_jobs_are_recorded_alone_and_together_on_one_network(tmp_path: Path) -> None:
    command = [sys.executable, str(EXPERIMENTS / "recorded_jobs" / "record.py"), "--together", "--steps", "15"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--seconds", "10", "--out", str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert ours() == []
    run, measured = scripts_of("recorded_jobs", "run", "measured")
    for folder in (measured.ALONE_ON_TESTBED, measured.TOGETHER):
        assert {name: len(measured.traces(name, tmp_path / folder)) for name in run.JOBS} == dict.fromkeys(run.JOBS, 2)
    gpt = measured.traces("gpt", tmp_path / measured.ALONE_ON_TESTBED)
    assert len(gpt[0].steps) == 3
    # 14.8 MB at 12.5 MB/s: no step is faster than the card.
    assert measured.longest_s(gpt).min() > 0.9 * measured.message_bytes(gpt).sum() / 12.5e6
