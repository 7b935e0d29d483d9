"""Compiled arithmetic against Python's: equal to the bit, or it raises."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import os
import struct
from typing import Any

import numba
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba.core import types
from tiers import tried

from ddlsched.engine.native.arithmetic import CAREFUL, NAMESPACE
from ddlsched.engine.native.entries import _called
from ddlsched.engine.native.machine_code import PART_OPTIONS, WHOLE_OPTIONS, compiling

WHOLE = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63), 10**18, 3]),
    st.integers(-100, 100),
)
REAL = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 2.0**53, 2.0**63, -(2.0**63), 9.2e18, 0.5, 1.5, 2.5, math.inf, -math.inf]),
    WHOLE.map(float),
)
NUMBERS = {"whole": (WHOLE, types.int64), "real": (REAL, types.float64)}

PAIRS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
}
SINGLES = {
    "negative": lambda x: -x,
    "positive": lambda x: +x,
    "absolute": abs,
    "truncate": int,
    "to_float": float,
    "round_to_whole": round,
    "truth": bool,
    "math_sqrt": math.sqrt,
    "math_floor": math.floor,
    "math_ceil": math.ceil,
    "math_fabs": math.fabs,
    "math_log": math.log,
    "math_exp": math.exp,
    "math_isnan": math.isnan,
    "math_isinf": math.isinf,
}

Groups = tuple[tuple[str, ...], ...]
# As some runs try one half of the operations only.
HALVES_OF_PAIRS: Groups = tuple(PAIRS)[:6], tuple(PAIRS)[6:]
HALVES_OF_SINGLES: Groups = tuple(SINGLES)[::2], tuple(SINGLES)[1::2]


@functools.cache
def _all_compiled(functions: tuple[Any, ...], *kinds: Any) -> Any:
    """Return a function that returns of each one whether it, compiled, did not raise, and its answer."""
    names = ", ".join("ab"[: len(kinds)])
    options: dict[str, Any] = {"error_model": "python", "_nrt": False}
    space: dict[str, Any] = {"called": _called}
    for number, function in enumerate(functions):
        part: dict[str, Any] = {"function": function}
        exec(compile(ast.parse(f"def inner({names}):\n    return function({names})"), "", "exec"), part)
        space[f"inner{number}"] = numba.njit(**options, **PART_OPTIONS)(part["inner"])
    calls = "".join(f"called({name}, ({names},)), " for name in space if name.startswith("inner"))
    exec(compile(ast.parse(f"def outer({names}):\n    return ({calls})"), "", "exec"), space)
    outer = numba.njit(**options, **WHOLE_OPTIONS)(space["outer"])
    with compiling(f"for a test of process {os.getpid()}"):
        outer.compile(kinds)
    return outer


def _compiled(function: Any, *kinds: Any) -> Any:
    """Return a function that returns whether the compiled one did not raise, and its answer."""
    compiled = _all_compiled((function,), *kinds)
    return lambda *numbers: compiled(*numbers)[0]


def _one_of(groups: Groups, name: str, *kinds: Any, space: dict[str, Any] = NAMESPACE) -> Any:
    """Return one of these operations, compiled with its group: each by itself takes three times as long."""
    (names,) = [names for names in groups if name in names]
    compiled, place = _all_compiled(tuple(space[each] for each in names), *kinds), names.index(name)
    return lambda *numbers: compiled(*numbers)[place]


def _bits(value: object) -> object:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    return value


def _assert_same(compiled: Any, function: Any, *numbers: float) -> None:
    """Compiled code raises where Python does or 64 bits may not hold a number, and nowhere else."""
    returned, answer = compiled(*numbers)
    try:
        expected = function(*numbers)
    except (ArithmeticError, ValueError):
        assert not returned
        return
    most = 709.0 if function is math.exp else 9e18
    if all(abs(number) <= most for number in (*numbers, expected)):
        assert returned
    if returned:
        assert type(answer) is type(expected)
        assert _bits(answer) == _bits(expected)


KINDS_OF_PAIRS = list(itertools.product([("whole", "real"), ("whole", "whole"), ("real", "real")], PAIRS))


# By default comparisons are tried of a whole number with a real one only.
@pytest.mark.long
@pytest.mark.parametrize(("kinds", "name"), tried(KINDS_OF_PAIRS, lambda place: place < 12 or place % 12 < 6))
def test_two_numbers(kinds, name):
    one, other = kinds
    (first, first_kind), (second, second_kind) = NUMBERS[one], NUMBERS[other]
    compiled = _one_of(HALVES_OF_PAIRS, name, first_kind, second_kind)

    @given(first, second)
    @example(2**53 + 1 if one == "whole" else 2.0**53, 2**53 + 1 if other == "whole" else 2.0**53)
    def check(a, b):
        _assert_same(compiled, PAIRS[name], a, b)

    check()


# By default every other one.
@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), tried(itertools.product(NUMBERS, SINGLES), lambda place: place % 2 == 0))
def test_one_number(name, kind):
    numbers, numba_kind = NUMBERS[kind]
    compiled = _one_of(HALVES_OF_SINGLES, name, numba_kind)

    @given(numbers)
    def check(x):
        _assert_same(compiled, SINGLES[name], x)

    check()


CAREFUL_ONES = "add", "multiply", "divide", "equal", "remainder"


@pytest.mark.long
@pytest.mark.parametrize("name", CAREFUL_ONES)
def test_a_whole_number_as_a_float_makes_no_difference_to_careful_code(name):
    whole_and_real = _one_of((CAREFUL_ONES,), name, types.int64, types.float64, space=CAREFUL)
    reals = _one_of((CAREFUL_ONES,), name, types.float64, types.float64, space=CAREFUL)

    @given(WHOLE, st.integers(-(2**53), 2**53))
    @example(2**53 - 1, 3)
    @example(2**60 + 1, 0)
    def check(a, b):
        for compiled, numbers in ((whole_and_real, (a, float(b))), (reals, (float(b), float(b)))):
            returned, answer = compiled(*numbers)
            if returned:
                assert answer == PAIRS[name](int(numbers[0]), b)

    check()


@pytest.mark.long
def test_careful_code_divides_no_whole_number_that_is_no_float():
    divide = _compiled(CAREFUL["divide"], types.int64, types.int64)
    assert divide(2**53, 3) == (True, 2**53 / 3)
    assert not divide(2**53 + 1, 3)[0]
    assert not divide(3, 2**53 + 1)[0]


@pytest.mark.long
def test_0_is_divided_by_the_least_whole_number():
    returned, answer = _compiled(NAMESPACE["divide"], types.int64, types.int64)(0, -(2**63))
    assert returned
    assert _bits(answer) == _bits(0 / -(2**63))


@pytest.mark.long
@given(WHOLE, WHOLE)
def test_in_64_bits_nothing_raises_without_need(a, b):
    returned, _ = _ADD(a, b)
    assert returned == (-(2**63) <= a + b < 2**63)


_ADD = _compiled(NAMESPACE["add"], types.int64, types.int64)
