"""Where a data set's samples lie: in files of tokens, or in tar shards as webdataset writes them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.files import file_system
from ddlsched.ranges import check_arguments

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKEN_TYPES = ("uint16", "int32", "uint32", "int64")
TAR_BLOCK_BYTES = 512
NO_FILE = -1
"""In place of a file's number: bytes that are zero."""


class ByteRanges(NamedTuple):
    """Pieces of files, in order; three int64 arrays of one length.

    ``file`` counts in the files of the :class:`Samples`, ``NO_FILE`` stands for zeros; ``start`` and ``length`` are in
    bytes.
    """

    file: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]


class Samples(Protocol):
    """A data set in files: what a sample's bytes are and what they mean."""

    files: tuple[str, ...]
    suffix: str
    """Of a file that holds such samples one after another."""
    end_bytes: int
    """Zeros that such a file ends with."""

    @property
    def samples_hash(self) -> str:
        """What the samples are, for :class:`DatasetState`."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def ranges(self, samples: NDArray[np.int64]) -> ByteRanges:
        """Return where samples lie, a range each."""

    def decoded(self, contents: Sequence[bytes]) -> Any:
        """Return what the bytes of some samples mean."""


class TokenFiles:
    """Files of nothing but tokens, as GPT training reads them, cut in sequences.

    Sample i of a file is its tokens from ``i * sequence_tokens`` on, and one more, which is the last one's target; what
    is too short for a sequence at a file's end is left out.

    Parameters
    ----------
    files
        Paths or fsspec URLs.
    sequence_tokens
        Tokens that a model sees at once.
    dtype
        Of a token: uint16, int32, uint32 or int64, little-endian.

    Raises
    ------
    InputError
        A file that cannot be read or is no whole number of tokens; no sample at all.
    """

    suffix = ".bin"
    end_bytes = 0

    def __init__(self, files: Sequence[str], *, sequence_tokens: int, dtype: str = "uint16") -> None:
        if dtype not in TOKEN_TYPES:
            raise InputError(f"token files: dtype is {dtype!r}; expected {', '.join(TOKEN_TYPES)}")
        check_arguments("token files", sequence_tokens=(sequence_tokens, 1))
        self.files, self.sequence_tokens = tuple(files), sequence_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        counts = [(self._tokens(file) - 1) // sequence_tokens for file in self.files]
        self._ends = np.cumsum(np.maximum(counts, 0), dtype=np.int64)
        if len(self) == 0:
            raise InputError(
                f"token files: no sample of {sequence_tokens} + 1 tokens in {', '.join(files) or 'no file'}"
            )

    def _tokens(self, file: str) -> int:
        size = file_size(file)
        if size % self.dtype.itemsize:
            raise InputError(f"{file}: {size} bytes; expected a multiple of {self.dtype.itemsize} ({self.dtype.name})")
        return size // self.dtype.itemsize

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def samples_hash(self) -> str:
        """Of the sequence length, the token type and each file's number of samples; the contents are not read."""
        return _hash((self.sequence_tokens, self.dtype.name, *self._ends.tolist()))

    def ranges(self, samples: NDArray[np.int64]) -> ByteRanges:
        """Return where samples lie, a range each."""
        file = np.searchsorted(self._ends, samples, side="right")
        first = np.concatenate([[0], self._ends])[file]
        start = (samples - first) * (self.sequence_tokens * self.dtype.itemsize)
        return ByteRanges(file, start, np.full_like(start, (self.sequence_tokens + 1) * self.dtype.itemsize))

    def decoded(self, contents: Sequence[bytes]) -> NDArray[np.int64]:
        """Return tokens, shape (samples, sequence_tokens + 1)."""
        tokens = np.frombuffer(b"".join(contents), dtype=self.dtype)
        return tokens.reshape(len(contents), self.sequence_tokens + 1).astype(np.int64)


class TarShards:
    """Tar files as webdataset writes them.

    Members that follow each other and are alike up to the name's first dot are one sample.

    Every shard's headers are read once, when this is made. They must not be compressed.

    Parameters
    ----------
    files
        Paths or fsspec URLs.

    Raises
    ------
    InputError
        A file that is no tar file, is compressed, ends too early or holds no sample.
    """

    suffix = ".tar"
    end_bytes = 2 * TAR_BLOCK_BYTES

    def __init__(self, files: Sequence[str]) -> None:
        self.files = tuple(files)
        found = [(number, *place) for number, file in enumerate(self.files) for place in _tar_samples(file)]
        if not found:
            raise InputError(f"tar shards: no sample in {', '.join(files) or 'no file'}")
        self._places = np.array(found, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._places)

    @property
    def samples_hash(self) -> str:
        """Of where each sample begins and ends; the contents are not read."""
        return _hash(self._places.tolist())

    def ranges(self, samples: NDArray[np.int64]) -> ByteRanges:
        """Return where samples lie, headers included, a range each."""
        return ByteRanges(*self._places[samples].T)

    def decoded(self, contents: Sequence[bytes]) -> list[dict[str, bytes]]:
        """Return each sample as webdataset does: ``__key__`` and the contents by the names' endings."""
        return [_tar_sample(content) for content in contents]


def _tar_samples(file: str) -> Iterator[tuple[int, int]]:
    """Yield start and length of each sample of a shard."""
    file_size(file)
    with opened(file) as stream:
        try:
            for _, members in groupby(_members(stream), key=lambda member: _key_and_ending(member.name)[0]):
                own = list(members)
                end = own[-1].offset_data + -(-own[-1].size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
                yield own[0].offset, end - own[0].offset
        except tarfile.TarError as error:
            raise InputError(f"{file}: {error}; expected a whole, uncompressed tar file") from None


def _members(stream: Any) -> Iterator[tarfile.TarInfo]:
    """Yield an archive's files; the library takes headers that are cut or no headers for its end, unless the first."""
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        yield from (member for member in archive if member.isreg())
        stream.seek(archive.offset)
        if stream.read(TAR_BLOCK_BYTES) != bytes(TAR_BLOCK_BYTES):
            raise tarfile.ReadError(f"no header and no end of archive at byte {archive.offset}")


def _tar_sample(content: bytes) -> dict[str, bytes]:
    sample: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content + bytes(TarShards.end_bytes)), mode="r:") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                key, ending = _key_and_ending(member.name)
                sample |= {"__key__": key.encode(), ending: stream.read()}
    return sample


def _key_and_ending(name: str) -> tuple[str, str]:
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending


def _hash(parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def file_size(url: str) -> int:
    """Return a file's bytes.

    Raises
    ------
    InputError
        It is not there, or is no file.
    """
    system, path = file_system(url, "checkpoints")
    try:
        size = system.size(path)
    except OSError as error:
        raise InputError(f"{url}: {error.strerror or error}; expected a file of samples") from None
    if size is None or not system.isfile(path):
        raise InputError(f"{url}: not a file; expected a file of samples")
    return int(size)


def opened(url: str) -> Any:
    """Return a file, open for reading bytes."""
    system, path = file_system(url, "checkpoints")
    return system.open(path, "rb")
