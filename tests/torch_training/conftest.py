"""A data set, and a run that nothing interrupts; without PyTorch there is nothing to collect here."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from worlds import GPT, Uninterrupted, World, run_of

from ddlsched.checkpoints.dataset_files import TokenFiles

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("training")
    steps = np.random.default_rng(0).integers(0, 3, 20_000)
    (folder / "tokens.bin").write_bytes((np.cumsum(steps) % GPT.vocabulary).astype("<u2").tobytes())
    return World(folder, TokenFiles([str(folder / "tokens.bin")], sequence_tokens=32))


@pytest.fixture(scope="session")
def uninterrupted(world: World) -> Uninterrupted:
    return run_of(world, "uninterrupted")
