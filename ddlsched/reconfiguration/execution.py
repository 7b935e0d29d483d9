"""Carrying out a plan: ranges of the old files go to the new ones in bounded chunks, several at a time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from queue import SimpleQueue
from typing import NamedTuple

from ddlsched.reconfiguration.copying import Chunk, Copy, chunks, is_contiguous
from ddlsched.reconfiguration.division import within
from ddlsched.reconfiguration.files_in_parts import OpenFiles, Target
from ddlsched.reconfiguration.gathering import GATHERED_BYTES, Buffers, NewArray, filled, is_run
from ddlsched.reconfiguration.partial_folder import Journal, explained
from ddlsched.reconfiguration.plan import TensorPlan
from ddlsched.reconfiguration.reading import Source, Watch
from ddlsched.reconfiguration.tensors import DTYPE_BYTES

__all__ = ["chunk_bytes_of", "copied", "new_arrays", "num_threads"]

_CHUNK_BYTES = 8 << 20
_BATCH_BYTES = 256 << 20
_MOST_THREADS = 8


def chunk_bytes_of(buffer_bytes: int) -> int:
    """Return the most bytes that are copied at a time; the batches of a plan follow from it and the plan."""
    return max(min(_CHUNK_BYTES, buffer_bytes // (2 * _MOST_THREADS)), 1)


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


class _Job(NamedTuple):
    array: NewArray
    chunk: Chunk

    @property
    def num_bytes(self) -> int:
        return (self.chunk.high - self.chunk.low) * DTYPE_BYTES[self.array.dtype] * len(self.array.targets)


def copied(
    arrays: Sequence[NewArray], files: OpenFiles, journal: Journal, *, chunk_bytes: int, threads: int, watch: Watch
) -> int:
    """Fill the files; returns the bytes that an earlier run had written.

    Parameters
    ----------
    chunk_bytes
        Most bytes that a thread copies at a time, and that it reads for them.
    watch
        Told of each batch.
    """
    total = sum(copy.write.num_elements * DTYPE_BYTES[a.dtype] * len(a.targets) for a in arrays for copy in a.copies)
    spare: SimpleQueue[Buffers] = SimpleQueue()
    for _ in range(threads):
        spare.put(Buffers(chunk_bytes))
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
        runs = all(is_contiguous(copy.read) and is_contiguous(copy.write) for copy in array.copies)
        most_bytes = chunk_bytes if runs else min(chunk_bytes, GATHERED_BYTES)
        own = list(chunks(array.copies, max(most_bytes // DTYPE_BYTES[array.dtype], 1)))
        jobs += [(chunk.low / own[-1].high, _Job(array, chunk)) for chunk in own]
    return [job for _, job in sorted(jobs, key=lambda item: item[0])]


def _carried_out(job: _Job, files: OpenFiles, spare: SimpleQueue[Buffers]) -> None:
    array, chunk = job
    offset = chunk.low * DTYPE_BYTES[array.dtype]
    first = array.sources[chunk.copies[0].source]
    descriptor = first.place.descriptor(first.file)
    if is_run(chunk) and descriptor is not None:
        byte_range = first.byte_range(chunk.copies[0].read)
        if files.copy(array.targets, offset, descriptor, byte_range, array.tensor):
            return
    buffers = spare.get()
    try:
        files.write(array.targets, offset, filled(array, chunk, buffers), array.tensor)
    finally:
        spare.put(buffers)


def _flushed(files: OpenFiles, journal: Journal) -> None:
    files.flush()
    with explained(journal.path):
        journal.record()


def num_threads() -> int:
    """Return how many threads copy, if nothing else is asked for."""
    return min(_MOST_THREADS, 2 * len(os.sched_getaffinity(0)))
