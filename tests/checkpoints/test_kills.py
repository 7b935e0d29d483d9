"""Runs that are killed at any moment, again and again, and gone on with: nothing wrong is ever there.

``KILLS=200 python -m pytest -m slow tests/checkpoints/test_kills.py`` kills that often.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from small_jobs import assert_holds, contents, stored

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors

KILLS = int(os.environ.get("KILLS", 40))
WIDE = StoredTransformer(num_layers=4, hidden=384, heads=12, vocabulary=3000, pad_vocabulary=8)
JOB = TensorCollection(tensors=job_tensors(WIDE, optimiser=Optimiser()), parallelism=StoredParallelism(tp=2, dp=2))
PROGRAM = """
from ddlsched.checkpoints import execution
execution._BATCH_BYTES = 1 << 20
from ddlsched.cli import main
main()
"""
CHANGES = ("tp=4", "tp=3,dp=2", "tp=1,pp=4", "tp=2,dp=4")


def started(folder: Path, to: str) -> subprocess.Popen[bytes]:
    flags = ["reshard", str(folder / "a"), str(folder / "b"), "--to", to, "--verify"]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes], after_s: float) -> bool:
    """Kill a run after a while; returns whether it was faster."""
    try:
        _, errors = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return False
    assert process.returncode == 0, errors
    return True


@pytest.mark.slow
def test_nothing_wrong_is_there_after_any_kill(folder: Path) -> None:
    wholes = stored(folder / "a", JOB)
    before, draw, kills, ends = contents(folder / "a"), random.Random(0), 0, Counter[str]()
    begin_s = time.perf_counter()
    assert ended(started(folder, CHANGES[0]), 600)
    run_s = time.perf_counter() - begin_s
    while kills < KILLS:
        for path in sorted((folder / "b").iterdir()):
            path.unlink()
        (folder / "b").rmdir()
        to = draw.choice(CHANGES)
        while not ended(started(folder, to), draw.uniform(0.2, 1.1) * run_s):
            kills += 1
            ends["named" if (folder / "b").exists() else "unnamed"] += 1
            if (folder / "b").exists():
                break
        assert_holds(folder / "b", wholes)
        num_ranks = Checkpoint.read(folder / "b").collection.num_ranks
        files = {"checkpoint.json", *(f"rank_{rank:05d}.safetensors" for rank in range(num_ranks))}
        killed_last = {"journal"} & {path.name for path in (folder / "b").iterdir()}  # Between name and journal.
        assert {path.name for path in (folder / "b").iterdir()} - killed_last == files
        assert {path.name for path in folder.iterdir()} == {"a", "b"}
        assert contents(folder / "a") == before
    print(f"{kills} kills: {dict(ends)}")
