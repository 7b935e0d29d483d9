"""Plans, layouts, prices and divisions of many jobs drawn by a seed, as they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_numbers import answered, assert_kept, digest, short
from small_jobs import BERT, DEGREES, EXPERTS, GPT, LLAMA

from ddlsched.checkpoints.arrays import box_of
from ddlsched.checkpoints.change_cost import PlannedRescaleCost, ReplicaRule, Site, reconfiguration_s, staying
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection, even_stages
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.division import Box, cuts_by_name, found_division, named_tensor
from ddlsched.checkpoints.plan import Distance, plan
from ddlsched.checkpoints.reshard_command import copy_summary, plan_numbers, plan_text
from ddlsched.checkpoints.resharding import Outcome
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, CutPart, Layout, Tensor, dense_layout
from topologies.leaf_spine import LeafSpine
from topologies.star import Star

SMALL = tuple(replace(model, num_layers=2) for model in (GPT, LLAMA, EXPERTS, BERT))
OTHERS = (
    StoredTransformer(num_layers=1, hidden=8, heads=4, vocabulary=5, positions=3, key_value_heads=2, tied=False),
    StoredTransformer(num_layers=2, hidden=8, heads=4, vocabulary=9, fused_qkv="parts", pad_vocabulary=0, gated=True),
    StoredTransformer(num_layers=1, hidden=8, heads=4, vocabulary=9, experts=4, feed_forward=12, biases=False),
)
SITES = (
    Site(topology=Star(nic_gbps=1.0), host_bytes_per_s=1e7, storage_bytes_per_s=3e5, restart_s=2.0),
    Site(topology=LeafSpine(servers_per_leaf=2, spines=1, oversubscription=4, nic_gbps=1.0), host_bytes_per_s=1e6),
)


def places(rng: np.random.Generator, num_ranks: int) -> StoredRegion:
    """Ranks on hosts of four devices, in their order or in any."""
    if rng.random() < 0.5:
        return StoredRegion.packed(num_ranks, 4, first_device=int(rng.integers(3)))
    devices = rng.permutation(24)[:num_ranks].tolist()
    return StoredRegion(devices=devices, hosts=[device % 5 for device in devices])


def under(collection: TensorCollection, rng: np.random.Generator) -> TensorCollection:
    fitting = [each for each in DEGREES if each.num_ranks <= 12 and each.pp <= max(collection.num_layers, 1)]
    to = fitting[int(rng.integers(len(fitting)))]
    stages = rng.integers(to.pp, size=collection.num_layers).tolist() if rng.random() < 0.5 else ()
    allocation = None if to.num_ranks < 9 and rng.random() < 0.3 else places(rng, to.num_ranks)
    return collection.resized(to, stages=stages, allocation=allocation)


def odd_tensors(rng: np.random.Generator) -> Iterator[Tensor]:
    """Tensors that are divided in every way that there is."""
    for number in range(4):
        shape = tuple(rng.choice([1, 2, 3, 4, 6], size=int(rng.integers(1, 4))).tolist())
        size, first = shape[0], int(rng.integers(shape[0] + 1))
        axis: Any = str(rng.choice(["tensor", "expert", "data"]))
        ways = (
            Cut(dim=0, axis=axis, uneven=True),
            Cut(dim=0, axis=axis, pad_multiple=int(rng.integers(1, 4))),
            Cut(dim=0, axis=axis, parts=(CutPart(size, 1, shared=True),)),
            Cut(dim=0, axis=axis, parts=(CutPart(first), CutPart(size - first)), uneven=True),
        )
        cuts = (ways[int(rng.integers(4))],) + (
            (Cut(dim=1, uneven=True),) if len(shape) > 1 and axis != "tensor" else ()
        )
        flat = "" if axis == "data" else str(rng.choice(["", "a", "b"]))
        held: Any = [(0,), (1,), ("first",), ("last",), ("first", "last"), (1, "last")][int(rng.integers(6))]
        dtype = str(rng.choice(["F32", "BF16", "U8", "F64"]))
        yield Tensor(name=f"t{number}", shape=shape, dtype=dtype, places=held, cuts=cuts, flat=flat)


def job(case: int, rng: np.random.Generator) -> TensorCollection:
    if case % 3 == 2:
        start = TensorCollection(tensors=tuple(odd_tensors(rng)), parallelism=StoredParallelism())
        return under(replace(start, flat_multiple=int(rng.integers(1, 4))), rng)
    sharding: Any = ("none", "zero1", "fsdp")[case % 4 % 3]
    optimiser = Optimiser(sharding=sharding, master=case % 2 == 0)
    tensors = job_tensors(SMALL[case % 4], dtype=("BF16", "F32")[case // 2 % 2], optimiser=optimiser)
    return under(TensorCollection(tensors=tensors, parallelism=StoredParallelism()), rng)


def layouts(collection: TensorCollection) -> Iterator[tuple[str, Layout]]:
    for held in collection.arrays:
        yield from held.items()
        yield "end", Layout((), ())


def planned(old: TensorCollection, new: TensorCollection, lost: list[int], distance: Distance | None) -> str:
    made = plan(old, new, lost=lost, distance=distance)
    moved = made.bytes_by_way
    parts = [(tensor.tensor.name, tensor.cells, sorted(tensor.moves)) for tensor in made.tensors]
    texts = plan_text(made), plan_numbers(made), dict(made.lower_bound_bytes)
    costs = [reconfiguration_s(made, site) for site in SITES]
    times = (number for cost in costs for number in (cost.network_s, cost.host_s, cost.transfer_s, cost.total_s))
    busiest = [cost.busiest for cost in costs]
    return f"{moved['kept']} {moved['network']} {digest(parts)} {digest([*texts, short(*times), busiest])}"


@pytest.mark.long
def test_plans_are_what_they_were() -> None:
    found: dict[str, str] = {}
    for case in range(18):
        rng = np.random.default_rng(case)
        old = job(case, rng)
        new = under(old, rng)
        lost = rng.permutation(old.num_ranks)[: (0, 0, 1, 0, 2)[case % 5]].tolist()
        distance = (lambda a, b: abs(a - b)) if case % 4 == 1 else None
        told = [digest(layouts(new)), digest([new.stages, new.allocation, new.num_layers])]

        told.append(answered(planned, old, new, lost, distance))
        if new.num_ranks % new.parallelism.tp == 0 and case % 3 < 2:
            told.append(digest([staying(old, new, lost).allocation]))
        found[f"{case} {old.parallelism} {new.parallelism}"] = " ".join(told)
    assert_kept("plans", found)


@pytest.mark.long
def test_prices_of_changes_are_what_they_were() -> None:
    tensors = job_tensors(
        replace(GPT, num_layers=2, positions=0, biases=False), dtype="BF16", optimiser=Optimiser(sharding="zero1")
    )
    found: dict[str, str] = {}
    for (tp, pp), site in product([(1, 1), (2, 1), (2, 2)], SITES):
        rule = ReplicaRule(tp=tp, pp=pp)
        model = PlannedRescaleCost(tensors=tensors, parallelism_of=rule, site=site, gpus_per_host=4, start_s=1.5)
        sizes = ((0, 4, 0), (4, 4, 2), (4, 8, 0), (8, 4, 4), (8, 4, 6))
        name = type(site.topology).__name__
        found[f"{tp} {pp} {name}"] = short(*(model.seconds(*size) for size in sizes))
    assert_kept("changes", found)


NAMES = (
    "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.o_proj.weight", "transformer.h.{}.ln_1.bias",
    "transformer.h.{}.attn.c_attn.weight", "transformer.h.{}.attn.c_attn.bias", "transformer.h.{}.attn.c_proj.weight",
    "transformer.h.{}.attn.c_proj.bias", "transformer.h.{}.mlp.c_fc.bias", "blocks.{}.mlp.gate_up_proj.weight",
    "blocks.{}.mlp.gate_up_proj.bias", "decoder.layers.{}.mlp.linear_fc1.weight",
    "decoder.layers.{}.mlp.linear_fc2.bias",
    "block.{}", "layer.{}.fc_out.weight", "h.{}.w2", "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
    "ln_f.bias", "gpt_neox.embed_out.weight", "output_layer.weight", "optimizer.state.lm_head.weight.exp_avg", "norm",
)  # fmt: skip
SHAPES = ((), (5,), (6,), (6, 4), (5, 3), (2, 2, 2))


def test_divisions_by_name_are_what_they_were() -> None:
    found: dict[str, str] = {}
    for name in NAMES:
        texts = [named_tensor(name.format(layer), shape, "F32") for layer in (0, 17) for shape in SHAPES]
        counts = "".join(str(len(cuts_by_name(name.format(3), shape))) for shape in SHAPES)
        found[name] = f"{texts[3].places} {counts} {digest(texts)}"
    assert_kept("division-names", found)


def test_divisions_that_made_chunks_are_found_as_they_were() -> None:
    """Tensors cut for given degrees, one at a time and many together, of which one is cut in another way."""
    found: dict[str, str] = {}
    for tp, dp, halves in ((1, 2, False), (2, 1, False), (2, 3, False), (3, 2, False), (4, 1, True), (2, 1, True)):
        made: dict[str, Any] = {}
        for number, (shape, way) in enumerate(product([(12, 6), (5, 4), (7,)], range(6))):
            data, over = Cut(dim=0, axis="data", uneven=True), Cut(dim=len(shape) - 1, uneven=True)
            halved = Cut(dim=0, parts=(CutPart(shape[0] // 2), CutPart(shape[0] - shape[0] // 2)), uneven=True)
            cuts = ((), (data,), (over,), (over, data), (halved,), (Cut(dim=0, uneven=True), data))[way]
            groups = [{"tensor": tp, "data": dp}[cut.axis] for cut in cuts]
            pieces = (
                piece
                for place in product(*map(range, groups))
                for piece in dense_layout(shape, cuts, tuple(zip(place, groups, strict=True))).pieces
            )
            made[f"t{number}"] = shape, frozenset(Box(piece.start, piece.extent) for piece in pieces)
        alone = [found_division({name: kind}, halves=halves) for name, kind in made.items()]
        degrees, cuts_of = found_division(made, halves=halves)
        found[f"{tp} {dp} {halves}"] = f"{degrees} {digest([cuts_of[name] for name in made])} {digest(alone)}"
    assert_kept("divisions", found)


def test_models_have_the_tensors_that_they_had() -> None:
    found: dict[str, str] = {}
    for number, (model, sharding) in enumerate(product((*SMALL, *OTHERS), (None, "none", "zero1", "fsdp"))):
        optimiser = None if sharding is None else Optimiser(sharding=sharding, master=number % 3 > 0)
        tensors = job_tensors(model, dtype=("F16", "F32")[number % 2], optimiser=optimiser)
        size = sum(tensor.num_bytes for tensor in tensors)
        found[f"{number} {sharding}"] = f"{len(tensors)} {size} {digest(tensors)}"
    assert_kept("model-tensors", found)


def test_samples_of_steps_are_what_they_were() -> None:
    found: dict[str, str] = {}
    for samples, batch, done, seed in ((10, 4, 0, 0), (10, 4, 27, None), (17, 5, 34, 3), (1, 3, 2, 1), (100, 7, 95, 9)):
        state = DatasetState(num_samples=samples, global_batch=batch, consumed_samples=done, seed=seed)
        parts = [state.rank_batch(rank, 3, ahead).tolist() for rank in range(3) for ahead in (0, 2)]
        later = state.advanced(3)
        numbers = state.epoch, state.batches_left_in_epoch, later.epoch, later.batches_left_in_epoch
        found[f"{samples} {batch} {done} {seed}"] = f"{state.batch().tolist()} {numbers} {digest(parts)}"
    assert_kept("samples", found)


@pytest.mark.long
def test_descriptions_without_a_field_or_with_one_more_are_read_as_they_were(tmp_path: Path) -> None:
    start = TensorCollection(tensors=tuple(odd_tensors(np.random.default_rng(5))), parallelism=StoredParallelism(dp=2))
    known: dict[str, Any] = {"iteration": 7, "model": {"a": 1}, "dataset": {"b": 2}, "random": {"c": 3}}
    Checkpoint(collection=start, **known).write_description(tmp_path)
    (file,) = tmp_path.iterdir()
    whole, found = json.loads(file.read_text()), {}
    for name, value in {"": None, **whole}.items():
        for number, other in enumerate(("left out", None, -1, [], "x", value)):
            changed = {key: each for key, each in whole.items() if key != name}
            file.write_text(json.dumps(changed | ({name: other} if number else {})))
            answer = answered(lambda: Checkpoint.read(tmp_path).text()).replace(str(tmp_path), "")
            found[f"{name} {number}"] = digest([answer])
    assert_kept("descriptions", found)


def outcome(**seconds: float) -> Outcome:
    made = plan(one := TensorCollection(tensors=(), parallelism=StoredParallelism()), one)
    numbers: dict[str, Any] = {"written_bytes": 0, "resumed_bytes": 0, "plan_s": 0.0, "copy_s": 0.0, "verify_s": 0.0}
    return Outcome(plan=made, **numbers | seconds)


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "cut": (Cut, {"dim": 0}, {"dim": (-1, 0), "pad_multiple": (-1, 0, 1), "parts": (
        ((0,),), ((-1,),), ((4, -1),), ((4, 2),), ((4, 3),), ((4, 4, True), (2,)),
    )}),
    "tensor": (Tensor, {"name": "w", "shape": (4, 6), "dtype": "U8"}, {
        "dtype": ("U8", "F33"), "shape": ((), (0, 1), (-1,)), "places": ((), (0,), ("first", "last")),
        "kind": ("file",),
        "flat": ("a",), "cuts": (
            (Cut(dim=2),), (Cut(dim=1),), (Cut(dim=0, parts=(CutPart(4),)),), (Cut(dim=0, parts=(CutPart(3),)),),
            (Cut(dim=0), Cut(dim=0)), (Cut(dim=1, parts=(CutPart(6),)), Cut(dim=1)), (Cut(dim=0, axis="data"),),
            (Cut(dim=1), Cut(dim=1, parts=(CutPart(6),))), (Cut(dim=0, axis="data"), Cut(dim=1, axis="expert")),
        ),
    }),
    "bytes of a file": (Tensor, {"name": "w", "shape": (4,), "dtype": "U8", "kind": "file"}, {
        "dtype": ("U8", "I8"), "shape": ((4,), (), (4, 1)), "cuts": ((Cut(dim=0),),), "flat": ("a",),
        "kind": ("object",),
    }),
    "parallelism": (StoredParallelism, {}, {
        "tp": (0, 1, 100_000, 100_001), "pp": (0, 100_000), "dp": (0, 100_000, 100_001), "ep": (0, 1, 2),
    }),
    "two experts": (StoredParallelism, {"ep": 2, "dp": 4}, {"ep": (1, 2, 3, 4, 8), "tp": (25_000, 25_001), "pp": (3,)}),
    "region": (StoredRegion, {"devices": (0, 1), "hosts": (0, 0)}, {
        "devices": ((0, 0), (-1, 0), (0,), (7, 3)), "hosts": ((-1, 0), (5, 1), (0,)),
    }),
    "packed": (StoredRegion.packed, {"num_ranks": 5}, {"gpus_per_host": (0, 1, 2), "first_device": (0, 3, 7)}),
    "stages": (even_stages, {"num_layers": 5, "num_stages": 2}, {"num_layers": (0, 1, 2, 7), "num_stages": (1, 5, 6)}),
    "transformer": (StoredTransformer, {"num_layers": 2, "hidden": 12, "heads": 4, "vocabulary": 3}, {
        "num_layers": (0, 1, 9999, 10_000), "hidden": (0, 1, 4, 14), "heads": (0, 1, 5), "vocabulary": (0, 1),
        "key_value_heads": (1, 2, 3, 4), "fused_qkv": ("parts", "rows"),
    }),
    "optimiser": (Optimiser, {}, {"sharding": ("none", "zero2"), "master": (False,)}),
    "site": (Site, {"topology": Star(), "host_bytes_per_s": 1.0}, {
        "host_bytes_per_s": (0.0, 0.5), "storage_bytes_per_s": (0.0, 0.5), "restart_s": (-1.0, 0.0, float("inf")),
    }),
    "replicas": (lambda gpus, tp=2, pp=3: ReplicaRule(tp=tp, pp=pp)(gpus), {"gpus": 6}, {
        "gpus": (0, 3, 6, 9, 12, -6), "tp": (1, 3), "pp": (1, 2),
    }),
    "data set": (DatasetState, {"num_samples": 5, "global_batch": 2}, {
        "num_samples": (0, 1, 2**40, 2**40 + 1), "global_batch": (0, 1, 2**40, 2**40 + 1), "seed": (-1, 0, None),
        "consumed_samples": (-1, 0, 2**62, 2**62 + 1), "samples_hash": (3, "a"),
    }),
    "part of a batch": (lambda rank, ranks: DatasetState(num_samples=5, global_batch=7).rank_slice(rank, ranks), {
        "rank": 0, "ranks": 3,
    }, {"rank": (-1, 0, 1, 2, 3, 1.0), "ranks": (0, 1, 3, 9)}),
    "run": (lambda **more: copy_summary(outcome(**more), "b"), {"written_bytes": 2_000_000}, {  # type: ignore[arg-type]
        "written_bytes": (0, 999, 1000, 999_999, 10**6, 10**9, 12 * 10**12), "resumed_bytes": (1, 1500),
        "copy_s": (0.4,),
        "plan_s": (1.257,), "verify_s": (0.0, 0.001, 0.0011, 3.0),
    }),
}  # fmt: skip
"""By what is made: how, with what, and what of it is tried otherwise, one at a time."""


def test_what_is_made_and_what_is_refused_is_what_it_was() -> None:
    found: dict[str, str] = {}
    for what, (make, usual, others) in REFUSED.items():
        tried = ["", *(f"{name}={value}" for name, values in others.items() for value in values)]
        given = [{}, *({name: value} for name, values in others.items() for value in values)]
        for text, more in zip(tried, given, strict=True):
            found[f"{what} {text}".strip()] = digest([answered(make, **usual | more)])
    assert_kept("made-of-checkpoints", found)


def test_boxes_are_slices_of_the_whole() -> None:
    layout = dense_layout((6, 4), (Cut(dim=1),), ((1, 2),))
    assert [box_of(piece) for piece in layout.pieces] == [(slice(0, 6), slice(2, 4))]
