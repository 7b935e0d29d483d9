"""What is kept on disk of compiled policies and of the loop: whatever lies there, never another schedule."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest
from numba.core.ccallback import CFunc
from tiers import tried

import ddlsched
from ddlsched import errors
from ddlsched.engine import compiled_forms
from ddlsched.engine.loop.from_python import close_books
from ddlsched.engine.native import kept_files, machine_code
from ddlsched.testing import example_workload

PACKAGE = Path(ddlsched.__file__).parent
CLUSTER = ddlsched.Cluster(num_servers=4, gpus_per_server=3)
POLICIES = """
from dataclasses import dataclass
import {helper}

@dataclass(frozen=True, kw_only=True)
class P:
    def key(self, job, now_s):
        return {helper}.sign() * job.num_gpus

@dataclass(frozen=True, kw_only=True)
class Q:
    def key(self, job, now_s):
        return job.num_gpus, -job.number
"""


class Process:
    """What a process of its own would do: nothing is known of what was compiled before."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.compiled = 0
        plain = CFunc._compile_uncached

        def count(function):
            self.compiled += 1
            return plain(function)

        monkeypatch.setattr(CFunc, "_compile_uncached", count)
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.syspath_prepend(folder)
        self.module = self.policies(1)

    def policies(self, sign):
        """Write a file with policies and one with a helper, and import both."""
        name = f"policies_{uuid.uuid4().hex}"
        (self.folder / f"{name}_helper.py").write_text(f"def sign():\n    return {sign}\n")
        (self.folder / f"{name}.py").write_text(POLICIES.format(helper=f"{name}_helper"))
        return importlib.import_module(name)

    def run(self, place=None, module=None):
        """Return how many entries were compiled, the schedules, and what was said."""
        self._monkeypatch.setenv("XDG_CACHE_HOME", str(place or self.folder / "cache"))
        kept_files.cache_folder.cache_clear()
        errors.say_once.cache_clear()
        compiled_forms._compiled.clear()
        self.compiled = 0
        schedules = []
        for kind in ((module or self.module).P, (module or self.module).Q):
            result = ddlsched.simulate(example_workload(1), CLUSTER, order=kind())
            schedules.append(result.finished.state.jobs.finish_ns.tolist())
        return self.compiled, schedules, self._capsys.readouterr().err

    def files(self, ending):
        return sorted((self.folder / "cache" / "ddlsched").glob(f"*{ending}"))


_SCHEDULES = []


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache as the first process leaves it, once for all tests."""
    return tmp_path_factory.mktemp("filled") / "cache"


@pytest.fixture
def process(tmp_path, monkeypatch, capsys, filled):
    process = Process(tmp_path, monkeypatch, capsys)
    if not filled.exists():
        compiled, schedules, _ = process.run(filled)
        assert compiled >= 2
        _SCHEDULES[:] = schedules
    shutil.copytree(filled, tmp_path / "cache")
    yield process
    kept_files.cache_folder.cache_clear()
    compiled_forms._compiled.clear()


@pytest.mark.long
def test_a_second_process_compiles_nothing(process):
    assert process.run() == (0, _SCHEDULES, "")


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "content"),
    tried(
        [
            (".nbi", None),
            (".nbc", b"garbage"),
            (".json", b"[[["),
            (".nbi", b""),
            (".nbc", None),
            (".json", b"{}"),
            (".json", None),
        ],
        lambda place: place < 3,
    ),
)
def test_a_spoilt_file_is_made_anew(ending, content, process):
    path = process.files(ending)[0]
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    assert process.run() == (1, _SCHEDULES, "")
    assert process.run() == (0, _SCHEDULES, "")


@pytest.mark.long
@pytest.mark.parametrize("ending", [".nbi", ".nbc", ".json"])
def test_a_file_of_another_entry_is_not_used(ending, process):
    paths = [path for path in process.files(ending) if path.name.startswith("key-")]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(content)
    assert process.run() == (len(paths), _SCHEDULES, "")
    assert process.run() == (0, _SCHEDULES, "")


@pytest.mark.long
def test_an_edited_helper_beside_the_file_makes_another_entry(process):
    compiled, others, _ = process.run(module=process.policies(-1))
    assert compiled == 1
    assert others[0] != _SCHEDULES[0]
    assert others[1] == _SCHEDULES[1]


def _a_file(folder):
    folder.write_text("")


def _others_may_write(folder):
    (folder / "ddlsched").mkdir(parents=True)
    (folder / "ddlsched").chmod(0o777)


def _a_symlink(folder):
    (folder / "elsewhere").mkdir(parents=True)
    (folder / "ddlsched").symlink_to(folder / "elsewhere")


@pytest.mark.long
@pytest.mark.parametrize("make", tried([_a_symlink, _others_may_write, _a_file], lambda place: place < 2))
def test_without_a_place_of_its_own_a_process_compiles_and_says_so_once(make, process, tmp_path):
    make(tmp_path / "place")
    compiled, schedules, err = process.run(tmp_path / "place")
    assert compiled >= 2
    assert err.count("compiled policies are not kept") == err.count("\n") == 1
    assert schedules == _SCHEDULES


@pytest.mark.long
def test_without_a_home_there_is_no_place(process, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    kept_files.cache_folder.cache_clear()
    assert kept_files.cache_folder() is None


SECOND = """
import time
from algorithms.communication.bounded_overlap import BoundedOverlap
from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from ddlsched.engine.native import cache, entries, view_types
from ddlsched.engine.compiled_forms import compile_method
import ddlsched.io.files, ddlsched.simulation, ddlsched.engine.native.compiler
ddlsched.simulation.warm_up()  # numba looks up what it knows, and compiles the policies of a plain run, not these
begin = time.process_time()
compile_method(ShortestRemainingTimeFirst(), "key")
compile_method(BoundedOverlap(), "admit")
print(time.process_time() - begin)
"""


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_one_compiled_in_a_fraction_of_its_time(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    compiling_s, loading_s = (
        float(subprocess.run([sys.executable, "-c", SECOND], env=environment, capture_output=True, check=True).stdout)
        for _ in range(2)
    )
    assert loading_s < compiling_s / 20


HOLDER = """
from ddlsched.engine.native.kept_files import alone_on_this_machine
with alone_on_this_machine("one"):
    print("within", flush=True)
    input()
"""


@pytest.mark.long
def test_of_two_processes_that_would_compile_the_same_one_waits(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_files.cache_folder.cache_clear()
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"within\n"
        with kept_files.alone_on_this_machine("another"):
            assert other.poll() is None
        threading.Timer(0.3, other.stdin.close).start()
        with kept_files.alone_on_this_machine("one"):
            assert other.stdin.closed
    kept_files.cache_folder.cache_clear()


@pytest.mark.long
def test_nobody_waits_for_what_another_installation_compiles_of_the_loop(monkeypatch):
    waited_for: list[str] = []
    monkeypatch.setattr(machine_code, "alone_on_this_machine", lambda name: nullcontext(waited_for.append(name)))
    close_books.compile()
    machine_code.compiled_part.__wrapped__("wake_address")
    assert len(waited_for) == 2
    assert all(name.startswith(str(PACKAGE)) for name in waited_for)


STAMP = """
import ddlsched.engine.loop.transfers as transfers
from ddlsched.engine.loop.skipping.dormancy import *
from ddlsched.engine.native.kept_files import sources_stamp
from ddlsched.engine.loop.from_python import add_busy_ns
from ddlsched.engine.loop.from_python import most_slices
from ddlsched.engine.records import example_state
most_slices(example_state())
stats = most_slices.dispatcher.stats
print(sources_stamp(), sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_the_loop_is_compiled_anew_when_any_of_its_files_changes(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "ddlsched", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def go():
        command = [sys.executable, "-c", textwrap.dedent(STAMP)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        stamp, hits, misses = done.stdout.split()
        return stamp, int(hits), int(misses)

    stamp, *first = go()
    assert first == [0, 1]
    assert go() == (stamp, 1, 0)
    helper = tmp_path / "ddlsched" / "engine" / "loop" / "heap.py"
    helper.write_text(helper.read_text() + "\n# another version\n")
    other_stamp, *third = go()
    assert other_stamp != stamp
    assert third == [0, 1]
