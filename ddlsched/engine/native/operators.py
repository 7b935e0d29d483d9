"""Numbers in compiled code: what kind a value is, and ``+``, ``-``, ``*``, ``/``, ``//`` and ``%``, exact or raising.

Texts have a kind, too; what is not compiled is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic, models, register_model

from ddlsched.engine.native.machine_code import overload, register_jitable
from ddlsched.policies.view_parts import text_code


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take a function's annotations away: numba compares the signatures of what types a call and what answers it."""
    function.__annotations__ = {}
    return function


def compiled_only(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that only compiled code calls: ``answer`` says by the types it is given what is compiled."""

    @functools.wraps(answer)
    def function(*_: Any) -> Any:
        raise NotImplementedError

    overload(function)(typed(answer))
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


class TextType(types.Type):
    """A text that is there, by its code."""

    def __init__(self) -> None:
        super().__init__("text")


TEXT = TextType()


@register_model(TextType)
class _TextModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: TextType) -> None:
        super().__init__(manager, kind, ir.IntType(64))


def _same_bits(given: Any, returned: Any) -> Any:
    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:  # noqa: ARG001
        return signature(returned, given), lambda context, builder, sig, arguments: arguments[0]  # noqa: ARG005

    return convert


text_of, _bits_of = _same_bits(types.int64, TEXT), _same_bits(TEXT, types.int64)


def has_text(*given: Any) -> bool:
    """Return whether one of some types is that of a text of a job."""
    return any(getattr(kind, "type", kind) is TEXT or isinstance(kind, TextType) for kind in given)


@compiled_only
def code_of(text: Any) -> Any:
    """Return the code of a text of a job, of one that stands in the source, or of None."""
    if isinstance(text, types.StringLiteral):
        code = text_code(text.literal_value)
        return lambda text: code  # noqa: ARG005
    if isinstance(text, types.NoneType):
        return lambda text: 0  # noqa: ARG005
    if isinstance(text, types.Optional) and has_text(text):
        return lambda text: 0 if text is None else _bits_of(text)
    if isinstance(text, TextType):
        return lambda text: _bits_of(text)
    raise refusal("comparison", text)


MOST_EXACT = 2**53


def _checked(instruction: str, float_instruction: str) -> Any:
    """Return the intrinsic of +, - or *."""

    @intrinsic
    def operation(typing_context: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
        kinds = kind_of(a), kind_of(b)
        if None in kinds:
            raise refusal(instruction, a, b)
        kind = types.int64 if kinds == (types.int64, types.int64) else types.float64

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
            if kind is types.float64:
                return getattr(builder, float_instruction)(*arguments)
            pair = getattr(builder, f"s{instruction}_with_overflow")(*arguments)
            raise_if(context, builder, builder.extract_value(pair, 1), OverflowError, "more than 64 bits")
            return builder.extract_value(pair, 0)

        return signature(kind, kind, kind), generate

    return operation


add = _checked("add", "fadd")


subtract = _checked("sub", "fsub")


multiply = _checked("mul", "fmul")


@register_jitable
def _long_division(a: int, b: int) -> float:
    """Return a / b to the nearest float, of whole numbers that may not be floats: long division, then one rounding."""
    negative = (a < 0) != (b < 0)
    dividend = np.uint64(-a) if a < 0 else np.uint64(a)
    divisor = np.uint64(-b) if b < 0 else np.uint64(b)
    quotient, rest = dividend // divisor, dividend % divisor
    exponent = 0
    while quotient < np.uint64(1 << 60):
        exponent -= 1
        quotient = quotient << np.uint64(1)
        # rest < divisor <= 2^63, so that twice the rest fits
        rest = rest << np.uint64(1)
        if rest >= divisor:
            rest -= divisor
            quotient |= np.uint64(1)
        if exponent < -126 and rest == np.uint64(0):
            break
    if rest != np.uint64(0):
        quotient |= np.uint64(1)  # a bit that no float holds, so that halves are no ties
    result = math.ldexp(np.float64(np.int64(quotient)), exponent)
    return -result if negative else result


@register_jitable
def _not_zero(b: Any) -> Any:
    if b == 0:
        raise ZeroDivisionError("division by zero")
    return b


@register_jitable
def divide_wholes(a: int, b: int) -> float:
    """Return a / b of whole numbers, correctly rounded, as Python does."""
    _not_zero(b)
    if -MOST_EXACT <= a <= MOST_EXACT and -MOST_EXACT <= b <= MOST_EXACT:
        return np.float64(a) / np.float64(b)
    if a == 0:
        return -0.0 if b < 0 else 0.0
    if a == -(2**63) or b == -(2**63):
        raise OverflowError("more than 64 bits")
    return _long_division(a, b)


def _division(name: str, of_wholes: Callable[..., Any], of_float: Callable[..., Any]) -> Callable[..., Any]:
    of_floats = register_jitable(of_float)

    @compiled_only
    def operation(a: Any, b: Any) -> Any:
        kinds = kind_of(a), kind_of(b)
        if None in kinds:
            raise refusal(name, a, b)
        if kinds == (types.int64, types.int64):
            return lambda a, b: of_wholes(np.int64(a), np.int64(b))
        return lambda a, b: of_floats(np.float64(a), np.float64(b))

    return operation


@register_jitable
def _floor_wholes(a: int, b: int) -> int:
    _not_zero(b)
    if b == -1:
        if a == -(2**63):
            raise OverflowError("more than 64 bits")
        return -a
    return a // b


@register_jitable
def _rest_of_wholes(a: int, b: int) -> int:
    _not_zero(b)
    return 0 if b == -1 else a % b


divide = _division("/", divide_wholes, lambda a, b: a / _not_zero(b))
floor_divide = _division("//", _floor_wholes, lambda a, b: a // _not_zero(b))
remainder = _division("%", _rest_of_wholes, lambda a, b: a % _not_zero(b))
