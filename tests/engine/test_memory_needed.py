"""A run that does not fit into memory is refused before it takes any, by counts that are what it would take."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from jobs_by_hand import data_parallel_job

from ddlsched import Cluster, Disturbances, Job, Workload
from ddlsched.engine import build, build_tasks
from ddlsched.engine.build_tasks import needed_bytes
from ddlsched.errors import InputError
from ddlsched.simulation import simulate
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag

CLUSTER = Cluster(num_servers=256, gpus_per_server=8)
ALIKE = data_parallel_job("alike", 2048, forward_s=1.0, message_bytes=1e6)
GROUPED = replace(
    ALIKE,
    job_id="grouped",
    iteration=IterationDag(
        tasks=(
            ComputeTask(name="c", duration_ns=10**9),
            CollectiveTask(name="r", kind="all-reduce", message_bytes=1e6, after=("c",), group="pairs"),
        ),
        groups={"pairs": tuple((gpu, gpu + 1) for gpu in range(0, 2048, 2))},
    ),
)


@pytest.mark.long
@pytest.mark.parametrize("job", [ALIKE, GROUPED])
def test_item_16_what_is_estimated_is_what_is_taken(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    monkeypatch.setattr(build_tasks, "refuse_too_large", lambda *_: None)
    monkeypatch.setattr(build, "refuse_too_large", lambda _, jobs: found.append(needed_bytes(jobs).sum()))
    jobs = tuple(replace(job, job_id=str(number)) for number in range(2))
    taken: list[int] = []  # at first also what a process takes once
    for workload in (jobs[:1], jobs[:1], jobs):
        tracemalloc.start()
        # Jitter lets no worker stand for another.
        simulate(
            Workload(workload), CLUSTER, contention="max-min", disturbances=Disturbances(jitter_cv=0.1), until_s=1e-6
        )
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert taken[2] - taken[1] == pytest.approx(found[2] - found[1], rel=0.4)


def test_item_16_a_run_that_is_too_large_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_tasks, "free_memory_bytes", lambda: 100_000)
    monkeypatch.setattr(build_tasks, "_SLACK_BYTES", 0)
    workload = Workload((data_parallel_job("small", 2), ALIKE))
    with pytest.raises(InputError) as refused:
        simulate(workload, CLUSTER)
    said = str(refused.value)
    assert "for job 'alike' with 2,048 GPUs, and 0.0 GB are free; expected fewer jobs, GPUs or tasks" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("own", "below", "left"),
    [
        ("0::/a/b\n", {"memory.max": "9000000", "memory.current": "5000000"}, 4_000_064),
        (
            "3:cpu:/x\n4:memory:/a/b\n",
            {"memory.limit_in_bytes": "9000000", "memory.usage_in_bytes": "5000000"},
            4_000_128,
        ),
        ("0::/elsewhere\n", {}, None),
    ],
)
def test_a_limit_of_a_control_group_is_less_memory(
    own: str, below: dict[str, str], left: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(own)
    root = tmp_path / "groups" / ("memory" if "limit_in" in str(below) else "")
    (root / "a" / "b").mkdir(parents=True)
    for name, text in below.items():
        (root / "a" / name).write_text(f"{text}\n")
    (root / "a" / "memory.stat").write_text("inactive_file 64\ntotal_inactive_file 128\n")
    for name, text in (below | {"memory.stat": "inactive_file 0"}).items():  # a group of it without a limit
        (root / "a" / "b" / name).write_text(f"{'max' if name.startswith(('memory.max', 'memory.limit')) else text}\n")
    (tmp_path / "free").write_text("MemTotal: 9 kB\nMemAvailable: 20000 kB\n")
    monkeypatch.setattr(build_tasks, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(build_tasks, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(build_tasks, "_MEMORY", tmp_path / "free")
    assert build_tasks.free_memory_bytes() == (20_000 * 1024 if left is None else left)
