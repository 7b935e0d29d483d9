"""Compiles the event loop once after installation; later processes load it from disk.

The loop itself is compiled by a process of its own, while this one compiles the rest.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Final

from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.from_python import close_books, find_fitting
from ddlsched.engine.loop.placement import place_job
from ddlsched.engine.loop.room import fill_loads
from ddlsched.engine.native.jit import compiled_part, is_kept, runs_in_python, say_if_unsupported
from ddlsched.engine.records import Records

_SILENT_S = 2.0
_ALWAYS: Final = "wake_address", "group_address"
JUMPING: Final = "examine_address"
"""The address of what jumps over periods."""


def compile_loop() -> None:
    """Compile the loop itself, or load it from disk; and what places a job, half of which is part of the loop, too."""
    advance.compile()
    place_job.compile()


@functools.cache
def start_compiling() -> subprocess.Popen[bytes] | None:
    """Let another process compile the loop, unless that was done or its work could not be kept; return that process."""
    if runs_in_python() or is_kept(advance) is not False:
        return None
    _notice().start()
    program = "from ddlsched.engine.loop.compilation import compile_loop; compile_loop()"
    try:
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def ensure_compiled(run: Records, addresses: Iterable[str] = ()) -> None:
    """Compile the loop, or load it, and write into the run the addresses of what it calls; say so if it lasts.

    ``addresses`` are fields of the run, beside those that each run needs. What Python calls is compiled when it does.
    """
    if runs_in_python():
        say_if_unsupported()
        for field in (JUMPING, *addresses):
            setattr(run, field, 1)  # it is called by its name
        return
    _compile_what_all_need()
    for field in (*_ALWAYS, *addresses):
        setattr(run, field, compiled_part(field).address)


@functools.cache
def _compile_what_all_need() -> None:
    other = start_compiling()
    notice = _notice()
    if other is None:
        notice.start()
    try:
        for field in _ALWAYS:
            compiled_part(field)
        for function in (fill_loads, find_fitting, close_books):
            function.compile()
        if other is not None:
            if other.poll() is None:
                compiled_part(JUMPING)  # long runs need it
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
        "ddlsched: preparing the event loop (each part once, when a run first needs it; up to a minute) ...",
        file=sys.stderr,
        flush=True,
    )
