"""The processes of a running job: one a node, started together and ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ddlsched.live.worker import Orders

__all__ = ["JobProcesses", "start_processes"]


@dataclass
class JobProcesses:
    """What runs a job now: a process a node, in the order of ranks."""

    nodes: tuple[str, ...]
    processes: tuple[subprocess.Popen[str], ...]
    generation: int
    steps_at_start: int

    def kill(self) -> None:
        """End all at once, without warning: what is committed is what there is."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def has_failed(self) -> bool:
        """Return whether one has ended, and not well."""
        return any(process.poll() not in (None, 0) for process in self.processes)

    def has_ended(self) -> bool:
        """Return whether all have ended well."""
        return all(process.poll() == 0 for process in self.processes)


def start_processes(
    job_id: str,
    *,
    program: str,
    steps: int,
    nodes: tuple[str, ...],
    generation: int,
    token: str,
    folder: Path,
    socket: str,
) -> JobProcesses:
    """Start a process for each node; each is told what to do on its stdin, so that no token is in a command line."""
    from ddlsched.live.worker import committed_steps

    processes = []
    for rank in range(len(nodes)):
        orders = Orders(
            job=job_id,
            token=token,
            program=program,
            steps=steps,
            rank=rank,
            nodes=len(nodes),
            generation=generation,
            folder=str(folder),
            socket=socket,
            manager=os.getpid(),
        )
        with (folder / f"rank{rank}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ddlsched.live.worker"], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
            )
        if process.stdin is not None:
            process.stdin.write(json.dumps(asdict(orders)) + "\n")
            process.stdin.close()
        processes.append(process)
    return JobProcesses(nodes, tuple(processes), generation, len(committed_steps(folder)))
