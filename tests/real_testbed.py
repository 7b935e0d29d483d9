"""The command ``ddlsched testbed`` in processes of its own, and what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ddlsched.real.testbed.namespaces import NAMESPACES

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from ddlsched.cli import main; main()", "testbed"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,buckets\n"
PATIENCE_S = 60.0
FOUR = ["--servers", "4", "--gpus-per-server", "1"]


def children(of: int) -> set[int]:
    """Return the processes below one."""
    found = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in (line.split() for line in found.splitlines())}
    below = {of}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {of}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(what: Any, within_s: float = 10.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if what():
            return True
        time.sleep(0.05)
    return bool(what())


def ours() -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob("ddlsched-*")) if NAMESPACES.exists() else []


def finished(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with a gate that waits longer for signs of life: others use this machine, too."""
    patient = f"from ddlsched.real.gate import loop; loop.HANG_S = {PATIENCE_S}; "
    command = [COMMAND[0], "-c", patient + COMMAND[2], *COMMAND[3:], *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
