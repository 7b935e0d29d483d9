"""Whole processes that change the parallelism of a checkpoint, beside ``cp --reflink=never`` and ``sync`` of its copy.

Run by ``resharding.py``; the parts are described in ``benchmarks/README.md``. All rivals run in turn, round by round,
and ratios are taken within a round, since the speed of a shared machine changes from round to round.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from benchmark_tables import DDLSCHED, Table, say

from ddlsched.checkpoints.arrays import write_rank
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection, parse_parallelism
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, Tensor, numpy_dtype

COPY, PLAIN, VERIFY = "cp --reflink=never, sync", "reshard", "reshard --verify"
TORCH_FORM, TORCH = "reshard --format torch", "PyTorch distributed checkpoint"


class Run(NamedTuple):
    """What a rival took; the CPU seconds are those of its processes and of what they wait for."""

    wall_s: float
    cpu_s: float
    written_bytes: int
    anonymous_bytes: int


WALL, CPU = attrgetter("wall_s"), attrgetter("cpu_s")


def transformer_tensors(gb: float) -> tuple[Tensor, ...]:
    """Return the tensors of a GPT of about ``gb`` GB with Adam's state, which divides among 2, 3 and 4 ranks."""
    hidden = max(round((gb * 1e9 / 14 / 12 / 8) ** 0.5 / 96), 1) * 96
    model = StoredTransformer(
        num_layers=8, hidden=hidden, heads=12, vocabulary=12288, positions=1024, pad_vocabulary=0, tied=True
    )
    return job_tensors(model, optimiser=Optimiser())


def strided_tensors(gb: float) -> tuple[Tensor, ...]:
    """Return tensors of about ``gb`` GB that are all cut by columns: no two rows of a part lie side by side."""
    rows = max(round(gb * 1e9 / 4 / 16 / 1536), 1)
    return tuple(
        Tensor(name=f"columns{number}", shape=(rows, 1536), dtype="F32", cuts=(Cut(dim=1),)) for number in range(16)
    )


def made(folder: Path, tensors: Sequence[Tensor], parallelism: StoredParallelism) -> TensorCollection:
    """Write a checkpoint of random bits."""
    collection = TensorCollection(tensors=tuple(tensors), parallelism=parallelism)
    checkpoint = Checkpoint(collection=collection)
    bits = np.random.default_rng(1).integers(0, 256, 1 << 24, dtype=np.uint8)

    def part(tensor, layout):
        num_bytes = layout.num_elements * numpy_dtype(tensor.dtype).itemsize
        return np.resize(bits, num_bytes).view(numpy_dtype(tensor.dtype)).reshape(layout.shape)

    folder.mkdir()
    for rank in range(collection.num_ranks):
        write_rank(folder, checkpoint, rank, part)
    checkpoint.write_description(folder)
    return collection


def files_of(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def warm(folder: Path) -> None:
    subprocess.run(["cat", *files_of(folder)], check=True, stdout=subprocess.DEVNULL)


def cold(folder: Path) -> None:
    for file in files_of(folder):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


Rivals: TypeAlias = dict[str, tuple[Path, Callable[[], Run]]]
"""By name, what is read, and what runs."""


def most_anonymous_bytes(process: subprocess.Popen) -> int:
    """Return the most anonymous memory that a process has until its end, looked at every 5 ms."""
    most_kib = 0
    while process.poll() is None:
        text = Path(f"/proc/{process.pid}/status").read_text()
        most_kib = max(most_kib, *(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")), 0)
        time.sleep(0.005)
    return most_kib * 1024


def ran(commands: Sequence[Callable[[], Sequence[str]]], target: Path, given: str = "", *, keep: bool = False) -> Run:
    """Run commands one after the other, which make the target; it is removed unless it is to be kept."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    anonymous_bytes = 0
    for command in commands:
        with (
            tempfile.TemporaryFile("w+") as told,
            subprocess.Popen(
                command(), env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=told, text=True
            ) as process,
        ):
            process.stdin.write(given)
            process.stdin.close()
            anonymous_bytes = max(anonymous_bytes, most_anonymous_bytes(process))
            if process.returncode:
                told.seek(0)
                raise SystemExit(told.read())
    wall_s, after = time.perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    written_bytes = sum(file.stat().st_size for file in files_of(target))
    if not keep:
        shutil.rmtree(target)
    return Run(wall_s, cpu_s, written_bytes, anonymous_bytes)


def copied(source: Path, target: Path) -> Run:
    copy = ["cp", "-r", "--reflink=never", str(source), str(target)]
    return ran([lambda: copy, lambda: ["sync", *map(str, sorted(target.iterdir()))]], target)


def resharded(source: Path, target: Path, to: str, *flags: str, keep: bool = False) -> Run:
    command = [*DDLSCHED, "reshard", str(source), str(target), "--to", to, *flags]
    return ran([lambda: command], target, keep=keep)


def through_torch(
    python: str, source: Path, target: Path, to: StoredParallelism, tensors: Sequence[Tensor], *, keep: bool = False
) -> Run:
    """Load under another parallelism and save, with PyTorch's distributed checkpoint, a process a rank."""
    task = {
        "source": str(source),
        "target": str(target),
        "ranks": to.num_ranks,
        "tensors": [
            {"name": t.name, "shape": t.shape, "dtype": t.dtype, "dim": t.cuts[0].dim if t.cuts else -1}
            for t in tensors
        ],
    }
    program = Path(__file__).with_name("resharding_torch.py")
    return ran([lambda: [python, str(program)]], target, json.dumps(task), keep=keep)


FORMS = ("safetensors", "torch", "huggingface", "megatron")


def memory(folder: Path, gb: float, forms: Sequence[str] = FORMS) -> Table:
    """Return the most anonymous memory of verified changes from tp=2 to tp=4, and to another format."""
    sources = {"safetensors": folder / "source", "torch": folder / "torch"}
    made(sources["safetensors"], transformer_tensors(gb), StoredParallelism(tp=2))
    resharded(sources["safetensors"], sources["torch"], "tp=2", "--format", "torch", keep=True)
    rows = []
    for before, after in product(sources, forms):
        say(f"{before} to {after}")
        run = resharded(sources[before], folder / "target", "tp=4", "--format", after, "--verify")
        rows.append((f"{before} to {after}", run.written_bytes / 1e9, run.anonymous_bytes / 1e6))
    title = f"(c) {gb:g} GB, tp=2 to tp=4, verified, interpreter and libraries included"
    return Table(title=title, columns=("", "GB written", "anonymous MB"), rows=rows)


CHANGES = (
    ("GPT, tp=2 -> tp=4", transformer_tensors, "tp=4"),
    ("GPT, tp=2 -> tp=3", transformer_tensors, "tp=3"),
    ("all cut by columns, tp=2 -> tp=4", strided_tensors, "tp=4"),
    ("all cut by columns, tp=2 -> tp=3", strided_tensors, "tp=3"),
)


class Measured(NamedTuple):
    """A change in one state of the page cache: the runs of each rival, in the order of rounds."""

    title: str
    state: str
    runs: dict[str, list[Run]]

    def ratio(self, of: Callable[[Run], float], rival: str, beside: str = COPY) -> float | None:
        """Return the median over rounds of what is told of a rival over the same of another; None if it had no part."""
        if rival not in self.runs:
            return None
        pairs = zip(self.runs[rival], self.runs[beside], strict=False)  # PyTorch's runs once.
        return statistics.median(of(run) / of(other) for run, other in pairs)


def _speed(run: Run) -> float:
    return run.written_bytes / run.wall_s


def changes(
    folder: Path, gb: float, repeats: int, torch_python: str | None, states: Collection[str]
) -> Iterator[Measured]:
    """Yield each change in each state of the page cache; PyTorch has a part in the first change."""
    for number, (title, make, after) in enumerate(CHANGES):
        here = folder / str(number)
        here.mkdir()
        tensors = make(gb)
        made(here / "source", tensors, StoredParallelism(tp=2))
        rivals = plain_rivals(here, after)
        if number == 0 and torch_python is not None:
            rivals |= torch_rivals(here, tensors, after, torch_python)
        for state in (state for state in (warm, cold) if state.__name__ in states):
            yield _measured(f"{title}, {gb:g} GB", state, rivals, repeats)
        shutil.rmtree(here)


def summary(measured: Sequence[Measured]) -> Table:
    """Return how fast each change is beside ``cp``, and beside the others."""
    rows = []
    for found in measured:
        more = [100 * (ratio - 1) for of in (WALL, CPU) if (ratio := found.ratio(of, VERIFY, PLAIN))]
        cells = [found.ratio(_speed, PLAIN), found.ratio(_speed, TORCH_FORM), found.ratio(WALL, TORCH, PLAIN), *more]
        rows.append((found.title, found.state, *cells))
    speeds = ("speed / cp", "torch format: speed / cp", "PyTorch: time / ours")
    columns = ("", "sources", *speeds, "--verify, % more", "of CPU, % more")
    note = "To reach: 0.95, 0.8, 3, 30 %. Speed is bytes written a second, whole processes."
    return Table(title="(b) all changes", columns=columns, rows=rows, notes=[note])


def plain_rivals(here: Path, after: str) -> Rivals:
    source, target = here / "source", here / "target"
    return {
        COPY: (source, lambda: copied(source, target)),
        PLAIN: (source, lambda: resharded(source, target, after)),
        VERIFY: (source, lambda: resharded(source, target, after, "--verify")),
    }


def torch_rivals(here: Path, tensors: Sequence[Tensor], after: str, torch_python: str) -> Rivals:
    """Return what needs PyTorch; its own checkpoint is made of the same tensors."""
    source, own, target, to = here / "source", here / "torch", here / "target", parse_parallelism(after)
    through_torch(torch_python, here / "none", own, StoredParallelism(tp=2), tensors, keep=True)
    return {
        TORCH_FORM: (source, lambda: resharded(source, target, after, "--format", "torch")),
        TORCH: (own, lambda: through_torch(torch_python, own, target, to, tensors)),
    }


def _measured(title: str, state: Callable[[Path], None], rivals: Rivals, repeats: int) -> Measured:
    runs: dict[str, list[Run]] = {name: [] for name in rivals}
    for repeat in range(repeats):
        for name, (read, run) in rivals.items():
            if repeat and name == TORCH:
                continue  # So many times slower that one run tells.
            os.sync()
            state(read)
            load = os.getloadavg()[0]
            runs[name].append(run())
            say(f"{title}, {state.__name__} {repeat + 1}, load {load:.1f}: {name}: {runs[name][-1]}")
    return Measured(title, state.__name__, runs)
