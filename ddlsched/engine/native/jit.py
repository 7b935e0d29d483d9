"""How the loop's functions are compiled; where nothing is compiled they stay what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlsched.engine.native.support import runs_in_python

if TYPE_CHECKING or not runs_in_python():
    from ddlsched.engine.native.machine_code import (
        NUMBER,
        NUMBERS,
        REAL,
        REALS,
        address_of,
        called_by_address,
        called_from_python,
        caller_of,
        compiled_as_called,
        compiled_part,
        compiling,
        is_kept,
        njit,
        spent_compiling_s,
    )
    from ddlsched.engine.native.state import STATE, call_address, state_at, width_of
else:
    from ddlsched.engine.native.plain import (
        NUMBER,
        NUMBERS,
        REAL,
        REALS,
        STATE,
        address_of,
        call_address,
        called_by_address,
        called_from_python,
        caller_of,
        compiled_as_called,
        compiled_part,
        compiling,
        is_kept,
        njit,
        spent_compiling_s,
        state_at,
        width_of,
    )
