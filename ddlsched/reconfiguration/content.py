"""Content hashes: of whole tensors, in the order of their elements, so that they are the same under any parallelism."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeAlias

from ddlsched.errors import FaultyInputError, InputError
from ddlsched.reconfiguration.copying import Chunk, Copy, chunks
from ddlsched.reconfiguration.division import divided, within
from ddlsched.reconfiguration.gathering import GATHERED_BYTES, Buffers, NewArray, filled
from ddlsched.reconfiguration.reading import Reading, Source, Watch, no_watch
from ddlsched.reconfiguration.shards import Layout, dense_layout
from ddlsched.reconfiguration.tensors import DTYPE_BYTES, Tensor, total_bytes

__all__ = [
    "DIGESTS",
    "Digest",
    "as_many_threads_as_processors",
    "content_hash",
    "content_hashes",
    "divergences",
    "other_content",
    "refuse_other_content",
]

Digest: TypeAlias = Literal["xxh3", "sha256"]
"""XXH3 of 128 bits finds what goes wrong by accident, as fast as memory is read; SHA-256 what somebody makes of it."""


def _xxh3() -> Any:
    import xxhash

    return xxhash.xxh3_128()


DIGESTS: Mapping[Digest, Callable[[], Any]] = {"xxh3": _xxh3, "sha256": hashlib.sha256}


def content_hashes(reading: Reading, digest: Digest = "sha256", *, watch: Watch = no_watch) -> dict[str, str]:
    """Return the digest of each whole tensor, read from the first replica of each part.

    Raises
    ------
    InputError
        A file is missing, truncated, or contradicts the description, or a part of a tensor is nowhere.
    """
    tensors = reading.checkpoint.collection.tensors
    reading.refuse_faulty_files()
    total = total_bytes(tensors)
    hashes: dict[str, str] = {}
    done = 0
    # The longest first: so no thread is left with one at the end.
    ordered = sorted(tensors, key=lambda tensor: -tensor.num_bytes)
    with as_many_threads_as_processors() as pool:
        for tensor, found in zip(ordered, pool.map(partial(content_hash, reading, digest), ordered), strict=True):
            hashes[tensor.name] = found
            done += tensor.num_bytes
            watch("hashing", done, total)
    return {tensor.name: hashes[tensor.name] for tensor in tensors}


def as_many_threads_as_processors() -> ThreadPoolExecutor:
    """Return as many threads as there are processors: digests and reads leave the interpreter to each other."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)))


def content_hash(reading: Reading, digest: Digest, tensor: Tensor) -> str:
    """Return the digest of a whole tensor, read from the first replica of each part; the files have been looked at.

    Raises
    ------
    InputError
        A file has changed, or a part of the tensor is nowhere.
    """
    array = _whole(reading, tensor)
    return _hashed(array, chunks(array.copies, GATHERED_BYTES // DTYPE_BYTES[tensor.dtype]), digest)


def _hashed(array: NewArray, parts: Iterable[Chunk], digest: Digest) -> str:
    found, buffers = DIGESTS[digest](), Buffers(GATHERED_BYTES)
    for chunk in parts:
        for part in filled(array, chunk, buffers):
            found.update(part)
    text: str = found.hexdigest()
    return text


def _whole(reading: Reading, tensor: Tensor) -> NewArray:
    """Return the whole tensor as an array that is to be put together."""
    parts = reading.replicas(tensor)
    whole = dense_layout(tensor.shape, (), ())
    copies = []
    for cell in divided(tuple(part.layout for part in parts), (whole,)):
        if not cell.old:
            raise InputError(f"tensor {tensor.name}: no replica of a part of it is left; expected one at least")
        held = cell.old[0]
        read = within(parts[held.shard].layout.pieces[held.piece], cell.box)
        copies.append(Copy(held.shard, read, within(whole.pieces[0], cell.box)))
    sources = tuple(part.sources[0] for part in parts)
    return NewArray(tensor=tensor.name, dtype=tensor.dtype, sources=sources, copies=tuple(copies))


def refuse_other_content(
    reading: Reading, expected: Mapping[str, str], digest: Digest = "sha256", *, watch: Watch = no_watch
) -> None:
    """Check each tensor's content hash against the expected one, and each replica against the first.

    Raises
    ------
    FaultyInputError
        A tensor has other contents, or two files that should hold the same do not; all such tensors are named.
    """
    found = content_hashes(reading, digest, watch=watch)
    faults = [
        other_content(reading, name, found.get(name, ""), text)
        for name, text in expected.items()
        if found.get(name) != text
    ]
    with as_many_threads_as_processors() as pool:
        for diverged in pool.map(partial(divergences, reading), reading.checkpoint.collection.tensors):
            faults += diverged
    if faults:
        raise FaultyInputError(faults)


def other_content(reading: Reading, name: str, found: str, expected: str) -> str:
    """Return the message about a tensor with another digest than expected."""
    tensor = reading.checkpoint.collection.by_name.get(name)
    if tensor is None:
        return f"{reading.place.name_of('')}: tensor {name} has a content hash, but is not there; expected it"
    parts = reading.replicas(tensor)
    others = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    text = f"{parts[0].sources[0].name}{others}: tensor {name} has content hash {found[:12]}"
    return f"{text}; expected {expected[:12]}: its contents are not those that were saved"


def divergences(reading: Reading, tensor: Tensor) -> list[str]:
    """Return a line for each replica of a part of a tensor that differs from the first in an element."""
    faults = []
    for layout, sources in reading.replicas(tensor):
        first = _part_hash(tensor, layout, sources[0]) if len(sources) > 1 else ""
        for other in sources[1:]:
            if _part_hash(tensor, layout, other) != first:
                text = f"{other.name}: tensor {tensor.name} differs from its replica in {sources[0].file}"
                faults.append(f"{text}; expected the same contents")
    return faults


def _part_hash(tensor: Tensor, layout: Layout, source: Source) -> str:
    """Return a digest of what a rank holds of a tensor, without padding."""
    copies = tuple(Copy(0, piece, piece) for piece in layout.pieces)
    array = NewArray(tensor=tensor.name, dtype=tensor.dtype, sources=(source,), copies=copies)
    most_elements = GATHERED_BYTES // DTYPE_BYTES[tensor.dtype]
    return _hashed(array, (chunk for copy in copies for chunk in chunks([copy], most_elements)), "xxh3")
