"""A checkpoint as a PyTorch distributed checkpoint: chunk by chunk, through PyTorch's own writer. Needs torch."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.reconfiguration.arrays import Array, numpy_dtype
from ddlsched.reconfiguration.checkpoint import Checkpoint
from ddlsched.reconfiguration.collection import TensorCollection
from ddlsched.reconfiguration.content import content_hashes, refuse_diverged, refuse_other_content
from ddlsched.reconfiguration.distributed_files import DTYPES
from ddlsched.reconfiguration.distributed_reading import OWN_DESCRIPTION, read_distributed
from ddlsched.reconfiguration.division import Box, divided, within
from ddlsched.reconfiguration.files_in_parts import refuse_full_disk
from ddlsched.reconfiguration.parallelism import Parallelism
from ddlsched.reconfiguration.partial_folder import explained, new_folder
from ddlsched.reconfiguration.reading import Reading, Watch, no_watch
from ddlsched.reconfiguration.resharding import refuse_destination
from ddlsched.reconfiguration.shards import Layout, dense_layout
from ddlsched.reconfiguration.tensors import Tensor, total_bytes

try:
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint import metadata as meta
    from torch.distributed.checkpoint import planner as plans
    from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
except ImportError:
    raise InputError("PyTorch distributed checkpoints are written by PyTorch: pip install torch") from None

__all__ = ["write_distributed"]

_MOST_THREADS = 8
_TORCH = {dtype: getattr(torch, name) for name, dtype in DTYPES.items() if hasattr(torch, name)}


def write_distributed(
    source: Path | str | Reading,
    destination: Path,
    *,
    to: Parallelism | None = None,
    verify: bool = False,
    watch: Watch = no_watch,
) -> int:
    """Write a checkpoint as a PyTorch distributed checkpoint, which ``torch.distributed.checkpoint.load`` reads.

    Its keys are the tensors' names. Beside what PyTorch needs the directory holds ``ddlsched.json``, from which
    iteration, data set, random numbers and the way to divide tensors are known when it is the source of a change.

    Parameters
    ----------
    source
        A checkpoint's folder or URL, or a reading.
    destination
        New folder; it has its name only when all is on disk.
    to
        Chunks are cut as the ranks of this parallelism hold them, so that these read no more than they need; None: as
        in the source.
    verify
        Whether to read all back: each tensor's content hash must be the old one's.
    watch
        Told the bytes written and those in all.

    Returns
    -------
    int
        Bytes of the new files.

    Raises
    ------
    InputError
        Something cannot be used: the message names the file and the tensor.
    """
    reading = source if isinstance(source, Reading) else Reading.at(source)
    refuse_destination(destination, reading.place.name_of("").rstrip("/"))
    reading.refuse_faulty_files()
    old = reading.checkpoint
    new = dataclasses.replace(old, collection=old.collection.resized(to or old.collection.parallelism), files=())
    partial = destination.parent / f".{destination.name}.torch-partial"
    refuse_full_disk(destination.parent, total_bytes(old.collection.tensors))
    with new_folder(partial), explained(destination):
        _save(reading, new.collection, partial, watch)
        (partial / OWN_DESCRIPTION).write_text(new.text(), encoding="utf-8")
        if verify:
            _verified(reading, new, partial, watch)
        reading.refuse_changes()
        partial.rename(destination)
    return sum(file.stat().st_size for file in destination.iterdir())


def _save(reading: Reading, collection: TensorCollection, partial: Path, watch: Watch) -> None:
    threads = min(collection.num_ranks, _MOST_THREADS)
    writer = dcp.FileSystemWriter(partial, thread_count=threads, overwrite=False)
    try:
        # PyTorch warns that there are no other processes.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            dcp.save({}, storage_writer=writer, planner=_Planner(reading, collection, watch), no_dist=True)
    except dcp.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def _verified(reading: Reading, new: Checkpoint, partial: Path, watch: Watch) -> None:
    """Compare replicas and contents, and keep the hashes."""
    refuse_diverged(reading)
    expected = dict(reading.checkpoint.sha256)
    if set(expected) != set(new.collection.by_name):
        expected = content_hashes(reading, watch=watch) | expected
    refuse_other_content(read_distributed(partial), expected, watch=watch)
    text = dataclasses.replace(new, sha256=expected).text()
    (partial / OWN_DESCRIPTION).write_text(text, encoding="utf-8")


class _Planner(plans.SavePlanner):
    """Tells PyTorch's writer which chunks there are, and makes each when it is asked for."""

    def __init__(self, reading: Reading, collection: TensorCollection, watch: Watch) -> None:
        self.reading, self.collection, self.watch = reading, collection, watch
        self.done, self.total = 0, total_bytes(collection.tensors)
        self.lock = threading.Lock()

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Do nothing: all is known."""

    def create_local_plan(self) -> plans.SavePlan:
        """Return all chunks."""
        return plans.SavePlan([item for tensor in self.collection.tensors for item in self._items(tensor)])

    def _items(self, tensor: Tensor) -> Iterator[plans.WriteItem]:
        if tensor.dtype not in _TORCH:
            raise InputError(f"tensor {tensor.name}: this PyTorch knows no {tensor.dtype}; expected another dtype")
        properties = meta.TensorProperties(dtype=_TORCH[tensor.dtype])
        layouts = tuple(shard.layout for shard in self.collection.shards(tensor))
        for cell in divided(layouts, layouts):
            start, extent = torch.Size(cell.box.start), torch.Size(cell.box.extent)
            yield plans.WriteItem(
                index=meta.MetadataIndex(tensor.name, start),
                type=plans.WriteItemType.SHARD,
                tensor_data=plans.TensorWriteData(
                    chunk=meta.ChunkStorageMetadata(offsets=start, sizes=extent),
                    properties=properties,
                    size=torch.Size(tensor.shape),
                ),
            )

    def create_global_plan(self, all_plans: list[plans.SavePlan]) -> tuple[list[plans.SavePlan], meta.Metadata]:
        """Return the plans as they are, and the metadata."""
        new_plans, metadata = create_default_global_save_plan(all_plans)
        return new_plans, metadata

    def finish_plan(self, new_plan: plans.SavePlan) -> plans.SavePlan:
        """Return the plan as it is."""
        return new_plan

    def resolve_data(self, write_item: plans.WriteItem) -> torch.Tensor:
        """Return a chunk's elements, put together from the old files."""
        tensor, chunk = self.collection.by_name[write_item.index.fqn], write_item.tensor_data.chunk
        array = _box(self.reading, tensor, Box(tuple(chunk.offsets), tuple(chunk.sizes)))
        with self.lock:
            self.done += array.nbytes
            self.watch("writing", self.done, self.total)
        flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
        return flat.view(_TORCH[tensor.dtype]).reshape(array.shape)


def _box(reading: Reading, tensor: Tensor, box: Box) -> Array:
    """Return the elements of a box of a tensor."""
    parts = reading.replicas(tensor)
    # The box, laid out by itself, is a dense tensor of which every piece begins at the box's start.
    (piece,) = dense_layout(box.extent, (), ()).pieces
    wanted = Layout(box.extent, (piece._replace(start=box.start),))
    array = np.empty(box.extent, numpy_dtype(tensor.dtype))
    for cell in divided(tuple(part.layout for part in parts), (wanted,)):
        if not cell.old:
            raise InputError(f"tensor {tensor.name}: no replica of a part of it is left; expected one at least")
        held = cell.old[0]
        read = within(parts[held.shard].layout.pieces[held.piece], cell.box)
        ranges = zip(cell.box.start, cell.box.extent, box.start, strict=True)
        place = tuple(slice(first - begin, first - begin + rows) for first, rows, begin in ranges)
        array[place] = parts[held.shard].sources[0].view(read)
    return array
