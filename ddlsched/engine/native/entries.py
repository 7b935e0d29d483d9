"""What the loop calls: one C function for each method of a policy, all of one signature.

``entry(state, number, place, fields) -> int64``: addresses of the state and of the record of the policy's fields, the
number of a job, transfer or hop, and where the answer goes. It returns 0 or 1, which is the answer where that is a
truth value, the place of a path, or ``FAILED``: the method raised, or answered what cannot be. The Python form then
says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import from_dtype
from numba.core import cgutils, types
from numba.core.errors import NumbaError, TypingError
from numba.core.typing import signature
from numba.extending import intrinsic

from ddlsched.engine.field_values import FAILED, KEY_WORDS
from ddlsched.engine.native import view_types
from ddlsched.engine.native.compiler import compiled_function, reason_of
from ddlsched.engine.native.machine_code import register_jitable
from ddlsched.engine.native.operators import compiled_only, divide_wholes, typed
from ddlsched.engine.native.state import found_at, state_at
from ddlsched.network.rates import LEVELS, WEIGHT_UNIT
from ddlsched.policies.compiling.program import Program
from ddlsched.policies.compiling.source import CannotCompileError


@intrinsic
def _called(typing_context: Any, function: Any, arguments: Any) -> Any:
    """Call a compiled function; return whether it did not raise, and what it returned."""
    if not isinstance(function, types.Dispatcher):
        raise TypingError("expected a compiled function")
    call = function.get_call_type(typing_context, tuple(arguments), {})
    result = types.Tuple([types.boolean, call.return_type])

    def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        compiled = function.dispatcher.get_compile_result(call)
        context.active_code_library.add_linking_library(compiled.library)
        parts = cgutils.unpack_tuple(builder, values[1], len(arguments))
        cast = [
            context.cast(builder, part, given, taken)
            for part, given, taken in zip(parts, tuple(arguments), call.args, strict=True)
        ]
        status, answer = context.call_internal_no_propagate(builder, compiled.fndesc, call, cast)
        zero = ir.Constant(context.get_value_type(call.return_type), ir.Undefined)
        answer = builder.select(status.is_error, zero, answer)
        return context.make_tuple(builder, sig.return_type, (builder.not_(status.is_error), answer))

    return signature(result, function, arguments), generate


# --- keys: a number or a tuple of numbers, as whole numbers that are ordered alike


def _key_types(key: Any) -> list[Any]:
    """Return the types of the numbers that a key holds, in their order."""
    if isinstance(key, types.BaseTuple):
        return [kind for part in key for kind in _key_types(part)]
    return [key.type if isinstance(key, types.Optional) else key]


@register_jitable
def _ordered(number: float) -> np.int64:
    """Return a whole number; they are ordered as the floats are. -0.0 is 0.0."""
    bits = np.float64(number + 0.0).view(np.int64)
    return bits if bits >= 0 else bits ^ np.int64(2**63 - 1)


@intrinsic
def _present(typing_context: Any, part: Any) -> Any:  # noqa: ARG001
    """Return a number that may be None and is not."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], sig.args[0], sig.return_type)

    return signature(part.type, part), generate


@compiled_only
def _store(s: Any, place: Any, part: Any) -> Any:  # noqa: ARG001
    """Write a key's numbers into the state's words and return the place behind them, or -1 for what is no number."""
    if isinstance(part, types.Integer | types.Boolean):

        @typed
        def whole(s: Any, place: Any, part: Any) -> Any:
            s.keys[place] = part
            return place + 1

        return whole
    if isinstance(part, types.Float):

        @typed
        def real(s: Any, place: Any, part: Any) -> Any:
            if math.isnan(part):
                return -1
            s.keys[place] = _ordered(part)
            return place + 1

        return real
    if isinstance(part, types.Optional):
        return lambda s, place, part: -1 if part is None else _store(s, place, _present(part))
    if isinstance(part, types.BaseTuple) and len(part) > 0:
        if len(part) == 1:
            return lambda s, place, part: _store(s, place, part[0])

        @typed
        def several(s: Any, place: Any, part: Any) -> Any:
            following = _store(s, place, part[0])
            if following < 0:
                return -1
            return _store(s, following, part[1:])

        return several
    raise TypingError(f"a key of {part} is not compiled")


# --- the entries of each method


class _Method(NamedTuple):
    """How a method of a door is asked: what it is given, the types of that, what becomes of its answer, and its type.

    ``gives`` and ``takes`` are asked with state, the entry's two numbers, and the network's view or the answer;
    ``takes`` returns what the entry does. A key has no type.
    """

    gives: Callable[..., Any]
    views: tuple[view_types.ViewType, ...]
    takes: Callable[..., Any]
    answers: type[types.Type] | None


def _give_job(s: Any, number: int, place: int, network: Any) -> Any:  # noqa: ARG001
    return view_types.job_at(network, number), divide_wholes(s.run[0].now_ns, 1_000_000_000)


def _give_job_without_time(s: Any, number: int, place: int, network: Any) -> Any:  # noqa: ARG001
    return view_types.job_at(network, number), 0.0


def _give_transfer(s: Any, number: int, place: int, network: Any) -> Any:  # noqa: ARG001
    return (view_types.transfer_at(network, number),)


def _give_transfer_and_network(s: Any, number: int, place: int, network: Any) -> Any:  # noqa: ARG001
    return view_types.transfer_at(network, number), network


def _give_transfer_and_link(s: Any, number: int, place: int, network: Any) -> Any:  # noqa: ARG001
    return view_types.transfer_at(network, number), view_types.link_at(network, place)


def _give_flow(s: Any, number: int, place: int, network: Any) -> Any:  # noqa: ARG001
    return view_types.flow_at(network, number), view_types.loads_at(network, 0)


def _take_key(s: Any, number: int, place: int, key: Any) -> int:  # noqa: ARG001
    return FAILED if _store(s, place * KEY_WORDS, key) < 0 else 0


def _take_truth(s: Any, number: int, place: int, admitted: bool) -> int:  # noqa: ARG001
    return 1 if admitted else 0


def _take_rate(s: Any, number: int, place: int, rate: float) -> int:  # noqa: ARG001
    if not 0.0 < rate < np.inf:
        return FAILED
    s.run[0].answer = rate
    return 0


def _take_weight(s: Any, number: int, place: int, weight: float) -> int:  # noqa: ARG001
    if not 0.0 < weight < np.inf:
        return FAILED
    s.run[0].answer = min(max(np.rint(weight / WEIGHT_UNIT), 1.0), 2.0**40) * WEIGHT_UNIT
    return 0


def _take_level(s: Any, number: int, place: int, level: int) -> int:  # noqa: ARG001
    if level < 0 or level >= LEVELS:
        return FAILED
    s.run[0].answer = level
    return 0


def _take_path(s: Any, number: int, place: int, chosen: int) -> int:  # noqa: ARG001
    return FAILED if chosen < 0 or chosen >= s.hops[number].num_paths else chosen


_METHODS = {
    "key": _Method(_give_job, (view_types.JOB,), _take_key, None),
    "transfer_key": _Method(_give_transfer_and_network, (view_types.TRANSFER, view_types.NETWORK), _take_key, None),
    "admit": _Method(_give_transfer_and_network, (view_types.TRANSFER, view_types.NETWORK), _take_truth, types.Boolean),
    "link_rate": _Method(_give_transfer_and_link, (view_types.TRANSFER, view_types.LINK), _take_rate, types.Float),
    "weight": _Method(_give_transfer, (view_types.TRANSFER,), _take_weight, types.Float),
    "level": _Method(_give_transfer, (view_types.TRANSFER,), _take_level, types.Integer),
    "path": _Method(_give_flow, (view_types.FLOW, view_types.LOADS), _take_path, types.Integer),
}
"""By its name each method of a door; an order's key is given the time, too."""


def _entry_function(
    method: str, function: Any, dtype: np.dtype[Any], reads: frozenset[str], predicted: bool
) -> Callable[..., Any]:
    """Return the entry of a compiled method, to be compiled with :data:`ENTRY_SIGNATURE`.

    A key that does not read the time is not given it: the division is a twentieth of a run. ``predicted`` is the
    flavour of the views that it is given.
    """
    gives, _, takes, _ = _METHODS[method]
    if method == "key" and "now_s" not in reads:
        gives = _give_job_without_time
    fields_at, network_of = found_at(from_dtype(dtype)), view_types.make_view(view_types.NETWORK.flavoured(predicted))
    give, take = register_jitable(gives), register_jitable(takes)

    def entry(state: int, number: int, place: int, fields: int) -> int:
        s = state_at(state)
        s.run[0].scratch_used = 0
        given = (fields_at(fields),) + give(s, number, place, network_of(s, 0))  # noqa: RUF005 (no starred tuples here)
        returned, answer = _called(function, given)
        return take(s, number, place, answer) if returned else FAILED

    return entry


def typed_entry(program: Program, method: str, predicted: bool) -> tuple[Any, int, bool]:
    """Compile a method and return its entry's Python function, the words of its key, and whether the first is whole.

    Parameters
    ----------
    predicted
        Whether its views are of the flavour with predicted lengths of jobs.

    Raises
    ------
    CannotCompileError
        With file, line, construct and why.
    """
    _, views, _, expected = _METHODS[method]
    given = [view.flavoured(predicted) for view in views] + [types.float64] * (method == "key")
    try:
        function = compiled_function(program, (from_dtype(program.fields.dtype), *given))
        (answered,) = (overload.signature.return_type for overload in function.overloads.values())
        kinds = _key_types(answered) if expected is None else [answered]
        # With arrays a truth value may be numpy's, which is no number.
        numbers: tuple[Any, ...] = (types.Integer, types.Float, *(() if program.fields.arrays else (types.Boolean,)))
        allowed = numbers if expected is None else (expected,)
        if not kinds or len(kinds) > KEY_WORDS or not all(isinstance(kind, allowed) for kind in kinds):
            what = f"at most {KEY_WORDS} numbers" if expected is None else f"{expected.__name__.lower()} only"
            raise CannotCompileError(program.first_line, method, f"answers {answered}; {what} can be compiled")
        entry = _entry_function(method, function, program.fields.dtype, program.reads, predicted)
    except NumbaError as error:
        raise reason_of(error, program) from None
    words = len(kinds) if expected is None else 0
    return entry, words, words > 0 and isinstance(kinds[0], types.Integer | types.Boolean)
