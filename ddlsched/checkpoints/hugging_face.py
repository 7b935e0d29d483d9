"""Hugging Face directories: whole tensors in safetensors files, and an index that says which is where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from ddlsched.checkpoints import file_forms
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import Shard, TensorCollection
from ddlsched.checkpoints.division import named_tensor
from ddlsched.checkpoints.locations import Location, location_of, refuse_leaving
from ddlsched.checkpoints.reading import Held, PartsCollection, PartsReading, Reading, whole_parts
from ddlsched.checkpoints.safetensors_files import Entry, read_header
from ddlsched.checkpoints.tensors import Tensor, dense_layout, total_bytes
from ddlsched.errors import InputError
from ddlsched.io.files import decoded

_INDEX = "model.safetensors.index.json"
_ONLY = "model.safetensors"
_HASHES = "ddlsched.hashes.json"
"""Content hashes of the tensors, which ``--verify`` wrote beside them and compares with, when they are read again."""
_FILE_BYTES = 5_000_000_000
"""Most bytes of tensors in a file, as Hugging Face's libraries have it; a larger tensor has a file of its own."""


def is_hugging_face(directory: Path | str) -> bool:
    """Return whether a folder or URL holds a model as Hugging Face's libraries save it."""
    place = location_of(directory)
    return file_forms.has_file(place, _INDEX) or file_forms.has_file(place, _ONLY)


def read_hugging_face(directory: Path | str) -> PartsReading:
    """Return a Hugging Face directory as what :func:`~ddlsched.checkpoints.resharding.reshard` reads.

    Tensors keep their names; how ranks are to divide them follows from these
    (:func:`~ddlsched.checkpoints.division.cuts_by_name`). Configuration and tokenizer are carried along.

    Raises
    ------
    InputError
        The index or a file cannot be read, or they contradict each other.
    """
    place = location_of(directory)
    held: list[Held] = [
        (named_tensor(name, shape, dtype), whole_parts(dtype, shape, place, file, begin))
        for name, (file, (dtype, shape, begin)) in dict(_entries(place)).items()
    ]
    held += file_forms.files_beside(place, file_forms.HUGGING_FACE_FILES)
    noted = _hashes(place)
    return PartsReading.undivided(held, place, sha256=noted.sha256, xxh3=noted.xxh3)


class _Hashes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: dict[str, str] = {}
    xxh3: dict[str, str] = {}


def _hashes(place: Location) -> _Hashes:
    """Return what an earlier run noted of the tensors, nothing if none did."""
    if not file_forms.has_file(place, _HASHES):
        return _Hashes()
    return decoded(_Hashes, place.read_all(_HASHES), place.name_of(_HASHES), "hashes by tensor, or no such file")


def _entries(place: Location) -> Iterator[tuple[str, tuple[str, Entry]]]:
    """Yield where each tensor is: its file, and where in that."""
    files = _listed(place)
    for file in dict.fromkeys(files.values()) if files else [_ONLY]:
        where = place.name_of(file)
        found = read_header(partial(place.read, file), place.num_bytes(file), where)
        for name, entry in found.items():
            if files and files.get(name) != file:
                raise InputError(f"{where}: tensor {name} is not listed there; expected what {_INDEX} says")
            yield name, (file, entry)
        missing = sorted(name for name, of in files.items() if of == file and name not in found)
        if missing:
            raise InputError(f"{where}: tensor {missing[0]} is missing; expected what {_INDEX} says")


def _listed(place: Location) -> dict[str, str]:
    """Return the file of each tensor; nothing if there is no index."""
    if not file_forms.has_file(place, _INDEX):
        return {}
    where = place.name_of(_INDEX)
    try:
        files = json.loads(place.read_all(_INDEX))["weight_map"]
        items = dict(files).items()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: has no weight_map ({error!r}); expected the file of each tensor by name") from None
    for name, file in items:
        refuse_leaving(place, file, f"{where}, field weight_map, {name}")
    return dict(items)


class _HuggingFace(file_forms.FileForm):
    """Whole tensors, each once, in files of bounded size; other files as they were."""

    def held(self, job: Checkpoint) -> Checkpoint:
        groups = [*_groups(job.collection)]
        values = sum(group[0].kind == "values" for group in groups)
        names = [_file_name(group[0], number, values) for number, group in enumerate(groups)]
        shards: dict[str, tuple[Shard, ...]] = {tensor.name: () for tensor in job.collection.tensors}
        for number, group in enumerate(groups):
            shards |= {tensor.name: (Shard(dense_layout(tensor.shape, (), ()), (number,)),) for tensor in group}
        collection = PartsCollection.of(job.collection, shards, (0,) * len(names))
        return dataclasses.replace(job, collection=collection, files=tuple(names))

    def file_plan(self, held: Checkpoint, rank: int) -> file_forms.FilePlan:
        return file_forms.whole_file_plan(held, rank) or file_forms.safetensors_plan(held, rank, {"format": "pt"})

    def descriptions(self, job: Checkpoint, held: Checkpoint) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        if job.sha256 or job.xxh3:
            found[_HASHES] = msgspec.json.encode(_Hashes(dict(job.sha256), dict(job.xxh3)))
        tensors = [tensor for tensor in held.collection.tensors if tensor.kind == "values"]
        files = {
            tensor.name: held.files[shard.ranks[0]] for tensor in tensors for shard in held.collection.shards(tensor)
        }
        if len(set(files.values())) > 1:
            index = {"metadata": {"total_size": total_bytes(tensors)}, "weight_map": files}
            found[_INDEX] = (json.dumps(index, indent=2) + "\n").encode()
        return found

    def reading(self, job: Checkpoint, held: Checkpoint, folder: Path) -> Reading:
        self.describe(job, held, folder)
        return read_hugging_face(folder)


HUGGING_FACE = _HuggingFace()
"""The form of Hugging Face's libraries; it holds values and files, no Python objects (:func:`weights_of`)."""


def _groups(collection: TensorCollection) -> Iterator[list[Tensor]]:
    """Yield the tensors of each file, those of values before other files."""
    group: list[Tensor] = []
    size = 0
    for tensor in (tensor for tensor in collection.tensors if tensor.kind == "values"):
        if group and size + tensor.num_bytes > _FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.num_bytes
    if group:
        yield group
    yield from ([tensor] for tensor in collection.tensors if tensor.kind == "file" and tensor.num_bytes)


def _file_name(first: Tensor, number: int, files: int) -> str:
    if first.kind == "file":
        return file_forms.refuse_bad_file_name(first, (_INDEX, _ONLY))
    return _ONLY if files == 1 else f"model-{number + 1:05d}-of-{files:05d}.safetensors"


_NO_WEIGHTS = ("optim", "optimizer", "optimiser", "lr_scheduler", "dataloader", "train_state")


def weights_of(reading: Reading) -> PartsReading:
    """Return a model's weights, and the files of Hugging Face beside them, without optimiser state and Python objects.

    What a training program saved under ``model`` is called as the model calls it.

    Raises
    ------
    InputError
        There are no weights.
    """
    old = PartsReading.of(reading)
    known = old.described
    names = _weight_names(known)
    if not any(known.collection.by_name[name].kind == "values" for name in names):
        raise InputError(f"{reading.place.name_of('')}: has no weights of a model; expected some beside {_NO_WEIGHTS}")
    kept = [held for held in old.held() if held[0].name in names]
    return old.renewed([(dataclasses.replace(of, name=names[of.name], flat=""), parts) for of, parts in kept], names)


def _weight_names(known: Checkpoint) -> Mapping[str, str]:
    """Return the new name of each tensor that is kept, by its old one."""
    of_model = {
        name: ".".join(map(str, path[1:])) for name, path in known.paths.items() if path[0] == "model" and path[1:]
    }
    names = {}
    for tensor in known.collection.tensors:
        if tensor.kind == "file" and tensor.name in file_forms.HUGGING_FACE_FILES:
            names[tensor.name] = tensor.name
        elif tensor.kind == "values" and _is_weight(tensor.name, of_model):
            names[tensor.name] = of_model.get(tensor.name, tensor.name)
    return names


def _is_weight(name: str, of_model: Mapping[str, str]) -> bool:
    return name in of_model if of_model else name.split(".")[0] not in _NO_WEIGHTS
