"""The command line, one file a command: ``ddlsched simulate``, ``compare``, ``report``, ``workload``, ...

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    args
        Without the program's name; by default the process's own.

    Raises
    ------
    SystemExit
        Always: with 0, 2 for input that cannot be used, 1 for a plug-in or a run that failed, 130 for Ctrl-C.
    """
    # Looking for cycles after every 700 new objects takes a tenth of a short run; nothing here makes many.
    gc.set_threshold(50_000)
    from ddlsched.cli.app import app

    try:
        app(args=sys.argv[1:] if args is None else list(args), prog_name="ddlsched")
    finally:
        gc.freeze()  # the process ends, and looking for cycles among all that it has takes a third of a short run
