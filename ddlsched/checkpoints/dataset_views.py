"""A rank's share of a data set, without a copy of it: as global batches to iterate over, or as files of byte ranges.

The virtual files are an fsspec file system, so that pandas, webdataset or a program's own reader open them as any other
file, whereas every byte is read from the originals.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.checkpoints.dataset_files import NO_FILE, ByteRanges, Samples
from ddlsched.errors import InputError
from ddlsched.io.files import file_system

try:
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
except ImportError:
    raise InputError("data sets need fsspec: pip install 'ddlsched[checkpoints]'") from None

if TYPE_CHECKING:
    from ddlsched.checkpoints.dataset_state import DatasetState


class _RangeReader:
    """Reads byte ranges of a data set's files, neighbours in one request."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._places = [file_system(file, "checkpoints") for file in files]

    def read(self, ranges: ByteRanges) -> bytes:
        """Return the ranges' bytes, one after another.

        Raises
        ------
        InputError
            A file that is shorter than it was when it was indexed, or gone.
        """
        pieces = _joined(ranges)
        try:
            contents = [self._piece(*piece) for piece in zip(*(column.tolist() for column in pieces), strict=True)]
        except OSError as error:
            raise InputError(f"{error}; expected the files that the data set was made from") from None
        return b"".join(contents)

    def _piece(self, file: int, start: int, length: int) -> bytes:
        if file == NO_FILE:
            return bytes(length)
        system, path = self._places[file]
        content: bytes = system.cat_file(path, start, start + length)
        if len(content) != length:
            expected = f"{length} bytes from byte {start} on"
            raise InputError(f"{path}: {len(content)} bytes where the data set expects {expected}")
        return content


def _joined(ranges: ByteRanges) -> ByteRanges:
    """Return the same bytes in as few ranges as possible."""
    if len(ranges.file) == 0:
        return ranges
    follows = (ranges.file[1:] == ranges.file[:-1]) & (ranges.start[1:] == ranges.start[:-1] + ranges.length[:-1])
    heads = np.flatnonzero(np.concatenate([[True], ~follows]))
    return ByteRanges(ranges.file[heads], ranges.start[heads], np.add.reduceat(ranges.length, heads))


class RankBatches:
    """What one data-parallel rank reads, global batch after global batch, from a state on and without end.

    Parameters
    ----------
    samples
        The data set.
    state
        Where to begin; see :meth:`DatasetState.advanced`. The steps that a program has done are its own to count:
        readers run ahead of them.
    rank, ranks
        Which of how many.

    Raises
    ------
    InputError
        No such rank; the state is of another data set.
    """

    def __init__(self, samples: Samples, state: DatasetState, *, rank: int, ranks: int) -> None:
        check_state(samples, state)
        state.rank_batch(rank, ranks)
        self.samples, self.state, self.rank, self.ranks = samples, state, rank, ranks
        self._reader = _RangeReader(samples.files)

    def __iter__(self) -> Iterator[Any]:
        """Yield :meth:`batch` 0, 1, 2, ..."""
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Yield batches ``first``, ``first + step``, ...: what one of ``step`` reader processes takes."""
        return map(self.batch, itertools.count(first, step))

    def batch(self, ahead: int) -> Any:
        """Return this rank's part of the global batch so many after the state's next one, decoded.

        An array of tokens, shape (samples, tokens + 1), or a list of a dictionary a sample; may have no sample.
        """
        ranges = self.samples.ranges(self.state.rank_batch(self.rank, self.ranks, ahead))
        content = self._reader.read(ranges)
        cuts = np.concatenate([[0], np.cumsum(ranges.length)]).tolist()
        return self.samples.decoded([content[begin:end] for begin, end in itertools.pairwise(cuts)])


def check_state(samples: Samples, state: DatasetState) -> None:
    """Refuse a state of another data set.

    Raises
    ------
    InputError
        Other number of samples, or other samples.
    """
    if len(samples) != state.num_samples:
        raise InputError(f"dataset state: num_samples is {state.num_samples}, but the files hold {len(samples)}")
    if state.samples_hash and state.samples_hash != samples.samples_hash:
        raise InputError(
            f"dataset state: samples_hash is {state.samples_hash!r}, but the files' is {samples.samples_hash!r}; "
            "expected the files that the run began with"
        )


class RankFileSystem(AbstractFileSystem):
    """Virtual files ``/rank_00000.bin`` (or ``.tar``), ..., one a data-parallel rank; read-only.

    A file holds the rank's samples in the order of training, from the state's next global batch on. One of tar samples
    is itself a tar file. Where ranks do not divide the batch some files are shorter, or empty.

    Parameters
    ----------
    samples
        The data set.
    state
        Where the files begin.
    ranks
        Data-parallel ranks.
    batches
        Global batches in the files; by default those up to the epoch's end.

    Raises
    ------
    InputError
        The state is of another data set.
    """

    protocol = "ddlsched-rank"
    cachable = False

    def __init__(self, samples: Samples, state: DatasetState, *, ranks: int, batches: int | None = None) -> None:
        super().__init__()
        check_state(samples, state)
        self._samples, self._reader = samples, _RangeReader(samples.files)
        count = state.batches_left_in_epoch if batches is None else batches
        parts = [[state.rank_batch(rank, ranks, ahead) for ahead in range(count)] for rank in range(ranks)]
        self._files = {
            f"rank_{rank:05d}{samples.suffix}": self._ranges(np.concatenate([np.empty(0, np.int64), *part]))
            for rank, part in enumerate(parts)
        }

    def _ranges(self, numbers: Any) -> ByteRanges:
        ranges = self._samples.ranges(numbers)
        end = ([NO_FILE], [0], [self._samples.end_bytes])
        return ByteRanges(*(np.concatenate([column, last]) for column, last in zip(ranges, end, strict=True)))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return str(super()._strip_protocol(path)).strip("/")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List the ranks' files; see fsspec."""
        name = self._strip_protocol(path)
        if name and name not in self._files:
            raise FileNotFoundError(path)
        found = [self._entry(each) for each in ([name] if name else self._files)]
        return found if detail else [entry["name"] for entry in found]

    def _entry(self, name: str) -> dict[str, Any]:
        return {"name": name, "size": int(self._files[name].length.sum()), "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return a file's bytes from ``start`` to before ``end``; negative ones count from its end; see fsspec."""
        size = self.info(path)["size"]
        begin, stop, _step = slice(start, end).indices(size)
        return self._reader.read(_cut(self._files[self._strip_protocol(path)], begin, stop))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            raise InputError(f"{path}: mode {mode!r}; the files of ranks can only be read ('rb')")
        return _RankFile(self, path, mode=mode, **options)


class _RankFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.cat_file(self.path, start, end)
        return content


def _cut(ranges: ByteRanges, begin: int, stop: int) -> ByteRanges:
    """Return what of a file of ranges lies between two of its bytes."""
    ends = np.cumsum(ranges.length)
    starts = ends - ranges.length
    kept = (ends > begin) & (starts < stop)
    skipped = np.maximum(begin - starts, 0)[kept]
    length = (np.minimum(ends, stop) - np.maximum(starts, begin))[kept]
    return ByteRanges(ranges.file[kept], ranges.start[kept] + skipped, length)
