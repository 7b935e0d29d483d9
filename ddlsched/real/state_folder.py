"""A folder of state: one process owns it at a time, and no file in it leads elsewhere by a planted link."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ddlsched.errors import InputError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_in(folder: Path, name: str, mode: str, *, buffering: int = -1, permissions: int = 0o666) -> IO[Any]:
    """Open a plain file of a folder, neither of which may be a link; ``mode`` is that of :func:`open`.

    Raises
    ------
    InputError
        It cannot be opened, or is no plain file.
    FileNotFoundError
        There is none, and ``mode`` makes none.
    """

    def opener(file: str, flags: int) -> int:
        below = os.open(folder, _FOLDER)
        try:
            return os.open(file, flags | _FILE, permissions, dir_fd=below)
        finally:
            os.close(below)

    try:
        opened: IO[Any] = open(name, mode, buffering, opener=opener)  # noqa: SIM115
    except OSError as error:
        if isinstance(error, FileNotFoundError) and mode.startswith("r"):
            raise
        raise InputError(f"{folder / name}: cannot be used ({error.strerror}); expected a file, and no link") from None
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise InputError(f"{folder / name}: is no plain file; expected one")
    return opened


class Ownership:
    """The lock of a folder of state. The kernel gives it up with its process, however that ends.

    Raises
    ------
    InputError
        Another process has it, or its file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._file = open_in(folder, "manager.lock", "ab", permissions=0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InputError(f"{folder}: another manager runs its jobs; expected to be the only one") from None

    def close(self) -> None:
        """Give it up."""
        self._file.close()


class Database:
    """An SQLite file, safe against a kill at any moment: the log is written ahead, and every change is whole.

    Parameters
    ----------
    path
        The file, or ``:memory:``.
    schema
        Makes what is not there.
    fault
        What an error says of the file, with ``{}`` for why.
    synchronous
        FULL or NORMAL, as SQLite has it.

    Raises
    ------
    InputError
        The file cannot be used; so does every question.
    """

    def __init__(self, path: Path | str, schema: str, fault: str, synchronous: str = "FULL") -> None:
        self._path, self._fault = path, fault
        if isinstance(path, Path):
            open_in(path.parent, path.name, "ab").close()  # SQLite would follow a link
        with self._explained():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={synchronous}")
            self._db.executescript(schema)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _asked(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._db.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself takes back what finds no space.
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{self._path}: {self._fault.format(error)}") from None
