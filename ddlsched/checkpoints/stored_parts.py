"""Tensors in parts that no rule of cuts gives: as files happen to hold them, or as they are to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import Shard, StoredRegion, TensorCollection
from ddlsched.checkpoints.locations import Location
from ddlsched.checkpoints.parallelism import StoredParallelism
from ddlsched.checkpoints.reading import Reading, Replicas, Source
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import Layout, Tensor, dense_layout

__all__ = ["PartsCollection", "PartsReading", "stored_part", "whole_parts"]


def stored_part(layout: Layout, place: Location, file: str, entry: Entry) -> Replicas:
    """Return a part that lies once in a file."""
    return Replicas(layout, (Source(place, file, entry),))


def whole_parts(dtype: str, shape: tuple[int, ...], place: Location, file: str, begin: int) -> list[Replicas]:
    """Return a whole tensor that lies in a file from this byte on; one without elements has no part."""
    entry = Entry(dtype, shape, begin)
    return [stored_part(dense_layout(shape, (), ()), place, file, entry)] if entry.num_bytes else []


@dataclass(frozen=True, kw_only=True)
class PartsCollection(TensorCollection):
    """Tensors whose parts are listed, each with the ranks that hold it.

    What is called a rank here is a file, or one of several that hold parts of the same tensor.

    Parameters
    ----------
    parts
        By tensor.
    job
        The same tensors as a job's ranks divide them: what :meth:`resized` starts from.
    """

    parts: Mapping[str, tuple[Shard, ...]] = field(default_factory=dict)
    job: TensorCollection

    @classmethod
    def of(cls, job: TensorCollection, parts: Mapping[str, tuple[Shard, ...]], hosts: Sequence[int]) -> PartsCollection:
        """Return a job's tensors in these parts; ``hosts`` is where each rank is."""
        return cls(
            tensors=job.tensors,
            parallelism=StoredParallelism(dp=max(len(hosts), 1)),
            allocation=StoredRegion(devices=tuple(range(len(hosts))), hosts=tuple(hosts)),
            flat_multiple=job.flat_multiple,
            parts=parts,
            job=job,
        )

    def shards(self, tensor: Tensor) -> tuple[Shard, ...]:
        """Return the parts of a tensor."""
        return self.parts[tensor.name]

    def resized(
        self, to: StoredParallelism, *, stages: Sequence[int] = (), allocation: StoredRegion | None = None
    ) -> TensorCollection:
        """Return the same tensors as a job of this parallelism divides them."""
        return self.job.resized(to, stages=stages, allocation=allocation)


class PartsReading(Reading):
    """A reading of tensors whose parts are listed.

    Parameters
    ----------
    checkpoint
        What is known of it; its collection is the job's.
    parts
        The parts of each tensor, all of which have elements.
    place
        The folder.
    """

    num_left_out = 0
    """Values of a program's state that are no tensors, which other formats have no place for."""

    def __init__(self, checkpoint: Checkpoint, parts: Mapping[str, Sequence[Replicas]], place: Location) -> None:
        ranks: dict[tuple[int, str, int], int] = {}
        self._found: dict[tuple[int, str], Source] = {}
        shards: dict[str, tuple[Shard, ...]] = {}
        for name, of_tensor in parts.items():
            counts: Counter[tuple[int, str]] = Counter()
            found = []
            for part in of_tensor:
                holders = []
                for source in part.sources:
                    key = (id(source.place), source.file)
                    rank = ranks.setdefault((*key, counts[key]), len(ranks))
                    counts[key] += 1
                    self._found[rank, name] = source
                    holders.append(rank)
                found.append(Shard(part.layout, tuple(holders)))
            shards[name] = tuple(found)
        held = PartsCollection.of(checkpoint.collection, shards, (0,) * len(ranks))
        files = tuple(file for _, file, _ in ranks)
        super().__init__(dataclasses.replace(checkpoint, collection=held, files=files), place)
        self.described = checkpoint
        self._place_of = {rank: source.place for (rank, _), source in self._found.items()}

    @property
    def job(self) -> TensorCollection:
        """The tensors as the job's ranks divide them."""
        return self.described.collection

    @classmethod
    def of(cls, reading: Reading) -> PartsReading:
        """Return any reading as one of listed parts."""
        if isinstance(reading, cls):
            return reading
        checkpoint = reading.checkpoint
        parts = {tensor.name: reading.replicas(tensor) for tensor in checkpoint.collection.tensors}
        return cls(checkpoint, parts, reading.place)

    def parts(self) -> dict[str, list[Replicas]]:
        """Return the parts of each tensor."""
        tensors = self.checkpoint.collection.tensors
        return {tensor.name: self.replicas(tensor) for tensor in tensors}

    def place_of(self, rank: int) -> Location:
        """Return where a rank's file is."""
        return self._place_of[rank]

    def source(self, rank: int, tensor: str) -> Source:
        """Return a part of a tensor."""
        return self._found[rank, tensor]

    def refuse_faulty_files(self) -> None:
        """Do nothing: what says where the parts are has been checked against the files."""
