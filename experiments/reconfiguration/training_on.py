"""A small GPT changes its parallelism four times while it trains; its losses beside those of a run that does not.

    python experiments/reconfiguration/training_on.py [--steps N] [--out DIR]

Needs PyTorch (tests/torch_training/run installs it). Every parallelism runs as real processes that talk through gloo.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from ddlsched.checkpoints.collection import parse_parallelism
from ddlsched.checkpoints.dataset_files import TokenFiles
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.making import make_checkpoint
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer
from experiments.commands import new_parser, write_tables

sys.path.append(str(Path(__file__).parents[2] / "tests" / "torch_training"))

from processes import train

MODEL = StoredTransformer(num_layers=4, hidden=64, heads=4, vocabulary=250, positions=32)
CHAIN = ("tp=2,pp=1,dp=2", "tp=1,pp=2,dp=1", "tp=4,pp=1,dp=1", "tp=1,pp=1,dp=2", "tp=2,pp=1,dp=2")
RATE = 5e-3


def samples_in(folder: Path) -> TokenFiles:
    """Return a data set of tokens each of which follows from the one before, but for a step of 0, 1 or 2."""
    steps = np.random.default_rng(0).integers(0, 3, 100_000)
    (folder / "tokens.bin").write_bytes((np.cumsum(steps) % MODEL.vocabulary).astype("<u2").tobytes())
    return TokenFiles([str(folder / "tokens.bin")], sequence_tokens=32)


def losses(folder: Path, steps: int) -> pd.DataFrame:
    """Return the loss of each step of both runs; the parallelism changes after every ``steps`` steps."""
    samples = samples_in(folder)
    data = DatasetState(num_samples=len(samples), global_batch=8, samples_hash=samples.samples_hash)
    start = parse_parallelism(CHAIN[0])
    make_checkpoint(folder / "0", MODEL, start, dtype="F32", optimiser=Optimiser(), dataset=data, iteration=0)
    uninterrupted = train(folder / "0", samples, steps * len(CHAIN), learning_rate=RATE)
    changing: list[float] = []
    for number, following in enumerate([*CHAIN[1:], None]):
        after = folder / f"{number} after"
        changing += train(folder / str(number), samples, steps, destination=after, learning_rate=RATE)
        if following is not None:
            reshard(after, folder / str(number + 1), to=parse_parallelism(following), verify=True)
    parallelism = [to for to in CHAIN for _ in range(steps)]
    table = pd.DataFrame({"parallelism": parallelism, "uninterrupted": uninterrupted, "changing": changing})
    return table.assign(relative_difference=table["changing"] / table["uninterrupted"] - 1)


def main() -> int:
    """Train, print, write."""
    parser = new_parser(__doc__, "reconfiguration")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="under each parallelism")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = losses(Path(folder), given.steps)
    ends = table.groupby((table["parallelism"] != table["parallelism"].shift()).cumsum(), sort=False)
    worst = ends["relative_difference"].apply(lambda part: part.abs().max())
    summary = pd.DataFrame({"parallelism": CHAIN, "last_loss": ends["changing"].last().to_numpy()})
    summary = summary.assign(largest_relative_difference=worst.to_numpy())
    print(summary.to_string(index=False, float_format="{:.4g}".format))
    write_tables(given.out / "tables", {"training": summary}, float_format="%.6g")
    return 0


if __name__ == "__main__":
    sys.exit(main())
