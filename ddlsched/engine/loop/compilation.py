"""Compiles the event loop once after installation; later processes load it from numba's disk cache."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable
from enum import Enum
from typing import Any

from ddlsched.engine.loop import kernel
from ddlsched.engine.loop.layout import State

__all__ = ["Part", "ensure_compiled"]

_SILENT_S = 2.0


class Part(Enum):
    """Which runs call a function of the kernel."""

    ALL = "all"
    WARM_UP = "with a warm-up"
    CAPACITY = "whose servers come and go"
    PYTHON = "with a policy or model that has no compiled rule"
    ELASTIC = "with elastic jobs"


@functools.cache
def _compile(state_type: Any, part: Part) -> None:
    import numba

    number, numbers, floats = numba.int64, numba.int64[::1], numba.float64[::1]
    chosen = (state_type, number, number, numbers, number, numbers, floats, floats, numbers, number)
    signatures: dict[Part, list[tuple[Any, tuple[Any, ...]]]] = {
        Part.ALL: [
            (kernel.advance, (state_type,)),
            (kernel.place_job, chosen),
            (kernel.fill_loads, (state_type, numbers, numbers)),
            (kernel.next_fitting, (state_type, numbers, number)),
            (kernel.wake, (state_type, number)),
            (kernel.close_books, (state_type,)),
            (kernel.take_samples, (state_type, number)),
            (kernel.take_sample, (state_type, number)),
        ],
        Part.WARM_UP: [(kernel.add_busy_ns, (state_type, numbers))],
        Part.CAPACITY: [
            (kernel.fail_gpus, (state_type, numbers, number)),
            (kernel.restore_gpus, (state_type, numbers)),
        ],
        Part.PYTHON: [
            (kernel.gather_transfers, (state_type,)),
            (kernel.gather_rivals, (state_type,)),
            (kernel.start_transfer, (state_type, number)),
            (kernel.pause_transfer, (state_type, number)),
            (kernel.apply_rates, (state_type, floats)),
        ],
        Part.ELASTIC: [(kernel.stop_job, (state_type, number, number))],
    }
    for function, signature in signatures[part]:
        function.compile(signature)


def ensure_compiled(state: State, parts: Iterable[Part]) -> None:
    """Compile those parts of the event loop, or load them from the cache; say so on stderr if that takes long."""
    from numba import typeof

    if not hasattr(kernel.advance, "compile"):  # NUMBA_DISABLE_JIT=1
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
