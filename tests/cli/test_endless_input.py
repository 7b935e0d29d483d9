"""Every door through which a user's file comes in, attacked with what has no end; one line, exit 2, at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import refused, run
from golden_cases import FOLDER

from ddlsched.cluster.idle_trace import from_sacct, from_swf
from ddlsched.errors import InputError
from ddlsched.io import files as reading
from ddlsched.workload.traces.columns import FORMATS
from ddlsched.workload.workload_files import read_curve

JOBS = str(FOLDER / "case1.csv")
MEASURED = str(Path(__file__).parents[2] / "experiments" / "fidelity" / "measured" / "calibration.csv")
ELASTIC = """{"jobs": [{"job_id": "a", "arrival_s": 0, "samples": 100, "gpu_batch": 8, "max_gpus": 4,
    "curve": {"kind": "linear", "fixed_s": 0.02, "sample_s": 0.005}}]}"""
QUEUED = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,queue\na,0,1,1,1,1,0,1,q\n"
DOORS = {
    "workload, CSV": ("jobs.csv", "simulate FILE"),
    "workload, Parquet": ("jobs.parquet", "simulate FILE"),
    "workload, JSON": ("jobs.json", "simulate FILE"),
    "workload of a comparison": ("jobs.csv", "compare FILE --scheduler ada-srsf --scheduler srsf-1"),
    "table of servers": ("servers.csv", f"simulate {JOBS} --server-table FILE"),
    "capacity": ("capacity.csv", "simulate FOLDER/elastic.json --allocation tiresias --capacity FILE"),
    "outages": ("outages.csv", f"simulate {JOBS} --outages FILE"),
    "interference": ("pairs.csv", f"simulate {JOBS} --interference pairs:file=FILE"),
    "plug-in": ("mine.py", f"simulate {JOBS} --placement FILE:Mine"),
    "weights": (
        "weights.npz",
        f"simulate {JOBS} --placement algorithms/placement/learned_start.py:LearnedStart:weights=FILE",
    ),
    "topology": ("mine.py", f"simulate {JOBS} --topology FILE:Mine"),
    "generator": ("mine.py", "compare FILE:jobs --scheduler ada-srsf --scheduler srsf-1"),
    "validate, CSV": ("table.csv", "validate FILE"),
    "validate, YAML": ("compare.yaml", "validate FILE"),
    "comparison, YAML": ("compare.yaml", "compare --config FILE"),
    "comparison's folder": ("comparison.json", "report FOLDER"),
    "run": ("run.parquet", "explain FILE 1"),
    "measurements": ("measured.csv", "calibrate FILE"),
    "shares": ("shares.csv", f"calibrate {MEASURED} --shares FILE"),
    "calibrated workload": ("jobs.csv", f"calibrate {MEASURED} --workload FILE"),
    "token": ("token", "calibrate --measure 127.0.0.1:1 --measure 127.0.0.2:1 --token-file FILE"),
    "token of an agent": ("token", "calibrate-agent 127.0.0.1:0 --token-file FILE"),
    "rows of estimates": ("rows.csv", "estimate --rows FILE"),
    "live jobs": ("jobs.csv", "live FILE --state FOLDER/state --trace FOLDER/idle.csv"),
    "testbed's jobs": ("jobs.csv", "testbed run FILE"),
    "testbed's hosts": ("hosts", f"testbed run {JOBS} --servers 16 --hosts FILE --token-file FOLDER/token"),
    "token of a testbed's agent": ("token", "testbed agent 127.0.0.1:0 --token-file FILE"),
    "token of a gate": ("token", "testbed gate 127.0.0.1:0 --token-file FILE"),
    "testbed's comparison": ("comparison.json", f"testbed compare {JOBS} --out FOLDER --scheduler srsf-1"),
    "checkpoint": ("checkpoint.json", "checkpoint inspect FOLDER"),
    "checkpoint to reshard": ("checkpoint.json", "reshard FOLDER FOLDER-new --to tp=1"),
    "training trace, Chakra": ("job.0.et", "import-training FILE --gpus 2 --out FOLDER/job.json"),
    "training trace, Kineto": ("trace.json", "import-training FILE --out FOLDER/job.json"),
    "recording": ("0.recording.json", "import-training FILE --out FOLDER/job.json"),
    "groups of ranks": ("groups.json", "import-training FOLDER/job.0.et --groups FILE --out FOLDER/job.json"),
    "queues": ("queues.yaml", f"simulate {JOBS} --queues FILE"),
    "queues of what-if": ("queues.yaml", "what-if FOLDER/queued.csv --queues FILE --change servers=+1"),
    "jobs of what-if": ("jobs.csv", "what-if FILE --change servers=+1"),
    "objects of Kueue": ("all.yaml", "import-cluster kueue FILE --out FOLDER/imported"),
    "a folder of Volcano": ("all.yaml", "import-cluster volcano FOLDER --out FOLDER/imported"),
    "tables of Slurm": ("jobs", "import-cluster slurm FOLDER --out FOLDER/imported"),
    **{f"trace, {name}": ("trace", f"workload import {name} FILE") for name in FORMATS},
}


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


ATTACKS = {"endless": endless, "pipe": os.mkfifo, "huge": huge}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_WRITER_S", 0.01)


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("door", DOORS)
def test_a_file_without_end_is_refused_in_a_line(tmp_path: Path, door: str, attack: str) -> None:
    name, command = DOORS[door]
    path = tmp_path / name
    (tmp_path / "elastic.json").write_text(ELASTIC)
    (tmp_path / "queued.csv").write_text(QUEUED)
    ATTACKS[attack](path)
    arguments = command.replace("FILE", str(path)).replace("FOLDER", str(tmp_path)).split()
    refused(run(*arguments), str(path), "expected")


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("read", [read_curve, lambda path: from_swf(path, 4), from_sacct])
def test_a_file_without_end_is_refused_from_python(tmp_path: Path, read, attack: str) -> None:
    ATTACKS[attack](tmp_path / "file")
    with pytest.raises(InputError, match="file: "):
        read(tmp_path / "file")
