"""From a policy's instance to the address that the loop calls, through the cache on disk."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
import threading
from pathlib import Path
from typing import Any

from ddlsched.engine.loop.jit import compiling, sources_stamp
from ddlsched.policies.compiling.fields import Fields
from ddlsched.policies.compiling.known_programs import program_of
from ddlsched.policies.compiling.program import Constant, Program
from ddlsched.policies.compiling.source import CannotCompileError

__all__ = ["CompiledMethod", "compile_method"]


@dataclasses.dataclass(frozen=True)
class CompiledMethod:
    """A method of a policy, compiled.

    Attributes
    ----------
    address
        Of its entry (:mod:`ddlsched.engine.compiled.entries`).
    fields
        The policy's: the entry is called with the address of their record.
    words
        How many numbers its key has; 0 if it answers no key.
    whole_first
        Whether the first of them is a whole number.
    reads
        Names of what it may read.
    has_memory
        Whether its answer may depend on what it was asked before.
    constants
        What it took from modules, classes and closures (:class:`~ddlsched.policies.compiling.program.Program`).
    """

    address: int
    fields: Fields
    words: int
    whole_first: bool
    reads: frozenset[str]
    has_memory: bool
    constants: tuple[Constant, ...]

    def changed(self, policy: Any) -> str | None:
        """Return what has changed, since it was compiled, of what it took for constant, or None."""
        for name, look_up, value in self.constants:
            if look_up() is not value and look_up() != value:
                return name
        fields = Fields.of(policy)
        for name, array in self.fields.arrays.items():
            if fields.arrays.get(name) is not array:
                return name
        pairs = (self.fields.numbers, fields.numbers), (self.fields.others, fields.others)
        for before, now in pairs:
            for name, value in before.items():
                if name not in now or (now[name] is not value and repr(now[name]) != repr(value)):
                    return name
        return None


_compiled: dict[str, tuple[Any, int, bool]] = {}
_lock = threading.Lock()


def compile_method(policy: Any, method: str, predicted: bool = False) -> CompiledMethod:
    """Return a method of a policy, compiled in this process, by an earlier one, or now.

    Parameters
    ----------
    predicted
        Whether it sees predicted lengths of jobs.

    Raises
    ------
    CannotCompileError
        With file, line, construct and why.
    """
    try:
        program = program_of(policy, method)
        if program.changes_itself and method not in ("key", "admit"):
            raise CannotCompileError(
                _first_line(program), method, "changes its object, so that it matters who is first"
            )
        name = f"{method}-{_digest(program)}{'-predicted' if predicted else ''}"
        with _lock:
            if name not in _compiled:
                with compiling():
                    _compiled[name] = _entry(program, method, name, predicted)
    except CannotCompileError:
        raise
    except Exception as error:  # what the compiler did not expect, Python still runs
        why = f"{type(error).__name__}: {error}".split("\n")[0][:120]
        raise CannotCompileError(type(policy).__name__, method, why) from error
    function, words, whole_first = _compiled[name]
    memory = program.changes_itself or bool(program.fields.arrays)
    return CompiledMethod(
        function.address, program.fields, words, whole_first, program.reads, memory, program.constants
    )


def _digest(program: Program) -> str:
    return hashlib.sha256(f"{program.digest}{sources_stamp()}{_compiler_stamp()}".encode()).hexdigest()[:32]


@functools.cache
def _compiler_stamp() -> str:
    """Return the hash of the sources that turn a method into compiled code."""
    compiling = Path(sys.modules[Program.__module__].__file__ or "").parent
    paths = [path for folder in (compiling, Path(__file__).parent) for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _entry(program: Program, method: str, name: str, predicted: bool) -> tuple[Any, int, bool]:
    """Return the compiled entry, the words of its key, and whether the first is whole."""
    from ddlsched.engine.compiled.cache import kept_entry

    return kept_entry(name, lambda: _typed(program, method, predicted))


def _typed(program: Program, method: str, predicted: bool) -> tuple[Any, int, bool]:
    """Compile a method and return its entry's Python function, the words of its key, and whether the first is whole."""
    from numba.core import types
    from numba.core.errors import NumbaError

    from ddlsched.engine.compiled.entries import METHODS, entry_function, key_types
    from ddlsched.engine.compiled.view_types import FLOW, JOB, LINK, LOADS, NETWORK, TRANSFER
    from ddlsched.engine.loop.codes import KEY_WORDS
    from ddlsched.policies.compiling.compiler import compiled_function, reason_of

    job, transfer, link, network = (view.flavoured(predicted) for view in (JOB, TRANSFER, LINK, NETWORK))
    flow, loads = FLOW.flavoured(predicted), LOADS.flavoured(predicted)
    given = {
        "key": (job, types.float64),
        "transfer_key": (transfer, network),
        "admit": (transfer, network),
        "link_rate": (transfer, link),
        "weight": (transfer,),
        "level": (transfer,),
        "path": (flow, loads),
    }[method]
    from numba import from_dtype

    try:
        function = compiled_function(program, (from_dtype(program.fields.dtype), *given))
        (answered,) = (overload.signature.return_type for overload in function.overloads.values())
        _, expected = METHODS[method]
        kinds = key_types(answered) if expected is None else [answered]
        # With arrays a truth value may be numpy's, which is no number.
        numbers: tuple[Any, ...] = (types.Integer, types.Float, *(() if program.fields.arrays else (types.Boolean,)))
        allowed = numbers if expected is None else (expected,)
        if not kinds or len(kinds) > KEY_WORDS or not all(isinstance(kind, allowed) for kind in kinds):
            what = f"at most {KEY_WORDS} numbers" if expected is None else f"{expected.__name__.lower()} only"
            raise CannotCompileError(_first_line(program), method, f"answers {answered}; {what} can be compiled")
        entry = entry_function(method, function, program.fields.dtype, program.reads, predicted)
    except NumbaError as error:
        raise reason_of(error, program) from None
    words = len(kinds) if expected is None else 0
    return entry, words, words > 0 and isinstance(kinds[0], types.Integer | types.Boolean)


def _first_line(program: Program) -> str:
    from ddlsched.policies.compiling.source import short_path

    last = program.functions[-1]
    return f"{short_path(last.file)}, line {last.node.lineno}"
