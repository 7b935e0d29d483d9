"""The machine that runs a testbed: whether it kept up, who runs ahead of others, and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_AHEAD_IN_TURNS = -20
"""The niceness that gets most of a processor's time."""

MOST_LATE = 0.02
"""Part of the compute time that waits may end late in all; beyond, the machine was the limit and not the network."""
MOST_BUSY = 0.9
_STAT = Path("/proc/stat")
_PRIORITY = 10


@contextlib.contextmanager
def ahead_of_others(wanted: bool) -> Iterator[None]:
    """Let this process run ahead of ordinary ones (SCHED_FIFO) meanwhile, where that is allowed."""
    before = os.sched_getscheduler(0)
    try:
        if wanted:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        yield
    finally:
        if os.sched_getscheduler(0) != before:
            os.sched_setscheduler(0, before, os.sched_param(0))


@contextlib.contextmanager
def behind_this_thread() -> Iterator[None]:
    """Let threads that are started meanwhile share the processors, if this one runs ahead: ahead of others, in turns.

    gloo's threads wait for each other by spinning: its event loop while another thread holds a connection's lock, and
    the threads that reduce until the loop has let go of their buffers. Under SCHED_FIFO nobody of the same or of a
    lower priority would ever run: one such thread a processor, and the machine stands still. So all take turns.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    if policy != os.SCHED_FIFO:
        yield
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        with contextlib.suppress(PermissionError):  # Who may run ahead of others need not be root.
            os.setpriority(os.PRIO_PROCESS, 0, _AHEAD_IN_TURNS)
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        os.sched_setscheduler(0, policy, priority)


@dataclass
class MachineWatch:
    """Counts from its making on."""

    compute_ns: int = 0
    late_ns: int = 0
    most_late_ns: int = 0
    computes: int = 0
    begin: tuple[int, int] = field(default_factory=lambda: _ticks())

    def computed(self, duration_ns: int, late_ns: int) -> None:
        """Note a timed wait."""
        self.computes += 1
        self.compute_ns += duration_ns
        self.late_ns += late_ns
        self.most_late_ns = max(self.most_late_ns, late_ns)

    def summary(self) -> dict[str, Any]:
        """Return the figures, and in ``machine_limited`` whether they speak against the run."""
        busy, whole = (now - then for now, then in zip(_ticks(), self.begin, strict=True))
        busy_share = busy / whole if whole else 0.0
        late_share = self.late_ns / self.compute_ns if self.compute_ns else 0.0
        return {
            "cpu_busy_share": busy_share,
            "mean_late_ms": self.late_ns / max(self.computes, 1) / 1e6,
            "most_late_ms": self.most_late_ns / 1e6,
            "late_share": late_share,
            "machine_limited": busy_share > MOST_BUSY or late_share > MOST_LATE,
        }


def _ticks() -> tuple[int, int]:
    """Return the ticks that all processors have been busy, and all ticks, since they were started."""
    try:
        ticks = [int(part) for part in _STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0  # another system than Linux
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


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
