"""Whether the numba that is installed is one whose inside this version knows; with another all runs as plain Python."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from contextlib import suppress
from operator import attrgetter

__all__ = ["HOW_TO_MEND", "runs_in_python", "say_if_unsupported", "why_unsupported"]

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
        "JITCodeLibrary._finalize_final_module",
        "JITCodeLibrary._optimize_final_module",
        "JITCodeLibrary._optimize_functions",
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
