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


negative = _of_one("-", lambda x: subtract(0, x), lambda x: -x)
positive = _of_one("+")
absolute = _of_one("abs", lambda x: subtract(0, x) if x < 0 else x, lambda x: abs(x))
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
