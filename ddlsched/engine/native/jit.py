"""How the loop's functions are compiled; where nothing is compiled they stay what they are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from ddlsched.engine.native.support import runs_in_python

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
