"""What is kept on disk of compiled policies and of the loop: whatever lies there, never another schedule."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ddlsched

PACKAGE = Path(ddlsched.__file__).parent
POLICY = """
from dataclasses import dataclass
from helper import sign

@dataclass(frozen=True, kw_only=True)
class P:
    def key(self, job, now_s):
        return sign() * job.num_gpus

@dataclass(frozen=True, kw_only=True)
class Q:
    def key(self, job, now_s):
        return job.num_gpus
"""
RUN = """
import sys
sys.path.insert(0, {folder!r})
import mine
from numba.core.ccallback import CFunc
from ddlsched.engine.compiled.forms import compile_method
compiled = []
plain = CFunc._compile_uncached
CFunc._compile_uncached = lambda self: compiled.append(1) or plain(self)
for kind in (mine.P, mine.Q):
    compile_method(kind(), "key")
import ddlsched
from ddlsched.testing import example_workload
cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=3)
run = ddlsched.simulate(example_workload(1), cluster, order=mine.P())
print(len(compiled), hash(tuple(run.finished.state.jobs.finish_ns.tolist())))
"""


@pytest.fixture
def run(tmp_path):
    """Return what runs a policy in a process of its own: how many entries it compiled, the schedule, and stderr."""
    (tmp_path / "mine.py").write_text(POLICY)
    (tmp_path / "helper.py").write_text("def sign():\n    return 1\n")
    (tmp_path / "run.py").write_text(RUN.format(folder=str(tmp_path)))

    def go(**environment: str | None) -> tuple[int, str, str]:
        given = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"} | environment
        merged = {k: v for k, v in {**os.environ, **given}.items() if v is not None and k != "NUMBA_CACHE_DIR"}
        command = [sys.executable, str(tmp_path / "run.py")]
        done = subprocess.run(command, env=merged, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        compiled, schedule = done.stdout.split()
        return int(compiled), schedule, done.stderr

    return go


def _entries(tmp_path, ending):
    return sorted((tmp_path / "cache" / "ddlsched").glob(f"key-*{ending}"))


def test_spoilt_files_are_compiled_anew_and_kept_again(run, tmp_path):
    compiled, schedule, _ = run()
    own = compiled
    assert own >= 2
    assert run() == (0, schedule, "")
    texts = {path: path.read_bytes() for path in (tmp_path / "cache" / "ddlsched").iterdir()}

    def spoil_and_check(change):
        for ending in (".nbi", ".nbc", ".json"):
            for path in _entries(tmp_path, ending):
                change(path, _entries(tmp_path, ending))
        again, spoilt_schedule, err = run()
        assert again > 0
        assert (spoilt_schedule, "Traceback" in err) == (schedule, False)
        assert run()[:2] == (0, schedule)

    spoil_and_check(lambda path, _: path.write_bytes(b""))
    spoil_and_check(lambda path, _: path.write_bytes(os.urandom(2000)))

    def swap(path, others):
        other = others[(others.index(path) + 1) % len(others)]
        path.write_bytes(texts[other] if other in texts else path.read_bytes()[:-7])

    spoil_and_check(swap)


def test_code_of_another_entry_is_not_run(run, tmp_path):
    _, schedule, _ = run()
    codes = _entries(tmp_path, ".nbc")
    contents = [path.read_bytes() for path in codes]
    for path, content in zip(codes, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(content)
    compiled, again, _ = run()
    assert compiled == len(codes)
    assert again == schedule
    for path in _entries(tmp_path, ".json"):
        said = json.loads(path.read_text())
        path.write_text(json.dumps(said | {"name": "key-of-another"}))
    assert run()[1] == schedule


def test_an_edited_helper_beside_the_file_makes_another_entry(run, tmp_path):
    _, schedule, _ = run()
    (tmp_path / "helper.py").write_text("def sign():\n    return -1\n")
    compiled, other, _ = run()
    assert compiled == 1
    assert other != schedule


def test_without_a_place_of_its_own_each_process_compiles_and_says_so_once(run, tmp_path):
    _, schedule, _ = run()
    (tmp_path / "file").write_text("")
    places = {"a file": {"XDG_CACHE_HOME": str(tmp_path / "file")}}
    (tmp_path / "open" / "ddlsched").mkdir(parents=True)
    (tmp_path / "open" / "ddlsched").chmod(0o777)
    places["a folder that others may write"] = {"XDG_CACHE_HOME": str(tmp_path / "open")}
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "ddlsched").symlink_to(tmp_path / "cache" / "ddlsched")
    places["a symlink"] = {"XDG_CACHE_HOME": str(tmp_path / "linked")}
    for place in places.values():
        compiled, again, err = run(**place)
        assert compiled >= 2
        assert again == schedule
        assert err.count("compiled policies are not kept") == 1
        assert "Traceback" not in err


def test_without_a_home_it_still_runs(run):
    schedule = run()[1]
    assert run(HOME=None, XDG_CACHE_HOME=None)[1] == schedule


def test_two_processes_at_once(run, tmp_path):
    command = [sys.executable, str(tmp_path / "run.py")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("NUMBA_CACHE_DIR", None)
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    schedules = {process.communicate()[0].split()[1] for process in both}
    assert len(schedules) == 1
    run()
    assert run()[:2] == (0, schedules.pop())


SECOND = """
import time
from algorithms.communication.adadual import AdaDual
from algorithms.ordering.srsf import ShortestRemainingServiceFirst
from ddlsched.engine.compiled import cache, entries, view_types
from ddlsched.engine.compiled.forms import compile_method
from ddlsched.network.contention import Linear
import ddlsched.io.files, ddlsched.simulation, ddlsched.policies.compiling.compiler
begin = time.process_time()
compile_method(ShortestRemainingServiceFirst(), "key")
compile_method(AdaDual(), "admit")
compile_method(Linear(), "link_rate")
print(time.process_time() - begin)
"""


def test_a_second_process_loads_in_a_tenth_of_a_second(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    took_s = [
        float(subprocess.run([sys.executable, "-c", SECOND], env=environment, capture_output=True, check=True).stdout)
        for _ in range(4)
    ]
    assert min(took_s[1:]) <= 0.1


STAMP = """
import ddlsched.engine.loop.transfers as transfers
from ddlsched.engine.loop.dormant_progress import *
from ddlsched.engine.loop.jit import called_from_python, sources_stamp
from ddlsched.engine.loop.accounts import add_busy_ns
from ddlsched.engine.loop.advance import most_slices
from ddlsched.engine.loop.layout import example_state
most_slices(example_state().run[0])
print(sources_stamp(), sum(most_slices.stats.cache_hits.values()), sum(most_slices.stats.cache_misses.values()))
"""


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
