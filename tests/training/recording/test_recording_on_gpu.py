"""A real GPU, recorded by its events: python -m pytest -m torch where PyTorch finds one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ddlsched.training.recorded.rank_steps import MarkKind
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.training.recorded.recordings import read_recording
from ddlsched.training.recording.rank_process import run_recorded
from ddlsched.workload.dag import CollectiveTask, ComputeTask

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)

WIDTH, LAYERS, BATCH = 4096, 6, 8192
TRAIN = f"""
import json, os, sys, time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group(sys.argv[1])
rank, alone = distributed.get_rank(), distributed.get_world_size() == 1
torch.manual_seed(rank)
inputs = torch.randn({BATCH} if alone else 512, {WIDTH}, device="cuda")
torch.manual_seed(7)
model = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}, device="cuda") for _ in range({LAYERS})))
if sys.argv[2] == "ddp":
    model = DistributedDataParallel(model, bucket_cap_mb=100)
else:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
ended_s, kernels = [], [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(14)]
for step in range(14):
    optimizer.zero_grad()
    kernels[step][0].record()
    loss = model(inputs).square().mean()
    kernels[step][1].record()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    ended_s.append(time.perf_counter())
if rank == 0:
    forward_s = [begin.elapsed_time(end) / 1e3 for begin, end in kernels]
    with open(sys.argv[3], "w") as file:
        json.dump({{"ended_s": ended_s, "forward_s": forward_s}}, file)
distributed.destroy_process_group()
"""
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)


def recorded(folder: Path, backend: str, kind: str, ranks: int) -> tuple[list[Path], dict[str, np.ndarray]]:
    script, times = folder / "train.py", folder / "times.json"
    script.write_text(TRAIN)
    arguments = [backend, kind, str(times)]
    files = run_recorded(script, arguments, folder / "kept", ranks=ranks, skip=3, most_steps=1000)
    return files, {name: np.array(own) for name, own in json.loads(times.read_text()).items()}


def test_steps_take_what_the_host_sees_and_forward_what_the_stream_sees(tmp_path: Path) -> None:
    (file,), times = recorded(tmp_path, "nccl", "ddp", 1)
    steps = read_recording(file).steps
    walls_s = np.array([step.wall_ns for step in steps.values()]) / 1e9
    host_s = np.diff(times["ended_s"])[3:]
    assert len(walls_s) == len(host_s) == 10
    assert walls_s.sum() == pytest.approx(host_s.sum(), rel=0.02)
    begins_ns = [
        {mark.what: mark.at_ns for mark in step.marks if mark.kind is MarkKind.PHASE} for step in steps.values()
    ]
    forward_s = np.array([begin["backward"] - begin["forward"] for begin in begins_ns]) / 1e9
    # Kernels of a step run after the host has launched them, several ms later: the host's clock would tell less.
    assert forward_s == pytest.approx(times["forward_s"][4:], rel=0.1, abs=2e-4)
    assert forward_s.sum() > 0.2 * walls_s.sum()


@pytest.mark.parametrize(("backend", "ranks"), [("nccl", 1), ("gloo", 2)])
def test_buckets_of_ddp_have_all_bytes_and_end_after_they_begin(tmp_path: Path, backend: str, ranks: int) -> None:
    files, _ = recorded(tmp_path, backend, "ddp", ranks)
    for file in files:
        for step in read_recording(file).steps.values():
            assert sum(each.input_bytes for each in step.communications) == 4 * PARAMETERS
            spans = [each.measured_ns for each in step.communications]
            assert all(span is not None and 0 <= span[0] <= span[1] for span in spans)


def test_ranks_on_one_gpu_make_a_job(tmp_path: Path) -> None:
    files, times = recorded(tmp_path, "gloo", "ddp", 2)
    iteration = read_iteration(files)
    sizes = [task.message_bytes for task in iteration.dag.tasks if isinstance(task, CollectiveTask)]
    assert sum(sizes) == 4 * PARAMETERS
    assert len(sizes) > 1
    assert all(task.duration_ns > 0 for task in iteration.dag.tasks if isinstance(task, ComputeTask))
    walls_s = np.array([[step.wall_ns for step in read_recording(file).steps.values()] for file in files]) / 1e9
    assert walls_s[0].sum() == pytest.approx(np.diff(times["ended_s"])[3:].sum(), rel=0.02)


def test_fully_sharded_training_is_recorded_on_a_gpu(tmp_path: Path) -> None:
    files, _ = recorded(tmp_path, "gloo", "fsdp", 2)
    for file in files:
        kinds = {each.kind for step in read_recording(file).steps.values() for each in step.communications}
        assert {"all-gather", "reduce-scatter"} <= kinds
