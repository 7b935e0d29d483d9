"""A training process: one node of a job. Run by the manager as ``python -m ddlsched.real.live.worker``.

Its assignment and its orders come on stdin. Every step is committed, weights and all, before it is reported: what is
lost with a process is at most the step under way.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ddlsched.real.live.counting import BATCH, count
from ddlsched.real.live.seat import Seat

__all__ = ["PROGRAMS", "main"]

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> int:
    """Run the program of this process's job until its last step is committed."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    seat = Seat(_private_stdin())
    if seat.assignment.parent not in (0, os.getppid()):  # It died before the first line above.
        return 1
    Seat.here = seat
    program = seat.assignment.program
    if program in PROGRAMS:
        PROGRAMS[program](seat)
    else:
        sys.argv, sys.path[0] = [program], str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    return 0


def _private_stdin() -> int:
    """Return a file of its own for what comes on stdin, from which the program then reads nothing."""
    orders_from = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders_from


def _count(seat: Seat) -> None:
    """Count, where there is no PyTorch; nodes divide the work."""
    count(seat, lambda ranks: 0.02 / ranks)


def _train(_: Seat) -> None:
    from ddlsched.real.live.small_training import fit

    fit(BATCH)


PROGRAMS: dict[str, Callable[[Seat], None]] = {"count": _count, "mlp": _train}
"""What a job may run by name; else its program is the path of a script."""

if __name__ == "__main__":
    sys.exit(main())
