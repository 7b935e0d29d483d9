"""A training process: one node of a job. Run by the manager as ``python -m ddlsched.real.live.worker``.

Its assignment and its orders come on stdin. Every step is committed, weights and all, before it is reported: what is
lost with a process is at most the step under way.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from ddlsched.real.live.programs import PROGRAMS
from ddlsched.real.live.seat import Seat

__all__ = ["main"]

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> int:
    """Run the program of this process's job until its last step is committed."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    seat = Seat(_private_stdin())
    if seat.assignment.parent not in (0, os.getppid()):  # It died before the first line above.
        return 1
    Seat.here = seat
    if seat.assignment.program in PROGRAMS:
        PROGRAMS[seat.assignment.program](seat)
    else:
        _run(seat, Path(seat.assignment.program))
    return 0


def _run(seat: Seat, script: Path) -> None:
    """Run a script as ``python script`` does; what the manager is told of it is what was read, and not read again."""
    source = script.read_bytes()
    seat.script = hashlib.sha256(source).hexdigest()
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    module = ModuleType("__main__")
    module.__dict__["__file__"] = str(script)
    sys.modules["__main__"] = module
    exec(compile(source, str(script), "exec"), module.__dict__)


def _private_stdin() -> int:
    """Return a file of its own for what comes on stdin, from which the program then reads nothing."""
    orders_from = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders_from


if __name__ == "__main__":
    sys.exit(main())
