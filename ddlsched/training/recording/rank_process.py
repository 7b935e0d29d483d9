"""A rank that is recorded: ``python -m ddlsched.training.recording.rank_process FOLDER SKIP STEPS SCRIPT [ARGUMENTS]``.

``ddlsched record`` starts one a rank; ``torchrun -m`` can, too.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import distributed

from ddlsched.errors import DdlschedError
from ddlsched.io.child_processes import follow_parent
from ddlsched.training.recording.launching import PARENT
from ddlsched.training.recording.recorder import Recorder, record

__all__ = ["main"]


class _Enough(BaseException):
    """All steps that are to be kept have ended, or somebody wants no more of them."""


def main(arguments: Sequence[str]) -> None:
    """Run a script as if it were started itself, until enough is recorded, and write that."""
    folder, skip, steps, script, *rest = arguments
    if PARENT in os.environ:
        follow_parent(int(os.environ[PARENT]))
    recorder = record(folder, skip=int(skip), most_steps=int(steps))
    atexit.unregister(recorder.end_at_exit)
    recorder.when_full = lambda: _leave_together(recorder)
    signal.signal(signal.SIGTERM, _stop)
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        try:
            runpy.run_path(script, run_name="__main__")
        except _Enough:
            recorder.when_full = None
        recorder.end()
    except DdlschedError as error:
        sys.exit(f"ddlsched: error: {error}")
    finally:
        recorder.stop()


def _stop(*_: Any) -> None:
    raise _Enough


def _leave_together(recorder: Recorder) -> None:
    """End the script once every rank has come so far: one that leaves earlier would break the others' collectives."""
    recorder.stop()
    if distributed.is_initialized():
        distributed.barrier()
    raise _Enough


if __name__ == "__main__":
    main(sys.argv[1:])
