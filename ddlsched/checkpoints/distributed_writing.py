"""Directories of ``torch.distributed.checkpoint``, laid out without PyTorch: what its plain ``load`` reads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import Shard, TensorCollection
from ddlsched.checkpoints.distributed_reading import METADATA, OWN_DESCRIPTION, read_distributed
from ddlsched.checkpoints.division import divided
from ddlsched.checkpoints.file_forms import FileForm, FilePlan, refuse_bad_file_name
from ddlsched.checkpoints.plain_pickles import Items, Name, New, PickledCall, pickled
from ddlsched.checkpoints.reading import PartsCollection, Reading
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Tensor, dense_layout
from ddlsched.checkpoints.torch_archives import TORCH_NAMES, archive_of

_META = "torch.distributed.checkpoint.metadata"


class TorchFiles(FileForm):
    """Chunks as the ranks of a job hold them, each once, in ``__RANK_N.distcp``; Python objects and files as they were.

    A rank that holds several boxes of a tensor has as many files.
    """

    def held(self, job: Checkpoint) -> Checkpoint:
        """Return each chunk with the file of a rank that holds it."""
        chunks = _Chunks(job.collection)
        for tensor in job.collection.tensors:
            chunks.add(tensor)
        hosts = job.collection.allocation.hosts
        collection = PartsCollection.of(job.collection, chunks.shards, [hosts[rank] for rank in chunks.owners])
        return dataclasses.replace(job, collection=collection, files=tuple(chunks.files))

    def file_plan(self, held: Checkpoint, rank: int) -> FilePlan:
        """Return a file of archives, or of bytes as they are."""
        entries: dict[str, Entry] = {}
        pieces: dict[int, bytes] = {}
        at = 0
        for name, layout in held.collection.arrays[rank].items():
            tensor = held.collection.by_name[name]
            before, behind = archive_of(tensor.dtype, layout.shape) if tensor.kind == "values" else (b"", b"")
            entries[name] = Entry(tensor.dtype, layout.shape, at + len(before))
            end = entries[name].begin + entries[name].num_bytes
            pieces |= {at: before, end: behind}
            at = end + len(behind)
        return FilePlan(entries, pieces)

    def descriptions(self, job: Checkpoint, held: Checkpoint) -> Mapping[str, bytes]:
        """Return the metadata and this package's description."""
        return {METADATA: _metadata(self, held), OWN_DESCRIPTION: job.text().encode()}

    def reading(self, job: Checkpoint, held: Checkpoint, folder: Path) -> Reading:
        """Return a reading of what is written, described first."""
        self.describe(job, held, folder)
        return read_distributed(folder)


TORCH_FILES = TorchFiles()
"""The form of PyTorch's distributed checkpoints."""


class _Chunks:
    """The chunks of a job's tensors, and the file of each: of those who hold it, the one with the least so far."""

    def __init__(self, job: TensorCollection) -> None:
        self.job = job
        self.shards: dict[str, tuple[Shard, ...]] = {}
        self.owners: list[int] = []
        self.files: list[str] = []
        self._numbers: dict[str, int] = {}
        self._bytes: Counter[int] = Counter()

    def add(self, tensor: Tensor) -> None:
        """Divide a tensor."""
        counts: Counter[int] = Counter()
        found = []
        for layout, holders in self._boxes(tensor):
            owner = min(holders, key=lambda rank: (self._bytes[rank], rank))
            self._bytes[owner] += layout.num_elements * DTYPE_BYTES[tensor.dtype]
            file = (
                refuse_bad_file_name(tensor, (OWN_DESCRIPTION,))
                if tensor.kind == "file"
                else f"__{owner}_{counts[owner]}.distcp"
            )
            found.append(Shard(layout, (self._number(file, owner),)))
            counts[owner] += 1
        self.shards[tensor.name] = tuple(found)

    def _number(self, file: str, owner: int) -> int:
        if file not in self._numbers:
            self._numbers[file] = len(self.files)
            self.files.append(file)
            self.owners.append(owner)
        return self._numbers[file]

    def _boxes(self, tensor: Tensor) -> Iterator[tuple[Layout, list[int]]]:
        shards = self.job.shards(tensor)
        layouts = tuple(shard.layout for shard in shards)
        for cell in divided(layouts, layouts):
            (piece,) = dense_layout(cell.box.extent, (), ()).pieces
            layout = Layout(cell.box.extent, (piece._replace(start=cell.box.start),))
            yield layout, [rank for holding in cell.old for rank in shards[holding.shard].ranks]


def _metadata(form: FileForm, held: Checkpoint) -> bytes:
    """Return the content of ``.metadata``."""
    plans = [form.file_plan(held, rank) for rank in range(len(held.files))]
    kinds: dict[str, New] = {}
    places: list[tuple[New, New]] = []
    for tensor in held.collection.tensors:
        if tensor.kind == "file":
            continue
        shards = held.collection.shards(tensor)
        kinds[tensor.name] = _kind(tensor, shards)
        for number, shard in enumerate(shards):
            (rank,) = shard.ranks
            entry = plans[rank].entries[tensor.name]
            places.append((_index(tensor, shard, number), _place(held.files[rank], tensor, entry)))
    state = {
        "state_dict_metadata": kinds,
        "planner_data": {name: tuple(held.paths.get(name, (name,))) for name in kinds},
        "storage_data": Items(places),
        "storage_meta": _new("StorageMeta", checkpoint_id=None, save_id=None, load_id=None, modules=[]),
        "version": "1.0.0",
    }
    return pickled(_new("Metadata", **state))


def _kind(tensor: Tensor, shards: Sequence[Shard]) -> New:
    if tensor.kind == "object":
        return New(Name(_META, "BytesStorageMetadata"))
    dtype = Name("torch", TORCH_NAMES[tensor.dtype])
    layout = PickledCall(Name("torch.serialization", "_get_layout"), _STRIDED)
    properties = New(Name(_META, "TensorProperties"), (dtype, layout, False, PickledCall(_MEMORY_FORMAT, (0,)), False))
    boxes = (shard.layout.pieces[0] for shard in shards)
    chunks = [_new("ChunkStorageMetadata", offsets=_size(box.start), sizes=_size(box.extent)) for box in boxes]
    return _new("TensorStorageMetadata", properties=properties, size=_size(tensor.shape), chunks=chunks)


def _index(tensor: Tensor, shard: Shard, number: int) -> New:
    if tensor.kind == "object":
        return _new("MetadataIndex", fqn=tensor.name, index=None)
    return _new("MetadataIndex", fqn=tensor.name, offset=_size(shard.layout.pieces[0].start), index=number)


def _place(file: str, tensor: Tensor, entry: Entry) -> New:
    begin, num_bytes = entry.begin, entry.num_bytes
    if tensor.kind == "values":
        before, behind = archive_of(tensor.dtype, entry.shape)
        begin, num_bytes = begin - len(before), len(before) + num_bytes + len(behind)
    return New(_STORAGE_INFO, {"relative_path": file, "offset": begin, "length": num_bytes})


_STRIDED = ("torch.strided",)
_MEMORY_FORMAT = Name(_META, "_MEM_FORMAT_ENCODING")
_STORAGE_INFO = Name("torch.distributed.checkpoint.filesystem", "_StorageInfo")


def _new(name: str, **state: Any) -> New:
    return New(Name(_META, name), state)


def _size(shape: tuple[int, ...]) -> PickledCall:
    return PickledCall(Name("torch", "Size"), (shape,))
