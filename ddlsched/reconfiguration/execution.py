"""Carrying out a plan: ranges of the old files go to the new ones in bounded chunks, several at a time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from ddlsched.reconfiguration.arrays import numpy_dtype
from ddlsched.reconfiguration.copying import Chunk, Copy, chunks, is_contiguous
from ddlsched.reconfiguration.division import within
from ddlsched.reconfiguration.files_in_parts import Journal, OpenFiles, Target
from ddlsched.reconfiguration.plan import TensorPlan
from ddlsched.reconfiguration.reading import Source, Watch
from ddlsched.reconfiguration.tensors import DTYPE_BYTES

__all__ = ["CHUNK_BYTES", "NewArray", "copied", "filled", "new_arrays", "num_threads"]

CHUNK_BYTES = 8 << 20
_BATCH_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class NewArray:
    """An array that is to be put together: from what, and into which files."""

    tensor: str
    dtype: str
    sources: tuple[Source, ...]
    copies: tuple[Copy, ...]
    targets: tuple[Target, ...] = ()


def new_arrays(
    tensor: TensorPlan, source_of: Callable[[int], Source], target_of: Callable[[int], Target | None]
) -> Iterator[NewArray]:
    """Yield the arrays of a tensor's plan; ranks of one host that hold the same share one.

    Parameters
    ----------
    source_of
        Returns an old rank's array.
    target_of
        Returns where a new rank's array goes; None: this run does not write it.
    """
    chosen: dict[int, dict[int, int]] = defaultdict(dict)
    for move in tensor.moves:
        chosen[move.target][move.cell] = move.source
    for number, shard in enumerate(tensor.new):
        targets = {rank: target for rank in shard.ranks if (target := target_of(rank)) is not None}
        if targets:
            # What is read is the same for all: the first one's sources serve them all.
            copies, sources = _copies(tensor, number, chosen[min(targets)], source_of)
            yield NewArray(
                tensor=tensor.tensor.name,
                dtype=tensor.tensor.dtype,
                sources=sources,
                copies=copies,
                targets=tuple(targets.values()),
            )


def _copies(
    tensor: TensorPlan, shard: int, chosen: Mapping[int, int], source_of: Callable[[int], Source]
) -> tuple[tuple[Copy, ...], tuple[Source, ...]]:
    """Return what is copied to a new shard; ``chosen`` is the old rank of each cell."""
    numbers: dict[int, int] = {}
    copies = []
    for index, cell in enumerate(tensor.cells):
        for holding in cell.new:
            if holding.shard != shard:
                continue
            rank = chosen[index]
            old = next(held for held in cell.old if rank in tensor.old[held.shard].ranks)
            read = within(tensor.old[old.shard].layout.pieces[old.piece], cell.box)
            write = within(tensor.new[shard].layout.pieces[holding.piece], cell.box)
            copies.append(Copy(numbers.setdefault(rank, len(numbers)), read, write))
    return tuple(copies), tuple(source_of(rank) for rank in numbers)


def filled(array: NewArray, chunk: Chunk, buffer: memoryview) -> memoryview:
    """Return a chunk's bytes: a source's own if they lie there as wanted, else gathered in the buffer."""
    if is_run(chunk):
        first = chunk.copies[0]
        return array.sources[first.source].data(first.read)
    size = DTYPE_BYTES[array.dtype]
    num_bytes = (chunk.high - chunk.low) * size
    if len(buffer) < num_bytes:
        buffer = memoryview(bytearray(num_bytes))
    wanted = buffer[:num_bytes]
    dtype = numpy_dtype(array.dtype)
    if sum(copy.write.num_elements for copy in chunk.copies) * size < num_bytes:
        np.frombuffer(wanted, np.uint8)[:] = 0
    for source, read, write in chunk.copies:
        strides = tuple(stride * size for stride in write.strides)
        view = np.ndarray(write.extent, dtype, wanted, (write.offset - chunk.low) * size, strides)
        view[...] = array.sources[source].view(read)
    return wanted


def is_run(chunk: Chunk) -> bool:
    """Return whether a chunk's bytes lie in one source as they are wanted."""
    first = chunk.copies[0]
    whole = len(chunk.copies) == 1 and first.write.num_elements == chunk.high - chunk.low
    return whole and is_contiguous(first.read)


class _Job(NamedTuple):
    array: NewArray
    chunk: Chunk

    @property
    def num_bytes(self) -> int:
        return (self.chunk.high - self.chunk.low) * DTYPE_BYTES[self.array.dtype] * len(self.array.targets)


def copied(
    arrays: Sequence[NewArray], files: OpenFiles, journal: Journal, *, buffer_bytes: int, threads: int, watch: Watch
) -> int:
    """Fill the files; returns the bytes that an earlier run had written.

    Parameters
    ----------
    buffer_bytes
        Of all threads together.
    watch
        Told of each batch.
    """
    total = sum(copy.write.num_elements * DTYPE_BYTES[a.dtype] * len(a.targets) for a in arrays for copy in a.copies)
    chunk_bytes = max(min(CHUNK_BYTES, buffer_bytes // threads), 1)
    spare: SimpleQueue[memoryview] = SimpleQueue()
    for _ in range(threads):
        spare.put(memoryview(bytearray(chunk_bytes)))
    done = resumed = 0
    flushing: Future[None] | None = None
    with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(1) as flusher:
        for number, batch in enumerate(_batches(arrays, chunk_bytes)):
            done += sum(job.num_bytes for job in batch)
            if number < journal.done:
                resumed = done
                continue
            for _ in pool.map(lambda job: _carried_out(job, files, spare), batch):
                pass
            if flushing is not None:
                flushing.result()
            flushing = flusher.submit(_flushed, files, journal)
            watch("copying", min(done, total), total)
        if flushing is not None:
            flushing.result()
    watch("copying", total, total)
    return resumed


def _batches(arrays: Sequence[NewArray], chunk_bytes: int) -> Iterator[list[_Job]]:
    batch: list[_Job] = []
    size = 0
    for _, of_tensor in groupby(arrays, key=lambda array: array.tensor):
        for job in _jobs(of_tensor, chunk_bytes):
            batch.append(job)
            size += job.num_bytes
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _jobs(arrays: Iterable[NewArray], chunk_bytes: int) -> list[_Job]:
    """Return the chunks of a tensor's arrays; those that lie alike, which read the same rows, follow each other."""
    jobs: list[tuple[float, _Job]] = []
    for array in arrays:
        own = list(chunks(array.copies, max(chunk_bytes // DTYPE_BYTES[array.dtype], 1)))
        jobs += [(chunk.low / own[-1].high, _Job(array, chunk)) for chunk in own]
    return [job for _, job in sorted(jobs, key=lambda item: item[0])]


def _carried_out(job: _Job, files: OpenFiles, spare: SimpleQueue[memoryview]) -> None:
    array, chunk = job
    offset = chunk.low * DTYPE_BYTES[array.dtype]
    first = array.sources[chunk.copies[0].source]
    descriptor = first.place.descriptor(first.file)
    if is_run(chunk) and descriptor is not None:
        files.copy(array.targets, offset, descriptor, first.byte_range(chunk.copies[0].read), array.tensor)
        return
    buffer = spare.get()
    try:
        files.write(array.targets, offset, filled(array, chunk, buffer), array.tensor)
    finally:
        spare.put(buffer)


def _flushed(files: OpenFiles, journal: Journal) -> None:
    files.flush()
    journal.record()


def num_threads() -> int:
    """Return how many threads copy, if nothing else is asked for."""
    return min(8, 2 * len(os.sched_getaffinity(0)))
