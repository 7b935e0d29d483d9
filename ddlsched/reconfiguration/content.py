"""Content hashes: of whole tensors, in the order of their elements, so that they are the same under any parallelism."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ddlsched.errors import FaultyInputError, InputError
from ddlsched.reconfiguration.copying import Copy, chunks, is_contiguous
from ddlsched.reconfiguration.division import divided, within
from ddlsched.reconfiguration.gathering import GATHERED_BYTES, Buffers, NewArray, filled
from ddlsched.reconfiguration.reading import Reading, Source, Watch, no_watch
from ddlsched.reconfiguration.shards import Piece, dense_layout
from ddlsched.reconfiguration.tensors import DTYPE_BYTES, Tensor, total_bytes

__all__ = ["content_hashes", "refuse_diverged", "refuse_other_content"]

_THREADS = 4


def content_hashes(reading: Reading, *, watch: Watch = no_watch) -> dict[str, str]:
    """Return the SHA-256 of each whole tensor, read from the first replica of each part.

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
    with ThreadPoolExecutor(_THREADS) as pool:
        for tensor, digest in zip(tensors, pool.map(partial(_content_hash, reading), tensors), strict=True):
            hashes[tensor.name] = digest
            done += tensor.num_bytes
            watch("hashing", done, total)
    return hashes


def _content_hash(reading: Reading, tensor: Tensor) -> str:
    array = _whole(reading, tensor)
    digest = hashlib.sha256()
    buffers = Buffers(GATHERED_BYTES)
    for chunk in chunks(array.copies, GATHERED_BYTES // DTYPE_BYTES[tensor.dtype]):
        digest.update(filled(array, chunk, buffers))
    return digest.hexdigest()


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


def refuse_other_content(reading: Reading, expected: Mapping[str, str], *, watch: Watch = no_watch) -> None:
    """Check each tensor's content hash against the expected one, and each replica against the first.

    Raises
    ------
    FaultyInputError
        A tensor has other contents, or two files that should hold the same do not; all such tensors are named.
    """
    found = content_hashes(reading, watch=watch)
    faults = [
        _other(reading, name, found[name], digest) for name, digest in expected.items() if found.get(name) != digest
    ]
    faults += _divergences(reading)
    if faults:
        raise FaultyInputError(faults)


def refuse_diverged(reading: Reading) -> None:
    """Check each replica against the first.

    Raises
    ------
    FaultyInputError
        Two files that should hold the same do not; all such tensors are named.
    """
    faults = list(_divergences(reading))
    if faults:
        raise FaultyInputError(faults)


def _other(reading: Reading, name: str, found: str, expected: str) -> str:
    parts = reading.replicas(reading.checkpoint.collection.by_name[name])
    others = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    text = f"{parts[0].sources[0].name}{others}: tensor {name} has content hash {found[:12]}"
    return f"{text}; expected {expected[:12]}: its contents are not those that were saved"


def _divergences(reading: Reading) -> Iterator[str]:
    with ThreadPoolExecutor(_THREADS) as pool:
        for faults in pool.map(partial(_diverged, reading), reading.checkpoint.collection.tensors):
            yield from faults


def _diverged(reading: Reading, tensor: Tensor) -> list[str]:
    """Return a line for each replica of a part of a tensor that differs from the first in an element."""
    faults = []
    for layout, (first, *others) in reading.replicas(tensor):
        for other in others:
            if not all(_same(first, other, piece) for piece in layout.pieces):
                text = f"{other.name}: tensor {tensor.name} differs from its replica in {first.file}"
                faults.append(f"{text}; expected the same contents")
    return faults


def _same(one: Source, other: Source, piece: Piece) -> bool:
    most = GATHERED_BYTES // DTYPE_BYTES[one.entry.dtype]
    parts = (part.read for chunk in chunks([Copy(0, piece, piece)], most) for part in chunk.copies)
    return all(_elements(one, part) == _elements(other, part) for part in parts)


def _elements(source: Source, part: Piece) -> bytes:
    """Return a part's elements as bytes: so a NaN equals itself."""
    return bytes(source.data(part)) if is_contiguous(part) else source.view(part).tobytes()
