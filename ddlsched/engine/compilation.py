"""Compiles the event loop once after installation; later processes load it from numba's disk cache."""

from __future__ import annotations

import functools
import sys
import threading

from ddlsched.engine import kernel
from ddlsched.engine.layout import State

__all__ = ["ensure_compiled"]

_SILENT_S = 2.0


@functools.cache
def _compile(state_type: object) -> None:
    """Compile what every run calls; the rest, little, is compiled when a run first does."""
    import numba

    number, numbers, floats = numba.int64, numba.int64[::1], numba.float64[::1]
    kernel.advance.compile((state_type,))
    kernel.place_job.compile((state_type, number, number, numbers, number, numbers, floats, floats, numbers, number))
    kernel.fill_loads.compile((state_type, numbers, numbers))
    kernel.next_fitting.compile((state_type, numbers, number))
    kernel.count_room.compile((state_type,))
    kernel.close_books.compile((state_type,))
    kernel.take_samples.compile((state_type, number))
    kernel.take_sample.compile((state_type, number))


def ensure_compiled(state: State) -> None:
    """Compile the event loop, or load it from the cache; say so on stderr if that takes long."""
    from numba import typeof

    if not hasattr(kernel.advance, "compile"):  # NUMBA_DISABLE_JIT=1
        return
    notice = threading.Timer(_SILENT_S, _say_compiling)
    notice.daemon = True
    notice.start()
    try:
        _compile(typeof(state))
    finally:
        notice.cancel()


def _say_compiling() -> None:
    print(
        "ddlsched: preparing the event loop (compiled once after installation, up to a minute) ...",
        file=sys.stderr,
        flush=True,
    )
