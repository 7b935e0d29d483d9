"""The Python of the pages runs, with the files and objects that a page takes for granted."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jobs_by_hand import elastic_job
from small_jobs import LLAMA

import ddlsched
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.tensor_models import job_tensors
from ddlsched.checkpoints.tensors import numpy_dtype
from ddlsched.comparisons.alone import job_metrics
from ddlsched.results.metrics import run_metrics
from ddlsched.workload.workload_files import write_workload

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_TORCH = re.compile(r"^(from|import) (torch|ddlsched\.real\.torch|ddlsched\.training\.recording)\b", re.MULTILINE)
"""Such blocks are only looked at; ``tests/torch_training/run`` runs what they show."""
ELSEWHERE = {"writing_policies.md", "comparing.md"}
"""Pages that tests of their own run whole."""


def blocks(page: Path) -> list[str]:
    """Return the Python of a page, without what is run as a doctest."""
    return [text for text in BLOCK.findall(page.read_text(encoding="utf-8")) if not text.startswith(">>> ")]


PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if blocks(path) and path.name not in ELSEWHERE]


def _tensors(**degrees: int) -> TensorCollection:
    return TensorCollection(tensors=job_tensors(LLAMA), parallelism=StoredParallelism(**degrees))


def _checkpoint() -> dict[str, Any]:
    Path("ckpt").mkdir()
    return {
        "collection": _tensors(),
        "rank": 0,
        "part": lambda tensor, held: np.zeros(held.shape, numpy_dtype(tensor.dtype)),
    }


def _training() -> dict[str, Any]:
    for number in range(2):
        np.arange(1 << 19, dtype=np.uint16).tofile(f"tokens_{number}.bin")
        with tarfile.open(f"shard-000{number}.tar", "w") as shard:
            for sample in range(300):
                shard.addfile(tarfile.TarInfo(f"{sample:03}.txt"))
    return {
        "old": _tensors(tp=4),
        "new": _tensors(tp=2),
        "tensors": job_tensors(LLAMA),
        "workload": ddlsched.Workload.of([elastic_job()]),
    }


def _idle_nodes() -> dict[str, Any]:
    pd.DataFrame({"node": [0], "idle_from_s": [0.0], "idle_to_s": [1e6]}).to_parquet("idle_fragments.parquet")
    Path("machine.swf").write_text("1 0 0 3600 36 -1 -1 36 -1 -1 1 1 1 1 1 -1 -1 -1\n", encoding="utf-8")
    Path("jobs.txt").write_text(
        "JobID|Start|End|State|NodeList\n"
        "1|2026-01-01T00:00:00|2026-01-01T01:00:00|COMPLETED|n1\n"
        "2|2026-01-01T05:00:00|2026-01-01T06:00:00|COMPLETED|n1\n",
        encoding="utf-8",
    )
    cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=4)
    return {"elastic_jobs": ddlsched.Workload.of([elastic_job()]), "cluster": cluster}


def _statistics() -> dict[str, Any]:
    rows, jobs = [], ddlsched.microsoft_160(seed=1, scale=0.01)
    for seed in range(3):
        for policy in ("srsf-1", "ada-srsf"):
            result = ddlsched.simulate(jobs, scheduler=policy, seed=seed)
            rows.append({"policy": policy, "seed": seed, **result.summary(), **run_metrics(job_metrics(result))})
    return {"result": result, "runs": pd.DataFrame(rows)}


def _muri() -> dict[str, Any]:
    shutil.copy(ROOT / "tests" / "workload" / "traces" / "samples" / "muri.csv", "trace1.csv")
    return {}


def _recorded() -> dict[str, Any]:
    trace = ROOT.parent / "shared/data/training_traces/resnet50_nccl/resnet50_2gpu_nccl_kineto_step.json.gz"
    if not trace.exists():
        pytest.skip("the public trace is not at hand")
    shutil.copy(trace, "trace.json.gz")
    return {}


def _start() -> dict[str, Any]:
    write_workload(ddlsched.microsoft_160(seed=1, scale=0.01), "jobs.csv")
    return {}


BEFORE: dict[str, Callable[[], dict[str, Any]]] = {
    "idle_nodes.md": _idle_nodes,
    "reconfiguration.md": _checkpoint,
    "reconfiguration_training.md": _training,
    "recorded_jobs.md": _recorded,
    "start.md": _start,
    "statistics.md": _statistics,
    "traces.md": _muri,
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_item_24_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = {"__name__": page.stem, **BEFORE.get(page.name, dict)()}
    for text in blocks(page):
        here = text.replace("s3://bucket/", "").replace("    ...\n", "    break\n")  # batches have no end
        program = compile(here, str(page), "exec")
        if not NEEDS_TORCH.search(text):
            exec(program, known)
