"""The temporary folder beside a destination: new, or left by a stopped run that was doing the same; and its files.

Nothing else is built on: a folder with any other file, a link, or files of another user or of other arguments is
refused. All files are reached from the open folder, so that no link on the way leads elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ddlsched.errors import InputError
from ddlsched.io.files import writable

_OTHER_FILES = 100
_MOST_PARTS = os.sysconf("SC_IOV_MAX")


class Target(NamedTuple):
    """Where in a new file an array begins."""

    file: str
    begin: int


class OpenFiles:
    """New files of known size, written at any place by several threads.

    Parameters
    ----------
    folder, directory
        Where they are, and its open descriptor.
    sizes
        Of each file; a file that has its size already is kept as it is.
    """

    def __init__(self, folder: Path, directory: int, sizes: Mapping[str, int]) -> None:
        self.folder = folder
        self.descriptors: dict[str, int] = {}
        for name in sizes:
            with self._explained(name, "the file"):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o666, dir_fd=directory)
                self.descriptors[name] = descriptor
                if os.fstat(descriptor).st_size != sizes[name]:
                    _allocate(descriptor, sizes[name])

    def write(self, targets: Sequence[Target], offset: int, parts: Sequence[memoryview], tensor: str) -> None:
        """Write parts one behind the other into each target's file, ``offset`` bytes behind its array's begin."""
        for file, begin in targets:
            with self._explained(file, f"tensor {tensor}"):
                at = begin + offset
                for first in range(0, len(parts), _MOST_PARTS):
                    at += _written(self.descriptors[file], parts[first : first + _MOST_PARTS], at)

    def flush(self) -> None:
        """Wait until all that was written is on disk."""
        for name, descriptor in self.descriptors.items():
            with self._explained(name, "its tensors"):
                os.fdatasync(descriptor)

    def close(self) -> None:
        """Close the files."""
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])

    @contextmanager
    def _explained(self, file: str, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = "no space left" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            text = f"{self.folder / file}: {what} cannot be written ({why})"
            raise InputError(f"{text}; what is done is kept: run again to go on, or remove {self.folder}") from None


def _allocate(descriptor: int, num_bytes: int) -> None:
    """Give a file its size, and where the file system can, its blocks: writing to them takes a quarter less then.

    ``os.posix_fallocate`` would write to every block where the file system cannot.
    """
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(system, "fallocate64", None) or getattr(system, "fallocate", None)
    if fallocate is not None and num_bytes:
        failed = fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(num_bytes))
        if failed and ctypes.get_errno() in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.ftruncate(descriptor, num_bytes)


def _written(descriptor: int, parts: Sequence[memoryview], at: int) -> int:
    """Write all parts and return their bytes; the system may write fewer at a time."""
    num_bytes = sum(map(len, parts))
    done = os.pwritev(descriptor, parts, at)
    while done < num_bytes:
        done += os.pwrite(descriptor, b"".join(parts)[done:], at + done)
    return num_bytes


def refuse_full_disk(folder: Path, needed_bytes: int) -> None:
    """Raise InputError if a folder's file system has not as many bytes free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        text = f"{folder}: has {free_bytes / 1e6:,.1f} MB free of {needed_bytes / 1e6:,.1f} MB that the new files take"
        raise InputError(f"{text}; expected enough space")


def allow_open_files(num_files: int) -> None:
    """Let this process have as many files open, and some more; raise InputError if the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_files + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        text = f"{num_files:,} files of ranks, old and new, are open at a time, and this process may open {hard:,}"
        raise InputError(f"{text}; expected fewer ranks, fewer of them here (--host), or a higher limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


_JOURNAL = "journal"
_DESCRIPTIONS = "descriptions"
_BEGIN_ANEW = "remove it to begin anew"


class BatchJournal:
    """How many batches of a plan are on disk, kept in a file, and locked against a second run.

    Parameters
    ----------
    path
        Of the temporary folder.
    directory
        Its open descriptor.
    """

    def __init__(self, path: Path, directory: int) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        self.descriptor = os.open(_JOURNAL, flags, 0o666, dir_fd=directory)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise InputError(f"{path}: another run is writing it; expected one at a time") from None
        self.fingerprint, self.done, self.described = _kept_lines(self.descriptor)

    def begin(self, fingerprint: str) -> None:
        """Note what the batches follow from."""
        self.fingerprint = fingerprint
        self._add(fingerprint)

    def record(self, batches: int) -> None:
        """Note that so many batches are on disk."""
        self._add(*(f"batch {number + 1}" for number in range(self.done, batches)))
        self.done = batches

    def begin_descriptions(self) -> None:
        """Note that there are files from now on that are not filled in batches."""
        if not self.described:
            self.described = True
            self._add(_DESCRIPTIONS)

    def _add(self, *lines: str) -> None:
        os.write(self.descriptor, "".join(f"{line}\n" for line in lines).encode())
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Let another run have it."""
        os.close(self.descriptor)


def _kept_lines(descriptor: int) -> tuple[str, int, bool]:
    """Return a journal's fingerprint, its batches, and whether there are descriptions; half a last line is cut off."""
    lines = os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n")[:-1]
    os.ftruncate(descriptor, sum(len(line) + 1 for line in lines))
    os.lseek(descriptor, 0, os.SEEK_END)
    if not lines:
        return "", 0, False
    first, *rest = (line.decode(errors="replace") for line in lines)
    batches = [line for line in rest if line != _DESCRIPTIONS]
    if batches != [f"batch {number + 1}" for number in range(len(batches))]:
        return "unknown", 0, False
    return first, len(batches), len(rest) > len(batches)


class PartialFolder:
    """The temporary folder while this run has it."""

    def __init__(self, path: Path, directory: int, journal: BatchJournal) -> None:
        self.path, self.directory, self.journal = path, directory, journal

    def begin_descriptions(self) -> None:
        """Note that files with other names follow, which a later run writes anew."""
        with writable(self.path, "a writable folder"):
            self.journal.begin_descriptions()

    def finish(self, final: Path, descriptions: Sequence[Path]) -> None:
        """Give the folder its name once the descriptions, the last of its files, are on disk.

        The journal goes last: without it a run that was killed right before could not be gone on with.

        Raises
        ------
        InputError
            The system refuses, or another folder has this one's place.
        """
        try:
            for path in descriptions:
                _sync(path)
            os.fsync(self.directory)
            self._refuse_another()
            self.path.rename(final)
            os.unlink(_JOURNAL, dir_fd=self.directory)
            os.fsync(self.directory)
            _sync(final.parent)
        except OSError as error:
            why = error.strerror
            raise InputError(f"{final}: cannot be made of {self.path} ({why}); expected a new folder") from None

    def _refuse_another(self) -> None:
        """Raise InputError if the folder was moved away, so that its name means another one or none."""
        if not self.path.exists() or not os.path.samestat(self.path.lstat(), os.fstat(self.directory)):
            text = "has been moved or replaced while it was written"
            raise InputError(f"{self.path}: {text}; expected a folder that nobody else touches: nothing was made of it")

    def remove(self) -> None:
        """Remove it with all that is in it: what it holds must not be used."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def claimed(path: Path, fingerprint: str, sizes: Mapping[str, int]) -> Iterator[PartialFolder]:
    """Yield the temporary folder, which no other run has until the end.

    Parameters
    ----------
    fingerprint
        What its contents follow from.
    sizes
        The files that belong in it, and their sizes in bytes.

    Raises
    ------
    InputError
        It cannot be made, is no folder, is of another fingerprint, or holds what such a run has not written.
    """
    with writable(path, "a writable folder"):
        directory = _made(path)
    try:
        with writable(path, "a writable folder"):
            if not os.access(_JOURNAL, os.F_OK, dir_fd=directory, follow_symlinks=False):
                _refuse_strangers(path, directory, sizes)
            journal = BatchJournal(path, directory)
        with closing(journal):
            if journal.fingerprint not in ("", fingerprint):
                raise InputError(f"{path}: holds part of another change of parallelism; expected none: {_BEGIN_ANEW}")
            with writable(path, "a writable folder"):
                if journal.described:
                    _remove_descriptions(directory, sizes)
                _refuse_strangers(path, directory, sizes)
                _take_over(path, directory, journal, sizes)
                if not journal.fingerprint:
                    journal.begin(fingerprint)
            yield PartialFolder(path, directory, journal)
    finally:
        os.close(directory)


def _made(path: Path) -> int:
    """Return the descriptor of the folder, which is made if it is not there."""
    with suppress(FileExistsError):
        path.mkdir()
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise InputError(f"{path}: is a link or a file; expected a folder of an earlier run, or none") from None


def _names(directory: int) -> list[str]:
    return sorted(os.listdir(directory))


def _refuse_strangers(path: Path, directory: int, names: Collection[str]) -> None:
    """Raise InputError for anything that such a run has not written."""
    if os.fstat(directory).st_uid != os.geteuid():
        raise InputError(f"{path}: belongs to another user; expected a folder of an earlier run, or none")
    known = {_JOURNAL, *names}
    for name in _names(directory):
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
        own = there.st_uid == os.geteuid() and stat.S_ISREG(there.st_mode) and there.st_nlink == 1
        if name not in known or not own:
            what = "a file of its own" if name in known else "no such file"
            raise InputError(f"{path}: holds {name}, which no run with these arguments wrote ({what}); {_BEGIN_ANEW}")


def _remove_descriptions(directory: int, names: Collection[str]) -> None:
    for name in set(_names(directory)) - {_JOURNAL, *names}:
        os.unlink(name, dir_fd=directory)


def _take_over(path: Path, directory: int, journal: BatchJournal, sizes: Mapping[str, int]) -> None:
    """Keep what an earlier run had on disk, or begin with nothing."""
    names = set(_names(directory)) & set(sizes)
    there = {name: os.stat(name, dir_fd=directory).st_size for name in names}
    if not journal.done:
        for name in there:
            os.unlink(name, dir_fd=directory)
    elif there != dict(sizes):
        name = min(name for name in sizes if there.get(name) != sizes[name])
        found = f"of {there[name]:,} bytes" if name in there else "missing"
        raise InputError(f"{path}: {name} is {found}; expected {sizes[name]:,} bytes: {_BEGIN_ANEW}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
