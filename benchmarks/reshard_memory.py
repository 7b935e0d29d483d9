"""Peak anonymous memory of ``ddlsched reshard`` in each format, beyond that of its imports.

    python benchmarks/reshard_memory.py --gb 10

Makes a checkpoint of that size in a temporary folder (``--folder``), takes it to tp=4 in every format, each in a
process of its own, and prints the peak of ``RssAnon``, which does not count files that are mapped, sampled each 2 ms.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import TensorCollection
from ddlsched.checkpoints.file_forms import RANK_FILES
from ddlsched.checkpoints.parallelism import StoredParallelism
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors

_MEASURED = """
import sys, threading, time
from pathlib import Path
from ddlsched.checkpoints.formats import foreign_reading, form_of, reading_for
from ddlsched.checkpoints.format_names import Format
from ddlsched.checkpoints.parallelism import parse_parallelism
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
import pydantic

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024

source, destination, form, to, verify = sys.argv[1:]
peak, begin, running = [0], anonymous(), [True]

def watch():
    while running[0]:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
reading = reading_for(Format(form), foreign_reading(source) or Reading.at(source))
reshard(reading, destination, to=parse_parallelism(to), form=form_of(Format(form)), verify=verify == "True")
running[0] = False
watcher.join()
print(peak[0] - begin)
"""


def peak_bytes(source: Path, destination: Path, form: str, to: str, *, verify: bool) -> int:
    """Return the peak of anonymous memory of a change in a process of its own, beyond that of its imports."""
    command = [sys.executable, "-c", _MEASURED, str(source), str(destination), form, to, str(verify)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def written(folder: Path, gb: float) -> Path:
    """Write a checkpoint (tp=2, float32 with Adam's moments) of about this size: a random block over and over."""
    hidden, vocabulary = (2048, 128_256) if gb > 4 else (512, 32_000)
    each, rest = 12 * 12 * hidden**2, 12 * vocabulary * hidden
    model = StoredTransformer(
        num_layers=max(round((gb * 1e9 - rest) / each), 1), hidden=hidden, heads=16, vocabulary=vocabulary
    )
    tensors = job_tensors(model, dtype="F32", optimiser=Optimiser(master=False))
    checkpoint = Checkpoint(
        collection=TensorCollection(tensors=tensors, parallelism=StoredParallelism(tp=2)), iteration=1
    )
    folder.mkdir()
    block = np.random.default_rng(0).bytes(1 << 24)
    for rank, file in enumerate(checkpoint.files):
        plan = RANK_FILES.file_plan(checkpoint, rank)
        with (folder / file).open("wb") as stream:
            stream.write(plan.pieces[0])
            for begin in range(len(plan.pieces[0]), plan.num_bytes, len(block)):
                stream.write(block[: plan.num_bytes - begin])
    checkpoint.write_description(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=10, help="size of the checkpoint")
    parser.add_argument("--folder", help="where temporary files go; some 3 times the size must be free")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
        source = written(Path(place) / "source", arguments.gb)
        size = sum(file.stat().st_size for file in source.iterdir())
        print(f"a checkpoint of {size / 1e9:.2f} GB, tp=2 to tp=4, peak anonymous memory beyond the imports")
        torch_source = Path(place) / "torch"
        for name, origin, form in _RUNS:
            target = torch_source if name == _RUNS[0][0] else Path(place) / "new"
            begin_s = time.perf_counter()
            peak = peak_bytes(torch_source if origin == "torch" else source, target, form, "tp=4", verify=True)
            print(f"  {name:32} {peak / 1e6:8.1f} MB  ({time.perf_counter() - begin_s:.0f} s, verified)", flush=True)
            if target != torch_source:
                shutil.rmtree(target)


_RUNS = (
    ("safetensors to torch", "safetensors", "torch"),
    ("torch to safetensors", "torch", "safetensors"),
    ("torch to torch", "torch", "torch"),
    ("safetensors to safetensors", "safetensors", "safetensors"),
    ("safetensors to huggingface", "safetensors", "huggingface"),
    ("safetensors to megatron", "safetensors", "megatron"),
)


if __name__ == "__main__":
    main()
