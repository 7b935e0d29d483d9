"""Sums and choices of whole numbers with floats, which raise where rounding would matter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload, register_jitable

from ddlsched.engine.native.comparisons import equal, greater, greater_equal, less, less_equal, not_equal
from ddlsched.engine.native.number_kinds import kind_of, refusal, typed
from ddlsched.engine.native.operators import MOST_EXACT, add, divide, floor_divide, multiply, remainder, subtract

__all__ = ["CAREFUL", "sum_step"]


def sum_step(total: Any, value: Any) -> Any:
    """One step of ``sum``; from Python 3.12 on it corrects the rounding of floats, which is not compiled."""
    raise NotImplementedError


@overload(sum_step)
@typed
def _sum_step(total: Any, value: Any) -> Any:
    if sys.version_info >= (3, 12) and types.float64 in (kind_of(total), kind_of(value)):
        raise refusal("sum", total, value)
    return lambda total, value: add(total, value)


def _exact(x: Any) -> Any:
    """Return a number that is the same as a whole number and as a float, or raise."""
    raise NotImplementedError


@overload(_exact)
@typed
def _exact_number(x: Any) -> Any:
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

    def careful(a: Any, b: Any) -> Any:
        raise NotImplementedError

    @overload(careful)
    @typed
    def _careful(a: Any, b: Any) -> Any:
        kinds = kind_of(a), kind_of(b)
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
    if sys.version_info >= (3, 12) and types.float64 in (kind_of(total), kind_of(value)):
        raise refusal("sum", total, value)
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
"""What stands in place of names of the ordinary namespace in such code."""
