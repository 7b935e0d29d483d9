"""Checkpoints of random, seeded contents."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tiers import tried

from ddlsched.checkpoints.arrays import part_of
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.content import content_hashes
from ddlsched.checkpoints.making import bfloat16, made_tensor, make_checkpoint
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer
from ddlsched.checkpoints.tensors import numpy_dtype
from ddlsched.errors import InputError

GPT = StoredTransformer(num_layers=2, hidden=16, heads=4, vocabulary=50, positions=8)


TARGETS = [
    StoredParallelism(tp=4),
    StoredParallelism(pp=2),
    StoredParallelism(tp=2, dp=3),
    StoredParallelism(tp=2, pp=2, dp=2),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("sharding", "to"),
    tried(itertools.product(["none", "zero1", "fsdp"], TARGETS), lambda place: place in (0, 3, 5, 10)),  # each of both
)
def test_resharding_gives_the_files_that_would_have_been_made(
    sharding: str, to: StoredParallelism, tmp_path: Path
) -> None:
    optimiser = Optimiser(sharding=sharding)  # type: ignore[arg-type]
    make_checkpoint(tmp_path / "from", GPT, StoredParallelism(tp=2, dp=2), optimiser=optimiser)
    make_checkpoint(tmp_path / "made", GPT, to, optimiser=optimiser)
    reshard(tmp_path / "from", tmp_path / "resharded", to=to, verify=True)
    made = Checkpoint.read(tmp_path / "made")
    assert Checkpoint.read(tmp_path / "resharded").sha256 == made.sha256
    for file in made.files:
        assert (tmp_path / "resharded" / file).read_bytes() == (tmp_path / "made" / file).read_bytes()


@pytest.mark.long
def test_files_are_read_by_the_safetensors_library_and_hashes_are_of_the_contents(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", GPT, StoredParallelism(tp=2), dtype="F32", iteration=7)
    checkpoint = Checkpoint.read(tmp_path / "c")
    assert checkpoint.sha256 == content_hashes(Reading.at(tmp_path / "c"))
    arrays = load_file(tmp_path / "c" / checkpoint.files[1])
    for name, layout in checkpoint.collection.arrays[1].items():
        expected = part_of(made_tensor(checkpoint.collection.by_name[name], 0, 7), layout)
        np.testing.assert_array_equal(arrays[name], expected)
    assert arrays["optimiser.step"] == 7
    assert checkpoint.dataset["consumed_samples"] == 7 * 64


def test_no_two_tensors_and_no_two_seeds_are_alike(tmp_path: Path) -> None:
    hashes = []
    for seed in (0, 1):
        made = make_checkpoint(tmp_path / str(seed), GPT, StoredParallelism(), seed=seed)
        hashes += [digest for name, digest in made.sha256.items() if name != "optimiser.step"]
    assert len(set(hashes)) == len(hashes)


def test_weights_are_their_master_weights_rounded(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", GPT, StoredParallelism())
    checkpoint = Checkpoint.read(tmp_path / "c")
    for tensor in checkpoint.collection.tensors:
        if tensor.dtype == "BF16":
            master = made_tensor(checkpoint.collection.by_name[f"optimiser.master.{tensor.name}"], 0, 100)
            weight = made_tensor(tensor, 0, 100)
            assert weight.dtype == numpy_dtype("BF16")
            as_float = (weight.astype("<u4") << 16).view("<f4")
            np.testing.assert_allclose(as_float, master, rtol=2**-8)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**126, min_value=-(2.0**126)))
def test_bfloat16_is_the_nearest_with_halves_to_even(value: float) -> None:
    (bits,) = bfloat16(np.array([value], "<f4")).tolist()
    sign, size = bits & 0x8000, bits & 0x7FFF
    patterns = [sign | near for near in (max(size - 1, 0), size, size + 1)]
    below, here, above = (abs(float(np.array([p << 16], "<u4").view("<f4")[0]) - value) for p in patterns)
    assert here <= min(below, above)
    if size > 0 and here in (below, above):
        assert bits % 2 == 0


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InputError, match="full: is not empty; expected a new folder"):
        make_checkpoint(tmp_path / "full", GPT, StoredParallelism())
    with pytest.raises(InputError, match=r"full/x.*cannot be made"):
        make_checkpoint(tmp_path / "full" / "x", GPT, StoredParallelism())
    with pytest.raises(InputError, match="do not divide among 3 tensor-parallel ranks"):
        make_checkpoint(tmp_path / "c", GPT, StoredParallelism(tp=3))
    with pytest.raises(InputError, match="dtype is 'F64'"):
        make_checkpoint(tmp_path / "c", GPT, StoredParallelism(), dtype="F64")
    huge = StoredTransformer(num_layers=1, hidden=2**20, heads=1, vocabulary=2**22)
    with pytest.raises(InputError, match=r"takes [\d,]+ bytes, [\d,]+ are free"):
        make_checkpoint(tmp_path / "c", huge, StoredParallelism())
    assert not (tmp_path / "c").exists() or not list((tmp_path / "c").iterdir())
