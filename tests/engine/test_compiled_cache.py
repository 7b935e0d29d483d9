"""Compiled policies that one process keeps and another loads."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ddlsched
from ddlsched.engine.loop import from_python
from ddlsched.engine.native.kept_files import stamped_sources
from ddlsched.engine.native.machine_code import CalledFromPython, is_kept

ENGINE = Path(ddlsched.__file__).parent / "engine"

POLICIES = """
from dataclasses import dataclass


@dataclass(frozen=True)
class One:
    def admit(self, transfer, network):
        return len(network.active) == 0 or all(other.number < 0 for other in network.active)


@dataclass(frozen=True)
class Always:
    def admit(self, transfer, network):
        return len(network.active) == 0 or all(other.number >= 0 for other in network.active)
"""

PROGRAM = """
import json
import sys

import ddlsched
import two_policies
from ddlsched.engine.compiled_forms import compile_method

names = sys.argv[1:]
for name in names:
    compile_method(getattr(two_policies, name)(), "admit")
iteration = ddlsched.DataParallelIteration(forward_s=0.1, backward_s=0.0, message_bytes=2e8)
jobs = [
    ddlsched.Job(job_id=str(n), arrival_s=0.0, num_gpus=2, iterations=1, iteration=iteration, gpu_memory_mb=1)
    for n in range(2)
]
run = {
    "workload": ddlsched.Workload.of(jobs),
    "cluster": ddlsched.Cluster(num_servers=2, gpus_per_server=1),
    "placement": "first-fit",
    "contention": ddlsched.Linear(per_byte_s=1e-9, penalty_per_byte_s=0.0),
}
for name in names:
    finish_s = ddlsched.simulate(communication=getattr(two_policies, name)(), **run).jobs["finish_s"].tolist()
    print(json.dumps(finish_s))
"""


def finishes(folder: Path, *names: str) -> dict[str, list[float]]:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": "",
        "XDG_CACHE_HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    program = [sys.executable, "-c", PROGRAM, *names]
    printed = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(zip(names, map(json.loads, printed.splitlines()), strict=True))


@pytest.mark.slow
def test_what_other_processes_compiled_stays_apart(tmp_path: Path) -> None:
    # Both GPUs compute the first job until 0.1 s, the second until 0.2 s; each then sends for 0.2 s alone. One at a
    # time: until 0.3 s and 0.5 s. Together, at half the speed each: the first sends its second half until 0.4 s, the
    # other has as much left then.
    (tmp_path / "two_policies.py").write_text(POLICIES, encoding="utf-8")
    expected = {"One": [0.3, 0.5], "Always": [0.4, 0.5]}
    assert finishes(tmp_path, "Always") == {"Always": expected["Always"]}
    assert finishes(tmp_path, "One", "Always") == expected
    assert finishes(tmp_path, "Always", "One") == expected


@pytest.mark.long
@pytest.mark.parametrize("of_policies", [False, True])
def test_the_stamp_covers_all_that_is_compiled_and_what_that_takes_from_elsewhere(of_policies: bool) -> None:
    stamped = {*stamped_sources(of_policies)}
    compiled = [*(ENGINE / "loop").rglob("*.py"), ENGINE / "native" / "state.py"]
    if of_policies:
        compiled += [*(ENGINE / "compiled").rglob("*.py"), ENGINE / "native" / "entries.py"]
    assert len(compiled) > 40
    for path in compiled:
        assert {path, *imported_files(path)} <= stamped, path


def test_all_that_python_calls_may_be_kept() -> None:
    called = [each for each in vars(from_python).values() if isinstance(each, CalledFromPython)]
    assert len(called) > 10
    assert all(is_kept(each) is not None for each in called)


def imported_files(path: Path) -> set[Path]:
    """Return the files of the package that a file imports something from."""
    imported: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddlsched."):
            place = ENGINE.parents[1] / (node.module or "").replace(".", "/")
            modules = {place / f"{alias.name}.py" for alias in node.names}
            imported |= {module for module in modules if module.is_file()} or {place.with_suffix(".py")}
    return imported
