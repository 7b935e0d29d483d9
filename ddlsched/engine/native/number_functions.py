"""Functions of numbers in compiled code: conversions, least and largest, and those of :mod:`math`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from ddlsched.engine.native.comparisons import greater, less
from ddlsched.engine.native.machine_code import register_jitable
from ddlsched.engine.native.operators import compiled_only, kind_of, refusal, subtract


def of_one(name: str, of_whole: Callable[..., Any], of_float: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of one number."""

    @compiled_only
    def operation(x: Any) -> Any:
        kind = kind_of(x)
        if kind is None:
            raise refusal(name, x)
        if kind is types.int64:
            return lambda x: of_whole(np.int64(x))
        return lambda x: of_float(np.float64(x))

    return operation


@register_jitable
def same(x: Any) -> Any:
    """Return what is given."""
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
def _whole(x: float) -> np.int64:
    return np.int64(_in_range(x))


@register_jitable
def _nearest(x: float) -> np.int64:
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


negative = of_one("-", _negative_whole, _negative_float)


positive = of_one("+", same, same)


absolute = of_one("abs", _absolute_whole, _absolute_float)


truncate = of_one("int", same, _whole)


to_float = of_one("float", _float_of_whole, same)


round_to_whole = of_one("round", same, _nearest)


truth = of_one("bool", _whole_is_true, _float_is_true)


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


def mathematics(name: str, function: Callable[..., Any], allowed: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of :mod:`math` that raises where Python's does."""

    @compiled_only
    def operation(x: Any) -> Any:
        if kind_of(x) is None:
            raise refusal(name, x)

        def of_number(x):  # type: ignore[no-untyped-def]
            number = np.float64(x)
            if not allowed(number):
                raise ValueError("math domain error")
            return function(number)

        return of_number

    return operation


@register_jitable
def any_number(x: float) -> bool:  # noqa: ARG001
    """Return that every number will do."""
    return True


@register_jitable
def not_negative(x: float) -> bool:
    """Return whether a number is not below 0; NaN is not."""
    return not x < 0.0


@register_jitable
def greater_than_0(x: float) -> bool:
    """Return whether a number is above 0; NaN will do."""
    return not x <= 0.0


@register_jitable
def does_not_overflow(x: float) -> bool:
    """Return whether ``exp`` of a number is finite."""
    return not x > 709.0


@register_jitable
def floor(x: float) -> np.int64:
    """Return the whole number at or below."""
    return np.int64(math.floor(_in_range(x)))


@register_jitable
def ceiling(x: float) -> np.int64:
    """Return the whole number at or above."""
    return np.int64(math.ceil(_in_range(x)))
