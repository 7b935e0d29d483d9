"""Files that other programs keep beside their tensors, such as a model's configuration: carried along as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlsched.checkpoints.checkpoint import DESCRIPTION
from ddlsched.checkpoints.locations import Location
from ddlsched.checkpoints.tensors import Tensor
from ddlsched.errors import InputError

__all__ = ["HUGGING_FACE_FILES", "MEGATRON_FILES", "files_beside", "has_file", "is_file_name", "refuse_bad_file_name"]

MEGATRON_FILES = ("common.pt", "metadata.json")
HUGGING_FACE_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
    "preprocessor_config.json", "README.md",
)  # fmt: skip


def has_file(place: Location, name: str) -> bool:
    """Return whether a folder has a file of this name that is no link to elsewhere."""
    try:
        return place.holds(name) and place.num_bytes(name) >= 0
    except InputError:
        return False


def files_beside(place: Location, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of those files that are there, by name."""
    return {name: place.num_bytes(name) for name in names if has_file(place, name)}


def is_file_name(name: Any) -> bool:
    """Return whether something is the bare name of a file."""
    return isinstance(name, str) and name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0:")


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
