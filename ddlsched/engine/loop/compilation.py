"""Compiles the event loop once after installation; later processes load it from numba's disk cache."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable
from enum import Enum
from typing import Any

from ddlsched.engine.loop.accounts import add_busy_ns, close_books
from ddlsched.engine.loop.admission import gather_transfers
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.dormancy import wake
from ddlsched.engine.loop.failures import fail_gpus, restore_gpus, stop_job
from ddlsched.engine.loop.layout import State
from ddlsched.engine.loop.loads import fill_loads
from ddlsched.engine.loop.placement import place_job
from ddlsched.engine.loop.rivals import gather_rivals, rank_rivals
from ddlsched.engine.loop.room import next_fitting
from ddlsched.engine.loop.samples import take_sample, take_samples
from ddlsched.engine.loop.sharing import apply_rates, collect_component, rerate_max_min
from ddlsched.engine.loop.transfers import pause_transfer, start_transfer

__all__ = ["Part", "ensure_compiled"]

_SILENT_S = 2.0


class Part(Enum):
    """Which runs call a function of the loop."""

    ALL = "all"
    WARM_UP = "with a warm-up"
    CAPACITY = "whose servers come and go"
    PYTHON = "with a policy or model that is asked in Python, or has a memory"
    ELASTIC = "with elastic jobs"


@functools.cache
def _compile(state_type: Any, part: Part) -> None:
    import numba

    number, numbers, floats = numba.int64, numba.int64[::1], numba.float64[::1]
    chosen = (state_type, number, number, numbers, number, numbers, floats, floats, numbers, number)
    signatures: dict[Part, list[tuple[Any, tuple[Any, ...]]]] = {
        Part.ALL: [
            (advance, (state_type,)),
            (place_job, chosen),
            (fill_loads, (state_type, numbers, numbers)),
            (next_fitting, (state_type, numbers, number)),
            (wake, (state_type, number)),
            (close_books, (state_type,)),
            (take_samples, (state_type, number)),
            (take_sample, (state_type, number)),
        ],
        Part.WARM_UP: [(add_busy_ns, (state_type, numbers))],
        Part.CAPACITY: [
            (fail_gpus, (state_type, numbers, number)),
            (restore_gpus, (state_type, numbers)),
        ],
        Part.PYTHON: [
            (gather_transfers, (state_type,)),
            (gather_rivals, (state_type,)),
            (rank_rivals, (state_type,)),
            (start_transfer, (state_type, number)),
            (pause_transfer, (state_type, number)),
            (apply_rates, (state_type, numbers, floats)),
            (collect_component, (state_type,)),
            (rerate_max_min, (state_type, number)),
        ],
        Part.ELASTIC: [(stop_job, (state_type, number, number))],
    }
    for function, signature in signatures[part]:
        function.compile(signature)


def ensure_compiled(state: State, parts: Iterable[Part]) -> None:
    """Compile those parts of the event loop, or load them from the cache; say so on stderr if that takes long."""
    from numba import typeof

    if not hasattr(advance, "compile"):  # NUMBA_DISABLE_JIT=1
        return
    notice = threading.Timer(_SILENT_S, _say_compiling)
    notice.daemon = True
    notice.start()
    try:
        for part in parts:
            _compile(typeof(state), part)
    finally:
        notice.cancel()


def _say_compiling() -> None:
    print(
        "ddlsched: preparing the event loop (compiled once after installation, up to a minute) ...",
        file=sys.stderr,
        flush=True,
    )
