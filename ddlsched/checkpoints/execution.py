"""Carrying out a plan: ranges of the old files go to the new ones in bounded chunks, several at a time."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain, groupby, pairwise, takewhile
from typing import NamedTuple, TypeAlias

from ddlsched.checkpoints.content import Written
from ddlsched.checkpoints.copying import Chunk, Copy, chunks, is_contiguous, span
from ddlsched.checkpoints.division import within
from ddlsched.checkpoints.gathering import Buffers, NewArray, filled
from ddlsched.checkpoints.locations import read_soon
from ddlsched.checkpoints.partial_folder import BatchJournal, OpenFiles, Target
from ddlsched.checkpoints.plan import TensorPlan
from ddlsched.checkpoints.reading import Source, Watch
from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.io.files import writable

BATCHES_VERSION = 2
"""Goes up with every change of how a plan falls into batches: what an earlier version began is not gone on with."""

_CHUNK_BYTES = 512 << 10  # 2 MiB took twice the system time for 4 GB on ext4 (Linux 6.18), 256 KiB a quarter more.
_BATCH_BYTES = 128 << 20
_MOST_UNSYNCED_BATCHES = 8
_MOST_THREADS = 8
_MOST_TOGETHER = 8


def chunk_bytes_of(buffer_bytes: int) -> int:
    """Return the most bytes that are copied at a time; the batches of a plan follow from it and the plan."""
    return max(min(_CHUNK_BYTES, buffer_bytes // (3 * _MOST_THREADS)), 1)


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


_Jobs: TypeAlias = "tuple[_Job, ...]"
"""What one thread does, one after the other: it reads once what they have in common."""


class _Job(NamedTuple):
    array: NewArray
    chunk: Chunk

    @property
    def num_bytes(self) -> int:
        return (self.chunk.high - self.chunk.low) * DTYPE_BYTES[self.array.dtype] * len(self.array.targets)


@contextmanager
def copied(
    arrays: Sequence[NewArray],
    files: OpenFiles,
    journal: BatchJournal,
    *,
    chunk_bytes: int,
    threads: int,
    watch: Watch,
    finished: Callable[[Sequence[str]], None],
    written: Written | None = None,
) -> Iterator[int]:
    """Fill the files; yields the bytes that an earlier run had written, and waits at the end until all is on disk.

    What is done meanwhile, such as checking, finds the files full.

    Parameters
    ----------
    chunk_bytes
        Most bytes that a thread copies at a time; it holds at most twice as many of what it reads.
    watch
        Told of each batch.
    finished
        Told which tensors are whole in the new files after a batch, each once.
    written
        Notes what is written.
    """
    total = sum(copy.write.num_elements * DTYPE_BYTES[a.dtype] * len(a.targets) for a in arrays for copy in a.copies)
    buffers = [Buffers(2 * chunk_bytes) for _ in range(threads)]
    done = resumed = 0
    asked: set[int] = set()
    unfinished = dict.fromkeys(array.tensor for array in arrays)
    with ThreadPoolExecutor(threads) as pool, closing(_Flusher(files, journal)) as flusher:
        each_with_next = pairwise(chain(_batches(arrays, chunk_bytes), [list[_Jobs]()]))
        for number, (batch, following) in enumerate(each_with_next):
            done += sum(job.num_bytes for jobs in batch for job in jobs)
            if number < journal.done:
                resumed = done
                if written is not None:
                    written.leave_out(job.array.tensor for jobs in batch for job in jobs)
                continue
            left = iter(batch)  # Threads take from it one by one.
            running = pool.map(lambda own, left=left: _carry_out(left, files, own, written), buffers)
            read_soon(_ranges(following, asked))
            for _ in running:
                pass
            flusher.begin(number + 1)
            finished(_taken(unfinished, before=batch[-1][-1].array.tensor))
            watch("copying", min(done, total), total)
        finished(list(unfinished))
        watch("copying", total, total)
        yield resumed
        flusher.wait()
        files.flush()  # Also of files without a batch.


def _ranges(batch: Iterable[_Jobs], asked: set[int]) -> Iterator[tuple[int, int, int]]:
    """Yield what the arrays of a batch read of local files, those not asked for yet; not of arrays beyond a batch."""
    arrays = {id(job.array): job.array for jobs in batch for job in jobs}
    for number, array in arrays.items():
        copies = array.copies if number not in asked else ()
        asked.add(number)
        if sum(copy.read.num_elements for copy in copies) * DTYPE_BYTES[array.dtype] > _BATCH_BYTES:
            continue
        for copy in copies:
            source = array.sources[copy.source]
            descriptor = source.place.descriptor(source.file)
            if descriptor is not None:
                yield descriptor, *source.byte_range(copy.read)


def _taken(names: dict[str, None], before: str) -> list[str]:
    """Return the names before one, which are taken out."""
    found = list(takewhile(lambda name: name != before, names))
    for name in found:
        del names[name]
    return found


class _Flusher:
    """A thread that brings batches to the disk, and notes them, while the next ones are copied."""

    def __init__(self, files: OpenFiles, journal: BatchJournal) -> None:
        self._files, self._journal = files, journal
        self._thread = ThreadPoolExecutor(1)
        self._begun: deque[Future[None]] = deque()
        self._written = journal.done

    def begin(self, batches: int) -> None:
        """Bring so many batches, those before included, to the disk; wait if it is far behind."""
        self._written = batches
        self._begun.append(self._thread.submit(self._flush))
        while len(self._begun) > _MOST_UNSYNCED_BATCHES or (self._begun and self._begun[0].done()):
            self._begun.popleft().result()

    def _flush(self) -> None:
        batches = self._written
        if batches > self._journal.done:
            self._files.flush()
            with writable(self._journal.path, "a writable folder"):
                self._journal.record(batches)

    def wait(self) -> None:
        """Wait until all that was begun is on disk."""
        while self._begun:
            self._begun.popleft().result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


def _batches(arrays: Sequence[NewArray], chunk_bytes: int) -> Iterator[list[_Jobs]]:
    batch: list[_Jobs] = []
    size = 0
    for _, of_tensor in groupby(arrays, key=lambda array: array.tensor):
        for jobs in _jobs(list(of_tensor), chunk_bytes):
            batch.append(jobs)
            size += sum(job.num_bytes for job in jobs)
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _jobs(arrays: Sequence[NewArray], chunk_bytes: int) -> Iterator[_Jobs]:
    """Yield the chunks of a tensor's arrays; those that lie alike follow each other, or are for one thread."""
    copies = [copy for array in arrays for copy in array.copies]
    runs = all(is_contiguous(copy.read) and is_contiguous(copy.write) for copy in copies)
    most_bytes = chunk_bytes if runs else chunk_bytes // max(map(_width, copies))
    together = 1 if runs else _MOST_TOGETHER
    jobs: list[tuple[float, _Job]] = []
    for array in arrays:
        own = list(chunks(array.copies, max(most_bytes // DTYPE_BYTES[array.dtype], 1)))
        jobs += [(chunk.low / own[-1].high, _Job(array, chunk)) for chunk in own]
    for _, alike in groupby(sorted(jobs, key=lambda item: item[0]), key=lambda item: item[0]):
        found = [job for _, job in alike]
        for first in range(0, len(found), together):
            yield tuple(found[first : first + together])


def _width(copy: Copy) -> int:
    """Return how many times what is wanted is read, since rows of other arrays lie between."""
    low, high = span(copy.read)
    return -(-(high - low) // copy.read.num_elements)


def _carry_out(batch: Iterator[_Jobs], files: OpenFiles, buffers: Buffers, written: Written | None) -> None:
    for jobs in batch:
        for array, chunk in jobs:
            offset, parts = chunk.low * DTYPE_BYTES[array.dtype], filled(array, chunk, buffers)
            if written is not None:
                written.note(array, offset, parts)
            files.write(array.targets, offset, parts, array.tensor)


def num_threads() -> int:
    """Return how many threads copy, if nothing else is asked for."""
    return min(_MOST_THREADS, 2 * len(os.sched_getaffinity(0)))
