"""CPU seconds and peak memory of ``ddlsched explain``, of README's own example: a job of 32 GPUs, stopped 53 times."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

_DISTURBED = ["--jitter-cv", "0.1", "--server-mtbf-s", "1000", "--server-repair-s", "60", "--restart-s", "10"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, "workload", "microsoft-160", "--seed", "1", "--out", "jobs.csv")
        _run(folder, "simulate", "jobs.csv", *_DISTURBED, "--run-out", "run.parquet")
        print(f"{'command':<28}{'CPU s':>8}{'peak MB':>10}")
        for name, arguments in {"simulate": ("simulate", "jobs.csv", *_DISTURBED), "explain": _EXPLAIN}.items():
            cpu_s, peak_mb = _run(folder, *arguments)
            print(f"{name:<28}{cpu_s:>8.1f}{peak_mb:>10.0f}")


_EXPLAIN = ("explain", "run.parquet", "147")


def _run(folder: str, *arguments: str) -> tuple[float, float]:
    """Run a command in a process of its own; return its CPU seconds and peak memory, MB."""
    program = [sys.executable, "-c", "from ddlsched.cli import main; main()", *arguments]
    process = subprocess.Popen(program, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(arguments)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
