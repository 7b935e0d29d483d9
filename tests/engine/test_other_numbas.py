"""A numba that is too new, lacks what the engine overrides, or is not there: everything runs, in plain Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from ddlsched.engine.native import support

ROOT = Path(__file__).parents[2]
PROGRAM = """
import ddlsched
jobs = ddlsched.microsoft_160(seed=3, scale=0.001).jobs[:12]
for scheduler in ("srsf-1", "ada-srsf"):
    result = ddlsched.simulate(ddlsched.Workload.of(jobs), scheduler=scheduler, contention="max-min")
    print(result.finished.state.jobs.finish_ns.tolist())
"""
HIDDEN = {
    "": None,
    "import numba; numba.__version__ = '99.1.0'": "numba 99.1.0 is newer than",
    "import sys; sys.modules['numba'] = None": "numba cannot be imported",
    "from numba.core.codegen import CPUCodeLibrary as C; del C._finalize_final_module": "_finalize_final_module",
    "from numba.core.caching import FunctionCache, Cache as C; del C._index_key": "numba.core.caching.Cache._index_key",
    "from numba.core.caching import IndexDataCacheFile as C; del C._load_index": "_load_index",
    "from numba.core.bytecode import FunctionIdentity as C; del C._unique_ids": "_unique_ids",
    "import numba.core.caching as c; del c.UserProvidedCacheLocator": "UserProvidedCacheLocator",
}


def run(prelude: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    command = [sys.executable, "-c", f"{prelude}\n{PROGRAM}"]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def compiled() -> str:
    done = run("")
    assert "plain Python" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(("prelude", "why"), [(prelude, why) for prelude, why in HIDDEN.items() if why])
def test_with_another_numba_the_engine_runs_in_plain_python_and_says_once_what_that_costs(
    prelude: str, why: str, compiled: str
) -> None:
    done = run(prelude)
    assert done.stdout == compiled
    assert len(done.stdout) > 200
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert why in lines[0]
    assert "slower than compiled; pip install 'numba<" in lines[0]


def test_setup_cfg_caps_numba_at_what_this_run_tests() -> None:
    (requirement,) = re.findall(r"^    numba>=.*<(\d+)\.(\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    newest = tuple(map(int, numba.__version__.split(".")[:2]))
    assert newest == support.NEWEST
    assert tuple(map(int, requirement)) == (newest[0], newest[1] + 1)
    assert support.why_unsupported() is None
