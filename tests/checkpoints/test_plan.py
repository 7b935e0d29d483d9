"""Plans: whole, least, balanced; against element-by-element counts and minimum-cost flows."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest
from best_flow import least_busiest_bytes
from experiment_scripts import scripts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import GPT, collections, odd_collections, under, under_odd
from tiers import examples, tried

from ddlsched.checkpoints.arrays import box_of
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.division import divided
from ddlsched.checkpoints.plan import ReshardPlan, plan
from ddlsched.checkpoints.reshard_command import plan_text
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Piece, Tensor
from ddlsched.errors import InputError

(published_plan,) = scripts_of("reconfiguration", "published_plan")
first_replica_plan = published_plan.first_replica_plan


@cache
def mask(shape: tuple[int, ...], layouts: tuple[Layout, ...]) -> np.ndarray:
    """Return which elements of a tensor some layouts hold."""
    held = np.zeros(shape, bool)
    for layout in layouts:
        for piece in layout.pieces:
            held[box_of(piece)] = True
    return held


def by_host(collection: TensorCollection, tensor: Tensor) -> dict[int, np.ndarray]:
    found: dict[int, set[Layout]] = defaultdict(set)
    for rank, held in enumerate(collection.arrays):
        if tensor.name in held:
            found[collection.allocation.hosts[rank]].add(held[tensor.name])
    return {host: mask(tensor.shape, tuple(layouts)) for host, layouts in found.items()}


def assert_sound(found: ReshardPlan) -> None:
    """Assert, element by element, that each rank gets what it holds, once, by the right way, and hosts no more."""
    old, new = found.old, found.new
    for tensor, _, _, cells, moves in found.tensors:
        got: dict[int, np.ndarray] = defaultdict(lambda shape=tensor.shape: np.zeros(shape, int))
        fetched: Counter[tuple[int, tuple]] = Counter()
        for cell, source, target, way in moves:
            box = tuple(slice(a, a + b) for a, b in zip(*cells[cell].box, strict=True))
            got[target][box] += 1
            assert mask(tensor.shape, (old.arrays[source][tensor.name],))[box].all()
            same_host = old.allocation.hosts[source] == new.allocation.hosts[target]
            same_device = old.allocation.devices[source] == new.allocation.devices[target]
            assert (way == "kept") == same_device
            assert (way == "host") == (same_host and not same_device)
            fetched[new.allocation.hosts[target], cells[cell].box] += way == "network"
        assert max(fetched.values(), default=0) <= 1  # a host fetches nothing twice
        for rank, held in enumerate(new.arrays):
            wanted = mask(tensor.shape, (held[tensor.name],) if tensor.name in held else ())
            assert (got[rank] == wanted).all()
        had = by_host(old, tensor)
        lacking = {host: (wants & ~had.get(host, False)).sum() for host, wants in by_host(new, tensor).items()}
        received: Counter[int] = Counter()
        for (host, box), times in fetched.items():
            received[host] += times * box.num_elements
        assert {host: n for host, n in received.items() if n} == {host: n for host, n in lacking.items() if n}


@pytest.mark.long
@settings(max_examples=examples(4))
@given(data=st.data())
def test_plans_of_transformers_are_sound_and_least(data: st.DataObject) -> None:
    old = data.draw(collections())
    found = plan(old, data.draw(under(old)))
    assert_sound(found)
    assert sum(found.bytes_between_hosts.values()) == sum(found.lower_bound_bytes.values())
    assert sum(found.bytes_by_way.values()) == sum(found.bytes_between_ranks.values())


@pytest.mark.long
@settings(max_examples=examples(30))
@given(data=st.data())
def test_plans_of_any_tensors_are_sound_and_least(data: st.DataObject) -> None:
    old = data.draw(odd_collections())
    found = plan(old, data.draw(under_odd(old)))
    assert_sound(found)
    assert sum(found.bytes_between_hosts.values()) == sum(found.lower_bound_bytes.values())


@pytest.mark.long
@settings(max_examples=examples(6))
@given(data=st.data())
def test_plans_conserve_bytes(data: st.DataObject) -> None:
    old = data.draw(collections())
    new = data.draw(under(old))
    tensors = new.by_name
    held = sum(
        sum(piece.num_elements for piece in layout.pieces) * DTYPE_BYTES[tensors[name].dtype]
        for arrays in new.arrays
        for name, layout in arrays.items()
    )
    assert sum(plan(old, new).bytes_by_way.values()) == held
    assert sum(first_replica_plan(old, new).bytes_by_way.values()) == held


@pytest.mark.long
@settings(max_examples=examples(6))
@given(data=st.data())
def test_the_published_scheme_never_moves_less(data: st.DataObject) -> None:
    old = data.draw(collections())
    new = data.draw(under(old))
    published = first_replica_plan(old, new)
    assert sum(published.bytes_between_hosts.values()) >= plan(old, new).bytes_by_way["network"]


@pytest.mark.long
@settings(max_examples=examples(15))
@given(data=st.data())
def test_sources_are_as_even_as_the_best_flow_up_to_a_cell(data: st.DataObject) -> None:
    old = data.draw(collections())
    found = plan(old, data.draw(under(old)))
    if not found.bytes_between_hosts:
        return
    best, _ = least_busiest_bytes(found)
    sent: Counter[int] = Counter()
    for (source, _), size in found.bytes_between_hosts.items():
        sent[source] += size
    largest = max(t.cell_bytes(m.cell) for t in found.tensors for m in t.moves if m.way == "network")
    assert best <= max(sent.values()) <= best + 2 * largest


def large(tp: int, pp: int, dp: int, sharding: str) -> TensorCollection:
    model = StoredTransformer(num_layers=8, hidden=1024, heads=16, vocabulary=50257, positions=1024)
    tensors = job_tensors(model, optimiser=Optimiser(sharding=sharding))
    return TensorCollection(tensors=tensors, parallelism=StoredParallelism(tp=tp, pp=pp, dp=dp))


@pytest.mark.long
@pytest.mark.parametrize(
    ("sharding", "after"),
    tried(
        itertools.product(["none", "zero1", "fsdp"], [(8, 4, 4), (4, 2, 16), (2, 8, 4)]),
        lambda place: place % 4 == 0,  # each of both
    ),
)
def test_the_busiest_host_of_a_large_job_is_within_3_percent_of_the_best_flow(
    sharding: str, after: tuple[int, int, int]
) -> None:
    old = large(4, 2, 8, sharding)
    tp, pp, dp = after
    found = plan(old, old.resized(StoredParallelism(tp=tp, pp=pp, dp=dp)))
    sent: Counter[int] = Counter()
    for (source, _), size in found.bytes_between_hosts.items():
        sent[source] += size
    assert max(sent.values(), default=0) <= 1.03 * least_busiest_bytes(found)[0]


@pytest.mark.long
@pytest.mark.parametrize("sharding", tried(["none", "zero1"], lambda place: place == 1))
def test_6_7b_parameters_from_64_to_128_gpus_are_planned_within_two_seconds(sharding: str) -> None:
    model = StoredTransformer(num_layers=32, hidden=4096, heads=32, vocabulary=50257, positions=2048)
    tensors = job_tensors(model, optimiser=Optimiser(sharding=sharding))
    old = TensorCollection(tensors=tensors, parallelism=StoredParallelism(tp=8, pp=2, dp=4))
    begin_s = time.process_time()  # of this process, on a machine that does other things too
    found = plan(old, old.resized(StoredParallelism(tp=8, pp=4, dp=4)))
    assert time.process_time() - begin_s < 2.0
    assert found.bytes_by_way["network"] == sum(found.lower_bound_bytes.values()) > 100e9


@pytest.mark.long
def test_nothing_moves_when_nothing_changes() -> None:
    job = large(2, 2, 4, "zero1")
    found = plan(job, job.resized(job.parallelism, allocation=job.allocation))
    assert {way for way, size in found.bytes_by_way.items() if size} == {"kept"}


def test_a_replica_for_another_host_is_fetched_once_and_handed_on() -> None:
    tensors = (Tensor(name="w", shape=(1000,), dtype="F32"),)
    old = TensorCollection(tensors=tensors, parallelism=StoredParallelism())
    new = old.resized(StoredParallelism(dp=12), allocation=StoredRegion.packed(12, 4))
    found = plan(old, new)
    assert found.bytes_by_way == {"kept": 4000, "host": 3 * 4000, "network": 2 * 4000, "relayed": 6 * 4000}
    assert found.bytes_between_hosts == {(0, 1): 4000, (0, 2): 4000}
    assert first_replica_plan(old, new).bytes_by_way["network"] == 8 * 4000
    *_, shades, missing = plan_text(found).splitlines()
    assert missing.endswith("hands on (5, 6, 7, 9, 10, 11)")
    assert shades.count("██") == 6  # what is handed on is not the old rank's to send


def test_the_nearest_replica_sends() -> None:
    tensors = (Tensor(name="w", shape=(1000,), dtype="F32"),)
    old = TensorCollection(
        tensors=tensors, parallelism=StoredParallelism(dp=2), allocation=StoredRegion(devices=(0, 40), hosts=(0, 5))
    )
    new = old.resized(StoredParallelism(), allocation=StoredRegion(devices=(32,), hosts=(4,)))
    for far, sender in ((lambda a, b: abs(a - b), 5), (lambda a, b: -abs(a - b), 0)):
        assert plan(old, new, distance=far).bytes_between_hosts == {(sender, 4): 4000}


def test_replicas_serve_for_lost_ranks_and_none_left_is_said() -> None:
    job = TensorCollection(tensors=job_tensors(GPT, optimiser=Optimiser()), parallelism=StoredParallelism(tp=2, dp=2))
    smaller = job.resized(StoredParallelism(tp=2))
    found = plan(job, smaller, lost=[0, 3])
    assert {move.source for tensor in found.tensors for move in tensor.moves} == {1, 2}
    with pytest.raises(
        InputError, match=r"tensor embedding\.word\.weight: with ranks 1, 3 lost, no replica of \[256:301, 0:8\]"
    ):
        plan(job, smaller, lost=[1, 3])
    sharded = TensorCollection(
        tensors=job_tensors(GPT, optimiser=Optimiser(sharding="zero1")), parallelism=StoredParallelism(dp=2)
    )
    with pytest.raises(InputError, match=r"with rank 1 lost, no replica of .* is left"):
        plan(sharded, sharded.resized(StoredParallelism()), lost=[1])


def test_other_tensors_are_refused() -> None:
    def job(*tensors: Tensor) -> TensorCollection:
        return TensorCollection(tensors=tensors, parallelism=StoredParallelism())

    w = Tensor(name="w", shape=(4,), dtype="F32")
    with pytest.raises(InputError, match="tensor v: is not in the old"):
        plan(job(w), job(w, Tensor(name="v", shape=(), dtype="F32")))
    with pytest.raises(InputError, match="tensor w: is not in the new"):
        plan(job(w), job())
    with pytest.raises(InputError, match=r"was F32 \[4\] and becomes F32 \[5\]"):
        plan(job(w), job(Tensor(name="w", shape=(5,), dtype="F32")))
    with pytest.raises(InputError, match=r"was F32 \[4\] and becomes BF16 \[4\]"):
        plan(job(w), job(Tensor(name="w", shape=(4,), dtype="BF16")))


def test_overlapping_parts_are_cut_at_each_others_edges() -> None:
    def row(first: int, rows: int) -> Layout:
        return Layout((rows,), (Piece((first,), (rows,), 0, (1,)),))

    cells = divided((row(0, 6), row(4, 6)), (row(2, 6),))
    assert sorted((cell.box.start[0], cell.box.extent[0], len(cell.old)) for cell in cells) == [
        (2, 2, 1),
        (4, 2, 2),
        (6, 2, 1),
    ]
    missing = divided((row(0, 3), row(7, 3)), (row(0, 10),))
    assert sorted((cell.box.start[0], cell.box.extent[0]) for cell in missing if not cell.old) == [(3, 4)]
