"""Numbers in compiled code, as in Python: overflow, division and comparison are exact or raise.

Whole numbers have 64 bits. What would not fit raises, as does what Python raises for; the plug-in is then asked in
Python. A name here is what :mod:`ddlsched.policies.compiling.program` writes in place of an operator.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic, overload, register_jitable
from numba.np import arrayobj

__all__ = ["CAREFUL", "NAMESPACE", "divide_wholes", "typed"]

_MOST_EXACT = 2**53


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take a function's annotations away: numba compares the signatures of what types a call and what answers it."""
    function.__annotations__ = {}
    return function


def _kind(given: Any) -> Any:
    """Return int64 or float64, as what a number is computed with, or None."""
    if isinstance(given, types.Optional):
        given = given.type
    if isinstance(given, types.Boolean | types.Integer) or getattr(given, "literal_type", None) is types.int64:
        return types.int64 if not isinstance(given, types.Integer) or given.signed else None
    return types.float64 if isinstance(given, types.Float) else None


def _refuse(name: str, *given: Any) -> TypingError:
    return TypingError(f"{name} of {' and '.join(str(part) for part in given)} is not compiled")


def _raise(context: Any, builder: Any, condition: Any, error: type[Exception], text: str) -> None:
    with builder.if_then(condition, likely=False):
        context.call_conv.return_user_exc(builder, error, (text,))


def _checked(instruction: str, float_instruction: str) -> Any:
    """Return the intrinsic of +, - or *."""

    @intrinsic
    def operation(typing_context: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
        kinds = _kind(a), _kind(b)
        if None in kinds:
            raise _refuse(instruction, a, b)
        kind = types.int64 if kinds == (types.int64, types.int64) else types.float64

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
            if kind is types.float64:
                return getattr(builder, float_instruction)(*arguments)
            pair = getattr(builder, f"s{instruction}_with_overflow")(*arguments)
            _raise(context, builder, builder.extract_value(pair, 1), OverflowError, "more than 64 bits")
            return builder.extract_value(pair, 0)

        return signature(kind, kind, kind), generate

    return operation


add = _checked("add", "fadd")
subtract = _checked("sub", "fsub")
multiply = _checked("mul", "fmul")


def _compared(name: str, integer: str, floating: str) -> Any:
    """Return the intrinsic of a comparison; a whole number and a float compare exactly, as in Python."""

    @intrinsic
    def operation(typing_context: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
        kinds = _kind(a), _kind(b)
        if None in kinds:
            raise _refuse(name, a, b)

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
            if kinds[0] is kinds[1]:
                if kinds[0] is types.int64:
                    return builder.icmp_signed(integer, *arguments)
                compare = builder.fcmp_unordered if integer == "!=" else builder.fcmp_ordered
                return compare(integer, *arguments)
            order = _mixed_order(builder, arguments, kinds)
            zero = ir.Constant(ir.IntType(64), 0)
            result = builder.icmp_signed(integer, order, zero)
            number = arguments[0] if kinds[0] is types.float64 else arguments[1]
            unordered = builder.fcmp_unordered("uno", number, number)
            return builder.select(unordered, ir.Constant(ir.IntType(1), integer == "!="), result)

        return signature(types.boolean, *kinds), generate

    del floating
    return operation


def _mixed_order(builder: Any, arguments: Any, kinds: Any) -> Any:
    """Return a number less than, equal to or greater than 0, as the first is to the second.

    Rounding a whole number to a float keeps its order relative to floats; only where both are the same float do the
    digits lost in rounding decide.
    """
    whole_first = kinds[0] is types.int64
    whole, number = arguments if whole_first else arguments[::-1]
    i64 = ir.IntType(64)
    one, minus, zero = (ir.Constant(i64, value) for value in (1, -1, 0))
    rounded = builder.sitofp(whole, ir.DoubleType())
    too_large = builder.fcmp_ordered(">=", number, ir.Constant(ir.DoubleType(), 2.0**63))
    # Where the float is out of range the conversion means nothing and is not used.
    inside = builder.and_(
        builder.not_(too_large), builder.fcmp_ordered(">=", number, ir.Constant(ir.DoubleType(), -(2.0**63)))
    )
    back = builder.fptosi(builder.select(inside, number, ir.Constant(ir.DoubleType(), 0.0)), i64)
    exact = builder.select(
        builder.icmp_signed("<", whole, back), minus, builder.select(builder.icmp_signed(">", whole, back), one, zero)
    )
    equal = builder.select(too_large, minus, exact)
    order = builder.select(
        builder.fcmp_ordered("<", rounded, number),
        minus,
        builder.select(builder.fcmp_ordered(">", rounded, number), one, equal),
    )
    return order if whole_first else builder.neg(order)


less = _compared("<", "<", "<")
less_equal = _compared("<=", "<=", "<=")
greater = _compared(">", ">", ">")
greater_equal = _compared(">=", ">=", ">=")
_equal_numbers = _compared("==", "==", "==")
_unequal_numbers = _compared("!=", "!=", "!=")


def equal(a: Any, b: Any) -> bool:
    """``==`` of numbers, and of what compiled code compares by itself, such as views."""
    raise NotImplementedError


def not_equal(a: Any, b: Any) -> bool:
    """``!=``."""
    raise NotImplementedError


@overload(equal)
@typed
def _equal(a: Any, b: Any) -> Any:
    if _kind(a) is not None and _kind(b) is not None:
        return lambda a, b: _equal_numbers(a, b)
    if isinstance(a, types.Tuple | types.UniTuple) or isinstance(b, types.Tuple | types.UniTuple):
        return None
    return lambda a, b: operator.eq(a, b)


@overload(not_equal)
@typed
def _not_equal(a: Any, b: Any) -> Any:
    if _kind(a) is not None and _kind(b) is not None:
        return lambda a, b: _unequal_numbers(a, b)
    if isinstance(a, types.Tuple | types.UniTuple) or isinstance(b, types.Tuple | types.UniTuple):
        return None
    return lambda a, b: not operator.eq(a, b)


def same_object(a: Any, b: Any) -> bool:
    """``is`` of views; two equal numbers may be two objects or one."""
    raise NotImplementedError


@overload(same_object)
@typed
def _same_object(a: Any, b: Any) -> Any:
    kinds = _kind(a), _kind(b)
    truth_values = isinstance(a, types.Boolean | types.BooleanLiteral) and isinstance(b, types.Boolean)
    if (kinds != (None, None) and not truth_values) or isinstance(a, types.BaseTuple | types.UnicodeType):
        raise _refuse("is", a, b)
    return lambda a, b: operator.is_(a, b)


def equal_wholes(a: Any, b: Any) -> bool:
    """``==`` of whole numbers, for ``in`` of a tuple."""
    raise NotImplementedError


@overload(equal_wholes)
@typed
def _equal_wholes(a: Any, b: Any) -> Any:
    if (_kind(a), _kind(b)) != (types.int64, types.int64):
        raise _refuse("in", a, b)
    return lambda a, b: _equal_numbers(a, b)


def contains(row: Any, item: Any) -> bool:
    """``in`` of the lists of views."""
    raise NotImplementedError


@overload(contains)
@typed
def _contains(row: Any, item: Any) -> Any:
    if type(row).__module__.startswith("numba."):
        raise _refuse("in", item, row)
    return lambda row, item: operator.contains(row, item)


def whole_index(x: Any) -> int:
    """Return what ``range`` is given: a whole number."""
    raise NotImplementedError


@overload(whole_index)
@typed
def _whole_index(x: Any) -> Any:
    if _kind(x) is not types.int64:
        raise _refuse("range", x)
    return lambda x: np.int64(x)


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
def divide_wholes(a: int, b: int) -> float:
    """Return a / b of whole numbers, correctly rounded, as Python does."""
    if b == 0:
        raise ZeroDivisionError("division by zero")
    if -_MOST_EXACT <= a <= _MOST_EXACT and -_MOST_EXACT <= b <= _MOST_EXACT:
        return np.float64(a) / np.float64(b)
    if a == 0:
        return -0.0 if b < 0 else 0.0
    if a == -(2**63) or b == -(2**63):
        raise OverflowError("more than 64 bits")
    return _long_division(a, b)


@register_jitable
def _divide_floats(a: float, b: float) -> float:
    if b == 0.0:
        raise ZeroDivisionError("division by zero")
    return a / b


def divide(a: Any, b: Any) -> float:
    """``/``."""
    raise NotImplementedError


@overload(divide)
@typed
def _divide(a: Any, b: Any) -> Any:
    kinds = _kind(a), _kind(b)
    if None in kinds:
        raise _refuse("/", a, b)
    if kinds == (types.int64, types.int64):
        return lambda a, b: divide_wholes(np.int64(a), np.int64(b))
    return lambda a, b: _divide_floats(np.float64(a), np.float64(b))


def _whole_division(name: str, of_wholes: Callable[..., Any], of_floats: Callable[..., Any]) -> Callable[..., Any]:
    def operation(a: Any, b: Any) -> Any:
        raise NotImplementedError

    @overload(operation)
    @typed
    def _operation(a: Any, b: Any) -> Any:
        kinds = _kind(a), _kind(b)
        if None in kinds:
            raise _refuse(name, a, b)
        if kinds == (types.int64, types.int64):
            return lambda a, b: of_wholes(np.int64(a), np.int64(b))
        return lambda a, b: of_floats(np.float64(a), np.float64(b))

    return operation


@register_jitable
def _floor_wholes(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError("division by zero")
    if b == -1:
        if a == -(2**63):
            raise OverflowError("more than 64 bits")
        return -a
    return a // b


@register_jitable
def _rest_of_wholes(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError("division by zero")
    return 0 if b == -1 else a % b


@register_jitable
def _floor_floats(a: float, b: float) -> float:
    if b == 0.0:
        raise ZeroDivisionError("division by zero")
    return a // b


@register_jitable
def _rest_of_floats(a: float, b: float) -> float:
    if b == 0.0:
        raise ZeroDivisionError("division by zero")
    return a % b


floor_divide = _whole_division("//", _floor_wholes, _floor_floats)
remainder = _whole_division("%", _rest_of_wholes, _rest_of_floats)


def _of_one(name: str, of_whole: Callable[..., Any], of_float: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of one number."""

    def operation(x: Any) -> Any:
        raise NotImplementedError

    @overload(operation)
    @typed
    def _operation(x: Any) -> Any:
        kind = _kind(x)
        if kind is None:
            raise _refuse(name, x)
        if kind is types.int64:
            return lambda x: of_whole(np.int64(x))
        return lambda x: of_float(np.float64(x))

    return operation


@register_jitable
def _same(x: Any) -> Any:
    return x


@register_jitable
def _negative_whole(x: int) -> int:
    return subtract(0, x)


@register_jitable
def _negative_float(x: float) -> float:
    return -x


@register_jitable
def _absolute_whole(x: int) -> int:
    return subtract(0, x) if x < 0 else x


@register_jitable
def _absolute_float(x: float) -> float:
    return abs(x)


@register_jitable
def _in_range(x: float) -> float:
    """Return a float that has a whole number of 64 bits."""
    if not -9.2e18 < x < 9.2e18:
        raise OverflowError("more than 64 bits")
    return x


@register_jitable
def _whole(x: float) -> int:
    return np.int64(_in_range(x))


@register_jitable
def _nearest(x: float) -> int:
    return np.int64(np.rint(_in_range(x)))


@register_jitable
def _float_of_whole(x: int) -> float:
    return np.float64(x)


@register_jitable
def _whole_is_true(x: int) -> bool:
    return x != 0


@register_jitable
def _float_is_true(x: float) -> bool:
    return x != 0.0


negative = _of_one("-", _negative_whole, _negative_float)
positive = _of_one("+", _same, _same)
absolute = _of_one("abs", _absolute_whole, _absolute_float)
truncate = _of_one("int", _same, _whole)
to_float = _of_one("float", _float_of_whole, _same)
round_to_whole = _of_one("round", _same, _nearest)
truth = _of_one("bool", _whole_is_true, _float_is_true)


def _of_two(name: str, better: Any) -> Callable[..., Any]:
    """Return ``min`` or ``max`` of two numbers of one kind: that of a whole number and a float may be either."""

    def operation(a: Any, b: Any) -> Any:
        raise NotImplementedError

    @overload(operation)
    @typed
    def _operation(a: Any, b: Any) -> Any:
        if _kind(a) is None or _kind(a) is not _kind(b) or isinstance(a, types.Boolean) != isinstance(b, types.Boolean):
            raise _refuse(name, a, b)
        return lambda a, b: b if better(b, a) else a

    return operation


min_of_two = _of_two("min", less)
max_of_two = _of_two("max", greater)


def sum_step(total: Any, value: Any) -> Any:
    """One step of ``sum``; from Python 3.12 on it corrects the rounding of floats, which is not compiled."""
    raise NotImplementedError


@overload(sum_step)
@typed
def _sum_step(total: Any, value: Any) -> Any:
    if sys.version_info >= (3, 12) and types.float64 in (_kind(total), _kind(value)):
        raise _refuse("sum", total, value)
    return lambda total, value: add(total, value)


# --- where a float may be one of Python's whole numbers, or a number one of numpy's


def _exact(x: Any) -> Any:
    """Return a number that is the same as a whole number and as a float, or raise."""
    raise NotImplementedError


@overload(_exact)
@typed
def _exact_number(x: Any) -> Any:
    if _kind(x) is types.int64:

        @typed
        def whole(x: Any) -> Any:
            if not -_MOST_EXACT <= x <= _MOST_EXACT:
                raise OverflowError("more than 53 bits")
            return x

        return whole
    return lambda x: x


@register_jitable
def _exact_result(result: float, a: float, b: float) -> float:
    """Return the result of two numbers; where both are whole it must be as exact as Python's."""
    whole = a == np.floor(a) and b == np.floor(b) and abs(a) < np.inf and abs(b) < np.inf
    if whole and not -_MOST_EXACT < result < _MOST_EXACT:
        raise OverflowError("more than 53 bits")
    return result


def _carefully(operation: Any, *, rounds: bool, of_wholes: bool = False) -> Callable[..., Any]:
    """Return an operation that raises where a whole number in place of a float, or numpy, would give another result.

    ``rounds``: it may round; ``of_wholes``: also that of two whole numbers is looked at.
    """

    def careful(a: Any, b: Any) -> Any:
        raise NotImplementedError

    @overload(careful)
    @typed
    def _careful(a: Any, b: Any) -> Any:
        kinds = _kind(a), _kind(b)
        if None in kinds:
            return lambda a, b: operation(a, b)
        if kinds == (types.int64, types.int64):
            return (lambda a, b: operation(_exact(a), _exact(b))) if of_wholes else lambda a, b: operation(a, b)
        if rounds:
            return lambda a, b: _exact_result(operation(_exact(a), _exact(b)), a, b)
        return lambda a, b: operation(_exact(a), _exact(b))

    return careful


_careful_add = _carefully(add, rounds=True)


def _careful_sum_step(total: Any, value: Any) -> Any:
    raise NotImplementedError


@overload(_careful_sum_step)
@typed
def _sum_carefully(total: Any, value: Any) -> Any:
    if sys.version_info >= (3, 12) and types.float64 in (_kind(total), _kind(value)):
        raise _refuse("sum", total, value)
    return lambda total, value: _careful_add(total, value)


CAREFUL: dict[str, Any] = {
    "add": _careful_add,
    "divide": _carefully(divide, rounds=False, of_wholes=True),
    "equal": _carefully(equal, rounds=False),
    "floor_divide": _carefully(floor_divide, rounds=False),
    "greater": _carefully(greater, rounds=False),
    "greater_equal": _carefully(greater_equal, rounds=False),
    "less": _carefully(less, rounds=False),
    "less_equal": _carefully(less_equal, rounds=False),
    "multiply": _carefully(multiply, rounds=True),
    "not_equal": _carefully(not_equal, rounds=False),
    "remainder": _carefully(remainder, rounds=False),
    "subtract": _carefully(subtract, rounds=True),
    "sum_step": _careful_sum_step,
}
"""What stands in place of names in :data:`NAMESPACE` in such code."""


def _mathematics(name: str, function: Callable[..., Any], allowed: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of :mod:`math` that raises where Python's does."""

    def operation(x: Any) -> Any:
        raise NotImplementedError

    @overload(operation)
    @typed
    def _operation(x: Any) -> Any:
        if _kind(x) is None:
            raise _refuse(name, x)

        def of_number(x):  # type: ignore[no-untyped-def]
            number = np.float64(x)
            if not allowed(number):
                raise ValueError("math domain error")
            return function(number)

        return of_number

    return operation


@register_jitable
def _any_number(x: float) -> bool:  # noqa: ARG001
    return True


@register_jitable
def _not_negative(x: float) -> bool:
    return not x < 0.0


@register_jitable
def _greater_than_0(x: float) -> bool:
    return not x <= 0.0


@register_jitable
def _does_not_overflow(x: float) -> bool:
    return not x > 709.0


@register_jitable
def _floor(x: float) -> int:
    return np.int64(math.floor(_in_range(x)))


@register_jitable
def _ceiling(x: float) -> int:
    return np.int64(math.ceil(_in_range(x)))


@intrinsic
def hear_signals(typing_context: Any, ticks: Any) -> Any:  # noqa: ARG001
    """Count a turn of a loop; once in 4096 turns, raise if Ctrl-C was pressed."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
        i32, i64 = ir.IntType(32), ir.IntType(64)
        (count,) = arguments
        following = builder.add(count, ir.Constant(i64, 1))
        low = builder.and_(following, ir.Constant(i64, (1 << 12) - 1))
        with builder.if_then(builder.icmp_unsigned("==", low, ir.Constant(i64, 0)), likely=False):
            nothing = ir.FunctionType(ir.VoidType(), [])
            check = cgutils.get_or_insert_function(builder.module, ir.FunctionType(i32, []), "PyErr_CheckSignals")
            heard = builder.call(check, [])
            with builder.if_then(builder.icmp_signed("!=", heard, ir.Constant(i32, 0)), likely=False):
                # Python hears it again as soon as it runs: nothing here may leave an exception set.
                for name in ("PyErr_Clear", "PyErr_SetInterrupt"):
                    builder.call(cgutils.get_or_insert_function(builder.module, nothing, name), [])
                context.call_conv.return_user_exc(builder, RuntimeError, ("interrupted",))
        return following

    return signature(types.int64, types.int64), generate


def _array(element: Any) -> Any:
    """Return the function that makes an array of numbers from its address and shape."""

    @intrinsic
    def make(typing_context: Any, address: Any, shape: Any) -> Any:  # noqa: ARG001
        kind = types.Array(element, len(shape), "C")

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
            array = arrayobj.make_array(kind)(context, builder)
            data = builder.inttoptr(arguments[0], context.get_data_type(element).as_pointer())
            lengths = cgutils.unpack_tuple(builder, arguments[1])
            itemsize = context.get_constant(types.intp, 8)
            strides = [itemsize]
            for length in lengths[:0:-1]:
                strides.insert(0, builder.mul(strides[0], length))
            arrayobj.populate_array(array, data, lengths, strides, itemsize, None)
            return array._getvalue()

        return signature(kind, types.int64, shape), generate

    return make


NAMESPACE: dict[str, Any] = {
    "absolute": absolute,
    "add": add,
    "contains": contains,
    "divide": divide,
    "equal": equal,
    "equal_wholes": equal_wholes,
    "float64_array": _array(types.float64),
    "floor_divide": floor_divide,
    "greater": greater,
    "greater_equal": greater_equal,
    "hear_signals": hear_signals,
    "int64_array": _array(types.int64),
    "less": less,
    "less_equal": less_equal,
    "math_ceil": _of_one("math.ceil", _same, _ceiling),
    "math_exp": _mathematics("math.exp", math.exp, _does_not_overflow),
    "math_fabs": _mathematics("math.fabs", math.fabs, _any_number),
    "math_floor": _of_one("math.floor", _same, _floor),
    "math_isinf": _mathematics("math.isinf", math.isinf, _any_number),
    "math_isnan": _mathematics("math.isnan", math.isnan, _any_number),
    "math_log": _mathematics("math.log", math.log, _greater_than_0),
    "math_sqrt": _mathematics("math.sqrt", math.sqrt, _not_negative),
    "max_of_two": max_of_two,
    "min_of_two": min_of_two,
    "multiply": multiply,
    "negative": negative,
    "not_equal": not_equal,
    "positive": positive,
    "remainder": remainder,
    "round_to_whole": round_to_whole,
    "same_object": same_object,
    "subtract": subtract,
    "sum_step": sum_step,
    "to_float": to_float,
    "truncate": truncate,
    "truth": truth,
    "whole_index": whole_index,
}
"""What the code of a program may call."""
