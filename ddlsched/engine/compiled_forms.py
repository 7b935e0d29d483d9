"""From a policy's instance to the address that the loop calls, through the cache on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ddlsched.engine.field_values import FAILED, KEY_WORDS
from ddlsched.engine.native.jit import compiling, runs_in_python
from ddlsched.engine.native.kept_files import sources_stamp
from ddlsched.policies.compiling.program import Program, program_of
from ddlsched.policies.compiling.source import CannotCompileError, Fields


@dataclasses.dataclass(frozen=True)
class CompiledMethod:
    """A method of a policy, compiled.

    Attributes
    ----------
    address
        Of its entry (:mod:`ddlsched.engine.native.entries`).
    program
        Its source. The entry is called with the address of the record of the policy's fields.
    words
        How many numbers its key has; 0 if it answers no key.
    whole_first
        Whether the first of them is a whole number.
    plain
        What is at the address where nothing is compiled.
    """

    address: int
    program: Program
    words: int
    whole_first: bool
    plain: PlainEntry | None = None

    @property
    def has_memory(self) -> bool:
        """Whether its answer may depend on what it was asked before."""
        return self.program.changes_itself or bool(self.program.fields.arrays)

    def changed(self, policy: Any) -> str | None:
        """Return what has changed, since it was compiled, of what it took for constant, or None."""
        for name, look_up, value in self.program.constants:
            if look_up() is not value and look_up() != value:
                return name
        known, fields = self.program.fields, Fields.of(policy)
        for name, array in known.arrays.items():
            if fields.arrays.get(name) is not array:
                return name
        pairs = (known.numbers, fields.numbers), (known.others, fields.others)
        for before, now in pairs:
            for name, value in before.items():
                if name not in now or (now[name] is not value and repr(now[name]) != repr(value)):
                    return name
        return None


class PlainEntry:
    """Answers in Python what a compiled entry would; whatever that could not answer fails here, too.

    A key's numbers are of the kinds that those of the first were; behind the last stand zeros.
    """

    def __init__(self, policy: Any, method: str) -> None:
        self._method = method
        kind = str(getattr(policy, method).__annotations__.get("return"))
        self.whole_first = kind.startswith(("int", "tuple[int"))
        self._wholes: list[bool] = []
        self.ask: Callable[[str, int, int], Any]

    def __call__(self, s: Any, number: int, place: int) -> int:
        """Ask, and write down what is no truth value."""
        try:
            answer = self.ask(self._method, number, place)
            if self._method in ("admit", "path"):
                return int(answer)
            if self._method in ("key", "transfer_key"):
                s.keys[place * KEY_WORDS : (place + 1) * KEY_WORDS] = self._words([*_numbers(answer)])
            else:
                s.run[0].answer = answer
        except Exception:
            return int(FAILED)
        return 0

    def _words(self, key: list[Any]) -> list[int]:
        wholes = [isinstance(number, int) for number in key]
        self._wholes = self._wholes or wholes
        if wholes != self._wholes or wholes[0] < self.whole_first:
            raise TypeError("a key of other kinds")
        words = [number if whole else _ordered(number) for number, whole in zip(key, wholes, strict=True)]
        return words + [0] * (KEY_WORDS - len(words))


def _numbers(key: Any) -> Iterator[Any]:
    if isinstance(key, tuple):
        for part in key:
            yield from _numbers(part)
    else:
        yield key


def _ordered(number: float) -> int:
    """Return a whole number; they are ordered as the floats are."""
    bits = int(np.float64(number + 0.0).view(np.int64))
    return bits if bits >= 0 else bits ^ (2**63 - 1)


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
            raise CannotCompileError(program.first_line, method, "changes its object, so that it matters who is first")
        if runs_in_python():
            return _plain_method(policy, method, program)
        name = f"{method}-{_digest(program)}{'-predicted' if predicted else ''}"
        with _lock:
            if name not in _compiled:
                with compiling(name):
                    _compiled[name] = _entry(program, method, name, predicted)
    except CannotCompileError:
        raise
    except Exception as error:  # what the compiler did not expect, Python still runs
        why = f"{type(error).__name__}: {error}".split("\n")[0][:120]
        raise CannotCompileError(type(policy).__name__, method, why) from error
    function, words, whole_first = _compiled[name]
    return CompiledMethod(function.address, program, words, whole_first)


def _plain_method(policy: Any, method: str, program: Program) -> CompiledMethod:
    """Return a method as the loop asks it where nothing is compiled."""
    if program.changes_itself or program.fields.arrays:
        raise CannotCompileError(program.first_line, method, "remembers")
    plain = PlainEntry(policy, method)
    words = KEY_WORDS if method in ("key", "transfer_key") else 0
    return CompiledMethod(id(plain), program, words, plain.whole_first, plain)


def _digest(program: Program) -> str:
    return hashlib.sha256(f"{program.digest}{sources_stamp(of_policies=True)}".encode()).hexdigest()[:32]


def _entry(program: Program, method: str, name: str, predicted: bool) -> tuple[Any, int, bool]:
    """Return the compiled entry, the words of its key, and whether the first is whole."""
    from ddlsched.engine.native.cache import kept_entry

    def make() -> tuple[Any, int, bool]:
        import ddlsched.engine.compiled_views  # noqa: F401 (tells numba what views offer, as do those it imports)
        from ddlsched.engine.native.entries import typed_entry

        return typed_entry(program, method, predicted)

    return kept_entry(name, make)
