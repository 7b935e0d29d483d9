"""A numba that is too new, lacks what the engine overrides, or is not there: everything runs, in plain Python."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numba.core.bytecode
import numba.core.caching
import numba.core.compiler_machinery
import pytest

from ddlsched.engine.native import jit

ROOT = Path(__file__).parents[2]
PROGRAM = """
import ddlsched
jobs = ddlsched.microsoft_160(seed=3, scale=0.001).jobs[:8]
result = ddlsched.simulate(ddlsched.Workload.of(jobs), scheduler="ada-srsf", contention="max-min")
print(result.finished.state.jobs.finish_ns.tolist())
"""


def run(prelude: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    command = [sys.executable, "-c", f"{prelude}\n{PROGRAM}"]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def compiled() -> str:
    assert not jit.runs_in_python()
    with redirect_stdout(io.StringIO()) as printed:
        exec(PROGRAM, {})
    return printed.getvalue()


@pytest.mark.long
@pytest.mark.parametrize(
    ("prelude", "why"),
    [
        ("import sys; sys.modules['numba'] = None", "numba cannot be imported"),
        (
            "from numba.core.codegen import CPUCodeLibrary as C; del C._optimize_functions",
            "has no numba.core.codegen.JITCodeLibrary._optimize_functions",
        ),
    ],
)
def test_with_another_numba_the_engine_runs_in_plain_python_and_says_once_what_that_costs(
    prelude: str, why: str, compiled: str
) -> None:
    done = run(prelude)
    assert done.stdout == compiled
    assert len(done.stdout) > 80
    (line,) = done.stderr.splitlines()
    assert why in line
    assert "slower than compiled; pip install 'numba<" in line


@pytest.mark.parametrize(
    ("owner", "member"),
    [
        (numba.core.bytecode.FunctionIdentity, "_unique_ids"),
        (numba.core.caching.Cache, "_index_key"),
        (numba.core.caching.IndexDataCacheFile, "_load_index"),
        (numba.core.caching, "UserProvidedCacheLocator"),
        (numba.core.compiler_machinery, "register_pass"),
    ],
)
def test_each_member_that_is_hidden_is_missed(owner: Any, member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(owner, member)
    why = jit.why_unsupported.__wrapped__()
    assert why is not None
    assert member in why


@pytest.mark.parametrize(("version", "newer"), [("0.68.9", False), ("0.69.0", True), ("1.0.0", True), ("dev", True)])
def test_a_newer_numba_is_not_trusted(version: str, newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba, "__version__", version)
    assert (f"numba {version} is newer than 0.68" in (jit.why_unsupported.__wrapped__() or "")) == newer


def test_setup_cfg_caps_numba_at_what_this_run_tests() -> None:
    (requirement,) = re.findall(r"^    numba>=.*<(\d+)\.(\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    newest = tuple(map(int, numba.__version__.split(".")[:2]))
    assert newest == jit.NEWEST
    assert tuple(map(int, requirement)) == (newest[0], newest[1] + 1)
    assert jit.why_unsupported() is None
