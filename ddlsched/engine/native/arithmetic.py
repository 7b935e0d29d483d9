"""Numbers in compiled code, as in Python: overflow, division and comparison are exact or raise.

Whole numbers have 64 bits. What would not fit raises, as does what Python raises for; the plug-in is then asked in
Python. A name here is what :mod:`ddlsched.policies.compiling.program` writes in place of an operator or of a function
of numbers: comparisons, conversions, least and largest, and those of :mod:`math`.
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
from numba.core.typing import signature
from numba.extending import intrinsic
from numba.np import arrayobj

from ddlsched.engine.native import operators
from ddlsched.engine.native.jit import INTERRUPTED
from ddlsched.engine.native.machine_code import register_jitable
from ddlsched.engine.native.operators import MOST_EXACT, compiled_only, kind_of, refusal, typed


def _compared(name: str) -> Any:
    """Return the intrinsic of a comparison; a whole number and a float compare exactly, as in Python."""

    @intrinsic
    def operation(typing_context: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
        kinds = kind_of(a), kind_of(b)
        if None in kinds:
            raise refusal(name, a, b)

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
            if kinds[0] is kinds[1]:
                if kinds[0] is types.int64:
                    return builder.icmp_signed(name, *arguments)
                compare = builder.fcmp_unordered if name == "!=" else builder.fcmp_ordered
                return compare(name, *arguments)
            order = _mixed_order(builder, arguments, kinds)
            zero = ir.Constant(ir.IntType(64), 0)
            result = builder.icmp_signed(name, order, zero)
            number = arguments[0] if kinds[0] is types.float64 else arguments[1]
            unordered = builder.fcmp_unordered("uno", number, number)
            return builder.select(unordered, ir.Constant(ir.IntType(1), name == "!="), result)

        return signature(types.boolean, *kinds), generate

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


less = _compared("<")
less_equal = _compared("<=")
greater = _compared(">")
greater_equal = _compared(">=")
_equal_numbers = _compared("==")


def _equality(of_numbers: Any, *, equal: bool) -> Any:
    """Return ``==``, or ``!=``, of numbers, and of what compiled code compares by itself, such as views."""

    @compiled_only
    def operation(a: Any, b: Any) -> Any:
        if kind_of(a) is not None and kind_of(b) is not None:
            return lambda a, b: of_numbers(a, b)
        if operators.has_text(a, b):
            return lambda a, b: (operators.code_of(a) == operators.code_of(b)) == equal
        if isinstance(a, types.Tuple | types.UniTuple) or isinstance(b, types.Tuple | types.UniTuple):
            return None
        return lambda a, b: operator.eq(a, b) == equal

    return operation


equal = _equality(_equal_numbers, equal=True)
not_equal = _equality(_compared("!="), equal=False)


@compiled_only
def same_object(a: Any, b: Any) -> Any:
    """``is`` of views; two equal numbers may be two objects or one."""
    kinds = kind_of(a), kind_of(b)
    truth_values = isinstance(a, types.Boolean | types.BooleanLiteral) and isinstance(b, types.Boolean)
    if (kinds != (None, None) and not truth_values) or isinstance(a, types.BaseTuple | types.UnicodeType):
        raise refusal("is", a, b)
    return lambda a, b: operator.eq(a, b)  # numba's own ``is`` of views is always false


@compiled_only
def equal_wholes(a: Any, b: Any) -> Any:
    """``==`` of whole numbers or of texts, for ``in`` of a tuple."""
    if operators.has_text(a, b):
        return lambda a, b: operators.code_of(a) == operators.code_of(b)
    if (kind_of(a), kind_of(b)) != (types.int64, types.int64):
        raise refusal("in", a, b)
    return lambda a, b: _equal_numbers(a, b)


@compiled_only
def contains(row: Any, item: Any) -> Any:
    """``in`` of the lists of views."""
    if type(row).__module__.startswith("numba."):
        raise refusal("in", item, row)
    return lambda row, item: operator.contains(row, item)


@compiled_only
def whole_index(x: Any) -> Any:
    """Return what ``range`` is given: a whole number."""
    if kind_of(x) is not types.int64:
        raise refusal("range", x)
    return lambda x: np.int64(x)


@register_jitable
def _same(x: Any) -> Any:
    return x


def _of_one(name: str, of_whole: Callable[..., Any] = _same, of_float: Callable[..., Any] = _same) -> Any:
    """Return a function of one number, by what it does to a whole one and to a float."""
    whole, real = (part if part is _same else register_jitable(part) for part in (of_whole, of_float))

    @compiled_only
    def operation(x: Any) -> Any:
        kind = kind_of(x)
        if kind is None:
            raise refusal(name, x)
        if kind is types.int64:
            return lambda x: whole(np.int64(x))
        return lambda x: real(np.float64(x))

    return operation


@register_jitable
def _in_range(x: float) -> float:
    """Return a float that has a whole number of 64 bits."""
    if not -9.2e18 < x < 9.2e18:
        raise OverflowError("more than 64 bits")
    return x


negative = _of_one("-", lambda x: operators.subtract(0, x), lambda x: -x)
positive = _of_one("+")
absolute = _of_one("abs", lambda x: operators.subtract(0, x) if x < 0 else x, lambda x: abs(x))
truncate = _of_one("int", of_float=lambda x: np.int64(_in_range(x)))
to_float = _of_one("float", of_whole=lambda x: np.float64(x))
round_to_whole = _of_one("round", of_float=lambda x: np.int64(np.rint(_in_range(x))))
truth = _of_one("bool", lambda x: x != 0, lambda x: x != 0.0)
math_ceil = _of_one("math.ceil", of_float=lambda x: np.int64(math.ceil(_in_range(x))))
math_floor = _of_one("math.floor", of_float=lambda x: np.int64(math.floor(_in_range(x))))


def _of_two(name: str, better: Any) -> Callable[..., Any]:
    """Return ``min`` or ``max`` of two numbers of one kind: that of a whole number and a float may be either."""

    @compiled_only
    def operation(a: Any, b: Any) -> Any:
        if (
            kind_of(a) is None
            or kind_of(a) is not kind_of(b)
            or isinstance(a, types.Boolean) != isinstance(b, types.Boolean)
        ):
            raise refusal(name, a, b)
        return lambda a, b: b if better(b, a) else a

    return operation


min_of_two = _of_two("min", less)
max_of_two = _of_two("max", greater)


def _mathematics(function: Callable[..., Any], allowed: Callable[..., Any] = lambda x: True) -> Any:  # noqa: ARG005
    """Return a function of :mod:`math` that raises where Python's does: where a float is not ``allowed``."""
    name, is_allowed = f"math.{function.__name__}", register_jitable(allowed)

    @compiled_only
    def operation(x: Any) -> Any:
        if kind_of(x) is None:
            raise refusal(name, x)

        def of_number(x):  # type: ignore[no-untyped-def]
            number = np.float64(x)
            if not is_allowed(number):
                raise ValueError("math domain error")
            return function(number)

        return of_number

    return operation


math_exp = _mathematics(math.exp, lambda x: not x > 709.0)
math_fabs = _mathematics(math.fabs)
math_isinf = _mathematics(math.isinf)
math_isnan = _mathematics(math.isnan)
math_log = _mathematics(math.log, lambda x: not x <= 0.0)
math_sqrt = _mathematics(math.sqrt, lambda x: not x < 0.0)


_OWN = (
    "absolute contains equal equal_wholes greater greater_equal hear_signals less less_equal math_ceil math_exp "
    "math_fabs math_floor math_isinf math_isnan math_log math_sqrt max_of_two min_of_two negative not_equal positive "
    "round_to_whole same_object sum_step to_float truncate truth whole_index"
)
"""The functions of this module that a program calls by their own names."""
_OPERATORS = "add divide floor_divide multiply remainder subtract"
"""Those of the module of operators."""


def _step_of_sum(plus: Callable[..., Any]) -> Callable[..., Any]:
    """Return one step of ``sum``; from Python 3.12 on it corrects the rounding of floats, which is not compiled."""

    @compiled_only
    def step(total: Any, value: Any) -> Any:
        if sys.version_info >= (3, 12) and types.float64 in (kind_of(total), kind_of(value)):
            raise refusal("sum", total, value)
        return lambda total, value: plus(total, value)

    return step


sum_step = _step_of_sum(operators.add)


@compiled_only
def _exact(x: Any) -> Any:
    """Return a number that is the same as a whole number and as a float, or raise."""
    if kind_of(x) is types.int64:

        @typed
        def whole(x: Any) -> Any:
            if not -MOST_EXACT <= x <= MOST_EXACT:
                raise OverflowError("more than 53 bits")
            return x

        return whole
    return lambda x: x


@register_jitable
def _exact_result(result: float, a: float, b: float) -> float:
    """Return the result of two numbers; where both are whole it must be as exact as Python's."""
    whole = a == np.floor(a) and b == np.floor(b) and abs(a) < np.inf and abs(b) < np.inf
    if whole and not -MOST_EXACT < result < MOST_EXACT:
        raise OverflowError("more than 53 bits")
    return result


def _carefully(operation: Any, *, rounds: bool, of_wholes: bool = False) -> Callable[..., Any]:
    """Return an operation that raises where a whole number in place of a float, or numpy, would give another result.

    ``rounds``: it may round; ``of_wholes``: also that of two whole numbers is looked at.
    """

    @compiled_only
    def careful(a: Any, b: Any) -> Any:
        kinds = kind_of(a), kind_of(b)
        if None in kinds:
            return lambda a, b: operation(a, b)
        if kinds == (types.int64, types.int64):
            return (lambda a, b: operation(_exact(a), _exact(b))) if of_wholes else lambda a, b: operation(a, b)
        if rounds:
            return lambda a, b: _exact_result(operation(_exact(a), _exact(b)), a, b)
        return lambda a, b: operation(_exact(a), _exact(b))

    return careful


_careful_add = _carefully(operators.add, rounds=True)

_COMPARED = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
CAREFUL: dict[str, Any] = {
    **{name: _carefully(globals()[name], rounds=False) for name in _COMPARED},
    **{name: _carefully(getattr(operators, name), rounds=False) for name in ("floor_divide", "remainder")},
    **{name: _carefully(getattr(operators, name), rounds=True) for name in ("multiply", "subtract")},
    "add": _careful_add,
    "divide": _carefully(operators.divide, rounds=False, of_wholes=True),
    "sum_step": _step_of_sum(_careful_add),
}
"""What stands in place of names of the ordinary namespace in such code."""


@intrinsic(prefer_literal=True)
def hear_signals(typing_context: Any, ticks: Any, place: Any) -> Any:  # noqa: ARG001
    """Count a turn of the loop at a place; once in 4096 turns, raise if Ctrl-C was pressed, and keep the place."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001
        i32, i64, pointer = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()

        def call(name: str, answer: Any, *given: Any) -> Any:
            kind = ir.FunctionType(answer, [pointer] * len(given))
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)

        def string(text: str) -> Any:
            return context.insert_const_string(builder.module, text)

        count, _ = arguments
        following = builder.add(count, ir.Constant(i64, 1))
        low = builder.and_(following, ir.Constant(i64, (1 << 12) - 1))
        with builder.if_then(builder.icmp_unsigned("==", low, ir.Constant(i64, 0)), likely=False):
            heard = call("PyErr_CheckSignals", i32)
            with builder.if_then(builder.icmp_signed("!=", heard, ir.Constant(i32, 0)), likely=False):
                # Python hears it again as soon as it runs: nothing here may leave an exception set.
                call("PyErr_Clear", ir.VoidType())
                text = call("PyUnicode_FromString", pointer, string(place.literal_value))
                call("PySys_SetObject", i32, string(INTERRUPTED), text)
                call("PyErr_SetInterrupt", ir.VoidType())
                context.call_conv.return_user_exc(builder, RuntimeError, ("interrupted",))
        return following

    return signature(types.int64, types.int64, place), generate


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
    **{name: globals()[name] for name in _OWN.split()},
    **{name: getattr(operators, name) for name in _OPERATORS.split()},
    "float64_array": _array(types.float64),
    "int64_array": _array(types.int64),
}
"""What the code of a program may call."""
