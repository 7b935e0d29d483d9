"""The command line, one file a command: ``ddlsched simulate``, ``compare``, ``report``, ``workload``, ...

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddlsched.cli.plain_reshard import plain_arguments

__all__ = ["main"]


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
    given = sys.argv[1:] if args is None else list(args)
    plain = plain_arguments(given)
    if plain is None:
        from ddlsched.cli.app import app

        app(args=given, prog_name="ddlsched")
    else:
        _reshard(*plain)


def _reshard(source: str, destination: str, options: Mapping[str, Any]) -> None:
    """Reshard at once: parsing arguments in general takes as long to start as a second's tenth of copying."""
    from ddlsched.reconfiguration.read_ahead import begin_reading

    begin_reading(source)  # The disk is at work while the rest is imported.
    from ddlsched.cli.reporting import interrupted, reported
    from ddlsched.cli.reshard_run import run_reshard

    with reported():
        try:
            run_reshard(source, Path(destination), **options)
        except KeyboardInterrupt:
            sys.exit(interrupted())
    gc.freeze()  # The interpreter looks for cycles once more as it ends, in vain.
    sys.exit(0)
