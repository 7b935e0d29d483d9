"""Changing a checkpoint's parallelism: time to plan, and to copy, against cp and PyTorch's distributed checkpoint.

The parts are described in ``benchmarks/README.md``. Files go to ``--folder``, which needs three times ``--gb`` free.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from benchmark_tables import Table, say
from best_flow import least_busiest_bytes
from resharding_processes import Measured, process_tables, summary

from ddlsched.checkpoints.collection import TensorCollection
from ddlsched.checkpoints.parallelism import parse_parallelism
from ddlsched.checkpoints.plan import plan
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors

GPT_6_7B = StoredTransformer(num_layers=32, hidden=4096, heads=32, vocabulary=50257, positions=2048)
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
        "busiest host / best flow",
    )
    note = "To reach: at most 2 s."
    return Table(
        title="(a) 6.7B parameters, 64 -> 128 GPUs, all of Adam's state", columns=columns, rows=rows, notes=[note]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["a", "b"], help="one part")
    parser.add_argument("--gb", type=float, action="append", help="of a checkpoint; may be given more than once")
    parser.add_argument("--state", choices=["warm", "cold"], help="of the sources in (b); else both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; else a temporary folder")
    parser.add_argument("--torch-python", help="a Python with PyTorch; else this one, if it has it")
    asked = parser.parse_args()
    torch_python = asked.torch_python or (sys.executable if find_spec("torch") else None)
    if asked.only in (None, "a"):
        print(planning(asked.repeats), "\n")
    states = [asked.state] if asked.state else ["warm", "cold"]
    measured: list[Measured] = []
    for gb in asked.gb or [1.2, 4.0]:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            if asked.only in (None, "b"):
                for table, found in process_tables(Path(folder), gb, asked.repeats, torch_python, states):
                    print(table, "\n", flush=True)
                    measured.append(found)
    if measured:
        print(summary(measured), "\n")


if __name__ == "__main__":
    main()
