"""Compiled entries on disk, in a folder of this user's: the second process only loads them.

An entry's name is a hash of its rewritten source, of the engine's and of the compiler's: nothing stale has a name that
is asked for. Beside the code lies a description with the hash of its bytes: what is cut short, overwritten or another
entry's is not run but compiled anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core import caching
from numba.core.ccallback import CFunc

from ddlsched.engine.native.kept_files import cache_folder, describe, described
from ddlsched.engine.native.machine_code import loaded, uncompiled_entry
from ddlsched.engine.native.state import ENTRY_SIGNATURE
from ddlsched.errors import say_once


class _Locator(caching._CacheLocator):
    """Tells numba's cache where an entry is; its stamp is in its name."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._name

    def get_disambiguator(self) -> str:
        return self._name


class _Impl(caching.CompileResultCacheImpl):
    def __init__(self, folder: Path, name: str) -> None:
        self._locator = _Locator(folder, name)
        self._filename_base = f"{name}.py{sys.version_info[0]}{sys.version_info[1]}"
        self._lineno = 0


class _EntryCache(caching.Cache):
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
            return loaded(self, sig, target_context)
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
            say_once(f"compiled policies are not kept: {error}")


def kept_entry(name: str, make: Callable[[], tuple[Any, int, bool]]) -> tuple[Any, int, bool]:
    """Return a compiled entry, the words of its key and whether the first is whole, from disk or ``make``."""
    folder = cache_folder()
    kept = None if folder is None else _EntryCache(folder, name)
    known = described(folder, name)
    if kept is not None and known is not None:
        loaded = _load(kept)
        if loaded is not None:
            return loaded, *known
    if kept is not None:
        kept.forget_unless(known is not None)  # if it is, what is there is another machine's
    entry, words, whole_first = make()
    compiled = uncompiled_entry(entry, {"_nrt": False})
    if kept is not None:
        compiled._cache = kept
    compiled.compile()
    if folder is not None:
        describe(folder, name, words, whole_first)
    return compiled, words, whole_first


class _Loaded:
    """An entry that was compiled by an earlier process."""

    def __init__(self, compiled: Any) -> None:
        self._library = compiled.library  # holds the code
        self.address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)


def _load(kept: _EntryCache) -> _Loaded | None:
    compiled = kept.load_overload(ENTRY_SIGNATURE, CFunc._targetdescr.target_context)
    return None if compiled is None else _Loaded(compiled)
