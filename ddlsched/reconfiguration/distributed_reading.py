"""A PyTorch distributed checkpoint as the source of a change of parallelism."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.reconfiguration.arrays import local_array
from ddlsched.reconfiguration.checkpoint import Checkpoint, described_in
from ddlsched.reconfiguration.collection import Allocation, Shard, TensorCollection
from ddlsched.reconfiguration.distributed_files import (
    METADATA,
    StoredTensor,
    chunk_entry,
    read_metadata,
)
from ddlsched.reconfiguration.locations import Location, location_of
from ddlsched.reconfiguration.parallelism import Parallelism
from ddlsched.reconfiguration.reading import Reading, Source
from ddlsched.reconfiguration.safetensors_files import Entry
from ddlsched.reconfiguration.shards import Layout

__all__ = ["OWN_DESCRIPTION", "is_distributed", "read_distributed"]

OWN_DESCRIPTION = "ddlsched.json"
"""A description, as in ``checkpoint.json``, of a distributed checkpoint that this package wrote."""


@dataclass(frozen=True, kw_only=True)
class _Stored(TensorCollection):
    """Tensors as chunks of files: each file is taken for so many ranks that none has two chunks of a tensor."""

    chunks: Mapping[str, tuple[Shard, ...]] = field(default_factory=dict)

    def shards(self, tensor: object) -> tuple[Shard, ...]:
        """Return the chunks of a tensor, each with its one rank."""
        return self.chunks[tensor.name]  # type: ignore[attr-defined]

    def resized(
        self, to: Parallelism, *, stages: Sequence[int] = (), allocation: Allocation | None = None
    ) -> TensorCollection:
        """Return the same tensors as a job of this parallelism divides them."""
        new = Allocation(devices=(), hosts=()) if allocation is None else allocation
        return TensorCollection(
            tensors=self.tensors,
            parallelism=to,
            stages=tuple(stages),
            allocation=new,
            flat_multiple=self.flat_multiple,
        )


class _DistributedReading(Reading):
    """A reading whose arrays are found when they are asked for: each lies in an archive of its own."""

    def __init__(
        self, checkpoint: Checkpoint, place: Location, found: Mapping[tuple[int, str], tuple[str, Entry]]
    ) -> None:
        super().__init__(checkpoint, place)
        self._found = found

    def source(self, rank: int, tensor: str) -> Source:
        """Return a chunk of a tensor."""
        file, entry = self._found[rank, tensor]
        return Source(self.place, file, entry)

    def refuse_faulty_files(self) -> None:
        """Do nothing: metadata and archives have been checked against each other."""


def is_distributed(directory: Path | str) -> bool:
    """Return whether a folder or URL holds a PyTorch distributed checkpoint."""
    try:
        return location_of(directory).num_bytes(METADATA) > 0
    except InputError:
        return False


def read_distributed(directory: Path | str, like: Path | str | None = None) -> Reading:
    """Return a PyTorch distributed checkpoint as what :func:`~ddlsched.reconfiguration.resharding.reshard` reads.

    Parameters
    ----------
    directory
        Folder or URL with ``.metadata``.
    like
        A checkpoint of this package whose tensors have the same names, shapes and dtypes: what a distributed
        checkpoint does not say, how each is to be divided, is taken from it, and the model. None: as the directory's
        ``ddlsched.json`` says, which also holds iteration, data set and random numbers.

    Raises
    ------
    InputError
        Something cannot be read, the directory lacks a tensor or has one more, or shapes or dtypes differ.
    """
    place = location_of(directory)
    stored = read_metadata(place)
    wanted = _described(place, like)
    _refuse_differences(stored, wanted, place)
    files, chunks, found = _laid_out(stored, place)
    collection = _Stored(
        tensors=wanted.collection.tensors,
        parallelism=Parallelism(dp=len(files)),
        allocation=Allocation(devices=tuple(range(len(files))), hosts=(0,) * len(files)),
        flat_multiple=wanted.collection.flat_multiple,
        chunks=chunks,
    )
    reading = _DistributedReading(dataclasses.replace(wanted, collection=collection, files=files), place, found)
    if like is None:
        return reading
    own = dataclasses.replace(reading.checkpoint, iteration=_step(reading), dataset={}, random={}, sha256={}, xxh3={})
    return _DistributedReading(own, place, found)


def _described(place: Location, like: Path | str | None) -> Checkpoint:
    if like is not None:
        return Checkpoint.read(like)
    try:
        return described_in(place, OWN_DESCRIPTION)
    except InputError as error:
        text = "name a checkpoint with the same tensors (--like DIR), which says how each is divided"
        raise InputError(f"{error}; or {text}") from None


def _refuse_differences(stored: Mapping[str, StoredTensor], wanted: Checkpoint, place: Location) -> None:
    where = place.name_of(METADATA)
    for tensor in wanted.collection.tensors:
        if tensor.name not in stored:
            raise InputError(f"{where}: tensor {tensor.name} is missing; expected {tensor.dtype} {list(tensor.shape)}")
        found = stored[tensor.name]
        if (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
            text = f"tensor {tensor.name} is {found.dtype} {list(found.shape)}"
            raise InputError(f"{where}: {text}; expected {tensor.dtype} {list(tensor.shape)}")
    unknown = sorted(set(stored) - set(wanted.collection.by_name))
    if unknown:
        raise InputError(f"{where}: tensor {unknown[0]} is in no description; expected those described and no other")


def _laid_out(
    stored: Mapping[str, StoredTensor], place: Location
) -> tuple[tuple[str, ...], dict[str, tuple[Shard, ...]], dict[tuple[int, str], tuple[str, Entry]]]:
    """Return the file of each rank, the chunks of each tensor, and where each is."""
    ranks: dict[tuple[str, int], int] = {}
    shards: dict[str, tuple[Shard, ...]] = {}
    found: dict[tuple[int, str], tuple[str, Entry]] = {}
    for name, tensor in stored.items():
        counts: dict[str, int] = defaultdict(int)
        layouts: list[tuple[Layout, int]] = []
        for chunk in tensor.chunks:
            rank = ranks.setdefault((chunk.file, counts[chunk.file]), len(ranks))
            counts[chunk.file] += 1
            entry, layout = chunk_entry(place, name, tensor, chunk)
            found[rank, name] = (chunk.file, entry)
            layouts.append((layout, rank))
        shards[name] = tuple(Shard(layout, (rank,)) for layout, rank in layouts)
    return tuple(file for file, _ in ranks), shards, found


def _step(reading: Reading) -> int:
    """Return how many steps the optimiser has counted, 0 if it has not."""
    steps = [tensor for tensor in reading.checkpoint.collection.tensors if tensor.name == "optimiser.step"]
    if not steps:
        return 0
    (part,) = reading.replicas(steps[0])
    return int(local_array(reading.place, part.sources[0].file, part.sources[0].entry)[0])
