"""Processes that work for another one end with it."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddlsched.errors import FaultyInputError
from ddlsched.io import child_processes

PARENT = """
import multiprocessing, os, signal, time
from ddlsched.io.child_processes import follow_parent

def work(parent, ready):
    follow_parent(parent)
    ready.set()
    time.sleep(60)

context = multiprocessing.get_context("fork")
ready = context.Event()
child = context.Process(target=work, args=(os.getpid(), ready))
child.start()
ready.wait(30)
os.kill(child.pid, signal.SIGINT)
time.sleep(0.2)
print(child.pid, child.is_alive(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_one_leaves_ctrl_c_to_its_parent_and_ends_when_that_is_killed():
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    child, alive = done.stdout.split()
    assert alive == "True"
    until_s = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_faults_come_whole_from_another_process():
    error = pickle.loads(pickle.dumps(FaultyInputError(["one", "two"])))
    assert error.faults == ("one", "two")
    assert str(error) == "one\ntwo"


def test_a_process_ends_once_its_parent_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, ended, slept = iter([7, 7, 1]), list[int](), list[float]()
    monkeypatch.setattr(child_processes, "os", SimpleNamespace(getppid=lambda: next(parents), _exit=ended.append))
    monkeypatch.setattr(child_processes, "time", SimpleNamespace(sleep=slept.append))
    child_processes._end_with(7)
    assert (ended, len(slept)) == ([1], 2)
    assert 0 < max(slept) <= 1
