"""What the folder of a new checkpoint looks like: which file holds what, and what else lies beside the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddlsched.checkpoints.checkpoint import DESCRIPTION, Checkpoint
from ddlsched.checkpoints.division import place_by_name
from ddlsched.checkpoints.locations import Location, is_file_name, location_of
from ddlsched.checkpoints.reading import Held, Reading, whole_parts
from ddlsched.checkpoints.safetensors_files import Entry, header_bytes
from ddlsched.checkpoints.tensors import Kind, Tensor
from ddlsched.errors import InputError
from ddlsched.io.files import replacing

MEGATRON_FILES = ("common.pt", "metadata.json")
HUGGING_FACE_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
    "preprocessor_config.json", "README.md",
)  # fmt: skip


def has_file(place: Location, name: str) -> bool:
    """Return whether a folder has a file of this name that is no link to elsewhere."""
    try:
        return place.num_bytes(name) >= 0
    except InputError:
        return False


def files_beside(place: Location, names: Sequence[str]) -> list[Held]:
    """Return the bytes of those files that are there, as tensors of their names."""
    return [held_bytes("file", name, place.num_bytes(name), place, name) for name in names if has_file(place, name)]


def held_bytes(kind: Kind, name: str, size: int, place: Location, file: str, begin: int = 0) -> Held:
    """Return so many bytes of a file as a tensor."""
    tensor = Tensor(name=name, shape=(size,), dtype="U8", places=place_by_name(name), kind=kind)
    return tensor, whole_parts("U8", (size,), place, file, begin)


def refuse_bad_file_name(tensor: Tensor, taken: Sequence[str]) -> str:
    """Return the name of a file that is carried along, unless it is none or one of the format's own files."""
    name = tensor.name
    if (
        not is_file_name(name)
        or name.startswith((".", "__"))
        or name.endswith(".safetensors")
        or name in (*_OWN, *taken)
    ):
        raise InputError(f"file {name!r}: cannot be beside tensors; expected the name of another file")
    return name


_OWN = (DESCRIPTION, "journal")


class FilePlan(NamedTuple):
    """A file before its tensors are copied into it.

    ``entries`` says where each array goes; ``pieces`` are the bytes before, between and behind the arrays, by where
    they begin.
    """

    entries: Mapping[str, Entry]
    pieces: Mapping[int, bytes]

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        ends = [entry.begin + entry.num_bytes for entry in self.entries.values()]
        return max([*ends, *(at + len(piece) for at, piece in self.pieces.items())])


class FileForm:
    """A way to lay out a checkpoint's tensors in files: here one safetensors file a rank, and ``checkpoint.json``."""

    def held(self, job: Checkpoint) -> Checkpoint:
        """Return a checkpoint whose collection and files say what each file holds of a job's tensors."""
        return job

    def file_plan(self, held: Checkpoint, rank: int) -> FilePlan:
        """Return the file of what :meth:`held` calls a rank."""
        return safetensors_plan(held, rank, {})

    def descriptions(self, job: Checkpoint, held: Checkpoint) -> Mapping[str, bytes]:
        """Return what describes the files: other files, by name."""
        return {DESCRIPTION: job.text().encode()}

    def describe(self, job: Checkpoint, held: Checkpoint, folder: Path) -> list[Path]:
        """Write what describes the files, and return which files that made."""
        described = self.descriptions(job, held)
        for name, content in described.items():
            with replacing(folder / name, "checkpoint description") as file:
                file.write_bytes(content)
        return [folder / name for name in described]

    def reading(self, job: Checkpoint, held: Checkpoint, folder: Path) -> Reading:
        """Return a reading of a folder whose files are full, described or not."""
        return Reading(held, location_of(folder))


def safetensors_plan(held: Checkpoint, rank: int, metadata: Mapping[str, str]) -> FilePlan:
    """Return a safetensors file of all that a rank holds; ``metadata`` is for its header."""
    tensors: Mapping[str, Tensor] = held.collection.by_name
    arrays = {name: (tensors[name].dtype, layout.shape) for name, layout in held.collection.arrays[rank].items()}
    header, entries = header_bytes(arrays, metadata)
    return FilePlan(entries, {0: header})


def whole_file_plan(held: Checkpoint, rank: int) -> FilePlan | None:
    """Return the plan of a file that is carried along as it is; None if the rank holds tensors."""
    ((name, layout), *_) = held.collection.arrays[rank].items()
    kind = held.collection.by_name[name].kind
    return FilePlan({name: Entry("U8", layout.shape, 0)}, {}) if kind == "file" else None


RANK_FILES = FileForm()
"""The form of this package's own checkpoints."""
