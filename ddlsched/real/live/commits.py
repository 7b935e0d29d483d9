"""What a job has committed: the loss of every step, and the state after the last one.

One small file names the state that counts and is replaced whole, so a kill at any moment leaves one step or the next.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ddlsched.errors import InputError

__all__ = ["DamagedCommitsError", "commit", "committed_state", "committed_steps", "writing"]


class DamagedCommitsError(InputError):
    """What a job has committed was read, and is not what was written: it will not be later either."""


def committed_steps(folder: Path) -> list[float]:
    """Return the loss of every committed step of a job, in order.

    Raises
    ------
    DamagedCommitsError
        The file that says so is damaged.
    """
    path = folder / "history.json"
    try:
        history = json.loads(path.read_bytes())["losses"]
        if isinstance(history, list):
            return [float(loss) for loss in history]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    raise DamagedCommitsError(f"{path}: is damaged; expected the losses of a job's steps, as ddlsched wrote them")


def committed_state(folder: Path, step: int) -> Path:
    """Return where the state after so many steps is kept, while it is that of the last commit."""
    return folder / f"state{step}.pt"


def commit(folder: Path, losses: list[float], save: Callable[[Path], None] | None = None) -> None:
    """Replace what is committed: first the state of this step under its own name, then the file that names it.

    ``save`` writes the state to a path. Both files are on the disk before what they replace goes.
    """
    step = len(losses)
    if save is not None:
        temporary = folder / "state.tmp"
        save(temporary)
        _replace(temporary, committed_state(folder, step))
    temporary = folder / "history.tmp"
    temporary.write_text(json.dumps({"losses": losses}))
    _replace(temporary, folder / "history.json")
    committed_state(folder, step - 1).unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    """Put a file in the place of another once its bytes are on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the one process that commits; wait until one that a killed manager has left is gone."""
    with (folder / "writer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
