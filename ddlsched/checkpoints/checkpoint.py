"""A checkpoint on disk: a directory with one safetensors file a rank, and ``checkpoint.json``, which describes them.

A directory without ``checkpoint.json`` is no checkpoint: it is written last, so nothing half done looks complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.locations import Location, location_of, refuse_leaving
from ddlsched.checkpoints.safetensors_files import Entry, read_header
from ddlsched.checkpoints.tensors import Tensor
from ddlsched.errors import InputError
from ddlsched.io.files import decoded, replacing
from ddlsched.io.tables import located

DESCRIPTION = "checkpoint.json"


def rank_file(rank: int) -> str:
    """Return the usual name of a rank's file."""
    return f"rank_{rank:05d}.safetensors"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``checkpoint.json`` holds, field by field."""

    format: Literal["ddlsched-checkpoint"] = "ddlsched-checkpoint"
    version: Literal[1] = 1
    parallelism: StoredParallelism
    stages: tuple[int, ...]
    allocation: StoredRegion
    flat_multiple: int = 1
    iteration: int = 0
    model: dict[str, Any] = {}
    dataset: dict[str, Any] = {}
    random: dict[str, Any] = {}
    files: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    sha256: dict[str, str] = {}
    xxh3: dict[str, str] = {}
    paths: dict[str, Annotated[tuple[str | int, ...], msgspec.Meta(min_length=1)]] = {}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is known of a checkpoint besides the contents of its tensors.

    Parameters
    ----------
    collection
        Tensors, parallelism and allocation.
    files
        Name of each rank's file, in the order of ranks.
    iteration
        Steps trained.
    model, dataset, random
        Description of the model, state of the data set, state of random numbers: JSON objects, kept as they are. What
        is in them must not depend on the parallelism.
    sha256
        Content hash by tensor, of the whole tensor's bytes in row-major order without padding, so that it is the same
        under any parallelism; tensors may be left out.
    xxh3
        The same with XXH3 of 128 bits.
    paths
        Where tensors lie in the nested state of a training program, by tensor: keys of dictionaries and places in
        lists. A PyTorch distributed checkpoint says so.
    """

    collection: TensorCollection
    files: tuple[str, ...] = ()
    iteration: int = 0
    model: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    xxh3: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.files:
            names = tuple(rank_file(rank) for rank in range(self.collection.num_ranks))
            object.__setattr__(self, "files", names)

    @classmethod
    def read(cls, directory: Path | str) -> Checkpoint:
        """Return the description of a checkpoint, from a folder or a URL that fsspec knows.

        Raises
        ------
        InputError
            There is none, or it holds what cannot be; the message names the file and field.
        """
        return described_in(location_of(directory), DESCRIPTION)

    def text(self) -> str:
        """Return what ``checkpoint.json`` says: JSON with a line a field and a line a tensor."""
        described = _File(**_values(self.collection, _OF_COLLECTION), **_values(self, _SHARED))
        fields = msgspec.structs.asdict(described)
        rows = ",\n    ".join(_text(tensor) for tensor in fields.pop("tensors"))
        lines = [f'"{name}": {_text(value)}' for name, value in fields.items()]
        return "{\n  " + ",\n  ".join([*lines, f'"tensors": [\n    {rows}\n  ]']) + "\n}\n"

    def write_description(self, directory: Path) -> None:
        """Write ``checkpoint.json``, whole or not at all; the ranks' files must be there already.

        Raises
        ------
        InputError
            It cannot be written.
        """
        with replacing(directory / DESCRIPTION, "checkpoint description") as file:
            file.write_text(self.text(), encoding="utf-8")

    def entries(self, place: Location, rank: int) -> dict[str, Entry]:
        """Return where each array of a rank lies in its file, after checking them against the description.

        Raises
        ------
        InputError
            The file is missing or truncated, or a tensor is missing, unknown, of another dtype or shape.
        """
        file = self.files[rank]
        where = place.name_of(file)
        entries = read_header(lambda low, high: place.read(file, low, high), place.num_bytes(file), where)
        expected = self.collection.arrays[rank]
        for name, layout in expected.items():
            dtype = self.collection.by_name[name].dtype
            if name not in entries:
                raise InputError(f"{where}: tensor {name} is missing; expected {dtype} {list(layout.shape)}")
            found = entries[name]
            if (found.dtype, found.shape) != (dtype, layout.shape):
                text = f"tensor {name} is {found.dtype} {list(found.shape)}"
                raise InputError(f"{where}: {text}; expected {dtype} {list(layout.shape)}, as {DESCRIPTION} says")
        unknown = [name for name in entries if name not in expected and entries[name].num_bytes]
        if unknown:
            raise InputError(f"{where}: tensor {unknown[0]} is not rank {rank}'s; expected what {DESCRIPTION} says")
        return entries


def described_in(place: Location, file: str) -> Checkpoint:
    """Return what a file such as ``checkpoint.json`` describes.

    Raises
    ------
    InputError
        There is none, or it holds what cannot be; the message names the file and field.
    """
    where = place.name_of(file)
    described = decoded(_File, place.read_all(file), where, "a description of a checkpoint")
    collection = located(where, lambda: TensorCollection(**_values(described, _OF_COLLECTION)))
    checkpoint = Checkpoint(collection=collection, **_values(described, _SHARED))
    _refuse_bad_names(checkpoint, place)
    return checkpoint


_OF_COLLECTION = ("tensors", "parallelism", "stages", "allocation", "flat_multiple")
_SHARED = ("files", "iteration", "model", "dataset", "random", "sha256", "xxh3", "paths")


def _values(described: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(described, name) for name in names}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _refuse_bad_names(checkpoint: Checkpoint, place: Location) -> None:
    """Refuse files outside the checkpoint's directory, and another number of files than ranks."""
    where, num_ranks = place.name_of(DESCRIPTION), checkpoint.collection.num_ranks
    if len(checkpoint.files) != num_ranks:
        raise InputError(f"{where}, field files: names {len(checkpoint.files)} files; expected one a rank, {num_ranks}")
    for rank, name in enumerate(checkpoint.files):
        refuse_leaving(place, name, f"{where}, field files[{rank}]")
    if len(set(checkpoint.files)) < num_ranks:
        raise InputError(f"{where}, field files: names a file twice; expected one for each rank")
