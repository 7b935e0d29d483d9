"""The header of a safetensors file: where each array lies in the file, read and written without the data.

References
----------
https://huggingface.co/docs/safetensors: eight bytes of length (little-endian), that much JSON, then the arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.errors import InputError
from ddlsched.io.tables import parsed_json

_MOST_HEADER_BYTES = 100_000_000
"""As the safetensors library allows."""


class Entry(NamedTuple):
    """An array in a file; ``begin`` is its first byte, counted from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def header_bytes(
    arrays: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, Entry]]:
    """Return a file's beginning, and where in the file each array goes; ``arrays`` are dtypes and shapes by name.

    ``metadata`` is what the header says of the file.
    """
    entries, begin = {}, 0
    for name, (dtype, shape) in arrays.items():
        entries[name] = Entry(dtype, shape, begin)
        begin += entries[name].num_bytes
    described: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    described |= {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [at, at + entries[name].num_bytes]}
        for name, (dtype, shape, at) in entries.items()
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4096 if len(text) > 4096 else -len(text) % 8)
    first = 8 + len(text)
    placed = {name: entry._replace(begin=first + entry.begin) for name, entry in entries.items()}
    return len(text).to_bytes(8, "little") + text, placed


def read_header(read: Callable[[int, int], memoryview], file_bytes: int, file: str) -> dict[str, Entry]:
    """Return a file's arrays by name.

    Parameters
    ----------
    read
        Returns the file's bytes from one number to another.
    file_bytes
        The file's size.
    file
        Its name in messages.

    Raises
    ------
    InputError
        It is no safetensors file, is shorter or longer than its header says, or an array's bytes contradict its shape.
    """
    length = int.from_bytes(read(0, 8), "little")
    if length > min(file_bytes - 8, _MOST_HEADER_BYTES):
        raise InputError(f"{file}: is truncated or no safetensors file (of {file_bytes:,} bytes); expected a whole one")
    described = parsed_json(bytes(read(8, 8 + length)), f"{file}: its header", "a safetensors file")
    if not isinstance(described, dict):
        raise InputError(f"{file}: its header is no JSON object; expected a safetensors file")
    entries = {name: _entry(file, name, item, 8 + length) for name, item in described.items() if name != "__metadata__"}
    _refuse_gaps(entries, 8 + length, file_bytes, file)
    return entries


def _entry(file: str, name: str, item: object, first: int) -> Entry:
    try:
        dtype, shape, (begin, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]  # type: ignore[index]
        whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        entry = Entry(dtype, shape, first + begin)
        if not whole or end - begin != entry.num_bytes:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        text = json.dumps(item)[:120]
        raise InputError(
            f"{file}: tensor {name}: header {text}; expected dtype, shape and offsets that agree"
        ) from None
    return entry


def _refuse_gaps(entries: Mapping[str, Entry], first: int, file_bytes: int, file: str) -> None:
    at = first
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].num_bytes)):
        if entry.begin != at:
            raise InputError(f"{file}: tensor {name}: begins at byte {entry.begin}; expected {at}: no gap or overlap")
        at += entry.num_bytes
        if at > file_bytes:
            raise InputError(f"{file}: tensor {name}: ends at byte {at:,} of {file_bytes:,}: the file is truncated")
    if at != file_bytes:
        raise InputError(f"{file}: has {file_bytes - at:,} bytes behind its last tensor; expected none")
