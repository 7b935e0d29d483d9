"""The small GPT of the experiment, its checkpoints and its runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ddlsched.checkpoints.collection import parse_parallelism
from ddlsched.checkpoints.dataset_files import TokenFiles
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.making import make_checkpoint
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer

GPT = StoredTransformer(num_layers=4, hidden=64, heads=4, vocabulary=250, positions=32)
START = "tp=2,pp=1,dp=2"
STEPS = 8
STOP = 3
"""The step after which runs are stopped."""
ITERATION = 40
"""Steps that checkpoints say were trained before."""


class World(NamedTuple):
    """A data set and a place for checkpoints."""

    folder: Path
    samples: TokenFiles

    def made(self, name: str, parallelism: str = START, *, model: StoredTransformer = GPT, **kind: object) -> Path:
        """Write a checkpoint in the middle of training."""
        state = DatasetState(num_samples=len(self.samples), global_batch=8, samples_hash=self.samples.samples_hash)
        optimiser = Optimiser(sharding=str(kind.pop("sharding", "none")))  # type: ignore[arg-type]
        make_checkpoint(
            self.folder / name,
            model,
            parse_parallelism(parallelism),
            optimiser=optimiser,
            dataset=state,
            iteration=ITERATION,
            **{"dtype": "F32", **kind},  # type: ignore[arg-type]
        )
        return self.folder / name

    def train(self, source: Path, steps: int, destination: Path | None = None) -> list[float]:
        """Train with real processes."""
        from processes import train

        return train(source, self.samples, steps, destination=destination)


class Uninterrupted(NamedTuple):
    """A run at START: its losses, its state after STOP steps and after all."""

    losses: list[float]
    stopped: Path
    end: Path


def run_of(world: World, name: str, **kind: object) -> Uninterrupted:
    """Train STEPS steps in one go, and STOP steps of the same run."""
    start = world.made(name, **kind)
    stopped, end = world.folder / f"{name} stopped", world.folder / f"{name} end"
    losses = world.train(start, STEPS, end)
    assert world.train(start, STOP, stopped) == losses[:STOP]
    return Uninterrupted(losses, stopped, end)
