"""Run tests again and again, shuffled, beside busy processes: what depends on order, speed or how it was started fails.

    python tests/repeated_runs.py --runs 20 --busy 2 tests/real/live tests/checkpoints tests/cli

Every second run ignores interrupts, as programs do that a script starts in its background. What failed is printed with
the seed that repeats its order; the whole output of such a run is kept in ``--folder``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tiers import MUST_PASS

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep so many processes computing."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run(seed: int, asked: Sequence[str], folder: Path, *, in_background: bool) -> bool:
    """Run the tests once, print a line, and return whether all passed."""
    shuffled = ["--random-order-bucket=global", f"--random-order-seed={seed}"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", MUST_PASS, *shuffled]
    begin_s = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_background else signal.getsignal(signal.SIGINT)
    try:
        done = subprocess.run(
            [*command, *asked], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    ended = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"])[-1]
    where = "background" if in_background else "foreground"
    print(
        f"seed {seed}, {where}, load {os.getloadavg()[0]:.1f}, {time.monotonic() - begin_s:.0f} s: {ended}", flush=True
    )
    if done.returncode:
        (folder / f"seed-{seed}.txt").write_text(done.stdout + done.stderr)
        print(*re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE), sep="\n", flush=True)
    return done.returncode == 0


def main() -> None:
    """Read the arguments, run, and exit with 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="processes that compute meanwhile")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="for the output of runs that failed; else a new temporary one")
    asked, of_pytest = parser.parse_known_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="repeated-runs-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that the busy processes end, too.
    seeds = range(asked.first_seed, asked.first_seed + asked.runs)
    with busy_processes(asked.busy):
        passed = [run(seed, of_pytest, folder, in_background=seed % 2 == 0) for seed in seeds]
    print(f"{sum(passed)} of {len(passed)} runs passed; the output of others is in {folder}")
    raise SystemExit(not all(passed))


if __name__ == "__main__":
    main()
