"""Who writes and who reads: checkpoints of four programs through two changes of parallelism, read by each program.

    python tests/torch_training/interoperability.py

Each program's checkpoint is taken to this package's format (tp=2, pp=2), from there to that of each program (tp=3), and
read there by that program's own library: PyTorch (``dcp.load`` into sharded tensors on 2 ranks), safetensors, and
Megatron-core (``load_plain_tensors``). Printed is how many tensors have the very bytes that the library of the program
that wrote them reads from the original. Needs torch, safetensors, and megatron-core for its row and column.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import on_ranks

from ddlsched.checkpoints.arrays import whole_tensor
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.formats import Format, foreign_reading, form_of, reading_for
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.making import make_checkpoint
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer
from ddlsched.checkpoints.tensors import Tensor
from ddlsched.checkpoints.translation import megatron_name

Arrays = Mapping[str, np.ndarray]


class Program(NamedTuple):
    """One that writes and reads checkpoints."""

    title: str
    form: Format
    write: Callable[[Path], None]
    read: Callable[[Path], Arrays]


def write_ours(folder: Path) -> None:
    """Write a small GPT with Adam's state."""
    model = StoredTransformer(num_layers=3, hidden=24, heads=6, vocabulary=37, positions=8)
    make_checkpoint(
        folder, model, StoredParallelism(tp=2), optimiser=Optimiser(sharding="zero1"), dtype="F32", iteration=4
    )


def read_ours(folder: Path) -> Arrays:
    """Return whole tensors."""
    known, place = Checkpoint.read(folder), location_of(folder)
    tensors = (tensor for tensor in known.collection.tensors if tensor.kind == "values")
    return {tensor.name: whole_tensor(known, place, tensor.name) for tensor in tensors}


def write_fsdp2(folder: Path) -> None:
    """Train on 4 ranks with tensor parallelism and FSDP2, and save."""
    import pytorch_jobs

    on_ranks(4, pytorch_jobs.save, pytorch_jobs.Task("tp x fsdp2", str(folder), flat=True))


def read_fsdp2(folder: Path) -> Arrays:
    """Load into tensors that two ranks share as FSDP2 does."""
    return on_ranks(2, loaded_by_pytorch, str(folder))[0]


def loaded_by_pytorch(_rank: int, folder: str) -> Arrays:
    """Return the whole tensors, without ``allow_partial_load``; objects must be there too."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    state: dict[str, Any] = {}
    for name, item in dcp.FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        if not isinstance(item, TensorStorageMetadata):
            state[name] = None
            continue
        whole = torch.zeros(item.size, dtype=item.properties.dtype)
        state[name] = distribute_tensor(whole, mesh, [Shard(0)]) if whole.dim() else whole
    dcp.load(state, checkpoint_id=folder)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    wholes = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}
    return {name: value.numpy() for name, value in wholes.items()}


def write_hugging_face(folder: Path) -> None:
    """Save a small Llama as two files with an index."""
    import pytorch_jobs
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(3)
    folder.mkdir()
    tensors = dict(pytorch_jobs.Model().state_dict())
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    where = {name: files[number % 2] for number, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in where if where[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def read_hugging_face(folder: Path) -> Arrays:
    """Load all files with the safetensors library."""
    from safetensors.numpy import load_file

    return {name: array for file in sorted(folder.glob("*.safetensors")) for name, array in load_file(file).items()}


def write_megatron(folder: Path) -> None:
    """Save a model on 4 ranks (tp=2, pp=2), layers stacked."""
    import megatron_jobs

    on_ranks(4, megatron_jobs.save, megatron_jobs.Task(2, 2, str(folder), stacked=True))


def read_megatron(folder: Path) -> Arrays:
    """Load as Megatron-core does."""
    return on_ranks(1, loaded_by_megatron, str(folder))[0]


def loaded_by_megatron(_rank: int, folder: str) -> Arrays:
    """Return the whole tensors."""
    import megatron_jobs
    import torch

    megatron_jobs.parallel_state.initialize_model_parallel(1, 1)
    found = megatron_jobs.dist_checkpointing.load_plain_tensors(folder)
    return {name: value.numpy() for name, value in found.items() if isinstance(value, torch.Tensor)}


PROGRAMS = (
    Program("ddlsched", Format.safetensors, write_ours, read_ours),
    Program("PyTorch (TP x FSDP2)", Format.torch, write_fsdp2, read_fsdp2),
    Program("Hugging Face", Format.huggingface, write_hugging_face, read_hugging_face),
    Program("Megatron-core", Format.megatron, write_megatron, read_megatron),
)


def changed(source: Path, destination: Path, form: Format, to: StoredParallelism) -> None:
    """Take a checkpoint to another parallelism and format."""
    reading = reading_for(form, foreign_reading(source) or Reading.at(source))
    reshard(reading, destination, to=to, form=form_of(form), verify=True)


def compared(original: Arrays, found: Arrays, reader: Program) -> str:
    """Return how many tensors that a program reads have the bytes of the original's."""
    expected = _by_layer(original)
    rooted = {name.removeprefix("model."): array for name, array in expected.items()}
    rooted |= {megatron_name(Tensor(name=name, shape=(), dtype="F32")): array for name, array in expected.items()}
    got = _by_layer(found)
    equal = sum(any(_same(array, known.get(name)) for known in (expected, rooted)) for name, array in got.items())
    return f"{equal} of {len(got)} equal" + (" weights" if reader.form is Format.huggingface else "")


def _same(one: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())


def _by_layer(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the arrays with those of Megatron-core's layers apart."""
    found = {}
    for name, array in arrays.items():
        before, dot, after = name.partition("decoder.layers.")
        if dot and not after[0].isdigit():
            found |= {f"{before}{dot}{layer}.{after}": part for layer, part in enumerate(array)}
        else:
            found[name] = array
    return found


def main() -> None:
    programs = [program for program in PROGRAMS if program.form is not Format.megatron or find_spec("megatron")]
    print("| written by, read by | " + " | ".join(program.title for program in programs) + " |")
    print("|---" * (len(programs) + 1) + "|")
    for writer in programs:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            writer.write(folder / "original")
            original = writer.read(folder / "original")
            changed(folder / "original", folder / "ours", Format.safetensors, StoredParallelism(tp=2, pp=2))
            cells = []
            for number, reader in enumerate(programs):
                changed(folder / "ours", folder / str(number), reader.form, StoredParallelism(tp=3))
                cells.append(compared(original, reader.read(folder / str(number)), reader))
        print(f"| {writer.title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
