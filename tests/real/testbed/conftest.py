"""Shared by the tests of the testbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_testbed import HEADER


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A file of two jobs, on all four servers, with one all-reduce an iteration and with three."""
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + "a,0,4,8,0.02,0.03,400000,100,1\nb,0.3,4,8,0.01,0.01,300000,100,3\n")
    return path
