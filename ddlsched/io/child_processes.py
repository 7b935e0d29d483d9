"""What a process that works for another one does first."""

from __future__ import annotations

import os
import signal
import threading
import time

_LOOK_S = 0.1
"""Between two looks; what the parent had locked stays so until this process has ended, too."""


def follow_parent(parent: int) -> None:
    """Let this process end with its parent, a process number, and with nothing else.

    Ctrl-C reaches every process of a terminal; the parent is to answer it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End soon after the parent, which may have been killed without a word."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
