"""What a job has committed: the loss of every step, and the state after the last one.

It commits in a folder that all its nodes see, where one small file names the state that counts and is replaced whole,
or in any place that fsspec knows. A kill at any moment leaves one step or the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from ddlsched.errors import InputError
from ddlsched.io.files import file_system, without_password
from ddlsched.real.state_folder import open_in

Save = Callable[[IO[bytes]], Any]
"""Writes a state to a file."""
_HISTORY = re.compile(r"history(\d+)\.json")
_LISTINGS = 10
"""How often a place is listed before its histories count as damaged: each commit meanwhile takes what was listed."""
_RELATIVE = re.compile(r"(file|local)://(?!/)")


class DamagedCommitsError(InputError):
    """What a job has committed was read, and is not what was written: it will not be later either."""


class History(msgspec.Struct):
    """What a job's history holds; a loss may be NaN, which msgspec's own JSON is not."""

    losses: list[float]


def committed_steps(folder: Path) -> list[float]:
    """Return the loss of every committed step of a job, in order.

    Raises
    ------
    DamagedCommitsError
        The file that says so is damaged, or a link.
    """
    try:
        with open_in(folder, "history.json", "rb") as file:
            return msgspec.convert(json.loads(file.read()), History).losses
    except FileNotFoundError:
        return []
    except InputError as error:
        raise DamagedCommitsError(str(error)) from None
    except (ValueError, RecursionError):
        what = "is damaged; expected the losses of a job's steps, as ddlsched wrote them"
        raise DamagedCommitsError(f"{folder / 'history.json'}: {what}") from None


def committed_state(folder: Path, step: int) -> Path:
    """Return where the state after so many steps is kept, while it is that of the last commit."""
    return folder / f"state{step}.pt"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the one process that commits; wait until one that a killed manager has left is gone."""
    with open_in(folder, "writer.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def commits_at(where: str | Path) -> Commits:
    """Return what is committed in a folder or at a URL; ``file://`` is a folder, too.

    Raises
    ------
    InputError
        fsspec is not installed, or knows no such place.
    """
    if isinstance(where, str) and "://" in where and not where.startswith("file://"):
        return CommitStore(where)
    return CommitFolder(Path(str(where).removeprefix("file://")))


def note_place(folder: Path, url: str | None) -> None:
    """Note where the jobs of a folder of state commit, by which they are found again; for who owns the folder.

    Raises
    ------
    InputError
        They have committed elsewhere, the place cannot be used, or no other process sees it.
    """
    noted = ""
    if has_jobs := (folder / "jobs.sqlite").exists():
        with suppress(FileNotFoundError), open_in(folder, "commits", "r") as file:
            noted = file.read()
    if has_jobs and noted != (url or ""):
        before, now = (without_password(place) or "their folders" for place in (noted, url or ""))
        raise InputError(f"{folder}: its jobs commit in {before}, not in {now}")
    (folder / "commits").unlink(missing_ok=True)  # of a manager that ended before it had jobs
    if url is None:
        return
    _check_form(url)
    commits_at(url).losses()
    with open_in(folder, "commits", "x", permissions=0o600) as file:  # there may be a password in it
        file.write(url)


def _check_form(url: str) -> None:
    shown = without_password(url)
    if url.startswith("memory:"):
        raise InputError(f"{shown}: is seen by one process only; expected a place that all nodes see")
    if "://" not in url:
        raise InputError(f"{shown}: is no URL; expected one such as s3://bucket/run, or file:///folder")
    if _RELATIVE.match(url):
        raise InputError(f"{shown}: is relative, to another folder on every node; expected file:///folder")


@dataclass(frozen=True)
class CommitFolder:
    """In a folder, where a file replaces another whole."""

    folder: Path

    def losses(self) -> list[float]:
        """Return the loss of every committed step, in order."""
        return committed_steps(self.folder)

    def commit(self, losses: list[float], save: Save | None = None) -> None:
        """Replace what is committed: first the state of this step under its own name, then the file that names it.

        Both files are on the disk before what they replace goes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        step = len(losses)
        if save is not None:
            self._replace("state.tmp", f"state{step}.pt", save)
        history = json.dumps({"losses": losses}).encode()
        self._replace("history.tmp", "history.json", lambda file: file.write(history))
        committed_state(self.folder, step - 1).unlink(missing_ok=True)

    def _replace(self, temporary: str, name: str, write: Save) -> None:
        """Put a file in the place of another once its bytes are on the disk."""
        with open_in(self.folder, temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        (self.folder / temporary).replace(self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def has_state(self, step: int) -> bool:
        """Return whether the state after so many steps is there."""
        return committed_state(self.folder, step).exists()

    def open_state(self, step: int) -> IO[bytes]:
        """Open the state after so many steps."""
        return open_in(self.folder, committed_state(self.folder, step).name, "rb")

    def name_of_state(self, step: int) -> str:
        """Return where that is."""
        return str(committed_state(self.folder, step))


class CommitStore:
    """At a URL, where no file need replace another whole.

    Each step has files of its own: first its state, then its history, with a digest, by which one that was written in
    part is known and passed over. What was before goes when both are there.

    Raises
    ------
    InputError
        fsspec is not installed, or knows no such place.
    """

    def __init__(self, url: str) -> None:
        self._files, path = file_system(url, "real")
        self._url, self._path = url, path.rstrip("/")
        self._has_cleared = False

    def losses(self) -> list[float]:
        """Return the loss of every committed step, in order.

        What was listed may have gone before it is read, since the job commits meanwhile: then it is listed again.

        Raises
        ------
        InputError
            The place cannot be read, or what it lists is always gone.
        DamagedCommitsError
            None of its histories beyond that of a first commit is whole.
        """
        for _ in range(_LISTINGS):
            steps = self._steps()
            error: type[InputError] = DamagedCommitsError
            for step in sorted(steps, reverse=True):
                text = self._history(step)
                if text is None:
                    error = InputError  # a listing that is out of date will be right later
                elif (losses := _read(text, step)) is not None:
                    return losses
            if not steps:
                return []
        if max(steps) <= 1:  # the first commit was cut off, before which there is none
            return []
        what = f"none of the histories of steps {', '.join(map(str, sorted(steps)))} can be read"
        raise error(f"{without_password(self._url)}: {what}; expected one that is whole")

    def commit(self, losses: list[float], save: Save | None = None) -> None:
        """Write a step's files, then remove those of the step before; what cannot be removed is tried again next time.

        Raises
        ------
        InputError
            The place cannot be written.
        """
        step = len(losses)
        older = [step - 1] if self._has_cleared else [old for old in self._steps() if old < step]
        self._asked(lambda: self._files.makedirs(self._path, exist_ok=True))
        if save is not None:
            with tempfile.NamedTemporaryFile() as file:
                save(file)
                file.flush()
                self._asked(lambda: self._files.put_file(file.name, self._state(step)))
        self._asked(lambda: self._files.pipe_file(self._history_path(step), _written(losses)))
        self._has_cleared = self._clear(older)

    def _clear(self, steps: list[int]) -> bool:
        """Remove the files of steps, each history last, by which the rest is found again; return whether all are gone.

        The commit is made by now, so that an error here is none of its own.
        """
        for path in (path for step in steps for path in (self._state(step), self._history_path(step))):
            try:
                self._files.rm_file(path)
            except FileNotFoundError:
                continue
            except Exception:  # each file system has exceptions of its own
                return False
        return True

    def has_state(self, step: int) -> bool:
        """Return whether the state after so many steps is there."""
        return bool(self._asked(lambda: self._files.exists(self._state(step))))

    def open_state(self, step: int) -> IO[bytes]:
        """Return the state after so many steps, read whole."""
        return io.BytesIO(self._asked(lambda: self._files.cat_file(self._state(step))))

    def name_of_state(self, step: int) -> str:
        """Return where that is."""
        return f"{without_password(self._url).rstrip('/')}/state{step}.pt"

    def _state(self, step: int) -> str:
        return f"{self._path}/state{step}.pt"

    def _history_path(self, step: int) -> str:
        return f"{self._path}/history{step}.json"

    def _steps(self) -> list[int]:
        """Return the steps of which there is a history."""
        self._asked(self._files.invalidate_cache)
        listed = self._asked(lambda: self._files.ls(self._path, detail=False), missing=())
        found = (_HISTORY.fullmatch(path.rsplit("/", 1)[-1]) for path in listed)
        return [int(match[1]) for match in found if match is not None]

    def _history(self, step: int) -> bytes | None:
        """Return what is in a step's history, or None if that has just gone."""
        text: bytes | None = self._asked(lambda: bytes(self._files.cat_file(self._history_path(step))), missing=None)
        return text

    def _asked(self, question: Callable[[], Any], missing: Any = InputError) -> Any:
        """Return an answer; where no such file is there, ``missing``, or by default an error as for all else."""
        try:
            return question()
        except Exception as error:  # each file system has exceptions of its own
            if isinstance(error, FileNotFoundError) and missing is not InputError:
                return missing
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            message = f"{self._url}: cannot be used ({why}); expected a place for commits"
            raise InputError(without_password(message)) from error


def _written(losses: list[float]) -> bytes:
    text = json.dumps(losses)
    return json.dumps({"losses": losses, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _read(text: bytes, step: int) -> list[float] | None:
    """Return the losses in a history, or None if that is not whole."""
    try:
        losses: list[float] = json.loads(text)["losses"]
        is_whole = _written(losses) == text and len(losses) == step
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return losses if is_whole else None


Commits = CommitFolder | CommitStore
"""What a job has committed: the loss of every step, and the state after the last."""
