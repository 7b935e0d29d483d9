"""What kind of number a value is in compiled code, and how what is not compiled is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.errors import TypingError

__all__ = ["kind_of", "raise_if", "refusal", "typed"]


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take a function's annotations away: numba compares the signatures of what types a call and what answers it."""
    function.__annotations__ = {}
    return function


def kind_of(given: Any) -> Any:
    """Return int64 or float64, as what a number is computed with, or None."""
    if isinstance(given, types.Optional):
        given = given.type
    if isinstance(given, types.Boolean | types.Integer) or getattr(given, "literal_type", None) is types.int64:
        return types.int64 if not isinstance(given, types.Integer) or given.signed else None
    return types.float64 if isinstance(given, types.Float) else None


def refusal(name: str, *given: Any) -> TypingError:
    """Return the error of an operation on values that it is not compiled for."""
    return TypingError(f"{name} of {' and '.join(str(part) for part in given)} is not compiled")


def raise_if(context: Any, builder: Any, condition: Any, error: type[Exception], text: str) -> None:
    """Let compiled code raise where a condition holds."""
    with builder.if_then(condition, likely=False):
        context.call_conv.return_user_exc(builder, error, (text,))
