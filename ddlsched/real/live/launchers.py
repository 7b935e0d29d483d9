"""Who starts the process on a node: this machine itself, or Slurm on its nodes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from ddlsched.errors import InputError

__all__ = ["Launcher", "LocalLauncher", "SlurmLauncher"]

_WORKER = (sys.executable, "-m", "ddlsched.real.live.worker")
_REFUSED, _TOO_LATE = 124, 125
"""What srun is told to end with if Slurm starts nothing: never, or not now."""
_TAKEN = frozenset({_REFUSED, _TOO_LATE, 128 + 9, 128 + 15})
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SOON_S = 5
_END_S = 10.0


class Launcher(Protocol):
    """Starts processes on nodes; each reads its orders on stdin."""

    @property
    def parent(self) -> int:
        """Return the process that is the parent of those on nodes, or 0 if none of this machine is."""
        ...

    def start(self, node: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a process on a node."""
        ...

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process at once, and return when it has ended."""
        ...

    def was_taken(self, exit_code: int) -> bool:
        """Return whether a process ended because its node was taken away, or not given."""
        ...

    def was_killed(self, exit_code: int) -> bool:
        """Return whether a process was ended from outside, for which its program is not to blame."""
        ...


class LocalLauncher:
    """Every node is a process on this machine."""

    @property
    def parent(self) -> int:
        """Return this process."""
        return os.getpid()

    def start(self, node: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a process."""
        return subprocess.Popen(_WORKER, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process at once, and return when it has ended."""
        if process.poll() is None:
            process.kill()
        process.wait()

    def was_taken(self, exit_code: int) -> bool:
        """Return False: a node that is lost is what the scavenger says."""
        return False

    def was_killed(self, exit_code: int) -> bool:
        """Return whether somebody sent it a signal, as opposed to one of its own such as SIGSEGV."""
        return -exit_code in _FROM_OUTSIDE


@dataclass(frozen=True)
class SlurmLauncher:
    """Every process is a Slurm job of one whole node, in a partition whose jobs others preempt.

    Orders go over ``srun``, which is a child of the manager: it ends its job when the manager has ended.

    Parameters
    ----------
    partition
        Where jobs are started.
    name
        Of these jobs; no other job of this user may have it.
    """

    partition: str
    name: str
    parent: int = 0

    @classmethod
    def for_folder(cls, partition: str, folder: Path) -> SlurmLauncher:
        """Return that of a manager with a folder of state, whose jobs bear a name of their own."""
        digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
        return cls(partition, f"ddlsched-live-{digest}")

    def start(self, node: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a job on a node."""
        options = ["--nodes=1", "--ntasks=1", "--exclusive", "--quiet", f"--immediate={_SOON_S}"]
        where = [f"--partition={self.partition}", f"--nodelist={node}", f"--job-name={self.name}"]
        environment = {**os.environ, "SLURM_EXIT_ERROR": str(_REFUSED), "SLURM_EXIT_IMMEDIATE": str(_TOO_LATE)}
        command = ["setpriv", "--pdeathsig", "TERM", "srun", *options, *where, *_WORKER]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a job: by a signal that srun passes on, as one that is killed itself would leave its job behind."""
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def was_taken(self, exit_code: int) -> bool:
        """Return whether Slurm ended the job, or never started it."""
        return exit_code in _TAKEN or exit_code < 0

    def was_killed(self, exit_code: int) -> bool:
        """Return False: :meth:`was_taken` says it."""
        return False

    def end_leftovers(self) -> None:
        """End jobs that an earlier manager of this folder left, if it was killed with its host, say.

        Raises
        ------
        InputError
            Slurm is not there.
        """
        with suppress(subprocess.TimeoutExpired):
            command = ["scancel", f"--name={self.name}", "--me"]
            try:
                subprocess.run(command, check=False, capture_output=True, timeout=_END_S)
            except FileNotFoundError:
                raise InputError("scancel: no such program; expected Slurm's commands on this machine") from None
