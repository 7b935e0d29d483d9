"""Small jobs whose tensors hold random bits, and Hypothesis strategies of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from ddlsched.checkpoints.arrays import Array, whole_tensor, write_checkpoint
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, CutPart, Tensor, numpy_dtype

LAYERS = 4
GPT = StoredTransformer(num_layers=LAYERS, hidden=8, heads=4, vocabulary=301, positions=8)
LLAMA = StoredTransformer(
    num_layers=LAYERS,
    hidden=16,
    heads=4,
    key_value_heads=2,
    gated=True,
    biases=False,
    tied=False,
    vocabulary=57,
    feed_forward=24,
    fused_qkv="parts",
    pad_vocabulary=8,
)
EXPERTS = StoredTransformer(
    num_layers=LAYERS, hidden=8, heads=4, vocabulary=40, experts=4, gated=True, pad_vocabulary=8
)
BERT = StoredTransformer(num_layers=LAYERS, hidden=8, heads=4, vocabulary=99, positions=8, token_types=2)
MODELS = (GPT, LLAMA, EXPERTS, BERT)


def random_tensors(collection: TensorCollection, seed: int = 0) -> dict[str, Array]:
    """Return whole tensors of random bits."""
    rng = np.random.default_rng(seed)

    def bits(tensor: Tensor) -> Array:
        data = rng.integers(0, 256, size=(*tensor.shape, numpy_dtype(tensor.dtype).itemsize), dtype=np.uint8)
        return data.view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)

    return {tensor.name: bits(tensor) for tensor in collection.tensors}


def stored(folder: Path, collection: TensorCollection, **known: object) -> dict[str, Array]:
    """Write a checkpoint of random tensors; returns them."""
    wholes = random_tensors(collection)
    write_checkpoint(folder, Checkpoint(collection=collection, **known), wholes)
    return wholes


def assert_holds(folder: Path, wholes: dict[str, Array]) -> None:
    """Assert that a checkpoint's whole tensors are these, bit by bit."""
    found = read_whole(folder)
    assert set(found) == set(wholes)
    for name, whole in wholes.items():
        assert found[name].tobytes() == whole.tobytes(), name


def read_whole(folder: Path) -> dict[str, Array]:
    """Return a checkpoint's whole tensors; the header of a file is read once, not for each tensor."""
    checkpoint, place = Checkpoint.read(folder), location_of(folder)
    entries = functools.cache(functools.partial(Checkpoint.entries, checkpoint, place))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "entries", lambda _, __, rank: entries(rank))
        return {name: whole_tensor(checkpoint, place, name) for name in checkpoint.collection.by_name}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def degrees() -> Iterator[StoredParallelism]:
    """Yield parallelisms that divide every model here."""
    for tp, pp, dp, ep in itertools.product((1, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), (1, 2)):
        if dp % ep == 0 and tp * pp * dp <= 24:
            yield StoredParallelism(tp=tp, pp=pp, dp=dp, ep=ep)


DEGREES = tuple(degrees())


@st.composite
def collections(draw: st.DrawFn) -> TensorCollection:
    """Return a job's state: a model, an optimiser, degrees, any map of layers to stages, any devices and hosts."""
    model = draw(st.sampled_from(MODELS))
    sharding = draw(st.sampled_from(("none", "zero1", "fsdp")))
    tensors = job_tensors(model, dtype=draw(st.sampled_from(("BF16", "F32"))), optimiser=Optimiser(sharding=sharding))
    return draw(under(TensorCollection(tensors=tensors, parallelism=StoredParallelism())))


@st.composite
def under(draw: st.DrawFn, collection: TensorCollection) -> TensorCollection:
    """Return a job under another parallelism, on other devices."""
    to = draw(st.sampled_from(DEGREES))
    stages = draw(st.lists(st.integers(0, to.pp - 1), min_size=4, max_size=4))
    return collection.resized(to, stages=stages, allocation=draw(allocations(to.num_ranks)))


@st.composite
def allocations(draw: st.DrawFn, num_ranks: int) -> StoredRegion:
    """Return ranks on some of 24 devices, which are on five hosts."""
    devices = draw(st.permutations(range(24)))[:num_ranks]
    return StoredRegion(devices=tuple(devices), hosts=tuple(device % 5 for device in devices))


@st.composite
def odd_collections(draw: st.DrawFn) -> TensorCollection:
    """Return tensors with any cuts, parts, padding, flat buffers, and sizes that do not divide."""
    count = draw(st.integers(1, 4))
    tensors = tuple(draw(odd_tensors(f"t{number}")) for number in range(count))
    start = TensorCollection(tensors=tensors, parallelism=StoredParallelism())
    return draw(under_odd(start))


@st.composite
def under_odd(draw: st.DrawFn, collection: TensorCollection) -> TensorCollection:
    """Return odd tensors under another parallelism."""
    to = draw(st.sampled_from(DEGREES))
    stages = draw(st.lists(st.integers(0, to.pp - 1), min_size=4, max_size=4))
    return collection.resized(to, stages=stages, allocation=draw(allocations(to.num_ranks)))


@st.composite
def odd_tensors(draw: st.DrawFn, name: str) -> Tensor:
    """Return a tensor of up to four dimensions, divided somehow."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), max_size=4)))
    cuts = []
    for dim, axis in draw(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(("tensor", "expert", "data"))), max_size=3)
    ):
        group = "tensor" if axis == "tensor" else "expert data"
        if dim < len(shape) and all(cut.dim != dim and cut.axis not in group for cut in cuts):
            cuts.append(draw(odd_cuts(dim, axis, shape[dim])))
    flat = "" if any(cut.axis == "data" for cut in cuts) else draw(st.sampled_from(("", "a", "b")))
    places = draw(st.sampled_from(((0,), (1,), (3,), ("first",), ("last",), ("first", "last"), (2, "last"))))
    dtype = draw(st.sampled_from(("F32", "BF16", "U8", "F64")))
    return Tensor(name=name, shape=shape, dtype=dtype, places=places, cuts=tuple(cuts), flat=flat)


@st.composite
def odd_cuts(draw: st.DrawFn, dim: int, axis: str, size: int) -> Cut:
    """Return a cut of a dimension."""
    kind = draw(st.sampled_from(("uneven", "padded", "parts", "shared")))
    if kind == "uneven":
        return Cut(dim=dim, axis=axis, uneven=True)
    if kind == "padded":
        return Cut(dim=dim, axis=axis, pad_multiple=draw(st.integers(1, 3)))
    if kind == "shared":
        return Cut(dim=dim, axis=axis, parts=(CutPart(size, 1, shared=True),))
    first = draw(st.integers(0, size))
    return Cut(dim=dim, axis=axis, parts=(CutPart(first), CutPart(size - first)), uneven=True)
