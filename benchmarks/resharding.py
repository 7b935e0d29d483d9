"""Changing a checkpoint's parallelism: time to plan, and to copy, against cp and PyTorch's distributed checkpoint.

The parts are described in ``benchmarks/README.md``. Files go to ``--folder``, which needs three times ``--gb`` free.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from benchmark_tables import Table, say

from ddlsched.reconfiguration.arrays import numpy_dtype, write_rank
from ddlsched.reconfiguration.checkpoint import Checkpoint
from ddlsched.reconfiguration.collection import TensorCollection
from ddlsched.reconfiguration.content import content_hashes
from ddlsched.reconfiguration.flow_check import least_busiest_bytes
from ddlsched.reconfiguration.parallelism import Parallelism, parse_parallelism
from ddlsched.reconfiguration.plan import first_replica_plan, plan
from ddlsched.reconfiguration.reading import Reading
from ddlsched.reconfiguration.resharding import reshard
from ddlsched.reconfiguration.tensor_models import Optimiser, Transformer, job_tensors

GPT_6_7B = Transformer(num_layers=32, hidden=4096, heads=32, vocabulary=50257, positions=2048)
CHANGES = [
    ("tp=8,pp=2,dp=4", "tp=8,pp=4,dp=4"),
    ("tp=8,pp=2,dp=4", "tp=8,pp=2,dp=8"),
    ("tp=4,pp=2,dp=8", "tp=8,pp=2,dp=8"),
]


def planning(repeats: int) -> Table:
    rows = []
    for sharding in ("none", "zero1", "fsdp"):
        tensors = job_tensors(GPT_6_7B, optimiser=Optimiser(sharding=sharding))
        for before, after in CHANGES:
            say(f"planning {sharding} {before} -> {after}")
            times_s, cpu_s = [], []
            for _ in range(repeats):
                start = TensorCollection(tensors=tensors, parallelism=parse_parallelism(before))
                end = start.resized(parse_parallelism(after))
                begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
                found = plan(start, end)
                times_s.append(time.perf_counter() - begin_s)
                cpu_s.append(time.process_time() - begin_cpu_s)
            sent: Counter[int] = Counter()
            for (source, _), size in found.bytes_between_hosts.items():
                sent[source] += size
            rows.append(
                (
                    f"{sharding}: {before} -> {after}",
                    statistics.median(times_s),
                    statistics.median(cpu_s),
                    sum(len(tensor.moves) for tensor in found.tensors),
                    found.bytes_by_way["network"] / 1e9,
                    sum(found.lower_bound_bytes.values()) / 1e9,
                    first_replica_plan(start, end).bytes_by_way["network"] / 1e9,
                    max(sent.values()) / least_busiest_bytes(found)[0],
                )
            )
    columns = (
        "optimiser, change",
        "plan, s",
        "CPU, s",
        "moves",
        "network GB",
        "least GB",
        "replica 0 GB",
        "busiest host / best flow",
    )
    note = "To reach: at most 2 s. Replica 0: each rank reads all it needs from data-parallel replica 0."
    return Table(
        title="(a) 6.7B parameters, 64 -> 128 GPUs, all of Adam's state", columns=columns, rows=rows, notes=[note]
    )


def made(folder: Path, gb: float, parallelism: Parallelism) -> TensorCollection:
    """Write a GPT of about ``gb`` GB with Adam's state, of random bits."""
    hidden = round((gb * 1e9 / 14 / 12 / 8) ** 0.5 / 128) * 128
    model = Transformer(
        num_layers=8,
        hidden=hidden,
        heads=16,
        vocabulary=8192,
        positions=1024,
        pad_vocabulary=0,
        tied=parallelism.pp == 1,
    )
    collection = TensorCollection(tensors=job_tensors(model, optimiser=Optimiser()), parallelism=parallelism)
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


def warm(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                while opened.read(1 << 24):
                    pass


def cold(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def copied(source: Path, target: Path) -> float:
    """Copy with cp, wait until the copy's own files are on disk; returns the seconds."""
    begin_s = time.perf_counter()
    subprocess.run(["cp", "-r", "--reflink=never", source, target], check=True)
    subprocess.run(["sync", *sorted(target.iterdir())], check=True)
    return time.perf_counter() - begin_s


def resharded(source: Path, target: Path, to: Parallelism) -> float:
    begin_s = time.perf_counter()
    reshard(source, target, to=to)
    return time.perf_counter() - begin_s


def through_torch(
    source: Path, target: Path, before: Parallelism, to: Parallelism, collection: TensorCollection
) -> float:
    """Load under another parallelism and save, with PyTorch's distributed checkpoint, a process a rank."""
    tensors = [
        {"name": t.name, "shape": t.shape, "dtype": t.dtype, "dim": t.cuts[0].dim if t.cuts else -1}
        for t in collection.tensors
    ]
    task = {
        "source": str(source),
        "target": str(target),
        "before": before.num_ranks,
        "after": to.num_ranks,
        "tensors": tensors,
    }
    program = Path(__file__).with_name("resharding_torch.py")
    done = subprocess.run(
        [sys.executable, program], input=json.dumps(task), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def copying(folder: Path, gb: float, before: Parallelism, to: Parallelism, repeats: int) -> list[Table]:
    source, target = folder / "source", folder / "target"
    collection = made(source, gb, before)
    rivals: dict[str, tuple[Path, Callable[[], float]]] = {
        "cp --reflink=never, sync": (source, lambda: copied(source, target)),
        "reshard": (source, lambda: resharded(source, target, to)),
    }
    if find_spec("torch") and before.num_ranks == before.tp and to.num_ranks == to.tp:
        own = folder / "torch"
        through_torch(source, own, before, before, collection)  # makes its own files of the same tensors
        rivals["PyTorch distributed checkpoint"] = (own, lambda: through_torch(own, target, before, to, collection))
    tables = []
    for state in (warm, cold):
        times_s: dict[str, list[float]] = {name: [] for name in rivals}
        sizes: dict[str, int] = {}
        for repeat in range(repeats):
            for name, (read, run) in rivals.items():
                say(f"{state.__name__} {repeat + 1}: {name}")
                os.sync()
                state(read)
                times_s[name].append(run())
                sizes[name] = folder_bytes(target)
                shutil.rmtree(target)
        tables.append(compared(f"(b) {before} -> {to}, {state.__name__} sources: medians of {repeats}", times_s, sizes))
    begin_s = time.perf_counter()
    content_hashes(Reading.at(source))
    hash_s = time.perf_counter() - begin_s
    size = sum(tensor.num_bytes for tensor in collection.tensors)
    rows = [("SHA-256 of all tensors", size / 1e9, hash_s, size / hash_s / 1e9)]
    columns = ("what --verify adds", "GB", "time, s", "GB/s")
    return [*tables, Table(title="(c) content hashes, warm", columns=columns, rows=rows)]


def compared(title: str, times_s: dict[str, list[float]], sizes: dict[str, int]) -> Table:
    own_s = np.array(times_s["reshard"])
    rows = []
    for name, taken in times_s.items():
        # Ratios within a round, since the speed of a shared disk changes from round to round.
        rate = statistics.median(np.array(taken) / own_s * sizes["reshard"] / sizes[name])
        median_s = statistics.median(taken)
        rows.append(
            (name, sizes[name] / 1e9, median_s, sizes[name] / median_s / 1e9, statistics.median(taken / own_s), rate)
        )
    columns = ("", "GB written", "time, s", "GB/s", "time: this / reshard", "GB/s: reshard / this")
    note = "To reach: at least 0.8 of cp's GB/s; a third of the distributed checkpoint's time."
    return Table(title=title, columns=columns, rows=rows, notes=[note])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["a", "b"], help="one part")
    parser.add_argument("--gb", type=float, default=2.5)
    parser.add_argument("--before", type=parse_parallelism, default=Parallelism(tp=2))
    parser.add_argument("--to", type=parse_parallelism, default=Parallelism(tp=4))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; else a temporary folder")
    asked = parser.parse_args()
    if asked.only != "b":
        print(planning(asked.repeats), "\n")
    if asked.only != "a":
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            for table in copying(Path(folder), asked.gb, asked.before, asked.to, asked.repeats):
                print(table, "\n")


if __name__ == "__main__":
    main()
