"""A checkpoint that is read: its description, and where the arrays of each surviving rank are."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ddlsched.checkpoints.checkpoint import DESCRIPTION, Checkpoint, described_in
from ddlsched.checkpoints.collection import Shard, StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.copying import span
from ddlsched.checkpoints.locations import Location, location_of
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Piece, Tensor, dense_layout, numpy_dtype
from ddlsched.deferred import np
from ddlsched.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

Watch: TypeAlias = Callable[[str, int, int], None]
"""Told what goes on (``copying``, ``checking``), the bytes done and the bytes in all."""


def no_watch(_what: str, _done: int, _total: int) -> None:
    """Watch nothing."""


class Source(NamedTuple):
    """A rank's array: where its file is, and where it is in that."""

    place: Location
    file: str
    entry: Entry

    @property
    def name(self) -> str:
        """How messages call the file."""
        return self.place.name_of(self.file)

    def view(self, piece: Piece) -> npt.NDArray[Any]:
        """Return a piece of the array."""
        dtype = numpy_dtype(self.entry.dtype)
        strides = tuple(stride * dtype.itemsize for stride in piece.strides)
        return np.ndarray(piece.extent, dtype, self.data(piece), 0, strides)

    def data(self, piece: Piece) -> memoryview:
        """Return the bytes from a piece's first element to its last."""
        return self.place.read(self.file, *self.byte_range(piece))

    def byte_range(self, piece: Piece) -> tuple[int, int]:
        """Return where in the file a piece's first element begins and its last ends."""
        low, high = span(piece)
        size = DTYPE_BYTES[self.entry.dtype]
        return self.entry.begin + low * size, self.entry.begin + high * size


class Replicas(NamedTuple):
    """A part of a tensor, and the arrays that hold it."""

    layout: Layout
    sources: tuple[Source, ...]


Held: TypeAlias = tuple[Tensor, Sequence[Replicas]]
"""A tensor and its parts, all of which have elements."""


class Reading:
    """A checkpoint that is read.

    Parameters
    ----------
    checkpoint, place
        Its description, and the folder of its files.
    lost
        Ranks whose files are gone.
    peers
        Folder or URL by host, for the ranks of hosts whose files are elsewhere.
    """

    num_left_out = 0
    """Values of a program's state that are no tensors, which other formats have no place for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        place: Location,
        lost: Collection[int] = (),
        peers: Mapping[int, str] | None = None,
    ) -> None:
        self.checkpoint, self.place, self.lost = checkpoint, place, frozenset(lost)
        self.peers = {host: location_of(where) for host, where in (peers or {}).items()}
        self.only_read = place.name_of("").rstrip("/")
        """The folder, or the file, in which nothing may be written."""
        self._entries: dict[int, dict[str, Entry]] = {}
        num_ranks = checkpoint.collection.num_ranks
        wrong = sorted(rank for rank in self.lost if not 0 <= rank < num_ranks)
        if wrong:
            raise InputError(f"lost rank {wrong[0]}: expected ranks from 0 to {num_ranks - 1}")

    @classmethod
    def at(
        cls,
        where: Path | str,
        lost: Collection[int] = (),
        peers: Mapping[int, str] | None = None,
        *,
        gpus_per_host: int = 0,
    ) -> Reading:
        """Return the checkpoint of a folder or URL; ``gpus_per_host`` other than 0 overrides its hosts.

        Raises
        ------
        InputError
            There is none.
        """
        place = location_of(where)
        checkpoint = described_in(place, DESCRIPTION)
        if gpus_per_host:
            collection = checkpoint.collection
            packed = StoredRegion.packed(collection.num_ranks, gpus_per_host)
            checkpoint = dataclasses.replace(checkpoint, collection=dataclasses.replace(collection, allocation=packed))
        return cls(checkpoint, place, lost, peers)

    @property
    def job(self) -> TensorCollection:
        """The tensors as the job's ranks divide them, however files hold them."""
        return self.checkpoint.collection

    @property
    def survivors(self) -> list[int]:
        """Ranks that are not lost."""
        return [rank for rank in range(self.checkpoint.collection.num_ranks) if rank not in self.lost]

    def place_of(self, rank: int) -> Location:
        """Return where a rank's file is."""
        return self.peers.get(self.checkpoint.collection.allocation.hosts[rank], self.place)

    def source(self, rank: int, tensor: str) -> Source:
        """Return a rank's array of a tensor.

        Raises
        ------
        InputError
            The rank's file is missing, truncated, or contradicts the description.
        """
        if rank not in self._entries:
            self._entries[rank] = self.checkpoint.entries(self.place_of(rank), rank)
        return Source(self.place_of(rank), self.checkpoint.files[rank], self._entries[rank][tensor])

    def replicas(self, tensor: Tensor) -> list[Replicas]:
        """Return the parts of a tensor that survive, with all arrays that hold each."""
        found = []
        for layout, ranks in self.checkpoint.collection.shards(tensor):
            sources = tuple(self.source(rank, tensor.name) for rank in ranks if rank not in self.lost)
            if sources:
                found.append(Replicas(layout, sources))
        return found

    def held(self) -> list[Held]:
        """Return each tensor with its parts."""
        return [(tensor, self.replicas(tensor)) for tensor in self.checkpoint.collection.tensors]

    def refuse_faulty_files(self) -> None:
        """Raise InputError if a surviving rank's file is missing, truncated, or contradicts the description."""
        for rank in self.survivors:
            self._entries[rank] = self.checkpoint.entries(self.place_of(rank), rank)

    def refuse_changes(self) -> None:
        """Raise InputError if a file that was read has changed since; its peers' too."""
        for place in (self.place, *self.peers.values()):
            place.refuse_changes()

    def touched_ranks(self) -> list[int]:
        """Return the ranks whose files may hold something else though size and time of their contents are the same."""
        touched = {place: place.touched() for place in (self.place, *self.peers.values())}
        return [rank for rank in self.survivors if self.checkpoint.files[rank] in touched[self.place_of(rank)]]


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
    held
        Its tensors.
    place
        The folder.
    """

    def __init__(self, checkpoint: Checkpoint, held: Sequence[Held], place: Location) -> None:
        ranks: dict[tuple[int, str, int], int] = {}
        self._found: dict[tuple[int, str], Source] = {}
        shards: dict[str, tuple[Shard, ...]] = {}
        for tensor, of_tensor in held:
            counts: Counter[tuple[int, str]] = Counter()
            found = []
            for part in of_tensor:
                holders = []
                for source in part.sources:
                    key = (id(source.place), source.file)
                    rank = ranks.setdefault((*key, counts[key]), len(ranks))
                    counts[key] += 1
                    self._found[rank, tensor.name] = source
                    holders.append(rank)
                found.append(Shard(part.layout, tuple(holders)))
            shards[tensor.name] = tuple(found)
        collection = PartsCollection.of(checkpoint.collection, shards, (0,) * len(ranks))
        files = tuple(file for _, file, _ in ranks)
        super().__init__(dataclasses.replace(checkpoint, collection=collection, files=files), place)
        self.described = checkpoint
        self._place_of = {rank: source.place for (rank, _), source in self._found.items()}

    @property
    def job(self) -> TensorCollection:
        """The tensors as the job's ranks divide them."""
        return self.described.collection

    @classmethod
    def undivided(cls, held: Sequence[Held], place: Location, **known: Any) -> PartsReading:
        """Return tensors of a job of one rank, of which something more is known, such as their hashes."""
        collection = TensorCollection(tensors=tuple(tensor for tensor, _ in held), parallelism=StoredParallelism())
        return cls(Checkpoint(collection=collection, **known), held, place)

    @classmethod
    def of(cls, reading: Reading) -> PartsReading:
        """Return any reading as one of listed parts."""
        if isinstance(reading, cls):
            return reading
        return cls(reading.checkpoint, reading.held(), reading.place)

    def renewed(
        self,
        held: Sequence[Held],
        names: Mapping[str, str],
        paths: Mapping[str, tuple[str | int, ...]] | None = None,
        collection: TensorCollection | None = None,
    ) -> PartsReading:
        """Return the same checkpoint of other tensors, each with its parts.

        Parameters
        ----------
        held
            In order.
        names
            New names of those whose contents are old ones', by old name: their hashes hold.
        paths
            Where they lie in a nested state, as far as is known.
        collection
            How ranks divide them; by default as the old ones.
        """
        known = self.described
        hashes: dict[str, Any] = {
            digest: {names[name]: text for name, text in getattr(known, digest).items() if name in names}
            for digest in ("sha256", "xxh3")
        }
        as_before = dataclasses.replace(known.collection, tensors=tuple(tensor for tensor, _ in held))
        new = dataclasses.replace(known, collection=collection or as_before, files=(), paths=paths or {}, **hashes)
        return PartsReading(new, held, self.place)

    def place_of(self, rank: int) -> Location:
        """Return where a rank's file is."""
        return self._place_of[rank]

    def source(self, rank: int, tensor: str) -> Source:
        """Return a part of a tensor."""
        return self._found[rank, tensor]

    def refuse_faulty_files(self) -> None:
        """Do nothing: what says where the parts are has been checked against the files."""
