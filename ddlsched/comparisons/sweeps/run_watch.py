"""How far the runs of a sweep are that are under way in other processes: each writes it down, the parent reads it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ddlsched.engine.run_progress import RunProgress

__all__ = ["ProgressFile", "under_way"]


class ProgressFile:
    """Writes how far a run is to a file, which is there as long as the run."""

    def __init__(self, label: str, path: Path) -> None:
        self._label, self._path = label, path

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __call__(self, progress: RunProgress) -> None:
        """Write it down; a disk that is full stops no run."""
        with suppress(OSError):
            self._path.write_text(json.dumps([self._label, *progress]), encoding="utf-8")


def under_way(folder: Path) -> list[str]:
    """Return a line a run that has told how far it is; one that is being written is left out this time."""
    lines = []
    for path in sorted(folder.iterdir()):
        with suppress(OSError, ValueError):
            label, *numbers = json.loads(path.read_text(encoding="utf-8"))
            lines.append(f"{label}: {RunProgress(*numbers).text()}")
    return lines
