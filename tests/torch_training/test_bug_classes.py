"""What resharders are known to get wrong: each fault, made on purpose, changes the losses and is named by the hashes.

So neither the comparison of losses in ``test_end_to_end.py`` nor the check of contents is blind to any of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from worlds import GPT, STOP, Uninterrupted, World

from ddlsched.checkpoints.arrays import Array, whole_tensor, write_checkpoint
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.resharding import reshard
from ddlsched.errors import InputError

pytestmark = pytest.mark.torch

Wholes = dict[str, Array]
LEAST_CHANGE = 1e-4
"""Relative change of a loss that every fault makes: a thousand times what is taken for rounding."""


def fused_tensor_cut_elsewhere(state: Wholes) -> None:
    """Two tensor-parallel parts of queries, keys and values, put together as if all queries came first."""
    for name in [name for name in state if "qkv" in name]:
        heads = state[name].reshape(2, 3, -1, *state[name].shape[1:])
        state[name] = heads.swapaxes(0, 1).reshape(state[name].shape)


def rows_of_the_wrong_rank(state: Wholes) -> None:
    """Parts of a row-parallel weight, merged in another order."""
    for name in [name for name in state if "4h_to_h.weight" in name]:
        state[name] = np.roll(state[name], state[name].shape[1] // 2, axis=1)


def padding_taken_for_vocabulary(state: Wholes) -> None:
    """Rows of the second half of the vocabulary, shifted by what the first half was padded with."""
    for name in [name for name in state if "word" in name]:
        state[name] = np.concatenate([state[name][:125], np.zeros_like(state[name][:3]), state[name][125:-3]])


def a_shard_that_is_missing(state: Wholes) -> None:
    for name in [name for name in state if name.endswith("layers.2.mlp.h_to_4h.weight")]:
        state[name][128:] = 0


def optimiser_state_that_is_empty(state: Wholes) -> None:
    for name in [name for name in state if "exp_avg" in name]:
        state[name] = np.zeros_like(state[name])


def moments_of_other_weights(state: Wholes) -> None:
    """Optimiser state by position in a list that another parallelism orders otherwise."""
    last = GPT.num_layers - 1
    for first in [name for name in state if "exp_avg" in name and "layers.0." in name]:
        names = [first.replace("layers.0.", f"layers.{layer}.") for layer in range(last + 1)]
        values = [state[name] for name in names]
        state |= dict(zip(names, [*values[1:], values[0]], strict=True))


def layers_numbered_within_their_stage(state: Wholes) -> None:
    """Layers 2 and 3, written by the second stage as 0 and 1, over those of the first."""
    for name in [name for name in state if "layers.0." in name or "layers.1." in name]:
        layer = 2 if "layers.0." in name else 3
        state[name] = state[name.replace(f"layers.{layer - 2}.", f"layers.{layer}.")].copy()


def step_counted_anew(state: Wholes) -> None:
    state["optimiser.step"] = np.zeros_like(state["optimiser.step"])


FAULTS: list[Callable[[Wholes], None]] = [
    fused_tensor_cut_elsewhere,
    rows_of_the_wrong_rank,
    padding_taken_for_vocabulary,
    a_shard_that_is_missing,
    optimiser_state_that_is_empty,
    moments_of_other_weights,
    layers_numbered_within_their_stage,
    step_counted_anew,
]


def whole_state(directory: Path) -> tuple[Checkpoint, Wholes]:
    checkpoint = Checkpoint.read(directory)
    names = [tensor.name for tensor in checkpoint.collection.tensors]
    return checkpoint, {name: whole_tensor(checkpoint, location_of(directory), name).copy() for name in names}


def on_one_device(checkpoint: Checkpoint, **changed: object) -> Checkpoint:
    alone = checkpoint.collection.resized(StoredParallelism())
    return dataclasses.replace(checkpoint, collection=alone, files=(), **changed)  # type: ignore[arg-type]


def change(losses: list[float], uninterrupted: Uninterrupted) -> float:
    """Return the largest relative difference from the run that nothing interrupts."""
    expected = np.array(uninterrupted.losses[STOP : STOP + len(losses)])
    return float(np.abs(np.array(losses) / expected - 1).max())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_shows_in_the_losses_and_in_the_contents(
    world: World, uninterrupted: Uninterrupted, fault: Callable[[Wholes], None], tmp_path: Path
) -> None:
    checkpoint, state = whole_state(uninterrupted.stopped)
    reshard(uninterrupted.stopped, tmp_path / "right", to=StoredParallelism(), verify=True)
    hashes = Checkpoint.read(tmp_path / "right").xxh3
    fault(state)
    step = int(state["optimiser.step"])
    faulty = on_one_device(checkpoint, iteration=step, sha256={}, xxh3=hashes)
    write_checkpoint(tmp_path / "faulty", faulty, state)
    assert change(world.train(tmp_path / "faulty", 3), uninterrupted) > LEAST_CHANGE
    with pytest.raises(InputError, match="tensor "):
        reshard(tmp_path / "faulty", tmp_path / "next", to=StoredParallelism(), verify=True)
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize(("field", "value"), [("random", {"seed": 1}), ("dataset", {"consumed_samples": 0})])
def test_random_numbers_and_cursor_that_are_not_carried_over_show_in_the_losses(
    world: World, uninterrupted: Uninterrupted, field: str, value: dict[str, int], tmp_path: Path
) -> None:
    checkpoint, state = whole_state(uninterrupted.stopped)
    faulty = on_one_device(checkpoint, **{field: {**getattr(checkpoint, field), **value}})
    write_checkpoint(tmp_path / "faulty", faulty, state)
    assert change(world.train(tmp_path / "faulty", 2), uninterrupted) > LEAST_CHANGE


def test_a_tied_embedding_that_the_last_stage_lost_shows(
    world: World, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    reshard(uninterrupted.stopped, tmp_path / "there", to=StoredParallelism(pp=2))
    overwrite(tmp_path / "there", 1, "embedding.word.weight")
    assert change(world.train(tmp_path / "there", 2), uninterrupted) > LEAST_CHANGE
    with pytest.raises(InputError, match=r"tensor embedding\.word\.weight"):
        reshard(tmp_path / "there", tmp_path / "next", to=StoredParallelism(), verify=True)


def test_replicas_that_diverged_are_found_before_one_of_them_is_chosen(
    world: World, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    reshard(uninterrupted.stopped, tmp_path / "there", to=StoredParallelism(dp=2))
    overwrite(tmp_path / "there", 1, "layers.1.attention.dense.weight")
    for lost in (0, 1):
        reshard(tmp_path / "there", tmp_path / str(lost), to=StoredParallelism(), verify=True, lost=(lost,))
    with pytest.raises(InputError, match=r"tensor layers\.1\.attention\.dense\.weight differs from its replica"):
        reshard(tmp_path / "there", tmp_path / "both", to=StoredParallelism(), verify=True)


def overwrite(directory: Path, rank: int, name: str) -> None:
    """Turn one array of one rank round."""
    checkpoint = Checkpoint.read(directory)
    entry = checkpoint.entries(location_of(directory), rank)[name]
    with (directory / checkpoint.files[rank]).open("r+b") as file:
        file.seek(entry.begin)
        array = np.frombuffer(file.read(entry.num_bytes), "<f4")[::-1]
        file.seek(entry.begin)
        file.write(array.tobytes())
