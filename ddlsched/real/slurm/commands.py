"""Slurm's own commands, with time limits; who does not answer and who refuses are told apart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ddlsched.errors import DdlschedError, InputError

__all__ = ["Run", "SlurmBusyError", "SlurmRefusalError", "runner"]

_TIMEOUT_S = 30.0
_WHOLE_ARRAYS = "SLURM_BITSTR_LEN"
"""How many characters squeue writes of an array's tasks; 0 for all."""
_BUSY = (
    "unable to contact slurm controller",
    "connection refused",
    "connection timed out",
    "socket timed out",
    "unexpected message received",
    "zero bytes were transmitted",
    "slurm backup controller",
    "in standby mode",
    "resource temporarily unavailable",
    "communication connection failure",
    "transport endpoint is not connected",
    "address resolution",
)
"""What commands write while slurmctld is down, restarts or is overloaded."""


class SlurmBusyError(DdlschedError):
    """Slurm's controller does not answer: try again later."""


class SlurmRefusalError(DdlschedError):
    """Slurm refuses a command: no permission, a job that is gone, a node that does not exist."""


Run = Callable[[Sequence[str]], str]
"""Runs one of Slurm's commands and returns what it writes; raises the two errors above, or InputError without Slurm."""


def runner(environment: Mapping[str, str] | None = None) -> Run:
    """Return what runs commands, in an environment that says where Slurm is; by default that of this process."""
    environment = {**(os.environ if environment is None else environment), _WHOLE_ARRAYS: "0"}

    def run(command: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # what users call their jobs need not be UTF-8
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except FileNotFoundError:
            raise InputError(f"{command[0]}: no such program; expected Slurm's commands on this machine") from None
        except subprocess.TimeoutExpired:
            raise SlurmBusyError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
        if done.returncode:
            raise _failure(command, done.stderr)
        return done.stdout

    return run


def _failure(command: Sequence[str], stderr: str) -> DdlschedError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    message = f"{' '.join(command[:3])}: {lines[-1]}"
    if any(sign in stderr.lower() for sign in _BUSY):
        return SlurmBusyError(message)
    return SlurmRefusalError(message)
