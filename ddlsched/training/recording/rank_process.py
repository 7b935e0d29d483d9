"""A rank that is recorded: ``python -m ddlsched.training.recording.rank_process FOLDER SKIP STEPS SCRIPT [ARGUMENTS]``.

``ddlsched record`` starts one a rank; ``torchrun -m`` can, too.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ddlsched.errors import DdlschedError
from ddlsched.training.recording.recorder import record

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Run a script as if it were started itself, and write what was recorded once it has ended."""
    folder, skip, steps, script, *rest = arguments
    recorder = record(folder, skip=int(skip), most_steps=int(steps))
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
        recorder.end()
    except DdlschedError as error:
        sys.exit(f"ddlsched: error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
