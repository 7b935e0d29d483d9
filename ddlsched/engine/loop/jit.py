"""How the loop's functions are compiled and cached."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from ddlsched.engine.loop import state  # noqa: F401 (numba learns the type of the state)

__all__ = ["ENGINE_OPTIONS", "called_from_python", "njit", "sources_stamp"]

ENGINE_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""Nothing in the loop allocates, so reference counting is off: it would cost seven times the loop itself."""

_compiler: Any = numba.njit
_SOURCES = Path(__file__).parent


@functools.cache
def sources_stamp() -> str:
    """Return the hash of all sources of the loop: compiled code is stale as soon as any of them has changed."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class _Stamped:
    """Makes a numba locator stamp what it locates with all sources of the loop, not with one file."""

    def get_source_stamp(self) -> str:
        return sources_stamp()


class _UserProvided(_Stamped, caching.UserProvidedCacheLocator):
    pass


class _InTree(_Stamped, caching.InTreeCacheLocator):
    pass


class _UserWide(_Stamped, caching.UserWideCacheLocator):
    pass


class _EngineCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = [_UserProvided, _InTree, _UserWide]  # noqa: RUF012 (numba's attribute)


class _EngineCache(caching.FunctionCache):
    _impl_class = _EngineCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a truncated or foreign file: compile anew, and write it again
            self.flush()
            return None


def called_from_python(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls; the result is kept on disk, if there is a place to write."""
    compiled = _compiler(**ENGINE_OPTIONS)(function)
    if hasattr(compiled, "compile"):  # not under NUMBA_DISABLE_JIT=1
        with suppress(RuntimeError):  # no writable place
            compiled._cache = _EngineCache(function)
    return compiled


def njit(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled code calls.

    Such have no wrapper for Python, which takes a third of the compiler's time: a call from Python ends the process.
    They are part of what calls them, on disk too.
    """
    return _compiler(**ENGINE_OPTIONS, no_cpython_wrapper=True)(function)
