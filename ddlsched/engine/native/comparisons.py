"""Comparisons in compiled code: a whole number and a float compare exactly."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic

from ddlsched.engine.native.operators import code_of, compiled_only, has_text, kind_of, refusal


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
        if has_text(a, b):
            return lambda a, b: (code_of(a) == code_of(b)) == equal
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
    if has_text(a, b):
        return lambda a, b: code_of(a) == code_of(b)
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
