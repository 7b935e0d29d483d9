"""Signals that end a run: SIGTERM as Ctrl-C, and neither of them while things are removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["sigterm_as_ctrl_c", "undisturbed"]


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt meanwhile, unless this process ignores it or has its own use for it."""
    unused = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with _handled({signal.SIGTERM: signal.default_int_handler} if unused else {}):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore both signals meanwhile, as do the programs that are started.

    To block them would not do: another thread, such as those of numpy, would take them.
    """
    with _handled({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Set handlers meanwhile; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
