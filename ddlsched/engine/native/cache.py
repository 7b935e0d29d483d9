"""Compiled entries on disk, in a folder of this user's: the second process only loads them.

An entry's name is a hash of its rewritten source, of the engine's and of the compiler's: nothing stale has a name that
is asked for. Beside the code lies a description with the hash of its bytes: what is cut short, overwritten or another
entry's is not run but compiled anew.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba.core import caching
from numba.core.ccallback import CFunc

from ddlsched.engine.native.state import ENTRY_SIGNATURE

__all__ = ["cache_folder", "kept_entry"]


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """Tells numba's cache where an entry is; its stamp is in its name."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._name

    def get_disambiguator(self) -> str:
        return self._name


class _Impl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, folder: Path, name: str) -> None:
        self._locator = _Locator(folder, name)
        self._filename_base = f"{name}.py{sys.version_info[0]}{sys.version_info[1]}"
        self._lineno = 0


class _EntryCache(caching.Cache):  # type: ignore[misc]
    """Numba's cache for one entry; a file that cannot be read is as good as none."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name, self._impl = name, _Impl(folder, name)
        self._py_func = None
        self._cache_path = str(folder)
        base = self._impl.filename_base
        self._cache_file = caching.IndexDataCacheFile(str(folder), base, name)
        self.enable()

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), self._name

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # of another version
            self.forget_unless(False)
            return None

    def forget_unless(self, intact: bool) -> None:
        """Forget what is there of the entry, as it is not what this class has written."""
        if not intact:
            with suppress(OSError):
                self.flush()

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _say_once(f"compiled policies are not kept: {error}")


def kept_entry(name: str, make: Callable[[], tuple[Any, int, bool]]) -> tuple[Any, int, bool]:
    """Return a compiled entry, the words of its key and whether the first is whole, from disk or ``make``."""
    folder = cache_folder()
    kept = None if folder is None else _EntryCache(folder, name)
    known = _described(folder, name)
    if kept is not None and known is not None:
        loaded = _load(kept)
        if loaded is not None:
            return loaded, *known
    if kept is not None:
        kept.forget_unless(known is not None)  # if it is, what is there is another machine's
    entry, words, whole_first = make()
    compiled = CFunc(entry, (ENTRY_SIGNATURE.args, ENTRY_SIGNATURE.return_type), {}, {"_nrt": False})
    if kept is not None:
        compiled._cache = kept
    compiled.compile()
    if folder is not None:
        _describe(folder, name, words, whole_first)
    return compiled, words, whole_first


class _Loaded:
    """An entry that was compiled by an earlier process."""

    def __init__(self, compiled: Any) -> None:
        self._library = compiled.library  # holds the code
        self.address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)


def _load(kept: _EntryCache) -> _Loaded | None:
    compiled = kept.load_overload(ENTRY_SIGNATURE, CFunc._targetdescr.target_context)
    return None if compiled is None else _Loaded(compiled)


def _described(folder: Path | None, name: str) -> tuple[int, bool] | None:
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


def _describe(folder: Path, name: str, words: int, whole_first: bool) -> None:
    from ddlsched.io.files import replacing

    try:
        with replacing(folder / f"{name}.json", "compiled policy") as path:
            said = {"name": name, "words": words, "whole_first": whole_first, "code": _hash_of_code(folder, name)}
            path.write_text(json.dumps(said), encoding="utf-8")
    except Exception as error:
        _say_once(f"compiled policies are not kept: {error}")


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
        _say_once(f"compiled policies are not kept, and are compiled anew by each process: {error}")
        return None
    return folder


@cache
def _say_once(text: str) -> None:
    print(f"ddlsched: {text}", file=sys.stderr, flush=True)
