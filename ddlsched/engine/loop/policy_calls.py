"""Calls of compiled policies by their address, and what the loop does when one fails."""

from __future__ import annotations

from ddlsched.engine.native.jit import call_address, njit
from ddlsched.engine.records.field_values import FAILED, ZERO
from ddlsched.engine.records.layout import State

__all__ = ["call_policy", "refuses"]


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
def refuses(s: State, number: int) -> bool:
    """Whether the communication policy refuses a transfer; where it fails it does not, and nothing is noted."""
    run = s.run[0]
    return call_address(run.communication_address, s, number, ZERO, run.communication_fields) == 0
