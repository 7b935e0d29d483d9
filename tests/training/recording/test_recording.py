"""Real training on two gloo ranks, recorded: python -m pytest -m torch."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import refused, run

from ddlsched.errors import InputError
from ddlsched.training.recorded.alone import variation
from ddlsched.training.recorded.merging import RecordedIteration
from ddlsched.training.recorded.rank_steps import MarkKind
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.training.recorded.recordings import read_recording
from ddlsched.training.recording.rank_process import _environment, _free_port, run_recorded
from ddlsched.workload.dag import CollectiveTask, ComputeTask
from ddlsched.workload.workload_files import read_workload

pytestmark = pytest.mark.torch

BEGIN = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)
inputs, labels = torch.randn(16, 64), torch.randint(0, 10, (16,))
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
if rank == 0 and len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        file.write(repr([value.tolist() for value in model.state_dict().values()]))
distributed.destroy_process_group()
"""
DDP = BEGIN + "model = DistributedDataParallel(model, bucket_cap_mb=0.1)\n" + TRAIN
PARAMETERS = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10


def recorded(folder: Path, text: str, *arguments: str, skip: int = 3) -> RecordedIteration:
    script = folder / "train.py"
    script.write_text(text)
    return read_iteration(run_recorded(script, arguments, folder / "kept", ranks=2, skip=skip, most_steps=1000))


def collectives(iteration: RecordedIteration) -> list[tuple[str, float]]:
    return [(task.kind, task.message_bytes) for task in iteration.dag.tasks if isinstance(task, CollectiveTask)]


def test_buckets_of_ddp_are_cut_out_of_backward_and_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    iteration = recorded(tmp_path, DDP, str(tmp_path / "with.txt"))
    sizes = [size for _, size in collectives(iteration)]
    assert sum(sizes) == 4 * PARAMETERS
    assert len(sizes) == 2
    assert (iteration.num_ranks, iteration.steps, iteration.classes) == (2, 5, ((0, 1),))
    phases = [task.name.split("-")[0] for task in iteration.dag.tasks if isinstance(task, ComputeTask)]
    assert (phases[0], phases[-1], set(phases)) == ("forward", "optimizer", {"forward", "backward", "optimizer"})
    port = _free_port()
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "without.txt")]
    plain = [subprocess.Popen(command, env=_environment(rank, 2, "127.0.0.1", port)) for rank in range(2)]
    for process in plain:
        process.wait()  # Beside busy processes PyTorch may abort one as it ends, when all is written.
    assert (tmp_path / "with.txt").read_text() == (tmp_path / "without.txt").read_text()


def test_item_35_ddp_may_form_its_buckets_in_the_step_that_is_checked(tmp_path: Path) -> None:
    from ddlsched.training.recording.collective_calls import refuse_unseen

    iteration = recorded(tmp_path, DDP, skip=1)
    assert iteration.steps == 7
    assert [kind for kind, _ in collectives(iteration)] == ["all-reduce"] * 2
    refuse_unseen(["c10d::broadcast_"] * 2, [], flags=0, formed=1)
    with pytest.raises(InputError, match=r"not seen: c10d::broadcast_ \(3, 0 seen\)"):
        refuse_unseen(["c10d::broadcast_"] * 3, [], flags=0, formed=1)


def test_a_compressing_hook_of_the_script_is_kept_and_its_bytes_count(tmp_path: Path) -> None:
    hook = (
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
        "model = DistributedDataParallel(model)\nmodel.register_comm_hook(None, fp16_compress_hook)\n"
    )
    assert collectives(recorded(tmp_path, BEGIN + hook + TRAIN)) == [("all-reduce", 2 * PARAMETERS)]


def test_fully_sharded_training_gathers_and_scatters(tmp_path: Path) -> None:
    shard = "from torch.distributed.fsdp import fully_shard\nfully_shard(model[2])\nfully_shard(model)\n"
    found = collectives(recorded(tmp_path, BEGIN + shard + TRAIN))
    inner, outer = 4 * (256 * 256 + 256), 4 * (PARAMETERS - 256 * 256 - 256)
    # The layer inside is gathered again for backward, and only it: the outer one keeps its parameters.
    assert sorted(found) == sorted(
        [("all-gather", inner)] * 2 + [("all-gather", outer), ("reduce-scatter", inner), ("reduce-scatter", outer)]
    )


EVERY_KIND = """
one = distributed.new_group([0, 1])
values, halves = torch.ones(1000), torch.ones(500)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    distributed.all_reduce(values)
    work = distributed.all_reduce(values, group=one, async_op=True)
    model(inputs).sum().backward()
    work.wait()
    distributed.all_gather_into_tensor(torch.empty(2000), values)
    distributed.reduce_scatter_tensor(halves, values)
    distributed.all_to_all_single(torch.empty(1000), values)
    distributed.broadcast(values, 0)
    distributed.barrier()
    if rank == 0:
        distributed.send(values, 1)
    else:
        distributed.recv(values, 0)
    optimizer.step()
distributed.destroy_process_group()
"""


def test_every_collective_that_a_script_calls_is_recorded(tmp_path: Path) -> None:
    iteration = recorded(tmp_path, BEGIN + EVERY_KIND)
    assert sorted(collectives(iteration)) == sorted(
        [
            ("all-reduce", 4000.0),
            ("all-reduce", 4000.0),
            ("all-reduce", 0.0),  # the barrier
            ("all-gather", 8000.0),
            ("reduce-scatter", 4000.0),
            ("all-to-all", 4000.0),
            ("broadcast", 4000.0),
            ("send", 4000.0),
        ]
    )
    in_background = next(
        task for task in iteration.dag.tasks if isinstance(task, CollectiveTask) and task.name == "all-reduce-2"
    )
    waiting = next(task for task in iteration.dag.tasks if "all-reduce-2" in task.after)
    assert in_background.after != waiting.after  # backward runs between its call and its wait


FREED = """
import weakref
made = []
reduces = distributed.ProcessGroup.allreduce

def watched(*args, **kwargs):
    work = reduces(*args, **kwargs)
    made.append(weakref.ref(work))
    return work

distributed.ProcessGroup.allreduce = watched
"""


def test_item_35_works_of_buckets_are_not_kept_alive(tmp_path: Path) -> None:
    """Gloo's hold pinned copies of a GPU's tensors: to pin anew at each step made steps twice as long."""
    check = "distributed.destroy_process_group()"
    text = DDP.replace(
        check, f"open(f'alive-{{rank}}', 'w').write(f'{{len(made)}} {{sum(w() is not None for w in made)}}')\n{check}"
    )
    text = text.replace("model = nn", FREED + "model = nn").replace("'alive", f"'{tmp_path}/alive")
    recorded(tmp_path, text)
    for rank in range(2):
        number, alive = map(int, (tmp_path / f"alive-{rank}").read_text().split())
        assert number >= 2 * 5
        assert alive == 0


def test_item_35_buckets_are_waited_for_until_backward_returns_however_late_their_end_is_told(tmp_path: Path) -> None:
    """The thread that tells waits for its turn: in one of 300 steps until the optimiser was done, or longer."""
    late = (
        "import threading\nfrom ddlsched.training.recording.recorder import Recorder\ntold = Recorder.done\n"
        "Recorder.done = lambda recorder, call: threading.Timer(0.1, told, (recorder, call)).start()\n"
    )
    joined = "[each.join() for each in threading.enumerate() if isinstance(each, threading.Timer)]\n"
    iteration = recorded(tmp_path, DDP.replace("model = nn", late + "model = nn") + joined)
    assert iteration.steps == 5
    assert [mark.kind for mark in iteration.last.marks].count(MarkKind.WAITS) == 2
    assert iteration.last.marks[-1].what == "optimizer"


def test_item_35_buckets_whose_end_is_never_told_are_waited_for_until_backward_returns(tmp_path: Path) -> None:
    never = "from ddlsched.training.recording.recorder import Recorder\nRecorder.done = lambda *_: None\n"
    iteration = recorded(tmp_path, DDP.replace("model = nn", never + "model = nn"))
    waits_ns = [each.waited_ns for each in iteration.last.communications if each.waited_ns]
    assert [begin_ns < end_ns for begin_ns, end_ns in waits_ns] == [True, True]


def test_item_35_a_rank_that_is_aborted_once_its_recording_is_written_has_recorded(tmp_path: Path) -> None:
    iteration = recorded(tmp_path, DDP + "import atexit, os\natexit.register(os.abort)\n")
    assert iteration.steps == 5


def test_a_script_that_trains_on_leaves_the_last_step_that_is_kept_as_it_was(tmp_path: Path) -> None:
    own = "from ddlsched.training.recording import record\nrecord('.', skip=3, most_steps=2)\n"
    (tmp_path / "train.py").write_text(DDP.replace("model = nn", own + "model = nn"))
    port = _free_port()
    ranks = [
        subprocess.Popen([sys.executable, "train.py"], env=_environment(rank, 2, "127.0.0.1", port), cwd=tmp_path)
        for rank in range(2)
    ]
    for process in ranks:
        process.wait()  # its status says nothing: threads of gloo may abort a rank that has recorded
    for rank in range(2):
        kept = read_recording(tmp_path / f"{rank}.recording.json").steps
        assert list(kept) == [4, 5]
        ends_ns = [(step.wall_ns, call.waited_ns) for step in kept.values() for call in step.communications]
        assert all(waited_ns and waited_ns[1] < wall_ns for wall_ns, waited_ns in ends_ns)  # The optimiser comes then.


PAST = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    distributed.all_reduce(inputs)
    torch.ops._c10d_functional.all_reduce(labels.float(), "sum", distributed.group.WORLD.group_name).sum()
    model(inputs).sum().backward()
    optimizer.step()
"""


def test_a_collective_that_goes_past_the_recorder_ends_the_script_with_its_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"train.py: rank \d ended with status 1"):
        recorded(tmp_path, BEGIN + PAST)
    said = capfd.readouterr().err
    assert "ddlsched: error: record: collectives that go past the functions of torch.distributed" in said
    assert "c10d::allreduce_ (2, 1 seen)" in said


CLIPPED = """
from torch.distributed.fsdp import fully_shard
mine = torch.zeros(2)
distributed.scatter(mine, [torch.ones(2), torch.ones(2)] if rank == 0 else None)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    model(inputs).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
"""


def test_item_12_fully_sharded_training_that_clips_gradients_and_scatters_before_is_recorded(tmp_path: Path) -> None:
    found = collectives(recorded(tmp_path, BEGIN + CLIPPED))
    assert ("all-reduce", 6 * 4.0) in found  # the norms of the gradients
    assert {kind for kind, _ in found} == {"all-reduce", "all-gather", "reduce-scatter"}


ENDLESS = (
    BEGIN
    + """
import os
open(f"pid{rank}", "w").write(str(os.getpid()))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    model(inputs).sum().backward()
    optimizer.step()
    step += 1
    open(f"step{rank}", "w").write(str(step))
"""
)


def record_endless(folder: Path, *flags: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(ENDLESS)
    program = [sys.executable, "-c", "from ddlsched.cli import main; main()", "record", "--out", "job.json", *flags]
    return subprocess.Popen([*program, "train.py"], cwd=folder, stdout=-1, stderr=-1, text=True, start_new_session=True)


def reached(folder: Path, steps: int) -> list[int]:
    """Wait until both ranks have done so many steps, and return their processes' numbers."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        done = [(folder / f"step{rank}").read_text() if (folder / f"step{rank}").exists() else "" for rank in (0, 1)]
        if all(int(each or 0) >= steps for each in done):
            return [int((folder / f"pid{rank}").read_text()) for rank in (0, 1)]
        time.sleep(0.05)
    raise AssertionError("the script did not train")


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_item_12_a_script_ends_behind_the_steps_that_are_to_be_recorded(tmp_path: Path) -> None:
    process = record_endless(tmp_path, "--steps", "5", "--json")
    said, told = process.communicate(timeout=200)
    assert process.returncode == 0, told
    assert json.loads(said)["steps"] == 5
    assert "Traceback" not in told


SMALL = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
numbers = [torch.ones(1000) for _ in range(32)]
for step in range(60):
    nn.functional.cross_entropy(model(inputs), labels).backward()
    if WAITS:
        for each in numbers:
            distributed.all_reduce(each)
            each.mul_(0.5)
    else:
        for work in [distributed.all_reduce(each, async_op=True) for each in numbers]:
            work.wait()
    optimizer.step()
"""


@pytest.mark.parametrize("waits", [True, False], ids=["waited for one by one", "issued together"])
def test_item_12_32_small_collectives_take_on_a_network_without_latency_what_they_did(
    tmp_path: Path, waits: bool
) -> None:
    found = variation(recorded(tmp_path, BEGIN + SMALL.replace("WAITS", str(waits))))
    assert found["compute_s"]["mean"] == pytest.approx(found["step_s"]["mean"], rel=0.05)


def test_item_12_what_was_recorded_until_ctrl_c_is_kept(tmp_path: Path) -> None:
    process = record_endless(tmp_path, "--json")
    reached(tmp_path, 16)
    os.killpg(process.pid, signal.SIGINT)
    said, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    assert json.loads(said)["steps"] >= 4
    assert "interrupted; the steps recorded by now are kept" in told
    assert "Traceback" not in told


def test_item_12_ranks_end_with_the_command_that_was_killed(tmp_path: Path) -> None:
    process = record_endless(tmp_path)
    ranks = reached(tmp_path, 2)
    process.kill()
    process.wait()
    deadline_s = time.monotonic() + 20
    while any(map(is_alive, ranks)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(is_alive, ranks))


LISTENERS = """
import os
own = {os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.exists(entry.path)}
with open(f"listeners-{rank}.txt", "w") as file:
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                print(address.split(":")[0], file=file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="who listens is read from /proc")
def test_item_17_ranks_listen_on_the_loopback_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recorded(tmp_path, BEGIN + LISTENERS + DDP.removeprefix(BEGIN)).steps == 5
    addresses = [(tmp_path / f"listeners-{rank}.txt").read_text().split() for rank in range(2)]
    assert len(addresses[0]) > len(addresses[1]) > 0  # the first has the store, too
    assert {*addresses[0], *addresses[1]} == {"0100007F"}


def those_in(folder: Path) -> list[int]:
    """Return the living processes that work in a folder; one that has ended works nowhere."""
    processes = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [process for process in processes if _works_in(process, folder)]


def _works_in(process: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{process}/cwd").readlink() == folder.resolve()
    except OSError:
        return False


def test_whenever_the_command_is_killed_its_ranks_end_and_its_file_is_whole_or_not_there(tmp_path: Path) -> None:
    """``KILLS=30 tests/torch_training/run -k whenever_the_command_is_killed`` kills that often."""
    begin_s = time.monotonic()
    _, told = record_endless(tmp_path, "--steps", "5", "--keep", "kept").communicate(timeout=200)
    took_s = time.monotonic() - begin_s
    assert len(read_workload(tmp_path / "job.json").jobs) == 1, told
    rng, written = random.Random(1), 0
    for _ in range(int(os.environ.get("KILLS", 2))):
        (tmp_path / "job.json").unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "kept")
        process = record_endless(tmp_path, "--steps", "5", "--keep", "kept")
        time.sleep(rng.uniform(0.2, took_s))
        process.kill()
        process.wait()
        deadline_s = time.monotonic() + 20
        while (left := those_in(tmp_path)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not left
        if (tmp_path / "job.json").exists():
            written += len(read_workload(tmp_path / "job.json").jobs)
        (tmp_path / "kept").mkdir(exist_ok=True)
    print(f"{written} had written their file")
    process = record_endless(tmp_path, "--steps", "5", "--keep", "kept")
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told


def test_an_error_of_the_script_has_its_own_traceback_and_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="ended with status 1"):
        recorded(tmp_path, "raise KeyError('of the script')")
    said = capfd.readouterr().err
    assert "KeyError: 'of the script'" in said
    assert "atexit" not in said
    assert said.count("Traceback") <= 2  # one a rank


def test_a_model_with_unused_parameters_is_recorded(tmp_path: Path) -> None:
    ddp = "model = DistributedDataParallel(model, find_unused_parameters=True)\n"
    assert collectives(recorded(tmp_path, BEGIN + ddp + TRAIN)) == [("all-reduce", 4.0 * PARAMETERS)]


def test_command_writes_job_recordings_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(DDP)
    done = run(
        "record",
        "--out",
        "job.json",
        "--keep",
        "kept",
        "--chart",
        "chart",
        "--skip",
        "5",
        "--json",
        "train.py",
        "w.txt",
    )
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(each["input_bytes"] for each in found["variation"]["collectives"]) == 4 * PARAMETERS
    assert found["variation"]["unrecorded_step_s"]["p5"] > 0
    assert found["variation"]["lengthening"] > -1
    spread = found["variation"]["step_s"]
    assert 0 < spread["p5"] <= spread["p50"] <= spread["p95"]
    assert Path("w.txt").exists()  # the script's own argument
    assert Path("chart.png").stat().st_size > 5000
    again = run("import-training", "kept/0.recording.json", "kept/1.recording.json", "--out", "again.json")
    assert again.exit_code == 0, again.stderr
    assert Path("again.json").read_text() == Path("job.json").read_text()


@pytest.mark.parametrize(
    ("text", "status", "cause"),
    [
        ("raise SystemExit(3)", 3, ""),
        (BEGIN, 1, "no step was recorded (0 ended"),
        (
            BEGIN + TRAIN.replace("    optimizer.step", "    distributed.reduce(inputs, 0)\n    optimizer.step"),
            1,
            "reduce within",
        ),
        (BEGIN + TRAIN, 1, "no step has a collective"),  # each rank for itself
    ],
)
def test_a_script_that_cannot_be_recorded_is_told_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    text: str,
    status: int,
    cause: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    done = run("record", "--out", "job.json", "--skip", "3", "train.py")
    refused(done, "train.py: rank ", f"ended with status {status}", "expected a script that ends")
    assert cause in capfd.readouterr().err


def test_a_rank_without_steps_says_so(tmp_path: Path) -> None:
    from ddlsched.training.recording import record

    recorder = record(tmp_path)
    with pytest.raises(InputError, match="no step was recorded"):
        recorder.end()
    with pytest.raises(InputError, match="skip is 0; expected a whole number from 1"):
        record(tmp_path, skip=0)


def test_moments_of_a_gpu_are_told_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: events that answer as those of one would."""
    import torch

    from ddlsched.training.recording.recorder import CudaClock

    class Event:
        count = 0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            Event.count += 1
            self.at_ms = 0.25 * Event.count

        def record(self) -> None:
            pass

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return end.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = CudaClock()
    first, second = clock.moment(), clock.moment()
    assert clock.ns(second) - clock.ns(first) == 250_000


def test_item_27_a_model_keeps_its_own_reduction_until_it_is_watched(tmp_path: Path) -> None:
    from ddlsched.training.recording.recorder import Recorder

    hooks: list[Any] = []
    model = SimpleNamespace(
        process_group=None, register_comm_hook=lambda *hook: hooks.append(hook), find_unused_parameters=False
    )
    recorder = Recorder(tmp_path, 0, 1)
    forward = recorder._forward(lambda _, number: number)
    for watching in (False, True):
        recorder.watching = watching
        assert forward(model, 3) == 3
        assert len(hooks) == watching
