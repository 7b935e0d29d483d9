"""Checkpoints of random, seeded contents."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tiers import tried

from ddlsched.checkpoints.arrays import part_of
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.content import DIGESTS, content_hashes
from ddlsched.checkpoints.making import bfloat16, made_tensor, make_checkpoint
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Tensor, numpy_dtype
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


TINY = StoredTransformer(num_layers=1, hidden=4, heads=2, vocabulary=5, positions=0)


def drawn(kind: str, name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Normal numbers by what the tensor is, its name and the seed."""
    begin = hashlib.sha256(f"{kind} {name}".encode()).digest()[:8]
    return np.random.default_rng([seed, *begin]).standard_normal(shape, dtype=np.float32)


def test_contents_are_drawn_by_kind_name_and_seed() -> None:
    """Weights lie about 0, those of norms about 1; of Adam's moments the second are no less than 1e-8."""
    word = drawn("weight", "word.weight", (3, 2), 5) * np.float32(0.02)
    norm = drawn("weight", "a.norm.weight", (3, 2), 5) * np.float32(0.02) + np.float32(1)
    bias = drawn("weight", "a.norm.bias", (3, 2), 5) * np.float32(0.02)
    first = drawn("exp_avg", "word.weight", (3, 2), 5) * np.float32(1e-4)
    square = np.float32(1e-7) * (drawn("exp_avg_sq", "word.weight", (3, 2), 5) ** 2 + np.float32(0.1))
    for name, dtype, expected in [
        ("word.weight", "F32", word),
        ("word.weight", "F16", word.astype("<f2")),
        ("word.weight", "BF16", bfloat16(word)),
        ("a.norm.weight", "F32", norm),
        ("a.norm.bias", "F32", bias),
        ("optimiser.master.word.weight", "F32", word),
        ("optimiser.exp_avg.word.weight", "F32", first),
        ("optimiser.exp_avg_sq.word.weight", "F32", square),
        ("optimiser.step", "I64", np.array(9, "<i8")),
    ]:
        found = made_tensor(Tensor(name=name, shape=() if dtype == "I64" else (3, 2), dtype=dtype), 5, 9)
        assert found.dtype == numpy_dtype(dtype)
        np.testing.assert_array_equal(found, expected, strict=True)


def test_files_are_whole_on_the_disk_before_they_are_described(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[tuple[str, int]] = []
    told: list[tuple[int, int]] = []
    wait_for = os.fsync

    def fsync(descriptor: int) -> None:
        wait_for(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synchronised.append((name, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    to = StoredParallelism(dp=2)
    made = make_checkpoint(folder / "c" / "d", TINY, to, dtype="F32", watch=lambda *done: told.append(done))
    sizes = {file: (folder / "c" / "d" / file).stat().st_size for file in made.files}
    assert synchronised[:2] == list(sizes.items())
    num_bytes = [tensor.num_bytes for tensor in made.collection.tensors]
    assert told == [(done, sum(num_bytes)) for done in itertools.accumulate(num_bytes)]
    assert Checkpoint.read(folder / "c" / "d") == made
    for digest in DIGESTS:
        assert getattr(made, digest) == content_hashes(Reading.at(folder / "c" / "d"), digest)


def test_what_is_left_out_is_a_hundred_steps_of_seed_0_in_bfloat16(folder: Path) -> None:
    made = make_checkpoint(folder / "a", TINY, StoredParallelism())
    assert (made.iteration, made.random, made.dataset["consumed_samples"]) == (100, {"seed": 0}, 6400)
    assert made.dataset == {
        "num_samples": 1_000_000, "global_batch": 64, "consumed_samples": 6400, "seed": 0, "samples_hash": "",
    }  # fmt: skip
    assert made.model == {**dataclasses.asdict(TINY)}
    assert made.collection.tensors == job_tensors(TINY, dtype="BF16", optimiser=Optimiser())
    given = {"dtype": "BF16", "optimiser": Optimiser(), "iteration": 100, "seed": 0}
    assert make_checkpoint(folder / "b", TINY, StoredParallelism(), **given) == made


def test_a_disk_that_the_files_fill_to_the_last_byte_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_checkpoint(folder / "a", TINY, StoredParallelism(tp=2), dtype="F32")
    size = sum((folder / "a" / file).stat().st_size for file in made.files)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
    make_checkpoint(folder / "b", TINY, StoredParallelism(tp=2), dtype="F32")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
    with pytest.raises(InputError) as error:
        make_checkpoint(folder / "c", TINY, StoredParallelism(tp=2), dtype="F32")
    assert str(error.value) == (f"{folder / 'c'}: takes {size:,} bytes, {size - 1:,} are free; expected space for it")
    assert list((folder / "c").iterdir()) == []
