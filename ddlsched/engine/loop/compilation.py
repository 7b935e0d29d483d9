"""Compiles the event loop once after installation; later processes load it from disk.

The loop itself is compiled by a process of its own, while this one compiles the rest.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numba

from ddlsched.engine.loop.accounts import add_busy_ns, close_books
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus
from ddlsched.engine.loop.from_python import (
    change_share,
    gather_rivals,
    gather_transfers,
    list_component,
    pause_transfer,
    rank_rivals,
    rerate_max_min,
    sort_queue,
    start_transfer,
    stop_job,
    take_sample,
    take_samples,
)
from ddlsched.engine.loop.iterations import go_on
from ddlsched.engine.loop.loads import fill_loads
from ddlsched.engine.loop.placement import place_job, reroute_transfer
from ddlsched.engine.loop.rates import apply_rates
from ddlsched.engine.loop.room import next_fitting, reserve_bytes
from ddlsched.engine.loop.state_flows import plan_move, send_state, wake_running
from ddlsched.engine.native.jit import compiled_part, compiling, is_kept
from ddlsched.engine.native.state import STATE
from ddlsched.engine.records.layout import Records

__all__ = ["PLACE_JOB", "Part", "compile_loop", "ensure_compiled", "start_compiling"]

_SILENT_S = 2.0
_TYPES = _NUMBER, _NUMBERS, _FLOATS = numba.int64, numba.int64[::1], numba.float64[::1]
PLACE_JOB = STATE, _NUMBER, _NUMBER, _NUMBERS, _NUMBER, *[_NUMBERS] * 3, *[_FLOATS] * 3, _NUMBERS, _NUMBER
"""What ``place_job`` is given."""


class Part(Enum):
    """Which runs call a function of the loop."""

    ALL = "all"
    WARM_UP = "with a warm-up"
    CAPACITY = "whose servers come and go"
    PYTHON = "with a policy or model that is asked in Python, or has a memory"
    ELASTIC = "with elastic jobs"
    JUMPS = "that jump over periods"
    SHARES = "whose transfers share by weights and levels"
    MOVES = "whose policies stop or move jobs"
    PATHS = "whose transfers choose their paths anew"
    COMPILED_PATHS = "whose transfers choose their paths anew by a compiled policy"


_ADDRESSES = {
    Part.ALL: ("wake_address", "group_address"),
    Part.JUMPS: ("examine_address",),
    Part.SHARES: ("shares_address",),
    Part.COMPILED_PATHS: ("choosing_address",),
}
"""Fields of a run that hold addresses of what a part has of functions that are compiled apart."""

_compiled: set[Part] = set()
"""The parts that this process has."""


def _signatures(part: Part) -> list[tuple[Any, tuple[Any, ...]]]:
    number, numbers, floats = _TYPES
    signatures: dict[Part, list[tuple[Any, tuple[Any, ...]]]] = {
        Part.ALL: [
            (fill_loads, (STATE, numbers, numbers)),
            (next_fitting, (STATE, numbers, number)),
            (close_books, (STATE,)),
            (take_samples, (STATE, number)),
            (take_sample, (STATE, number)),
        ],
        Part.WARM_UP: [(add_busy_ns, (STATE, numbers))],
        Part.CAPACITY: [
            (fail_gpus, (STATE, numbers, number)),
            (restore_gpus, (STATE, numbers)),
        ],
        Part.PYTHON: [
            (gather_transfers, (STATE,)),
            (gather_rivals, (STATE,)),
            (rank_rivals, (STATE,)),
            (start_transfer, (STATE, number)),
            (pause_transfer, (STATE, number)),
            (apply_rates, (STATE, numbers, floats)),
            (list_component, (STATE,)),
            (change_share, (STATE, number, numba.float64, number)),
            (rerate_max_min, (STATE,)),
        ],
        Part.ELASTIC: [(stop_job, (STATE, number, number))],
        Part.JUMPS: [],
        Part.SHARES: [],
        Part.MOVES: [
            (stop_job, (STATE, number, number)),
            (sort_queue, (STATE,)),
            (reserve_bytes, (STATE, number, number)),
            (plan_move, (STATE, number)),
            (go_on, (STATE, number)),
            (wake_running, (STATE,)),
            (send_state, (STATE, number, number, numbers, numbers, floats, floats)),
        ],
        Part.COMPILED_PATHS: [],
        Part.PATHS: [(reroute_transfer, (STATE, number, numbers, floats, numba.float64))],
    }
    return signatures[part]


def _is_off() -> bool:
    """Return whether NUMBA_DISABLE_JIT=1 has the loop run as plain Python."""
    return not hasattr(advance, "compile")


@functools.cache
def _compile(part: Part) -> None:
    for function, signature in _signatures(part):
        function.compile(signature)


def compile_loop() -> None:
    """Compile the loop itself, or load it from disk; and what places a job, half of which is part of the loop, too."""
    with compiling():
        advance.compile((STATE,))
        place_job.compile(PLACE_JOB)


@functools.cache
def start_compiling() -> subprocess.Popen[bytes] | None:
    """Let another process compile the loop, unless that was done or its work could not be kept; return that process."""
    if _is_off() or is_kept(advance, (STATE,)) is not False:
        return None
    _notice().start()
    program = "from ddlsched.engine.loop.compilation import compile_loop; compile_loop()"
    try:
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def ensure_compiled(run: Records, parts: Iterable[Part]) -> None:
    """Compile those parts of the loop, or load them, and write addresses into the run; say so on stderr if it lasts."""
    if _is_off():
        run.examine_address = 1  # there is no other
        return
    needed = {*parts}
    if not needed <= _compiled:
        _compile_parts(needed)
        _compiled.update(needed)
    for part in needed:
        for field in _ADDRESSES.get(part, ()):
            setattr(run, field, compiled_part(field).address)


def _compile_parts(parts: Iterable[Part]) -> None:
    other = start_compiling()
    notice = _notice()
    if other is None:
        notice.start()
    try:
        with compiling():
            for part in parts:
                for field in _ADDRESSES.get(part, ()):
                    compiled_part(field)
                _compile(part)
        if other is not None:
            other.wait()
        compile_loop()
    finally:
        notice.cancel()


def _notice() -> threading.Timer:
    notice = threading.Timer(_SILENT_S, _say_compiling)
    notice.daemon = True
    return notice


@functools.cache
def _say_compiling() -> None:
    print(
        "ddlsched: preparing the event loop (compiled once after installation, up to a minute) ...",
        file=sys.stderr,
        flush=True,
    )
