"""Each of the wider doors has an example in the gallery that is short, linked, and asks no policy in Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doors.md").read_text(encoding="utf-8")
LINKED = re.findall(r"examples/(plot_\w+)\.py", PAGE)
SELDOM = {"plot_exclusive", "plot_network_card", "plot_topologies", "plot_backfilling", "plot_paths"}
"""Those that only ask by name for what exists; a slow test runs them with all others."""


def test_every_door_of_the_page_has_an_example_that_is_there() -> None:
    assert {
        "stops",
        "moves",
        "groups",
        "inside_servers",
        "gpu_kinds",
        "shares",
        "paths",
        "exclusive",
        "backfilling",
    } <= {name.removeprefix("plot_") for name in LINKED}
    for name in LINKED:
        assert (ROOT / "docs" / "examples" / f"{name}.py").exists(), name


@pytest.mark.slow
def test_the_examples_of_doors_run_at_compiled_speed(tmp_path: Path) -> None:
    """One after the other in a process of their own: a policy that is asked in Python is told on stderr."""
    paths = [str(ROOT / "docs" / "examples" / f"{name}.py") for name in sorted(set(LINKED) - SELDOM)]
    assert len(paths) == 6
    program = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path)"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", program, *paths]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= len(paths)
    assert "in Python" not in done.stderr
