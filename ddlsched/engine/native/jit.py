"""How the loop's functions are compiled; where nothing is compiled they stay what they are.

Nothing is with a numba whose inside this version does not know, nor with ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

NEWEST = 0, 68
"""The newest numba that the tests ran on; ``setup.cfg`` says the same."""

HOW_TO_MEND = f"pip install 'numba<{NEWEST[0]}.{NEWEST[1] + 1}'"

_MEMBERS = {
    "numba.core.bytecode": ("FunctionIdentity._unique_ids",),
    "numba.core.caching": (
        "Cache._index_key",
        "Cache.flush",
        "CompileResultCacheImpl._locator_classes",
        "FunctionCache._impl_class",
        "IndexDataCacheFile._load_index",
        "InTreeCacheLocator.get_source_stamp",
        "UserProvidedCacheLocator.get_source_stamp",
        "UserWideCacheLocator.get_source_stamp",
        "_CacheLocator.get_disambiguator",
    ),
    "numba.core.ccallback": ("CFunc._targetdescr",),
    "numba.core.codegen": (
        "JITCodeLibrary._finalize_dynamic_globals",
        "JITCodeLibrary._optimize_functions",
        "JITCodeLibrary.add_linking_library",
        "JITCodeLibrary.enable_object_caching",
        "JITCodeLibrary.finalize",
        "JITCodeLibrary.get_pointer_to_function",
    ),
    "numba.core.compiler": ("CompilerBase.define_pipelines", "DefaultPassBuilder.define_nopython_pipeline"),
    "numba.core.compiler_machinery": ("AnalysisPass", "PassManager.finalize", "register_pass"),
    "numba.core.environment": ("_rebuild_env",),
    "numba.core.imputils": ("RefType", "impl_ret_untracked", "iternext_impl", "lower_builtin"),
    "numba.core.typed_passes": ("NopythonTypeInference",),
    "numba.core.types.functions": ("BaseFunction.get_call_type",),
    "numba.core.typing.templates": ("AbstractTemplate", "AttributeTemplate", "infer", "infer_global"),
    "numba.np.arrayobj": ("make_array", "populate_array"),
}
"""What ``ddlsched.engine.native`` overrides or calls, and numba may change in any version."""


INTERRUPTED = "ddlsched_interrupted"
"""Where in ``sys`` compiled code keeps the place of the loop that Ctrl-C ended: it hears it before Python does."""


def interrupted_loop() -> str:
    """Return the place of that loop, or nothing; it is told once."""
    return str(vars(sys).pop(INTERRUPTED, ""))


def runs_in_python() -> bool:
    """Return whether nothing is compiled: ``NUMBA_DISABLE_JIT=1`` says so, or numba is one that is not known."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0") or why_unsupported() is not None


@functools.cache
def why_unsupported() -> str | None:
    """Return what differs in the numba that is installed from those that this version knows, or None."""
    try:
        import numba
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    found = re.match(r"(\d+)\.(\d+)", numba.__version__)
    newest = ".".join(map(str, NEWEST))
    if found is None or (int(found[1]), int(found[2])) > NEWEST:
        return f"numba {numba.__version__} is newer than {newest}, the newest that was tested"
    for module, members in _MEMBERS.items():
        for member in members:
            try:
                attrgetter(member)(importlib.import_module(module))
            except (ImportError, AttributeError):
                return f"numba {numba.__version__} has no {module}.{member}"
    return None


@functools.cache
def say_if_unsupported() -> None:
    """Say once on stderr, if the installed numba is not known, what that costs."""
    why = why_unsupported()
    if why is not None:
        with suppress(OSError):
            print(
                f"ddlsched: {why}: the event loop and all policies run in plain Python, about 300 times slower than "
                f"compiled; {HOW_TO_MEND}",
                file=sys.stderr,
                flush=True,
            )


if TYPE_CHECKING or not runs_in_python():
    from ddlsched.engine.native.machine_code import (
        NUMBER,
        NUMBERS,
        REAL,
        REALS,
        address_of,
        called_by_address,
        called_from_python,
        caller_of,
        compiled_as_called,
        compiled_part,
        compiling,
        is_kept,
        njit,
        spent_compiling_s,
    )
    from ddlsched.engine.native.state import STATE, call_address, state_at, width_of
else:
    compiling = nullcontext
    STATE = NUMBER = REAL = NUMBERS = REALS = None
    spent_compiling_s = float

    def njit(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as it is."""
        return function

    def called_by_address(*_: Any) -> Callable[[Callable[..., Any]], Any]:
        """Return a function as it is: it is called by its name."""
        return njit

    def _not_compiled(*arguments: Any) -> NoReturn:
        """Stand for what only compiled code calls, and what only a process that compiles does."""
        raise RuntimeError(f"called with {arguments}, although nothing is compiled")

    called_from_python = called_by_address
    address_of = compiled_as_called = compiled_part = is_kept = state_at = width_of = _not_compiled

    def call_address(address: int, s: Any, number: int, place: int, fields: int) -> int:
        """Call the object at an address."""
        del fields
        answer: int = ctypes.cast(int(address), ctypes.py_object).value(s, number, place)
        return answer

    def caller_of(answered: Any, given: tuple[Any, ...]) -> Callable[..., Any]:
        """Return what nobody calls."""
        del answered, given
        return _not_compiled
