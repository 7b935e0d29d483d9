"""What commands show of plans and checkpoints, and what is made of random contents, by hand."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.checkpoints import making
from ddlsched.checkpoints.change_cost import PlannedRescaleCost, ReplicaRule, Site, _copied_within_hosts, link_bytes
from ddlsched.checkpoints.checkpoint_command import _cut, _division, _kinds, _ranges, _stages, _table
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.making import bfloat16, made_tensor, make_checkpoint
from ddlsched.checkpoints.plan import plan
from ddlsched.checkpoints.reshard_command import (
    _cell,
    _count,
    _numbers,
    _peer,
    _shade,
    _size,
    copy_summary,
    plan_numbers,
    plan_text,
)
from ddlsched.checkpoints.resharding import Outcome
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, CutPart, Tensor
from ddlsched.errors import InputError
from topologies.star import Star


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_999, "1,000.00 kB"), (10**6, "1.00 MB"),
        (1_234_567, "1.23 MB"), (10**9 - 1, "1,000.00 MB"), (10**9, "1.00 GB"), (12_345 * 10**9, "12,345.00 GB"),
    ],
)  # fmt: skip
def test_sizes(size: int, text: str) -> None:
    assert _size(size) == text


def test_numbers_and_hosts_of_options() -> None:
    assert [_numbers("--lost", text) for text in ("", "4", "4,5", " 4 , 05,,")] == [[], [4], [4, 5], [4, 5]]
    for text in ("x", "4,-5", "4;5", "1.5"):
        with pytest.raises(InputError, match=rf"--lost {text}: '.*' is no number; expected whole numbers such as 4,5"):
            _numbers("--lost", text)
    assert _peer("1=http://host:8/a=b") == (1, "http://host:8/a=b")
    for text in ("1=", "=a", "1", "-1=a", "x=a"):
        with pytest.raises(InputError, match=rf"--peer {text}: expected HOST=URL, such as 1="):
            _peer(text)
    assert [_count(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_shades_go_by_the_share_of_the_most() -> None:
    assert [_shade(size, 10, "abcde") for size in (0, 1, 2, 3, 4, 9, 10)] == ["a", "a", "b", "b", "c", "e", "e"]
    cells = [_cell(row, 0, {(0, 0): 10, (1, 0): 1, (3, 0): 0}, {(0, 0)}, 10) for row in range(4)]
    assert cells == [" =██", "  ··", "    ", "    "]


@pytest.mark.parametrize(
    ("resumed_bytes", "copy_s", "verify_s", "parts"),
    [
        (0, 0.0, 0.0, ("", "0.0 s")),
        (0, 4.0, 0.001, ("", "4.0 s (0.75 GB/s)")),
        (10**9, 4.0, 2.0, (", 1.00 GB of it in an earlier run", "4.0 s (0.50 GB/s), checked in 2.0 s")),
        (3 * 10**9, 0.5, 0.0, (", 3.00 GB of it in an earlier run", "0.5 s (0.00 GB/s)")),
    ],
)
def test_a_run_is_summed_up(resumed_bytes: int, copy_s: float, verify_s: float, parts: tuple[str, str]) -> None:
    empty = TensorCollection(tensors=(), parallelism=StoredParallelism())
    done = Outcome(
        plan=plan(empty, empty), written_bytes=3 * 10**9, resumed_bytes=resumed_bytes, plan_s=1.257, copy_s=copy_s,
        verify_s=verify_s,
    )  # fmt: skip
    resumed, copied = parts
    assert copy_summary(done, Path("b")) == f"3.00 GB to b{resumed}: planned in 1.26 s, copied in {copied}"


def vector(size: int, *, dp: int, hosts: tuple[int, ...], devices: tuple[int, ...] = ()) -> TensorCollection:
    region = StoredRegion(devices=devices or tuple(range(len(hosts))), hosts=hosts)
    tensor = Tensor(name="w", shape=(size,), dtype="U8", cuts=(Cut(dim=0, axis="data", uneven=True),))
    return TensorCollection(tensors=(tensor,), parallelism=StoredParallelism(dp=dp), allocation=region)


def test_a_plan_is_shown_by_rank() -> None:
    """100 bytes on two ranks of one host, then on four of two hosts: the last two fetch 25 each."""
    made = plan(vector(100, dp=2, hosts=(0, 0)), vector(100, dp=4, hosts=(0, 0, 1, 1)))
    assert plan_text(made).splitlines() == [
        "tp=1,pp=1,dp=2 (2 ranks, 1 host)  ->  tp=1,pp=1,dp=4 (4 ranks, 2 hosts)",
        "  kept on the device                  25 B",
        "  copied within the host              25 B",
        "  fetched from other hosts            50 B   at least 50 B, whatever the plan",
        "  handed on within the host            0 B",
        "",
        "    host         sends      receives      at least",
        "       0          50 B           0 B           0 B",
        "       1           0 B          50 B          50 B",
        "",
        "  from old rank (down) to new rank (across); shade: bytes, █ is 25 B, = is kept on the device",
        "           0   1   2   3",
        "       0 =██  ██        ",
        "       1          ██  ██",
    ]
    numbers = plan_numbers(made)
    assert (numbers["tensors"], numbers["moves"], numbers["lower_bound_bytes"]) == (1, 4, 50)
    assert numbers["hosts"] == [{"from": 0, "to": 1, "bytes": 50}]
    assert numbers["ranks"][0] == {"from": 0, "to": 0, "way": "kept", "bytes": 25}


def test_a_host_that_only_sends_needs_nothing() -> None:
    made = plan(vector(100, dp=1, hosts=(5,), devices=(40,)), vector(100, dp=1, hosts=(0,)))
    assert plan_text(made).splitlines()[6:] == [
        "    host         sends      receives      at least",
        "       0           0 B         100 B         100 B",
        "       5         100 B           0 B           0 B",
        "",
        "  from old rank (down) to new rank (across); shade: bytes, █ is 100 B",
        "           0",
        "       0  ██",
    ]


@pytest.mark.parametrize(("ranks", "what"), [(32, "rank"), (33, "host")])
def test_many_ranks_are_shown_by_host(ranks: int, what: str) -> None:
    hosts = tuple(rank // 4 for rank in range(ranks))
    lines = plan_text(plan(vector(ranks, dp=1, hosts=(0,)), vector(ranks, dp=ranks, hosts=hosts))).splitlines()
    assert any(line.startswith(f"  from old {what} (down) to new {what} (across)") for line in lines)


def test_ranks_that_neither_send_nor_receive_are_named_up_to_eight() -> None:
    empty = TensorCollection(tensors=(), parallelism=StoredParallelism(dp=8))
    text = plan_text(plan(empty, TensorCollection(tensors=(), parallelism=StoredParallelism(dp=9))))
    assert (
        "  8 old ranks are no rows, as they send nothing: others hold the same bytes (0, 1, 2, 3, 4, 5, 6, 7)" in text
    )
    assert "  9 new ranks are no columns: they receive nothing, or what a rank of their host hands on" in text
    assert text.endswith("(0, 1, 2, 3, 4, 5, 6, 7, ...)\n")
    assert "shade: bytes, █ is 1 B\n" in text


def test_stages_ranges_and_tables() -> None:
    assert _stages([0, 0, 1, 0, 1]) == "stage 0: layers 0-1, 3; stage 1: layers 2, 4"
    assert _stages([]) == ""
    assert [_ranges(numbers) for numbers in ([], [3], [3, 4], [0, 2, 3, 4, 9])] == ["", "3", "3-4", "0, 2-4, 9"]
    rows: list[dict[str, Any]] = [
        {"name": "a", "count": 100, "dtype": "F32"},
        {"name": "long name", "count": 2, "dtype": ""},
    ]
    assert _table(rows, "name", "count", "dtype") == [
        "  tensor     number  dtype",
        "  a             100  F32",
        "  long name       2",
    ]


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        (Cut(dim=1), "dimension 1 over tensor"),
        (Cut(dim=0, axis="data", parts=(CutPart(4),)), "dimension 0 over data"),
        (Cut(dim=0, parts=(CutPart(4), CutPart(2))), "dimension 0 over tensor in 2 parts"),
        (Cut(dim=0, parts=(CutPart(4, 2),)), "dimension 0 over tensor, 2 blocks"),
        (
            Cut(dim=0, parts=(CutPart(8, 8), CutPart(4, 4), CutPart(6))),
            "dimension 0 over tensor in 3 parts, 4 or more blocks",
        ),
        (Cut(dim=0, parts=(CutPart(4, 2), CutPart(2, 2))), "dimension 0 over tensor in 2 parts, 2 blocks"),
        (Cut(dim=0, pad_multiple=8), "dimension 0 over tensor, padded to 8 x tp"),
    ],
)  # fmt: skip
def test_cuts_in_words(cut: Cut, text: str) -> None:
    assert _cut(cut) == text
    assert _division((cut,), True) == f"{text}; flat over data"
    assert _division((), False) == "whole"


def test_tensors_that_differ_in_their_layer_or_state_only_are_one_row() -> None:
    names = (
        "layers.0.w",
        "layers.1.w",
        "optimiser.exp_avg.layers.0.w",
        "optimiser.exp_avg_sq.w",
        "optimiser.step",
        "w.7",
    )
    tensors = [Tensor(name=name, shape=(2,), dtype="F32") for name in names]
    none = Tensor(name="none", shape=(0,), dtype="F32")
    job = TensorCollection(tensors=(*tensors, none), parallelism=StoredParallelism(dp=3))
    found = [(row["name"], row["count"], row["replicas"]) for row in _kinds(job)]
    assert found == [
        ("layers.*.w", 2, 3), ("optimiser.exp_avg.layers.0.w", 1, 3), ("optimiser.exp_avg_sq.w", 1, 3),
        ("optimiser.step", 1, 3), ("w.7", 1, 3), ("none", 1, 0),
    ]  # fmt: skip
    two = tuple(
        Tensor(name=f"optimiser.{kind}.layers.{n}.w", shape=(2,), dtype="F32") for kind in "ab" for n in (0, 11)
    )
    assert [row["name"] for row in _kinds(TensorCollection(tensors=two, parallelism=StoredParallelism()))] == [
        "optimiser.*.layers.*.w"
    ]


MODEL = StoredTransformer(num_layers=1, hidden=4, heads=2, vocabulary=5, positions=3, pad_vocabulary=0)


def test_contents_are_of_whole_tensors_and_all_is_told_and_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    made = make_checkpoint(
        tmp_path, MODEL, StoredParallelism(dp=2), iteration=3, seed=5, watch=lambda *of: told.append(of)
    )  # fmt: skip
    sizes = [tensor.num_bytes for tensor in made.collection.tensors]
    assert told == [(sum(sizes[: number + 1]), sum(sizes)) for number in range(len(sizes))]
    assert [name for name in synced if name.startswith("rank")] == list(made.files)
    assert (made.iteration, made.random, made.dataset["consumed_samples"]) == (3, {"seed": 5}, 192)
    assert (made.dataset["num_samples"], made.dataset["global_batch"]) == (1_000_000, 64)


def test_a_folder_may_be_filled_to_the_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(InputError, match=r"takes [\d,]+ bytes, 0 are free; expected space for it") as raised:
        make_checkpoint(tmp_path / "a", MODEL, StoredParallelism())
    free = int(str(raised.value).split(" takes ")[1].split(" ")[0].replace(",", "")) - 1
    with pytest.raises(InputError, match="are free; expected space for it"):
        make_checkpoint(tmp_path / "a", MODEL, StoredParallelism())
    free += 1
    assert make_checkpoint(tmp_path / "a", MODEL, StoredParallelism()).files == ("rank_00000.safetensors",)


def test_contents_are_of_the_order_that_training_gives() -> None:
    by_name = {tensor.name: tensor for tensor in job_tensors(MODEL, dtype="F16", optimiser=Optimiser())}

    def made(name: str) -> Any:
        return made_tensor(by_name[name], 1, 100)

    assert (made("optimiser.step").dtype, made("optimiser.step").tolist()) == (np.dtype("<i8"), 100)
    norm, weight = made("final_norm.weight"), made("embedding.word.weight")
    assert (norm.dtype, weight.shape) == (np.dtype("<f2"), (5, 4))
    assert 0.9 < norm.astype(float).mean() < 1.1
    assert abs(made("final_norm.bias").astype(float).mean()) < 0.1
    assert 0.01 < weight.astype(float).std() < 0.04
    moments = made("optimiser.exp_avg.embedding.word.weight"), made("optimiser.exp_avg_sq.embedding.word.weight")
    assert 5e-5 < moments[0].std() < 2e-4
    assert (moments[1] >= 1e-8).all()
    assert moments[1].mean() < 4e-7
    master = made("optimiser.master.embedding.word.weight")
    np.testing.assert_array_equal(master.astype("<f2"), weight)


def test_bits_of_bfloat16() -> None:
    exact = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-8 + 2**-20, -2.5, 0.0], "<f4")
    assert [hex(bits) for bits in bfloat16(exact).tolist()] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xc020", "0x0"]


def test_kinds_of_tensors_are_drawn_as_the_weight_that_they_are_of() -> None:
    found = [making._kind(name) for name in ("w.x", "optimiser.master.w.x", "optimiser.exp_avg.w.x")]
    assert found == [("weight", "w.x"), ("weight", "w.x"), ("exp_avg", "w.x")]


STAR = Star(nic_gbps=0.008)  # A million bytes a second.


def test_devices_that_are_lost_hold_nothing() -> None:
    """A vector of a megabyte, whole on each of four GPUs of two hosts; a host reads it from storage in a second."""
    tensor = Tensor(name="w", shape=(10**6,), dtype="U8")
    site = Site(topology=STAR, host_bytes_per_s=1e7, storage_bytes_per_s=5e5, restart_s=3.0)
    cost = PlannedRescaleCost(
        tensors=(tensor,), parallelism_of=ReplicaRule(), site=site, gpus_per_host=2, start_s=1.5
    )  # fmt: skip
    stopped = 2 * 10**6 / 5e5 + 3  # Both hosts read, at the rate of the store.
    assert cost.seconds(0, 4) == cost.seconds(4, 4, 4) == cost.seconds(4, 4, 9) == cost.seconds(1, 4, 1) == stopped
    assert cost.seconds(0, 2) == 10**6 / 5e5 + 3
    assert cost.seconds(2, 4) == 1 + 3  # The new host fetches it once, and its other GPU copies at the same time.
    assert cost.seconds(1, 2) == 0.1 + 3
    assert cost.seconds(4, 2, 2) == cost.seconds(4, 4, 0) == 3
    fast = PlannedRescaleCost(
        tensors=(tensor,), parallelism_of=ReplicaRule(),
        site=Site(topology=STAR, host_bytes_per_s=1e7), gpus_per_host=2,
    )  # fmt: skip
    assert fast.seconds(0, 4) == 1.0


def test_prices_that_were_asked_for_before_make_no_other_model() -> None:
    tensors = (Tensor(name="w", shape=(4,), dtype="U8"),)
    one, other = (
        PlannedRescaleCost(
            tensors=tensors, parallelism_of=ReplicaRule(), site=Site(topology=STAR, host_bytes_per_s=1.0)
        )
        for _ in range(2)
    )
    said = repr(one)
    one.seconds(0, 1)
    assert one == other
    assert repr(one) == said
    assert list(inspect.signature(PlannedRescaleCost).parameters)[3:] == ["gpus_per_host", "start_s"]


def test_bytes_are_on_each_cable_of_their_way() -> None:
    made = plan(vector(100, dp=2, hosts=(0, 0)), vector(100, dp=4, hosts=(0, 0, 3, 3)))
    loads, graph = link_bytes(made, STAR)
    assert sum(loads.values()) == 2 * 50
    assert len([node for node in graph.nodes if isinstance(node, int)]) == 4
    assert _copied_within_hosts(made) == {0: 25}
