"""What ranks hold, against Megatron-LM's layouts and the sizes of its checkpoints."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddlsched.checkpoints.arrays import part_of
from ddlsched.checkpoints.collection import (
    Coordinates,
    StoredParallelism,
    TensorCollection,
    even_stages,
    parse_parallelism,
)
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.errors import InputError

GPT2 = {"vocabulary": 50257, "positions": 1024}


def gpt(
    tp: int, pp: int = 1, dp: int = 1, *, layers: int = 4, hidden: int = 64, sharding: str | None = None
) -> TensorCollection:
    model = StoredTransformer(num_layers=layers, hidden=hidden, heads=16, **GPT2)
    optimiser = None if sharding is None else Optimiser(sharding=sharding)
    return TensorCollection(
        tensors=job_tensors(model, optimiser=optimiser), parallelism=StoredParallelism(tp=tp, pp=pp, dp=dp)
    )


def shape(collection: TensorCollection, name: str, rank: int = 0) -> tuple[int, ...]:
    return collection.arrays[rank][name].shape


def test_ranks_are_numbered_tensor_then_data_then_pipeline() -> None:
    parallelism = StoredParallelism(tp=2, pp=3, dp=4)
    groups = [parallelism.coordinates(rank) for rank in range(24)]
    assert groups[1] == Coordinates(tensor=1, expert=0, data=0, stage=0)
    assert groups[2] == Coordinates(tensor=0, expert=0, data=1, stage=0)
    assert groups[8] == Coordinates(tensor=0, expert=0, data=0, stage=1)
    assert [parallelism.rank(at.tensor, at.data, at.stage) for at in groups] == list(range(24))


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_shapes_are_those_of_megatron(tp: int) -> None:
    h, job = 64, gpt(tp)
    layer = "layers.2"
    assert shape(job, f"{layer}.attention.qkv.weight") == (3 * h // tp, h)
    assert shape(job, f"{layer}.attention.qkv.bias") == (3 * h // tp,)
    assert shape(job, f"{layer}.attention.dense.weight") == (h, h // tp)
    assert shape(job, f"{layer}.mlp.h_to_4h.weight") == (4 * h // tp, h)
    assert shape(job, f"{layer}.mlp.h_to_4h.bias") == (4 * h // tp,)
    assert shape(job, f"{layer}.mlp.4h_to_h.weight") == (h, 4 * h // tp)
    for whole in ("attention.dense.bias", "mlp.4h_to_h.bias", "input_norm.weight", "post_attention_norm.bias"):
        assert shape(job, f"{layer}.{whole}") == (h,)


def test_vocabulary_is_padded_to_a_multiple_of_128_times_tp() -> None:
    job = gpt(4, pp=2)
    assert [shape(job, "embedding.word.weight", rank)[0] for rank in range(4)] == [12672] * 4
    ids = np.arange(50257)[:, None].repeat(64, axis=1)
    last = part_of(ids, job.arrays[3]["embedding.word.weight"])
    np.testing.assert_array_equal(last[:, 0], [*range(3 * 12672, 50257), *[0] * (50688 - 50257)])


def test_tied_embedding_has_a_copy_on_the_last_stage() -> None:
    job = gpt(2, pp=3, dp=2, layers=6)
    holders = [rank for rank in range(12) if "embedding.word.weight" in job.arrays[rank]]
    assert holders == [0, 1, 2, 3, 8, 9, 10, 11]
    assert [rank for rank in range(12) if "embedding.position.weight" in job.arrays[rank]] == [0, 1, 2, 3]
    assert [rank for rank in range(12) if "final_norm.weight" in job.arrays[rank]] == [8, 9, 10, 11]
    assert "layers.3.mlp.h_to_4h.bias" in job.arrays[4]
    assert "layers.3.mlp.h_to_4h.bias" not in job.arrays[0]


@pytest.mark.parametrize(("layers", "hidden", "published_gb"), [(24, 2064, 20.2), (32, 2560, 39.0), (32, 4096, 96.3)])
def test_checkpoints_are_as_large_as_published(layers: int, hidden: int, published_gb: float) -> None:
    job = gpt(4, 2, 1, layers=layers, hidden=hidden, sharding="none")
    sizes = (
        layout.num_elements * DTYPE_BYTES[job.by_name[name].dtype]
        for held in job.arrays
        for name, layout in held.items()
    )
    assert sum(sizes) / 1e9 == pytest.approx(published_gb, rel=3e-3)


def test_adam_with_master_weights_takes_14_bytes_a_parameter() -> None:
    weights = job_tensors(StoredTransformer(num_layers=2, hidden=16, heads=2, vocabulary=40))
    all_of_it = job_tensors(StoredTransformer(num_layers=2, hidden=16, heads=2, vocabulary=40), optimiser=Optimiser())
    parameters = sum(math.prod(tensor.shape) for tensor in weights)
    assert sum(tensor.num_bytes for tensor in all_of_it) == 14 * parameters + 8  # and the step


def test_each_head_keeps_its_queries_keys_and_values() -> None:
    width, heads, hidden = 4, 16, 64
    job = gpt(4)
    rows = np.arange(3 * hidden).repeat(hidden).reshape(3 * hidden, hidden)
    by_head = rows.reshape(heads, 3, width, hidden)
    for rank in range(4):
        held = part_of(rows, job.arrays[rank]["layers.0.attention.qkv.weight"])
        np.testing.assert_array_equal(held, by_head[4 * rank : 4 * rank + 4].reshape(-1, hidden))


def llama(tp: int, fused: str) -> TensorCollection:
    model = StoredTransformer(
        num_layers=1, hidden=32, heads=8, key_value_heads=2, gated=True, biases=False, tied=False,
        vocabulary=64, feed_forward=48, fused_qkv=fused,
    )  # fmt: skip
    return TensorCollection(tensors=job_tensors(model), parallelism=StoredParallelism(tp=tp))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_gates_and_queries_are_cut_by_themselves(tp: int) -> None:
    job = llama(tp, "parts")
    for rank in range(tp):
        held = part_of(np.arange(96)[:, None].repeat(32, 1), job.arrays[rank]["layers.0.mlp.h_to_4h.weight"])[:, 0]
        own = np.arange(48).reshape(tp, -1)[rank]
        np.testing.assert_array_equal(held, [*own, *(48 + own)])
        held = part_of(np.arange(48)[:, None].repeat(32, 1), job.arrays[rank]["layers.0.attention.qkv.weight"])[:, 0]
        head = rank * 2 // tp if tp > 2 else slice(rank * 2 // tp, (rank + 1) * 2 // tp)
        pairs = np.arange(8).reshape(2, 4)[head].reshape(-1)
        np.testing.assert_array_equal(held, [*np.arange(32).reshape(tp, -1)[rank], *(32 + pairs), *(40 + pairs)])


def test_more_ranks_than_key_heads_share_them() -> None:
    job = llama(8, "parts")
    assert shape(job, "layers.0.attention.qkv.weight") == (4 + 4 + 4, 32)
    with pytest.raises(
        InputError, match=r"layers\.0\.attention\.qkv\.weight: 2 blocks of 24 rows .* 3 tensor-parallel"
    ):
        _ = llama(3, "heads").arrays
    with pytest.raises(
        InputError, match=r"layers\.0\.attention\.qkv\.weight: 2 blocks of 24 rows .* 4 tensor-parallel"
    ):
        _ = llama(4, "heads").arrays  # queries are never shared: their results would be summed twice


def test_experts_are_spread_over_data_parallel_neighbours() -> None:
    model = StoredTransformer(num_layers=1, hidden=8, heads=2, vocabulary=8, experts=4)
    job = TensorCollection(tensors=job_tensors(model), parallelism=StoredParallelism(tp=2, dp=4, ep=2))
    name = "layers.0.mlp.experts.h_to_4h.weight"
    ids = np.arange(4)[:, None, None] * np.ones((1, 32, 8), int)
    held = [part_of(ids, job.arrays[rank][name]) for rank in range(8)]
    assert [sorted(set(part.flat)) for part in held] == [[0, 1], [0, 1], [2, 3], [2, 3]] * 2
    assert held[0].shape == (2, 16, 8)
    assert shape(job, "layers.0.mlp.router.weight") == (4, 8)


@pytest.mark.long
@pytest.mark.parametrize(("sharding", "group"), [("zero1", "decay"), ("fsdp", "1")])
def test_flat_buffers_are_cut_evenly_and_in_order(sharding: str, group: str) -> None:
    job = gpt(2, 2, 3, layers=2, sharding=sharding)
    prefix = "optimiser.exp_avg."
    ids = {tensor.name: 1 + np.arange(math.prod(tensor.shape)).reshape(tensor.shape) for tensor in job.tensors}
    plain = gpt(2, 2, 3, layers=2, sharding="none")
    members = [t.name for t in job.tensors if t.flat == f"exp_avg/{group}" and 1 in job.stages_of(t)]
    assert members
    assert all(name.startswith(prefix) for name in members)
    ranks = [job.parallelism.rank(1, data, 1) for data in range(3)]
    whole = np.concatenate([part_of(ids[name], plain.arrays[ranks[0]][name]).reshape(-1) for name in members])
    share = -(-len(whole) // 3)
    for number, rank in enumerate(ranks):
        held = [part_of(ids[name], job.arrays[rank][name]) for name in members if name in job.arrays[rank]]
        np.testing.assert_array_equal(np.concatenate(held), whole[number * share : (number + 1) * share])


def test_zero1_keeps_weights_whole_and_fsdp_does_not() -> None:
    name = "layers.0.mlp.h_to_4h.weight"
    assert shape(gpt(1, 1, 4, sharding="zero1"), name) == (256, 64)
    assert len(shape(gpt(1, 1, 4, sharding="fsdp"), name, rank=2)) == 1


def test_a_layer_can_be_on_any_stage() -> None:
    start = gpt(1)
    job = start.resized(StoredParallelism(pp=2), stages=(1, 0, 0, 1))
    assert [
        rank for layer in range(4) for rank in range(2) if f"layers.{layer}.input_norm.bias" in job.arrays[rank]
    ] == [1, 0, 0, 1]
    assert even_stages(5, 2) == (0, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=4,pq=2", "no parameter is named 'pq'. Did you mean 'tp' or 'pp'"),
        ("tp=4,tp=2", "tp is given twice"),
        ("tp=-1", "tp is -1; expected a whole number from 1"),
        ("tp=0", "tp is 0; expected a whole number from 1"),
        ("tp=1.5", "tp: '1.5' is not a whole number"),
        ("dp=3,ep=2", "ep 2 does not divide dp 3"),
        ("tp=1000000", "tp is 1000000; expected a whole number from 1 to 100000"),
        ("tp=1000,dp=1000", "has 1,000,000 ranks; expected at most 100,000"),
    ],
)
def test_texts_that_are_no_parallelism(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_parallelism(text)
    assert message in str(raised.value)


def test_a_parallelism_reads_back_from_its_text() -> None:
    for parallelism in (StoredParallelism(tp=4, pp=2, dp=2), StoredParallelism(dp=4, ep=2)):
        assert parse_parallelism(str(parallelism)) == parallelism
