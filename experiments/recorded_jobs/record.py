"""Records the jobs anew (needs PyTorch): ``record.py [--steps 100] [--rounds 4]``.

A job takes two gloo ranks with one thread each. With fewer than four free cores ranks and gloo's threads wait for each
other, and times vary several-fold. So the bucket sizes of the sweep take turns, round by round, and meet the same
machine.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddlsched.recording.launching import run_recorded
from ddlsched.workload.recorded.rank_steps import RankStep, RankTrace
from ddlsched.workload.recorded.recordings import read_recording, recording_text

HERE = Path(__file__).parent
ALONE = ("cnn", "gpt", "recommender")
SWEPT_MB = (0.5, 1, 4, 25)
SKIP = 5


def main() -> None:
    """Record all jobs, then the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="to keep of each job")
    parser.add_argument("--rounds", type=int, default=4, help="of the sweep")
    given = parser.parse_args()
    for name in ALONE:
        keep(HERE / "recordings" / name, [recorded(name, 1, given.steps)])
    rounds = [
        [recorded("gpt", size_mb, given.steps // given.rounds) for size_mb in SWEPT_MB] for _ in range(given.rounds)
    ]
    for size_mb, own in zip(SWEPT_MB, zip(*rounds, strict=True), strict=True):
        keep(HERE / "recordings" / f"gpt-{size_mb:g}mb", own)


def recorded(name: str, bucket_mb: float, steps: int) -> list[RankTrace]:
    """Run a script and return what its ranks recorded."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--steps", str(steps + SKIP + 1), "--bucket-mb", str(bucket_mb)]
        script = HERE / "scripts" / f"{name}.py"
        paths = run_recorded(script, arguments, Path(folder), ranks=2, skip=SKIP, most_steps=steps)
        print(f"recorded {name} with buckets of {bucket_mb:g} MB", flush=True)
        return [read_recording(path) for path in paths]


def keep(folder: Path, runs: Sequence[Sequence[RankTrace]]) -> None:
    """Write the steps of several runs, one behind the other, a file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in zip(*runs, strict=True):
        steps: list[RankStep] = [step for rank in ranks for step in rank.steps.values()]
        text = recording_text(ranks[0].rank or 0, len(runs[0]), ranks[0].groups, dict(enumerate(steps)))
        (folder / f"{ranks[0].rank}.recording.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
