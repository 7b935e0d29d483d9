"""Calls of compiled policies by their address, and what the loop does when one fails."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic

from ddlsched.engine.loop.codes import FAILED
from ddlsched.engine.loop.jit import njit

__all__ = ["call_policy"]


@intrinsic
def _call(typing_context, address, state, number, place, fields):  # noqa: ARG001
    """Call an entry: ``int64(state, number, place, fields)``."""

    def generate(context, builder, sig, arguments):  # noqa: ARG001
        i64 = ir.IntType(64)
        entry_type = ir.FunctionType(i64, [i64] * 4).as_pointer()
        address, state, number, place, fields = arguments
        entry = builder.inttoptr(address, entry_type)
        return builder.call(entry, [builder.ptrtoint(state, i64), number, place, fields])

    return signature(types.int64, types.int64, state, types.int64, types.int64, types.int64), generate


@njit
def call_policy(s, door, address, number, place, fields):
    """Return a compiled policy's answer; note the door and the number of the first that fails."""
    answer = _call(address, s, number, place, fields)
    if answer == FAILED:
        run = s.run[0]
        if run.failed_door < 0:
            run.failed_door, run.failed_number = door, number
        return 0
    return answer
