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

from ddlsched.engine.loop.accounts import add_busy_ns, close_books
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus, slow_gpus
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
from ddlsched.engine.loop.splitting import put_on_network, stand_alone, take_off_network
from ddlsched.engine.loop.state_flows import plan_move, send_state, wake_running
from ddlsched.engine.native.jit import NUMBER, NUMBERS, REAL, REALS, STATE, compiled_part, compiling, is_kept
from ddlsched.engine.native.support import runs_in_python, say_if_unsupported
from ddlsched.engine.records.layout import Records

__all__ = ["PLACE_JOB", "Part", "compile_loop", "ensure_compiled", "start_compiling"]

_SILENT_S = 2.0
PLACE_JOB = STATE, NUMBER, NUMBER, NUMBERS, NUMBER, *[NUMBERS] * 3, *[REALS] * 3, NUMBERS, NUMBER
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
    GROUPS = "with jobs of groups, of which some workers may do alike"
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
    signatures: dict[Part, list[tuple[Any, tuple[Any, ...]]]] = {
        Part.ALL: [
            (fill_loads, (STATE, NUMBERS, NUMBERS)),
            (next_fitting, (STATE, NUMBERS, NUMBER)),
            (close_books, (STATE,)),
            (take_samples, (STATE, NUMBER)),
            (take_sample, (STATE, NUMBER)),
        ],
        Part.WARM_UP: [(add_busy_ns, (STATE, NUMBERS))],
        Part.CAPACITY: [
            (fail_gpus, (STATE, NUMBERS, NUMBER)),
            (restore_gpus, (STATE, NUMBERS)),
            (slow_gpus, (STATE, NUMBERS, REAL)),
        ],
        Part.PYTHON: [
            (gather_transfers, (STATE,)),
            (gather_rivals, (STATE,)),
            (rank_rivals, (STATE,)),
            (start_transfer, (STATE, NUMBER)),
            (pause_transfer, (STATE, NUMBER)),
            (apply_rates, (STATE, NUMBERS, REALS)),
            (list_component, (STATE,)),
            (change_share, (STATE, NUMBER, REAL, NUMBER)),
            (rerate_max_min, (STATE,)),
        ],
        Part.ELASTIC: [(stop_job, (STATE, NUMBER, NUMBER))],
        Part.JUMPS: [],
        Part.SHARES: [],
        Part.GROUPS: [
            (take_off_network, (STATE, NUMBER)),
            (put_on_network, (STATE, NUMBER)),
            (stand_alone, (STATE, NUMBER)),
        ],
        Part.MOVES: [
            (stop_job, (STATE, NUMBER, NUMBER)),
            (sort_queue, (STATE,)),
            (reserve_bytes, (STATE, NUMBER, NUMBER)),
            (plan_move, (STATE, NUMBER)),
            (go_on, (STATE, NUMBER)),
            (wake_running, (STATE,)),
            (send_state, (STATE, NUMBER, NUMBER, NUMBERS, NUMBERS, REALS, REALS)),
        ],
        Part.COMPILED_PATHS: [],
        Part.PATHS: [(reroute_transfer, (STATE, NUMBER, NUMBERS, REALS, REAL))],
    }
    return signatures[part]


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
    if runs_in_python() or is_kept(advance, (STATE,)) is not False:
        return None
    _notice().start()
    program = "from ddlsched.engine.loop.compilation import compile_loop; compile_loop()"
    try:
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def ensure_compiled(run: Records, parts: Iterable[Part]) -> None:
    """Compile those parts of the loop, or load them, and write addresses into the run; say so on stderr if it lasts."""
    if runs_in_python():
        say_if_unsupported()
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
