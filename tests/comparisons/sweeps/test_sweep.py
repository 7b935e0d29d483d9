"""Sweeps: parallel, kept on disk, resumed, and told apart by everything that a run depends on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from joblib.externals import loky
from joblib.externals.loky import BrokenProcessPool

import ddlsched
from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.sweeps import run as sweep_run
from ddlsched.comparisons.sweeps import stored_runs, workers
from ddlsched.comparisons.sweeps.run import _PRESENTATION, fingerprint, sources_digest
from ddlsched.comparisons.sweeps.stored_runs import is_damaged, read_metadata, remove_leftovers, store
from ddlsched.comparisons.sweeps.sweep import Failure, Run, sweep
from ddlsched.errors import InputError
from ddlsched.io.progress import progress_bar

MICROSOFT = "microsoft-160:scale=0.002"

MINE = '''
from pathlib import Path

class Mine:
    """First fit."""
    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

class Broken:
    def place(self, job, cluster):
        raise ZeroDivisionError("no luck")

def logged(result):
    with Path(__file__).with_name("log.txt").open("a") as log:
        log.write(f"{result.workload[0].arrival_s}\\n")
    return {"jobs": len(result.jobs)}
'''


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def run(policy: str = "SRSF(1)", seed: int = 1, measures: tuple[str, ...] = (), **options: Any) -> Run:
    return Run(
        labels={"policy": policy},
        workload=MICROSOFT,
        seed=seed,
        options=options or {"scheduler": "srsf-1"},
        measures=measures,
    )


def runs_logged(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().split()


# ---- Results


@pytest.mark.long
def test_sweep_gives_what_simulate_gives(tmp_path):
    done = sweep([run(seed=3), run("FF", 3, placement="first-fit")], tmp_path, processes=1)
    expected = ddlsched.simulate(ddlsched.microsoft_160(seed=3, scale=0.002), scheduler="srsf-1", seed=3)
    rows = done.summaries()
    assert rows["policy"].tolist() == ["SRSF(1)", "FF"]
    assert rows["seed"].tolist() == [3, 3]
    assert rows.loc[0, "average_jct_s"] == expected.summary()["average_jct_s"]
    jobs = done.jobs(policy="SRSF(1)")
    pd.testing.assert_frame_equal(jobs[expected.jobs.columns], expected.jobs)
    assert set(jobs["policy"]) == {"SRSF(1)"}
    assert len(done.jobs()) == 320
    assert done.jobs(policy="no such").empty


@pytest.mark.long
def test_processes_give_what_one_process_gives(tmp_path):
    runs = [run(seed=seed) for seed in range(1, 5)]
    done = [sweep(runs, tmp_path / str(n), processes=n) for n in (1, 2)]
    assert not done[0].failures + done[1].failures
    one, two = (both.summaries().drop(columns="engine_s") for both in done)
    pd.testing.assert_frame_equal(one, two)


@pytest.mark.long
def test_a_file_says_what_it_is_of(tmp_path):
    done = sweep([run()], tmp_path, processes=1)
    ((_, path),) = done.finished
    described = json.loads(pq.read_schema(path).metadata[b"ddlsched"])
    assert described["inputs"]["options"] == {"scheduler": "srsf-1"}
    assert described["inputs"]["seed"] == 1
    assert described["summary"]["makespan_s"] > 0


@pytest.mark.long
def test_workload_from_a_file(tmp_path):
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), tmp_path / "jobs.csv")
    file = str(tmp_path / "jobs.csv")
    of_file = Run(labels={"policy": "file"}, workload=file, seed=1, options={"scheduler": "srsf-1"})
    rows = sweep([run(), of_file], tmp_path / "runs", processes=1).summaries()
    assert rows["average_jct_s"].nunique() == 1


@pytest.mark.long
def test_a_run_under_two_labels_is_done_once(mine, tmp_path):
    measures = (f"{mine}:logged",)
    done = sweep([run("a", measures=measures), run("b", measures=measures)], tmp_path / "runs", processes=1)
    assert len(runs_logged(tmp_path)) == 1
    assert done.summaries()[["policy", "jobs"]].to_numpy().tolist() == [["a", 160], ["b", 160]]


# ---- Resuming


@pytest.mark.long
def test_finished_runs_are_not_done_again(mine, tmp_path):
    runs = [run(seed=seed, measures=(f"{mine}:logged",)) for seed in (1, 2, 3)]
    first = sweep(runs[:2], tmp_path / "runs", processes=1)
    second = sweep(runs, tmp_path / "runs", processes=1)
    assert len(runs_logged(tmp_path)) == 3
    pd.testing.assert_frame_equal(second.summaries().head(2), first.summaries())


KILLED = """
from pathlib import Path
from test_sweep import run
from ddlsched.comparisons.sweeps.sweep import sweep
sweep([run(seed=seed, measures=({measure!r},)) for seed in range(1, 17)], Path({store!r}), processes=2)
"""


def children_of(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=True)
    return [int(word) for word in listed.stdout.split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc which processes there are")
@pytest.mark.slow
def test_resumes_after_a_kill(mine, tmp_path):
    store, measure = tmp_path / "runs", f"{mine}:logged"
    script = KILLED.format(measure=measure, store=str(store))
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent)
    deadline = time.monotonic() + 120
    while len(list(store.glob("*.parquet"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    workers = children_of(process.pid)
    process.kill()
    process.wait()
    assert len(workers) >= 2
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers)), "they outlive the sweep"
    before = {path: path.stat().st_mtime_ns for path in store.glob("*.parquet")}
    assert 3 <= len(before) < 16
    logged = len(runs_logged(tmp_path))
    done = sweep([run(seed=seed, measures=(measure,)) for seed in range(1, 17)], store, processes=1)
    assert len(done.finished) == 16
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(runs_logged(tmp_path)) - logged == 16 - len(before)


# ---- Failures


@pytest.mark.long
def test_a_failing_run_is_reported_and_does_not_stop_the_rest(mine, tmp_path):
    heard: list[tuple[int, int, Failure | None]] = []
    runs = [run("bad", placement=f"{mine}:Broken"), run("unknown", placement="lfw"), run("good", seed=2)]
    done = sweep(runs, tmp_path / "runs", processes=1, watch=lambda *told: heard.append(told))
    assert [of.labels["policy"] for of, _ in done.finished] == ["good"]
    messages = [str(failure) for failure in done.failures]
    assert messages[0].startswith("bad, seed 1: placement Broken")
    assert "ZeroDivisionError" in messages[0]
    assert "no placement is named 'lfw'. Did you mean 'lwf'?" in messages[1]
    assert [told[:2] for told in heard] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert sum(told[2] is not None for told in heard) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.long
def test_a_failed_run_is_tried_again(mine, tmp_path):
    assert sweep([run(placement=f"{mine}:Broken")], tmp_path, processes=1).failures
    mended = "return cluster.eligible_gpus(job)[: job.num_gpus]"
    mine.write_text(MINE.replace('raise ZeroDivisionError("no luck")', mended))
    assert not sweep([run(placement=f"{mine}:Broken")], tmp_path, processes=1).failures


def test_no_runs(tmp_path):
    done = sweep([], tmp_path, processes=1)
    assert done.summaries().empty
    assert not done.failures


def test_progress_goes_to_stderr(capsys):
    with progress_bar("simulating") as watch:
        watch(0, 2, None)
        watch(1, 2, Failure(run("bad"), "it broke [really]"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bad, seed 1: it broke [really]" in captured.err
    assert "1/2" in captured.err


@pytest.mark.long
def test_a_failure_to_write_stops_the_sweep(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: cannot be used"):
        sweep([run()], tmp_path / "file")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"parquet: cannot be written \(No space left on device\)"):
        sweep([run()], tmp_path / "runs", processes=1)
    assert not list((tmp_path / "runs").iterdir())


CHANGES = """
from pathlib import Path

class Changes:
    def begin(self, cluster, rng):
        Path({helper!r}).write_text("limit = 2")
        return self
    def place(self, job, cluster):
        from algorithms.placement.first_fit import FirstFit
        return FirstFit().place(job, cluster)

import helper
"""


@pytest.mark.long
def test_a_run_under_which_a_file_changed_is_not_kept(tmp_path):
    helper = tmp_path / "helper.py"
    helper.write_text("limit = 1")
    (tmp_path / "mine.py").write_text(CHANGES.format(helper=str(helper)))
    changes = run(placement=f"{tmp_path}/mine.py:Changes")
    (failure,) = sweep([changes], tmp_path / "runs", processes=1).failures
    assert failure.message.startswith("a file that it depends on changed while it ran, or a policy keeps in its fields")
    assert not sweep([changes], tmp_path / "runs", processes=1).failures


DIES = """
import os, signal

class Dies:
    def begin(self, cluster, rng):
        if rng.random() < 0.6:
            os.kill(os.getpid(), signal.SIGKILL)
        return self
    def place(self, job, cluster):
        from algorithms.placement.first_fit import FirstFit
        return FirstFit().place(job, cluster)
"""


@pytest.mark.slow
def test_a_run_that_kills_its_process_fails_alone(tmp_path):
    (tmp_path / "mine.py").write_text(DIES)
    deadly = [run("deadly", seed, placement=f"{tmp_path}/mine.py:Dies") for seed in (3, 4)]
    harmless = [run("harmless", seed) for seed in range(1, 3)]
    done = sweep([*deadly, *harmless], tmp_path / "runs", processes=2)
    dead = {failure.run.seed for failure in done.failures}
    assert len(dead) == 1
    assert {failure.run.labels["policy"] for failure in done.failures} == {"deadly"}
    assert all("its process died twice" in failure.message for failure in done.failures)
    assert len(done.finished) == 3


# ---- Files


def test_files_appear_whole_or_not_at_all(tmp_path):
    store(tmp_path / "a.parquet", b"one")
    store(tmp_path / "a.parquet", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.parquet", b"two")]


def test_leftovers_of_the_dead_are_removed(tmp_path, monkeypatch):
    kill = os.kill

    def kill_own(process: int, number: int) -> None:
        if process == 1:
            raise PermissionError
        kill(process, number)

    monkeypatch.setattr(os, "kill", kill_own)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname().replace(".", "_")
    names = {
        "of the dead": f"x.parquet.{host}-{dead.pid}.part",
        "of the living": f"x.parquet.{host}-{os.getppid()}.part",
        "of somebody else": f"x.parquet.{host}-1.part",
        "of elsewhere": "x.parquet.elsewhere-1.part",
        "of elsewhere, old": "y.parquet.elsewhere-1.part",
        "of nobody": "z.part",
        "a run": "x.parquet",
    }
    for name in names.values():
        (tmp_path / name).write_text("")
    os.utime(tmp_path / names["of elsewhere, old"], (0, 0))
    remove_leftovers(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert {what for what, name in names.items() if name not in left} == {"of the dead", "of elsewhere, old"}


def test_a_file_of_endless_lists_is_no_run_but_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"a": [1]})
    pq.write_table(table.replace_schema_metadata({stored_runs._METADATA: "[" * 100_000}), path)
    assert is_damaged(path)
    with pytest.raises(InputError, match=f"{path}: is no run's file"):
        read_metadata(path)


def test_a_planted_link_is_not_written_through(tmp_path, monkeypatch):
    (kept := tmp_path / "precious").write_text("kept")
    monkeypatch.setattr(stored_runs.secrets, "token_hex", lambda _: "known")
    (tmp_path / f"a.parquet.known.{stored_runs._writer()}.part").symlink_to(kept)
    with pytest.raises(InputError, match="cannot be written"):
        store(tmp_path / "a.parquet", b"one")
    assert kept.read_text() == "kept"


@pytest.mark.long
def test_leftovers_are_no_results(tmp_path):
    ((_, path),) = sweep([run()], tmp_path, processes=1).finished
    whole = path.read_bytes()
    path.rename(path.with_name(f"{path.name}.elsewhere-1.part"))
    assert sweep([run()], tmp_path, processes=1).summaries()["makespan_s"].item() > 0
    assert path.exists()
    assert len(whole) > 1000


# ---- Fingerprints


@pytest.mark.slow
def test_what_is_left_out_of_the_hash_is_imported_by_no_run(tmp_path):
    program = (
        "import sys; from test_sweep import run; from ddlsched.comparisons.sweeps.run import execute\n"
        "assert execute(run(), ['run', 'placements']).failure is None\n"
        "print(*(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)))"
    )
    there = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", program], cwd=there, capture_output=True, text=True, check=True)
    package = Path(ddlsched.__file__).parent
    imported = {Path(name).relative_to(package) for name in done.stdout.split() if Path(name).is_relative_to(package)}
    assert Path("engine/loop/advance.py") in imported
    silent = {Path(name) for name in _PRESENTATION}
    assert not [path for path in imported if silent.intersection([path, *path.parents])]


@dataclass(frozen=True, kw_only=True)
class Weighted:
    weights: Any = 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"placement": "lwf:kappa=1"}, {"placement": "lwf:kappa=2"}),
        ({"seed": 1}, {"seed": 2}),
        ({"cluster": Cluster()}, {"cluster": Cluster(num_servers=8)}),
        ({"order": Weighted(weights=np.arange(5000.0))}, {"order": Weighted(weights=np.arange(5000.0)[::-1])}),
        ({"order": Weighted(weights=[1, (2, None)])}, {"order": Weighted(weights=[1, (2, True)])}),
    ],
)
def test_fingerprint_tells_inputs_apart(one, other):
    assert fingerprint(one, "s") == fingerprint(dict(one), "s")
    assert fingerprint(one, "s") != fingerprint(other, "s")
    assert fingerprint(one, "s") != fingerprint(one, "t")


def test_fingerprints_do_not_depend_on_the_order_of_files(mine, monkeypatch):
    """Sets of texts and of paths have another order in every process, and folders one of their own."""

    class Digest(str):
        __slots__ = ("place",)

        def __hash__(self) -> int:
            return self.place

    def digest(path: Path) -> Digest:
        made = Digest(path.name)
        made.place = places.index(path.name)
        return made

    places = ["mine.py", "other.csv"]
    (mine.parent / "other.csv").touch()
    monkeypatch.setattr(sweep_run, "digest_of", digest)
    inputs = {"one": str(mine), "two": str(mine.parent / "other.csv")}
    prints = {fingerprint(inputs, "s")}
    places.reverse()
    assert prints == {fingerprint(inputs, "s")}

    sources = sources_digest()
    packages, rglob = sorted(sweep_run.installed_packages()), Path.rglob
    monkeypatch.setattr(sweep_run, "installed_packages", lambda: packages[::-1])
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: sorted(rglob(path, pattern), reverse=True))
    assert sources_digest() == sources


@pytest.mark.parametrize("named", ["{mine}:Mine:alpha=1", "{mine}:logged", "{mine}"])
def test_fingerprint_changes_with_the_users_file(mine, named):
    inputs = {"options": {"placement": named.format(mine=mine)}}
    before = fingerprint(inputs, "s")
    assert fingerprint(inputs, "s") == before
    mine.write_text(MINE + "# changed\n")
    assert fingerprint(inputs, "s") != before


@pytest.mark.long
def test_a_changed_file_is_run_anew(mine, tmp_path):
    mine_run = run("mine", placement=f"{mine}:Mine")
    before = sweep([mine_run], tmp_path / "runs", processes=1).summaries()
    mine.write_text(MINE.replace("gpus[: job.num_gpus]", "sorted(gpus, key=lambda gpu: gpu % 4)[: job.num_gpus]"))
    after = sweep([mine_run], tmp_path / "runs", processes=1).summaries()
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert before["average_jct_s"].item() != after["average_jct_s"].item()


@pytest.mark.parametrize("value", [lambda: 1, Weighted, Weighted(weights=print), object()])
def test_fingerprint_refuses_what_hides_its_content(value):
    with pytest.raises(InputError, match="cannot be hashed"):
        fingerprint({"placement": value}, "s")


def test_fingerprint_refuses_a_class_without_a_file():
    space: dict[str, Any] = {}
    exec("class Typed: pass", space)
    with pytest.raises(InputError, match="in no file"):
        fingerprint({"placement": space["Typed"]()}, "s")


def test_sources_digest_covers_framework_and_plugins_but_no_charts(monkeypatch):
    read: list[str] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.as_posix()) or original(path))
    digest = sources_digest()
    for part in ("ddlsched/engine/loop/advance.py", "algorithms/placement/lwf.py", "topologies/star.py"):
        assert any(path.endswith(part) for path in read)
    assert not any("comparisons/charts" in path for path in read)
    monkeypatch.setattr(Path, "read_bytes", lambda path: original(path) + b" " * path.match("*/lwf.py"))
    assert sources_digest() != digest


def test_what_a_process_that_died_told_of_its_progress_is_gone(tmp_path, monkeypatch):
    class Dies:
        def __init__(self, **_):
            pass

        def submit(self, *_):
            raise BrokenProcessPool

        def shutdown(self, **_):
            pass

    monkeypatch.setattr(loky, "ProcessPoolExecutor", Dies)
    for name in ("died", "another"):
        (tmp_path / name).write_text("0.5")
    outcome = workers._alone(SimpleNamespace(run=None, wanted=(), key="died"), tmp_path)
    assert "its process died" in str(outcome)
    assert [file.name for file in tmp_path.iterdir()] == ["another"]
    assert workers._alone(SimpleNamespace(run=None, wanted=(), key="died"), tmp_path) == outcome  # it had told nothing
