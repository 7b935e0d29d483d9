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
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from benchmark_tables import Table, say

from ddlsched.checkpoints.arrays import numpy_dtype, write_rank
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import TensorCollection
from ddlsched.checkpoints.parallelism import StoredParallelism, parse_parallelism
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, Tensor

__all__ = ["Measured", "made", "process_tables", "strided_tensors", "summary", "transformer_tensors"]

PROGRAM = "from ddlsched.cli import main; main()"
COPY, PLAIN, VERIFY = "cp --reflink=never, sync", "reshard", "reshard --verify"
TORCH_FORM, TORCH = "reshard --format torch", "PyTorch distributed checkpoint"
COLUMNS = ("", "GB written", "time, s", "CPU, s", "anonymous MB", "time: this / cp", "GB/s: this / cp")


class Run(NamedTuple):
    """What a rival took; the CPU seconds are those of its processes and of what they wait for."""

    wall_s: float
    cpu_s: float
    written_bytes: int
    anonymous_bytes: int


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
    for file in files_of(folder):
        with file.open("rb") as opened:
            while opened.read(1 << 24):
                pass


def cold(folder: Path) -> None:
    for file in files_of(folder):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


Rivals: TypeAlias = dict[str, tuple[Path, Callable[[], Run]]]
"""By name, what is read, and what runs."""


class Memory:
    """The most anonymous memory that a process has, looked at every 10 ms."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.most_bytes = 0
        self._process = process
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while self._process.poll() is None:
            try:
                text = Path(f"/proc/{self._process.pid}/status").read_text()
            except OSError:
                return
            found = [line.split()[1] for line in text.splitlines() if line.startswith("RssAnon")]
            self.most_bytes = max(self.most_bytes, *(int(kilobytes) * 1024 for kilobytes in found), 0)
            time.sleep(0.01)

    def end(self) -> int:
        self._thread.join()
        return self.most_bytes


def ran(commands: Sequence[Callable[[], Sequence[str]]], target: Path, given: str = "", *, keep: bool = False) -> Run:
    """Run commands one after the other, which make the target; it is removed unless it is to be kept."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    anonymous_bytes = 0
    for command in commands:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command(), env=environment, **pipes) as process:
            memory = Memory(process)
            _, errors = process.communicate(given)
            anonymous_bytes = max(anonymous_bytes, memory.end())
        if process.returncode:
            raise SystemExit(errors)
    wall_s, after = time.perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    written_bytes = sum(file.stat().st_size for file in files_of(target))
    if not keep:
        shutil.rmtree(target)
    return Run(wall_s, cpu_s, written_bytes, anonymous_bytes)


def copied(source: Path, target: Path) -> Run:
    copy = ["cp", "-r", "--reflink=never", str(source), str(target)]
    return ran([lambda: copy, lambda: ["sync", *map(str, sorted(target.iterdir()))]], target)


def resharded(source: Path, target: Path, to: str, *flags: str) -> Run:
    command = [sys.executable, "-c", PROGRAM, "reshard", str(source), str(target), "--to", to, *flags]
    return ran([lambda: command], target)


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


CHANGES = (
    ("GPT, tp=2 -> tp=4", transformer_tensors, "tp=4"),
    ("GPT, tp=2 -> tp=3", transformer_tensors, "tp=3"),
    ("all cut by columns, tp=2 -> tp=4", strided_tensors, "tp=4"),
    ("all cut by columns, tp=2 -> tp=3", strided_tensors, "tp=3"),
)


LARGE_GB = 2
"""From here on only the first change and the last are run, which takes a few minutes less."""


class Measured(NamedTuple):
    """A change in one state of the page cache: the runs of each rival, in the order of rounds."""

    title: str
    state: str
    runs: dict[str, list[Run]]

    def speed(self, rival: str) -> float | None:
        """Return the median over rounds of how fast a rival writes beside cp; None if it had no part."""
        if rival not in self.runs:
            return None
        pairs = zip(self.runs[rival], self.runs[COPY], strict=False)  # PyTorch's runs once.
        rates = [run.written_bytes / run.wall_s * cp.wall_s / cp.written_bytes for run, cp in pairs]
        return statistics.median(rates)

    def time(self, rival: str, beside: str) -> float | None:
        """Return the median over rounds of the time of a rival beside another's."""
        return self._median(lambda run, other: run.wall_s / other.wall_s, rival, beside)

    def cpu(self, rival: str, beside: str) -> float | None:
        """Return the same of their CPU seconds, which other programs disturb less."""
        return self._median(lambda run, other: run.cpu_s / other.cpu_s, rival, beside)

    def _median(self, ratio: Callable[[Run, Run], float], rival: str, beside: str) -> float | None:
        if rival not in self.runs:
            return None
        pairs = zip(self.runs[rival], self.runs[beside], strict=False)
        return statistics.median(ratio(run, other) for run, other in pairs)


def process_tables(
    folder: Path, gb: float, repeats: int, torch_python: str | None, states: Collection[str]
) -> Iterator[tuple[Table, Measured]]:
    """Yield a table for each change and each state of the page cache; PyTorch has a part in the first change."""
    for number, (title, make, after) in enumerate(CHANGES):
        if gb >= LARGE_GB and 0 < number < len(CHANGES) - 1:
            continue
        here = folder / str(number)
        here.mkdir()
        tensors = make(gb)
        made(here / "source", tensors, StoredParallelism(tp=2))
        rivals = plain_rivals(here, after)
        if number == 0 and torch_python is not None:
            rivals |= torch_rivals(here, tensors, after, torch_python)
        for state in (state for state in (warm, cold) if state.__name__ in states):
            yield _table(f"{title}, {gb:g} GB", state, rivals, repeats)
        shutil.rmtree(here)


def summary(measured: Sequence[Measured]) -> Table:
    """Return what is to be reached beside what was, a row for each change."""
    rows = []
    for found in measured:
        more = [100 * (times - 1) for times in (found.time(VERIFY, PLAIN), found.cpu(VERIFY, PLAIN)) if times]
        cells = [found.speed(PLAIN), found.speed(TORCH_FORM), found.time(TORCH, PLAIN), *more]
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


def _table(title: str, state: Callable[[Path], None], rivals: Rivals, repeats: int) -> tuple[Table, Measured]:
    runs: dict[str, list[Run]] = {name: [] for name in rivals}
    loads = []
    for repeat in range(repeats):
        for name, (read, run) in rivals.items():
            if repeat and name == TORCH:
                continue  # So many times slower that one run tells.
            say(f"{title}, {state.__name__} {repeat + 1}: {name}")
            os.sync()
            state(read)
            loads.append(os.getloadavg()[0])
            runs[name].append(run())
    measured = Measured(title, state.__name__, runs)
    rows = [(name, *_row(own, measured, name)) for name, own in runs.items()]
    notes = [f"Load averages of the machine before the runs: {min(loads):.1f} to {max(loads):.1f}."]
    table = Table(
        title=f"(b) {title}, {state.__name__} sources: medians of {repeats}", columns=COLUMNS, rows=rows, notes=notes
    )
    return table, measured


def _row(own: list[Run], measured: Measured, name: str) -> tuple[float, ...]:
    median = [statistics.median(values) for values in zip(*own, strict=True)]
    written, anonymous = median[2] / 1e9, median[3] / 1e6
    return (written, median[0], median[1], anonymous, measured.time(name, COPY) or 0, measured.speed(name) or 0)
