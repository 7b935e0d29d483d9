"""Records the jobs anew (needs PyTorch): ``record.py [--steps 100] [--rounds 4]``, ``--together``, or ``--gpu``.

A job takes two gloo ranks with one thread each. With fewer than four free cores ranks and gloo's threads wait for each
other, and times vary several-fold: record on a machine with nothing else to do. The bucket sizes of the sweep take
turns, round by round, and meet the same machine.

``--together`` needs root, too. It records the three jobs on the testbed, each alone (a fifth of the steps) and then all
at once, with a rank of each on either of two servers whose cards have 100 Mbit/s: their steps then are mostly
communication, with which two cores keep up.

``--gpu`` records them, and ResNet-50 (needs torchvision), with both ranks on this machine's first GPU; gloo sends the
gradients through the host's memory. In turn each runs without being recorded, which ``unrecorded.csv`` keeps.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
from measured import ALONE_ON_TESTBED, ON_GPU, RECORDINGS, TOGETHER, UNRECORDED, fitted
from together import counts_of

from ddlsched import Cluster
from ddlsched.cli.reporting import reported
from ddlsched.real.testbed.cabling import address_of, scaled, server_name
from ddlsched.real.testbed.machine import sigterm_as_ctrl_c
from ddlsched.real.testbed.namespaces import CARD, Registry
from ddlsched.training.recorded.merging import merged
from ddlsched.training.recorded.rank_steps import RankStep, RankTrace
from ddlsched.training.recorded.recordings import read_recording, recording_text
from ddlsched.training.recording.rank_process import run_recorded

HERE = Path(__file__).parent
JOBS = ("cnn", "gpt", "recommender")
GPU_JOBS = (*JOBS, "resnet")
SWEPT_MB = (0.5, 1, 4, 25)
SKIP = 11
RATES = 0.01
"""Of the testbed's cards, over 10 Gbit/s."""

Within = Callable[[int], Sequence[str]]


def main() -> None:
    """Record all jobs alone, then the sweep; or alone on the testbed, then together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="to keep of a job (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="of the sweep (default: %(default)s)")
    parser.add_argument("--together", action="store_true", help="on the testbed, alone and all at once")
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPU")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="for which jobs run together (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=RECORDINGS, metavar="DIR", help="default: %(default)s")
    given = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    if given.together:
        record_together(given.out, given.steps // 5, given.seconds)
        return
    if given.gpu:
        record_on_gpu(given.out / ON_GPU, given.steps // given.rounds, given.rounds)
        return
    for name in JOBS:
        keep(given.out / name, [recorded(name, 1, given.steps)])
    rounds = [
        [recorded("gpt", size_mb, given.steps // given.rounds) for size_mb in SWEPT_MB] for _ in range(given.rounds)
    ]
    for size_mb, own in zip(SWEPT_MB, zip(*rounds, strict=True), strict=True):
        keep(given.out / f"gpt-{size_mb:g}mb", own)


def record_on_gpu(out: Path, steps: int, rounds: int) -> None:
    """Record each job on a GPU, so many steps a round, in turn with runs of it that nobody records."""
    rows = []
    for name in GPU_JOBS:
        turns = [(unrecorded_ms(name, steps, "cuda"), recorded(name, 1, steps, device="cuda")) for _ in range(rounds)]
        keep(out / name, [run for _, run in turns])
        rows += [{"job": name, "round": number, "unrecorded_ms": ms} for number, (ms, _) in enumerate(turns)]
    pd.DataFrame(rows).to_csv(out / UNRECORDED, index=False, float_format="%.4g")


def unrecorded_ms(name: str, steps: int, device: str) -> float:
    """Run a script as torchrun does and return its mean step, milliseconds, of those that a recording would keep."""
    script = str(HERE / "scripts" / f"{name}.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, "--device", device]
    command += ["--steps", str(steps + SKIP + 1), "--skip", str(SKIP + 1)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(ended.stdout.split()[-1])


def record_together(out: Path, steps: int, seconds: float) -> None:
    """Record each job alone on the testbed, then all at once, each for so many seconds."""
    cluster = scaled(Cluster(num_servers=2, gpus_per_server=len(JOBS)), RATES)
    with sigterm_as_ctrl_c(), Registry() as registry, registry.used(cluster):
        alone = {name: on_testbed(name, steps) for name in JOBS}
        counts = counts_of({name: merged(run).dag for name, run in alone.items()}, fitted(alone.values()), seconds)
        with ThreadPoolExecutor(len(JOBS)) as threads:
            futures = {name: threads.submit(on_testbed, name, count) for name, count in counts.items()}
    for name in JOBS:
        keep(out / ALONE_ON_TESTBED / name, [alone[name]])
        keep(out / TOGETHER / name, [futures[name].result()])


def on_testbed(name: str, steps: int) -> list[RankTrace]:
    """Run a script with a rank on either server of the testbed and return what its ranks recorded."""
    return recorded(name, 1, steps, address_of(0), lambda rank: in_namespace(server_name(rank)))


def in_namespace(name: str) -> list[str]:
    """Return the command by which a process begins in a namespace, whose card gloo uses."""
    return ["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={CARD}"]


def recorded(
    name: str,
    bucket_mb: float,
    steps: int,
    address: str = "127.0.0.1",
    within: Within = lambda _: (),
    device: str = "cpu",
) -> list[RankTrace]:
    """Run a script and return what its ranks recorded."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--steps", str(steps + SKIP + 1), "--bucket-mb", str(bucket_mb), "--device", device]
        script = HERE / "scripts" / f"{name}.py"
        paths = run_recorded(
            script, arguments, Path(folder), ranks=2, skip=SKIP, most_steps=steps, address=address, within=within
        )
        print(f"recorded {steps} steps of {name} with buckets of {bucket_mb:g} MB", flush=True)
        return [read_recording(path) for path in paths]


def keep(folder: Path, runs: Sequence[Sequence[RankTrace]]) -> None:
    """Write the steps of several runs, one behind the other, a file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in zip(*runs, strict=True):
        steps: list[RankStep] = [step for rank in ranks for step in rank.steps.values()]
        before_ns = [length_ns for rank in ranks for length_ns in rank.unrecorded_ns]
        text = recording_text(ranks[0].rank or 0, len(runs[0]), ranks[0].groups, dict(enumerate(steps)), before_ns)
        (folder / f"{ranks[0].rank}.recording.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    with reported():
        main()
