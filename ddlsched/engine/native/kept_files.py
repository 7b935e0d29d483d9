"""The stamp of compiled code, the folder where it is kept, and what says that a file there is whole."""

from __future__ import annotations

import functools
import getpass
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from ddlsched.errors import say_once

_PACKAGE = Path(__file__).parents[2]
_OF_THE_LOOP = (
    "engine/records.py",
    "engine/field_values.py",
    "engine/native",
    "engine/loop",
    "policies/network_views.py",
    "policies/job_view.py",
    "policies/choosing.py",
    "policies/view_parts.py",
)
_OF_POLICIES = (
    *_OF_THE_LOOP,
    "engine/compiled_forms.py",
    "engine/compiled_views.py",
    "policies/compiling",
    "network/rates.py",
)


@functools.cache
def sources_stamp(of_policies: bool = False) -> str:
    """Return the hash of all sources of the loop: compiled code is stale as soon as any of them has changed.

    Parameters
    ----------
    of_policies
        Whether the sources by which policies are compiled belong to it.
    """
    digest = hashlib.sha256()
    for path in stamped_sources(of_policies):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def stamped_sources(of_policies: bool = False) -> list[Path]:
    """Return the files of which :func:`sources_stamp` is made."""
    places = [_PACKAGE / place for place in (_OF_POLICIES if of_policies else _OF_THE_LOOP)]
    return [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]


def described(folder: Path | None, name: str) -> tuple[int, bool] | None:
    """Return the words of an entry's key and whether the first is whole, if its files are as they were written."""
    try:
        folder = folder or Path()
        said = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        words, whole_first = said["words"], said["whole_first"]
        intact = said["name"] == name and said["code"] == _hash_of_code(folder, name)
        return (int(words), bool(whole_first)) if intact else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _hash_of_code(folder: Path, name: str) -> str:
    """Return the hash of what numba has written of an entry."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.glob(f"{name}.*") if path.suffix in (".nbi", ".nbc")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe(folder: Path, name: str, words: int, whole_first: bool) -> None:
    """Write beside an entry's code what :func:`described` returns, and the hash of its bytes."""
    from ddlsched.io.files import replacing

    try:
        with replacing(folder / f"{name}.json", "compiled policy") as path:
            said = {"name": name, "words": words, "whole_first": whole_first, "code": _hash_of_code(folder, name)}
            path.write_text(json.dumps(said), encoding="utf-8")
    except Exception as error:
        say_once(f"compiled policies are not kept: {error}")


@cache
def cache_folder() -> Path | None:
    """Return where compiled policies are kept, or None if there is no place of this user's.

    It is ``ddlsched`` in ``NUMBA_CACHE_DIR``, ``XDG_CACHE_HOME`` or ``~/.cache``, the first that is set.
    """
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(base).expanduser() / "ddlsched"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.lstat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode)):
            raise PermissionError(f"{folder} does not belong to {getpass.getuser()}")
        if status.st_mode & 0o022:
            raise PermissionError(f"others may write into {folder}")
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError, KeyError) as error:
        say_once(f"compiled policies are not kept, and are compiled anew by each process: {error}")
        return None
    return folder


@contextmanager
def alone_on_this_machine(name: str) -> Iterator[None]:
    """Wait, if need be for two minutes, until no other process of this user is within this for the same name."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    with ExitStack() as stack:
        if (folder := cache_folder()) is not None:
            with suppress(OSError, ImportError):  # a file system without locks, or an operating system
                _wait_for(stack.enter_context((folder / "compiling.lock").open("ab")), place)
        yield


def _wait_for(file: IO[bytes], place: int) -> None:
    import fcntl

    for _ in range(1_200):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except BlockingIOError:
            time.sleep(0.1)
        else:
            return
