"""Writes the checkpoint of a GPT in the middle of its training, of any size and parallelism, to try things on.

Weights are drawn as GPT-2 initialises them, then disturbed, and moments are of the order that training gives them,
all by tensor name and seed: hardly two elements are alike, so whatever lands in the wrong place shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.checkpoints.arrays import Array, part_of
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import DIGESTS
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.file_forms import FilePlan, safetensors_plan
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Tensor, total_bytes
from ddlsched.errors import InputError
from ddlsched.io.files import writable

Watcher = Callable[[int, int], None]
"""Told the bytes of whole tensors done and in all."""

DATASET = DatasetState(num_samples=1_000_000, global_batch=64)
"""That of a checkpoint that is made without one."""


def make_checkpoint(
    directory: Path,
    model: StoredTransformer,
    parallelism: StoredParallelism,
    *,
    dtype: str = "BF16",
    optimiser: Optimiser | None = None,
    dataset: DatasetState = DATASET,
    iteration: int = 100,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Checkpoint:
    """Write a checkpoint of random, seeded contents, which are the same under every parallelism.

    Memory holds one whole tensor at a time.

    Parameters
    ----------
    directory
        A new or empty folder.
    model, parallelism
        What is trained, and how it is divided.
    dtype
        Of the weights: BF16, F16 or F32. The optimiser's state is fp32.
    optimiser
        Adam by default, with master weights unless the weights are fp32, on every replica.
    dataset
        The data set; its progress is set to ``iteration`` steps.
    iteration
        Steps trained.
    seed
        Of the contents, and of the run's random numbers.

    Raises
    ------
    InputError
        The folder has contents or cannot be written, the disk has too little space, or the model does not divide.
    """
    if dtype not in ("BF16", "F16", "F32"):
        raise InputError(f"dtype is {dtype!r}; expected BF16, F16 or F32")
    tensors = job_tensors(model, dtype=dtype, optimiser=Optimiser() if optimiser is None else optimiser)
    consumed = dataclasses.replace(dataset, consumed_samples=iteration * dataset.global_batch)
    checkpoint = Checkpoint(
        collection=TensorCollection(tensors=tensors, parallelism=parallelism),
        iteration=iteration,
        model=dataclasses.asdict(model),
        dataset=consumed.as_json(),
        random={"seed": seed},
    )
    plans = [safetensors_plan(checkpoint, rank, {}) for rank in range(checkpoint.collection.num_ranks)]
    _refuse_directory(directory, sum(plan.num_bytes for plan in plans))
    with writable(directory, "a writable folder"), _opened(directory, checkpoint, plans) as files:
        hashes = _write(checkpoint, files, seed, watch)
    checkpoint = dataclasses.replace(checkpoint, sha256=hashes["sha256"], xxh3=hashes["xxh3"])
    checkpoint.write_description(directory)
    return checkpoint


def _refuse_directory(directory: Path, num_bytes: int) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InputError(f"{directory}: is not empty; expected a new folder for the checkpoint")
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise InputError(f"{directory}: cannot be made ({error.strerror}); expected a folder that can") from None
    if num_bytes > free:
        raise InputError(f"{directory}: takes {num_bytes:,} bytes, {free:,} are free; expected space for it")


@contextlib.contextmanager
def _opened(directory: Path, checkpoint: Checkpoint, plans: list[FilePlan]) -> Iterator[list[BufferedWriter]]:
    """Open each rank's file, its header written; synchronise all at the end."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((directory / name).open("wb")) for name in checkpoint.files]
        for file, plan in zip(files, plans, strict=True):
            file.write(plan.pieces[0])
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())


def _write(
    checkpoint: Checkpoint, files: list[BufferedWriter], seed: int, watch: Watcher | None
) -> dict[str, dict[str, str]]:
    """Write each tensor's parts, in the order of their files, and return the hashes of the wholes, by digest."""
    hashes: dict[str, dict[str, str]] = {digest: {} for digest in DIGESTS}
    done = 0
    total = total_bytes(checkpoint.collection.tensors)
    for tensor in checkpoint.collection.tensors:
        whole = made_tensor(tensor, seed, checkpoint.iteration)
        for digest, begun in DIGESTS.items():
            hashes[digest][tensor.name] = begun(_bytes(whole)).hexdigest()
        for layout, ranks in checkpoint.collection.shards(tensor):
            part = part_of(whole, layout)
            for rank in ranks:
                files[rank].write(_bytes(part))
        done += tensor.num_bytes
        if watch is not None:
            watch(done, total)
    return hashes


def _bytes(array: Array) -> memoryview:
    return array.ravel().view(np.uint8).data


def made_tensor(tensor: Tensor, seed: int, iteration: int) -> Array:
    """Return a tensor's contents, of the type that :func:`~ddlsched.checkpoints.tensors.numpy_dtype` tells."""
    if tensor.name == "optimiser.step":
        return np.array(iteration, dtype="<i8")
    kind, name = _kind(tensor.name)
    generator = np.random.default_rng([seed, *hashlib.sha256(f"{kind} {name}".encode()).digest()[:8]])
    drawn = generator.standard_normal(tensor.shape, dtype=np.float32)
    if kind == "exp_avg":
        return np.float32(1e-4) * drawn
    if kind == "exp_avg_sq":
        return np.float32(1e-7) * (drawn * drawn + np.float32(0.1))
    norm = "norm" in name and name.endswith(".weight")
    values = np.float32(0.02) * drawn + np.float32(1.0 if norm else 0.0)
    return _converted(values, tensor.dtype)


def _kind(name: str) -> tuple[str, str]:
    """Return what a tensor is of which weight; a master weight is drawn like the weight, which is rounded from it."""
    if not name.startswith("optimiser."):
        return "weight", name
    _, kind, weight = name.split(".", 2)
    return ("weight" if kind == "master" else kind), weight


def _converted(values: Any, dtype: str) -> Array:
    if dtype == "F16":
        return np.asarray(values.astype("<f2"))
    return bfloat16(values) if dtype == "BF16" else np.asarray(values)


def bfloat16(values: Any) -> Array:
    """Return the bits of float32 numbers rounded to bfloat16, halves to even, as uint16."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.asarray((rounded >> np.uint32(16)).astype("<u2"))
