"""Sweeps: parallel, kept on disk, resumed, and told apart by everything that a run depends on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import ddlsched
from ddlsched.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.fingerprint import fingerprint, sources_digest
from ddlsched.progress import progress_bar
from ddlsched.sweep import Failure, Run, sweep

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


def test_processes_give_what_one_process_gives(tmp_path):
    runs = [run(seed=seed) for seed in range(1, 5)]
    done = [sweep(runs, tmp_path / str(n), processes=n) for n in (1, 2)]
    assert not done[0].failures + done[1].failures
    one, two = (both.summaries().drop(columns="engine_s") for both in done)
    pd.testing.assert_frame_equal(one, two)


def test_a_file_says_what_it_is_of(tmp_path):
    done = sweep([run()], tmp_path, processes=1)
    ((_, path),) = done.finished
    described = json.loads(pq.read_schema(path).metadata[b"ddlsched"])
    assert described["inputs"]["options"] == {"scheduler": "srsf-1"}
    assert described["inputs"]["seed"] == 1
    assert described["summary"]["makespan_s"] > 0


def test_workload_from_a_file(tmp_path):
    ddlsched.microsoft_160(seed=1, scale=0.002).write(tmp_path / "jobs.csv")
    file = str(tmp_path / "jobs.csv")
    of_file = Run(labels={"policy": "file"}, workload=file, seed=1, options={"scheduler": "srsf-1"})
    rows = sweep([run(), of_file], tmp_path / "runs", processes=1).summaries()
    assert rows["average_jct_s"].nunique() == 1


def test_a_run_under_two_labels_is_done_once(mine, tmp_path):
    measures = (f"{mine}:logged",)
    done = sweep([run("a", measures=measures), run("b", measures=measures)], tmp_path / "runs", processes=1)
    assert len(runs_logged(tmp_path)) == 1
    assert done.summaries()[["policy", "jobs"]].to_numpy().tolist() == [["a", 160], ["b", 160]]


# ---- Resuming


def test_finished_runs_are_not_done_again(mine, tmp_path):
    runs = [run(seed=seed, measures=(f"{mine}:logged",)) for seed in (1, 2, 3)]
    first = sweep(runs[:2], tmp_path / "runs", processes=1)
    second = sweep(runs, tmp_path / "runs", processes=1)
    assert len(runs_logged(tmp_path)) == 3
    pd.testing.assert_frame_equal(second.summaries().head(2), first.summaries())


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sweep import run
from ddlsched.sweep import sweep
sweep([run(seed=seed, measures=({measure!r},)) for seed in range(1, 31)], Path({store!r}), processes=2)
"""


def test_resumes_after_a_kill(mine, tmp_path):
    store, measure = tmp_path / "runs", f"{mine}:logged"
    script = KILLED.format(tests=str(Path(__file__).parent), measure=measure, store=str(store))
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 120
    while len(list(store.glob("*.parquet"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()
    time.sleep(0.5)  # what was under way in the workers ends
    before = {path: path.stat().st_mtime_ns for path in store.glob("*.parquet")}
    assert 3 <= len(before) < 30
    logged = len(runs_logged(tmp_path))
    done = sweep([run(seed=seed, measures=(measure,)) for seed in range(1, 31)], store, processes=1)
    assert len(done.finished) == 30
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(runs_logged(tmp_path)) - logged == 30 - len(before)


# ---- Failures


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


# ---- Fingerprints


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


@pytest.mark.parametrize("named", ["{mine}:Mine:alpha=1", "{mine}:logged", "{mine}"])
def test_fingerprint_changes_with_the_users_file(mine, named):
    inputs = {"options": {"placement": named.format(mine=mine)}}
    before = fingerprint(inputs, "s")
    assert fingerprint(inputs, "s") == before
    mine.write_text(MINE + "# changed\n")
    assert fingerprint(inputs, "s") != before


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
    for part in ("ddlsched/engine/kernel.py", "algorithms/placement/lwf.py", "topologies/star.py"):
        assert any(path.endswith(part) for path in read)
    assert not any("ddlsched/plots" in path for path in read)
    monkeypatch.setattr(Path, "read_bytes", lambda path: original(path) + b" " * path.match("*/lwf.py"))
    assert sources_digest() != digest
