"""A comparison on a real Dask cluster on loopback: a scheduler and two workers, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import distributed
import pandas as pd
import pytest
from tiers import tried

import ddlsched
from ddlsched.comparisons.comparison import Comparison
from ddlsched.comparisons.sweeps import workers
from ddlsched.comparisons.sweeps.run import Run
from ddlsched.errors import DdlschedError, InputError

SMALL = "microsoft-160:scale=0.002"

MINE = """
import os, time
from dataclasses import dataclass
import ddlsched
from helper import limit

class SmallerFirst:
    def admit(self, transfer, network):
        return len(network.met_by(transfer)) < limit

class Broken:
    def admit(self, transfer, network):
        raise ArithmeticError(__file__)

class Deadly:
    def admit(self, transfer, network):
        os._exit(1)

def first_jobs(*, seed, file: str, jobs: int = 40):
    return ddlsched.Workload.of(ddlsched.read_workload(file).jobs[: jobs + seed])

def slow(*, seed, log: str):
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.2)
    return ddlsched.microsoft_160(seed=seed, scale=0.002)
"""


class Cluster(NamedTuple):
    """Processes, and where they can be reached."""

    folder: Path
    address: str

    def worker(self, name: str, *flags: str) -> subprocess.Popen[bytes]:
        """Start a worker in a folder of its own, where it finds none of the client's files."""
        home = self.folder / name
        home.mkdir()
        return dask("worker", self.address, "--nthreads", "1", "--no-dashboard", *flags, home=home)


def dask(kind: str, *arguments: str, home: Path, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments]
    with (home / f"{kind}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=home, stdout=log, stderr=log, env=os.environ | environment)


def started(folder: Path, **environment: str) -> tuple[subprocess.Popen[bytes], Cluster]:
    """Start a scheduler on a free port."""
    file = folder / "scheduler.json"
    flags = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    process = dask("scheduler", *flags, home=folder, **environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return process, Cluster(folder, json.loads(file.read_text())["address"])
        except (OSError, ValueError):
            time.sleep(0.05)
    process.kill()
    raise TimeoutError((folder / "scheduler.log").read_text())


@pytest.fixture(scope="module", params=tried(["threads", "processes"], lambda place: place == 0))
def cluster(tmp_path_factory, request) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("dask")
    if request.param == "threads":
        given = {"n_workers": 2, "threads_per_worker": 1, "protocol": "tcp", "host": "127.0.0.1"}
        with distributed.LocalCluster(processes=False, dashboard_address=None, **given) as here:
            yield Cluster(folder, here.scheduler_address)
        return
    scheduler, cluster = started(folder)
    processes = [scheduler, *(cluster.worker(name, "--no-nanny") for name in ("one", "two"))]
    yield cluster
    for process in reversed(processes):
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def _files(in_a_new_folder):
    Path("mine.py").write_text(MINE)
    Path("helper.py").write_text("limit = 2\n")


@pytest.mark.long
def test_the_same_comes_out_as_on_this_machine(cluster, tmp_path):
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), "jobs.csv")
    workloads = ["jobs.csv", "mine.py:first_jobs:file=jobs.csv"]
    policies = ["srsf-1", {"name": "mine", "communication": "mine.py:SmallerFirst"}]
    folders = {"here": None, "there": cluster.address}
    here, there = (
        ddlsched.compare(workloads, policies, seeds=2, timeline=(1, 2), folder=folder, processes=1, dask=address)
        for folder, address in folders.items()
    )
    assert len(here.runs) == 2 + 2 * 2
    pd.testing.assert_frame_equal(here.runs.drop(columns="engine_s"), there.runs.drop(columns="engine_s"))
    files = {path.relative_to("here") for path in Path("here").rglob("*.*") if path.is_file()}
    assert files == {path.relative_to("there") for path in Path("there").rglob("*.*") if path.is_file()}
    for name in ("comparison.csv", "classes.csv", "timelines/mine.json"):
        assert Path("here", name).read_bytes() == Path("there", name).read_bytes()
    for name in ("one", "two") if (cluster.folder / "one").exists() else ():
        assert [path.name for path in (cluster.folder / name).iterdir()] == ["worker.log"]


@pytest.mark.long
def test_a_failing_run_is_reported_and_the_rest_is_done(cluster, tmp_path):
    policies = ["srsf-1", {"name": "broken", "communication": "mine.py:Broken"}]
    comparison = ddlsched.compare(SMALL, policies, seeds=2, folder="out", dask=cluster.address)
    assert list(comparison.runs["policy"]) == ["srsf-1"] * 2
    assert list(comparison.failures["policy"]) == ["broken"] * 2
    assert comparison.failures["message"].str.contains("communication Broken raised ArithmeticError").all()
    assert comparison.failures["message"].str.contains(f": {tmp_path}/mine.py (", regex=False).all()


@pytest.mark.slow
def test_a_worker_that_dies_loses_nothing(cluster, tmp_path):
    log = tmp_path / "log"  # without a suffix, so that it is no input
    extra = cluster.worker("extra", "--no-nanny")
    with distributed.Client(cluster.address) as client:
        client.wait_for_workers(3, timeout=60)

    def kill_when_it_works() -> None:
        while not log.exists() or str(extra.pid) not in log.read_text().split():
            time.sleep(0.01)
        os.kill(extra.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_it_works, daemon=True)
    killer.start()
    comparison = ddlsched.compare(f"mine.py:slow:log={log}", "srsf-1", seeds=20, folder="out", dask=cluster.address)
    killer.join(timeout=10)
    assert not killer.is_alive(), "the worker was never asked"
    assert extra.wait() == -signal.SIGKILL
    assert comparison.failures.empty
    assert sorted(comparison.runs["seed"]) == list(range(1, 21))
    assert (tmp_path / "log").read_text().split().count(str(extra.pid)) >= 1


@pytest.mark.long
def test_a_worker_with_other_sources_is_refused(cluster, monkeypatch):
    monkeypatch.setattr("ddlsched.comparisons.sweeps.sweep.sources_digest", lambda: "another")
    with pytest.raises(InputError, match=r"dask worker tcp://.*: another ddlsched, numpy or plug-in is installed"):
        ddlsched.compare(SMALL, "srsf-1", seeds=2, folder="out", dask=cluster.address)


@pytest.mark.slow
def test_a_cluster_without_workers_and_a_scheduler_that_goes_away(tmp_path, monkeypatch):
    scheduler, lonely = started(tmp_path)
    with monkeypatch.context() as soon:
        soon.setattr(workers, "_NO_WORKER_S", 0.5)
        with pytest.raises(DdlschedError, match=r"has no workers; finished runs are kept"):
            ddlsched.compare(SMALL, "srsf-1", seeds=1, folder="out", dask=lonely.address)
    worker = lonely.worker("worker", "--no-nanny")
    log = tmp_path / "log"

    def kill_when_it_works() -> None:
        while not log.exists() or not set(log.read_text().split()) - {str(os.getpid())}:
            time.sleep(0.01)
        scheduler.kill()

    killer = threading.Thread(target=kill_when_it_works, daemon=True)
    killer.start()
    try:
        with pytest.raises(DdlschedError, match=r"finished runs are kept, and the same command goes on"):
            ddlsched.compare(f"mine.py:slow:log={log}", "srsf-1", seeds=60, folder="out", dask=lonely.address)
    finally:
        worker.kill()
        worker.wait()
        scheduler.kill()
        scheduler.wait()


def test_a_cluster_that_loses_its_workers_is_given_up(monkeypatch):
    """No run ends within a minute, as it takes long, nor within the next one, in which the last worker goes."""
    threads, minutes = {"tcp://127.0.0.1:1": 2}, []
    pool = SimpleNamespace(submit=lambda *_: Future())
    client = SimpleNamespace(submit=lambda *_: None, get_executor=lambda pure: pool, nthreads=threads.copy)

    def wait_a_minute(running, **_):
        minutes.append(len(running))
        if len(minutes) == 2:
            threads.clear()
        assert len(minutes) <= 2, "waits on, and nobody is there"
        return set(), running

    monkeypatch.setattr(workers, "_connected", lambda address: nullcontext(client))
    monkeypatch.setattr(workers, "wait", wait_a_minute)
    run = Run(labels={}, workload=SMALL, seed=1)
    with pytest.raises(DdlschedError, match=r"dask tcp://127.0.0.1:9: has no workers; finished runs are kept"):
        list(workers.on_dask([workers.Task("key", run, ("run",))], "tcp://127.0.0.1:9", "sources"))
    assert minutes == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1", "ftp://127.0.0.1:9", "tcp://"])
def test_nobody_answers(address, monkeypatch):
    monkeypatch.setattr(workers, "_ANSWER_S", 0.5)
    with pytest.raises(InputError, match=rf"dask {address}: .* expected an address such as tcp://127.0.0.1:8786"):
        ddlsched.compare(SMALL, "srsf-1", seeds=1, folder="out", dask=address)


@pytest.mark.long
def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'ddlsched\[dask\]'"):
        ddlsched.compare(SMALL, "srsf-1", seeds=1, folder="out", dask="tcp://127.0.0.1:9")


@pytest.mark.slow
def test_a_run_under_which_workers_die_is_a_failure(tmp_path):
    scheduler, deadly = started(tmp_path, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1")
    workers = [deadly.worker(name) for name in ("one", "two")]  # with a nanny each, which starts them again
    try:
        policies = ["srsf-1", {"name": "deadly", "communication": "mine.py:Deadly"}]
        comparison = ddlsched.compare(SMALL, policies, seeds=2, folder="out", dask=deadly.address)
        assert list(comparison.failures["policy"]) == ["deadly"] * 2
        assert comparison.failures["message"].str.contains("several workers died, one after another").all()
        assert list(Comparison.open("out").runs["policy"]) == ["srsf-1"] * 2
    finally:
        for process in (*workers, scheduler):
            process.terminate()
            process.wait()
