"""What stands in place of the compiler where nothing is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

compiling = contextlib.nullcontext
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
address_of = call_address = compiled_as_called = compiled_part = is_kept = state_at = width_of = _not_compiled


def caller_of(answered: Any, given: tuple[Any, ...]) -> Callable[..., Any]:
    """Return what nobody calls."""
    del answered, given
    return _not_compiled
