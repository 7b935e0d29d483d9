"""How the loop's functions are compiled and cached."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numba
from numba import extending
from numba.core import caching, environment, types
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.cgutils import alloca_once, unpack_tuple
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.runtime import rtsys
from numba.core.types.functions import BaseFunction
from numba.core.typing import signature
from numba.extending import intrinsic

from ddlsched.engine.native.kept_files import alone_on_this_machine, sources_stamp
from ddlsched.engine.native.state import ENTRY_SIGNATURE, call_address, state_at

ENGINE_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""Nothing in the loop allocates, so reference counting is off: it would cost seven times the loop itself."""

_compiler: Any = numba.njit
NUMBER, REAL, NUMBERS, REALS = numba.int64, numba.float64, numba.int64[::1], numba.float64[::1]
"""Types of what functions that Python calls are given, beside the state."""


class _Stamped:
    """Makes a numba locator stamp what it locates with all sources of the loop, not with one file."""

    def get_source_stamp(self) -> str:
        return sources_stamp()


_LOCATORS = caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator


class _EngineCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = [type(locator.__name__, (_Stamped, locator), {}) for locator in _LOCATORS]  # noqa: RUF012 (numba's)


def loaded(cache: caching.Cache, sig: Any, target_context: Any) -> Any:
    """Return what a cache of numba's has for a signature, or None.

    Numba's own way makes ready for compiling first, which takes three times as long as a short run and imports scipy;
    machine code needs no more than the addresses of what it calls.
    """
    rtsys.initialize(target_context)
    with cache._guard_against_spurious_io_errors(), _environments_of_this_module():
        return cache._load_overload(sig, target_context)


@contextmanager
def _environments_of_this_module() -> Iterator[None]:
    """Let what is loaded not import the modules of the functions that it is made of; no machine code asks for them."""
    rebuild = environment._rebuild_env
    with _instead(environment, "_rebuild_env", lambda _, constants, name: rebuild(__name__, constants, name)):
        yield


class _EngineCache(caching.FunctionCache):
    _impl_class = _EngineCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return loaded(self, sig, target_context)
        except Exception:  # a truncated or foreign file: compile anew, and write it again
            self.flush()
            return None


class _PartCache(_EngineCache):
    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Return what tells this part from others; numba's key holds what the entry calls, as it is in this process."""
        return sig, codegen.magic_tuple(), self._py_func.__name__


class CalledFromPython:
    """A function that is compiled for arguments of given types when it is first called.

    It is called without a look at the types of what it is given: that takes 3.5 us for a state, more than most calls.
    """

    def __init__(self, dispatcher: Any, kinds: tuple[Any, ...]) -> None:
        self.dispatcher, self.kinds = dispatcher, kinds
        self._call = self._compile_and_call

    def compile(self) -> None:
        """Compile it, or load it from disk."""
        with compiling(f"{__file__} {self.dispatcher.py_func.__qualname__}"):  # another installation keeps its own
            self.dispatcher.compile(self.kinds)
        self._call = self.dispatcher.overloads[self.kinds].entry_point

    def _compile_and_call(self, *arguments: Any) -> Any:
        self.compile()
        return self._call(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        """Call what was compiled."""
        return self._call(*arguments)


def called_from_python(*kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that Python calls with such arguments; it is kept on disk, if there is a place to write.

    If it is one that compiled code calls too, it is compiled once more.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        function = getattr(function, "py_func", function)
        compiled = _compiler(**ENGINE_OPTIONS, **WHOLE_OPTIONS)(function)
        with suppress(RuntimeError):  # no writable place
            compiled._cache = _EngineCache(function)
        return CalledFromPython(compiled, kinds)

    return decorate


class _PartLibrary(JITCodeLibrary):
    """The code of a function that is only ever part of another: neither optimised by itself nor made machine code.

    Otherwise each would be both once more with all that it calls, which takes a quarter of the compiler's time.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def finalize(self) -> None:
        """Leave it as it is: each part is linked once, into the whole, and not with each of its callers once more."""
        self._finalize_dynamic_globals()
        self._finalized = True

    @functools.cached_property
    def parts(self) -> dict[Any, None]:
        """Libraries of all that it calls, and itself."""
        called = (getattr(library, "parts", (library,)) for library in self._linking_libraries)
        return dict.fromkeys((self, *itertools.chain.from_iterable(called)))

    def get_pointer_to_function(self, name: str) -> int:
        """Return what stands for no code."""
        return 0

    @property
    def codegen(self) -> Any:
        """What made this library, for which numba keeps no environment of a function that has no code."""
        return _WithoutEnvironments(self._codegen)


class _WholeLibrary(JITCodeLibrary):
    """The code of a function with all parts of it."""

    def add_linking_library(self, library: Any) -> None:
        """Link what is called, and all that it calls."""
        for part in getattr(library, "parts", (library,)):
            super().add_linking_library(part)


class _WithoutEnvironments:
    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Forget it."""


_UNUSED = {
    # Nothing that the loop has: with statements, closures, generators, array expressions.
    "with_lifting", "inline_closure_likes", "make_function_op_code_to_jit_function", "inline_inlinables",
    "inline_overloads", "find_literally", "literal_unroll", "nopython_rewrites",
    # What is for reports, or counts references.
    "annotate_types", "dump_parfor_diagnostics", "nopython_supported_feature_validation", "ir_legalization",
}  # fmt: skip
"""Passes of numba's that change nothing in a part and take a fifth of the compiler's time."""


class PartCompiler(CompilerBase):
    """Compiles a function into a library of a part, without the passes that its kind has no need of."""

    unused = frozenset(_UNUSED)

    def define_pipelines(self) -> list[Any]:
        """Return numba's own."""
        state = self.state
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        whole = DefaultPassBuilder.define_nopython_pipeline(state)
        passes = PassManager(whole.pipeline_name)
        passes.passes = [each for each in whole.passes if each[0].name() not in self.unused]
        passes.finalize()
        return [passes]


class _WholeCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        """Return numba's own, which makes a library of a whole."""
        state = self.state
        state.library = _WholeLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return [DefaultPassBuilder.define_nopython_pipeline(state)]


WHOLE_OPTIONS: dict[str, Any] = {"pipeline_class": _WholeCompiler}
PART_OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": PartCompiler}
overload: Any = functools.partial(extending.overload, jit_options=PART_OPTIONS)
overload_attribute: Any = functools.partial(extending.overload_attribute, jit_options=PART_OPTIONS)
overload_method: Any = functools.partial(extending.overload_method, jit_options=PART_OPTIONS)
register_jitable: Any = extending.register_jitable(**PART_OPTIONS)
"""numba's own, of which each implementation is only ever part of what calls it."""


def njit(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled code calls.

    Such have no wrapper for Python or C, which takes a third of the compiler's time: a call from Python ends the
    process. They are part of what calls them, on disk too.
    """
    return _compiler(**ENGINE_OPTIONS, **PART_OPTIONS)(function)


_spent_s = 0.0


def spent_compiling_s() -> float:
    """Return the seconds that this process has spent in :func:`compiling`."""
    return _spent_s


@contextmanager
def compiling(name: str) -> Iterator[None]:
    """Let Python's garbage wait, and let what is compiled have names that no other process gives.

    To look for garbage among all that the compiler keeps takes a sixth of its time. And numba tells functions of one
    name apart by a number that counts from 1 in every process: two pieces of code from different processes would have
    functions of the same name, and the one that is loaded second would call those of the first.

    Of several processes that need what has this name, one compiles it and the others load it from disk.
    """
    global _spent_s
    begin, was_on = time.perf_counter(), gc.isenabled()
    names = itertools.count(int.from_bytes(os.urandom(6), "big") << 14)
    gc.disable()
    try:
        with (
            _instead(FunctionIdentity, "_unique_ids", names),
            _instead(BaseFunction, "get_call_type", _type_of_call),
            _instead(types.Record, "__repr__", types.Type.__repr__),  # numba writes out each field, for nobody
            alone_on_this_machine(name),
        ):
            yield
    finally:
        if was_on:
            gc.enable()
        _spent_s += time.perf_counter() - begin


@contextmanager
def _instead(owner: Any, name: str, member: Any) -> Iterator[None]:
    """Give one of numba's classes another member for a while."""
    usual = getattr(owner, name)
    setattr(owner, name, member)
    try:
        yield
    finally:
        setattr(owner, name, usual)


_look_up = BaseFunction.get_call_type
_types_of_calls: dict[Any, Any] = {}


def _type_of_call(function: Any, context: Any, kinds: Any, keywords: Any) -> Any:
    """Return the signature of a call of what numba has, such as ``+``, for given types.

    Numba goes through dozens of candidates for each sum in each function, which takes a fifth of the compiler's time.
    """
    if keywords:
        return _look_up(function, context, kinds, keywords)
    found = _types_of_calls.get((function, kinds))
    if found is None:
        found = _types_of_calls[function, kinds] = _look_up(function, context, kinds, keywords)
    return found


PARTS: dict[str, Callable[..., Any]] = {}
"""What is called by address: the function of each field of the run's record that holds one."""


def called_by_address(field: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of the state and a number apart from those that call it.

    So it is compiled once, not with each of its callers, only where a run needs it, and beside others. ``field`` of the
    run's record holds its address.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        PARTS[field] = function
        space: dict[str, Any] = {"call_address": call_address}
        text = f"def {function.__name__}(s, number):\n    call_address(s.run[0].{field}, s, number, 0, 0)"
        exec(text, space)
        caller = space[function.__name__]
        caller.__doc__ = function.__doc__
        return njit(caller)

    return decorate


def uncompiled_entry(function: Callable[..., Any], options: dict[str, Any]) -> CFunc[Any]:
    """Return what the loop calls by its address, all of one signature; it has yet to be compiled, or loaded."""
    return CFunc(function, (ENTRY_SIGNATURE.args, ENTRY_SIGNATURE.return_type), {}, options, **WHOLE_OPTIONS)


@functools.cache
def compiled_part(field: str) -> CFunc[Any]:
    """Return the compiled function of a field; keep it, its address is what the loop calls."""
    body = njit(PARTS[field])

    def entry(state: Any, number: Any, place: Any, fields: Any) -> Any:  # noqa: ARG001 (all have one signature)
        body(state_at(state), number)
        return 0

    entry.__name__ = entry.__qualname__ = field
    part: Any = uncompiled_entry(entry, dict(ENGINE_OPTIONS))
    with suppress(RuntimeError):  # no writable place
        part._cache = _PartCache(entry)
    with compiling(f"{__file__} {field}"):
        part.compile()
    compiled: CFunc[Any] = part
    return compiled


def compiled_as_called(function: Callable[..., Any], *arguments: Any) -> CalledFromPython:
    """Compile a function, into which others may be built, for arguments of the types of these.

    It is kept on disk by its name and those types.
    """
    compiled: Any = _compiler(**ENGINE_OPTIONS, **WHOLE_OPTIONS)(function)
    with suppress(RuntimeError):  # no writable place
        compiled._cache = _PartCache(function)
    called = CalledFromPython(compiled, tuple(map(numba.typeof, arguments)))
    called.compile()
    return called


def is_kept(function: CalledFromPython) -> bool | None:
    """Return whether a function that Python calls is on disk as it would be compiled; None if nothing can be kept."""
    dispatcher = function.dispatcher
    cache = dispatcher._cache
    if not isinstance(cache, _EngineCache):
        return None
    try:
        codegen = dispatcher.targetctx.codegen()
        return cache._index_key(function.kinds, codegen) in cache._cache_file._load_index()
    except Exception:  # a file that cannot be read is written anew
        return False


def address_of(function: CalledFromPython) -> int:
    """Return where the code lies of a function that was compiled."""
    compiled = function.dispatcher.overloads[function.kinds]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address


def caller_of(answered: Any, given: tuple[Any, ...]) -> Any:
    """Return what, in compiled code, calls a compiled function by its :func:`address_of` with a tuple of arguments.

    ``answered`` is the type of the function's answer; None: it has none.
    """
    answered = types.void if answered is None else answered

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:  # noqa: ARG001
            kind = context.call_conv.get_function_type(answered, given)
            answer, error = (alloca_once(builder, kind.args[place].pointee) for place in (0, 1))
            parts = unpack_tuple(builder, values[1], len(given))
            flat = context.get_arg_packer(given).as_arguments(builder, parts)
            builder.call(builder.inttoptr(values[0], kind.as_pointer()), [answer, error, *flat])
            return context.get_dummy_value() if answered is types.void else builder.load(answer)

        return signature(answered, types.int64, types.Tuple(given)), generate

    return call
