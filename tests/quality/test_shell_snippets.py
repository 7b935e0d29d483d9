"""The ``ddlsched`` commands of the pages run, with the files that a page takes for granted, on few jobs."""

from __future__ import annotations

import gzip
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from command_line import run

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests/workload/traces/samples"
ELSEWHERE = {"writing_policies.md", "reports.md"}
"""Pages whose commands tests of their own run."""
LEFT_OUT = re.compile(
    r"ddlsched (calibrate-agent|calibrate --measure|record|testbed|import-training)\b| --dask |weights\.npz"
)
"""What needs other hosts, root, PyTorch, or a trace or weights that are not made in a moment."""
FEWER = {
    r"(--seeds) \S+": r"\1 2",
    r"(--trials) \d+": r"\1 1",
    r"(microsoft-160) --seed 1(?! --scale)": r"\1 --seed 1 --scale 0.005",
}


def commands(page: Path) -> list[str]:
    """Return the commands of a page that can run, without their comments, lines that go on joined."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for text in blocks for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    each = [part for line in lines for part in re.sub(r"\s+#.*", "", line).split(" && ")]
    return [command for command in each if command.startswith("ddlsched ") and not LEFT_OUT.search(command)]


PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in ELSEWHERE and commands(page)]


def _made(*words: str) -> None:
    done = run(*words)
    assert done.exit_code == 0, done.stderr


def _calibration() -> None:
    rows = [(k, m, 2e-4 + 1e-9 * m * (1.2 * k - 0.2)) for k in (1, 2, 4) for m in (1e6, 1e7, 5e7)]
    pd.DataFrame(rows, columns=["concurrent_jobs", "message_bytes", "transfer_s"]).to_csv("measured.csv", index=False)


def _comparing() -> None:
    _made("workload", "microsoft-160", "--scale", "0.005", "--out", "philly.parquet")


def _reconfiguration() -> None:
    _made("checkpoint", "make", "ckpt", "--parallelism", "tp=4,dp=2", "--layers", "4", "--hidden", "64")


def _reconfiguration_training() -> None:
    _made("checkpoint", "make", "theirs", "--parallelism", "tp=2", "--layers", "2", "--hidden", "64")


def _recorded_jobs() -> None:
    _made("estimate", "gpt3-350m", "--cluster", "v100", "--data", "8", "--job-out", "job.json")


def _start() -> None:
    Path("mine.csv").write_text("SubmitTime,NumGPU,RuntimeSec\n0,4,600\n60,1,30\n", encoding="utf-8")


def _traces() -> None:
    with tarfile.open("raw-traces.tar.gz", "w:gz") as archive:
        archive.add(SAMPLES / "microsoft-itp.csv", "vc.csv")


def _training_time() -> None:
    shape = "gpus,global_batch,micro_batch,hidden,heads,layers,sequence"
    degrees = "tensor_parallel,data_parallel,pipeline_parallel"
    Path("runs.csv").write_text(f"{shape},{degrees}\n8,8,1,1024,16,24,2048,2,2,2\n", encoding="utf-8")


def _workloads() -> None:
    Path("matrix.csv").write_text("model,v100,p100\nlstm,30,24\n", encoding="utf-8")
    Path("servers.csv").write_text("servers,gpus,gpu_memory_mb,gpu_kind\n9,4,16000,v100\n", encoding="utf-8")
    pd.read_csv("jobs.csv").assign(model="lstm").to_csv("jobs.csv", index=False)


BEFORE: dict[str, Callable[[], None]] = {
    name.removeprefix("_"): made
    for name, made in list(globals().items())
    if name.startswith("_") and f"{name.removeprefix('_')}.md" in {page.name for page in PAGES}
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_item_24_the_commands_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docs").symlink_to(ROOT / "docs")
    Path("philly.csv.gz").write_bytes(gzip.compress((SAMPLES / "philly-csv.csv").read_bytes()))
    _made("workload", "microsoft-160", "--seed", "1", "--scale", "0.005", "--out", "jobs.csv")
    for source in (ROOT / "README.md", page):
        for name, text in re.findall(
            r"^```\w+\n# (\w+\.(?:py|yaml))[^\n]*\n(.*?)^```", source.read_text(encoding="utf-8"), re.M | re.S
        ):
            Path(name).write_text(text, encoding="utf-8")
    BEFORE.get(page.stem, dict)()
    for command in commands(page):
        for pattern, fewer in FEWER.items():
            command = re.sub(pattern, fewer, command)
        many = {"compare": ["--seeds", "2"], "tune": ["--trials", "1", "--seeds", "1", "--held-out", "2-3"]}
        words = shlex.split(command)[1:]
        if words[0] in many:
            words += [*(many[words[0]] if "--seeds" not in words else []), "--processes", "1"]
        done = run(*words)
        assert done.exit_code == 0, f"{command}\n{done.stderr}"
