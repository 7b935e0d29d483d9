"""Changing a checkpoint's parallelism: time to plan (a), and to copy, against cp and PyTorch (b); memory by format (c).

Files go to ``--folder``, which needs three times ``--gb`` free.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmark_tables import Table, say, timed
from resharding_processes import changes, memory, summary

from ddlsched.checkpoints.collection import TensorCollection, parse_parallelism
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
            taken_s: list[list[float]] = []
            for _ in range(repeats):
                start = TensorCollection(tensors=tensors, parallelism=parse_parallelism(before))
                end = start.resized(parse_parallelism(after))
                found, *took_s = timed(partial(plan, start, end))
                taken_s.append(took_s)
            rows.append(
                (
                    f"{sharding}: {before} -> {after}",
                    *map(statistics.median, zip(*taken_s, strict=True)),
                    sum(len(tensor.moves) for tensor in found.tensors),
                    found.bytes_by_way["network"] / 1e9,
                    sum(found.lower_bound_bytes.values()) / 1e9,
                )
            )
    columns = ("optimiser, change", "plan, s", "CPU, s", "moves", "network GB", "least GB")
    title = "(a) 6.7B parameters, 64 -> 128 GPUs, all of Adam's state"
    return Table(title=title, columns=columns, rows=rows, notes=["To reach: at most 2 s."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["a", "b", "c"], help="one part")
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
    measured = []
    for gb in asked.gb or [1.2, 4.0]:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            if asked.only in (None, "b"):
                measured += changes(Path(folder), gb, asked.repeats, torch_python, states)
            if asked.only in (None, "c"):
                print(memory(Path(folder), gb), "\n", flush=True)
    if measured:
        print(summary(measured), "\n")


if __name__ == "__main__":
    main()
