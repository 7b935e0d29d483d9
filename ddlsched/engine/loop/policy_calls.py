"""Calls of compiled policies by their address, and what the loop does when one fails."""

from __future__ import annotations

from ddlsched.engine.native.jit import call_address, njit
from ddlsched.engine.records.field_values import FAILED, ZERO
from ddlsched.engine.records.layout import State

__all__ = ["asked_beforehand", "call_policy"]


@njit
def call_policy(s: State, door: int, address: int, number: int, place: int, fields: int) -> int:
    """Return a compiled policy's answer; note the door and the number of the first that fails."""
    answer = call_address(address, s, number, place, fields)
    if answer == FAILED:
        run = s.run[0]
        if run.failed_door < 0:
            run.failed_door, run.failed_number = door, number
        return 0
    return answer


@njit
def asked_beforehand(s: State, number: int) -> int:
    """What the communication policy says of a transfer; where it fails nothing is noted."""
    run = s.run[0]
    return call_address(run.communication_address, s, number, ZERO, run.communication_fields)
