"""``ddlsched checkpoint make``, and ``reshard`` of PyTorch's checkpoints, as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run
from small_jobs import stored

from ddlsched.checkpoints import checkpoint_command, making
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer
from ddlsched.checkpoints.tensors import Cut, CutPart, Tensor
from ddlsched.errors import InputError

SMALL = ("--layers", 2, "--hidden", 16, "--heads", 4, "--vocabulary", 50, "--positions", 8)
STORED = Path(__file__).parent / "distributed"


@pytest.mark.long
def test_what_is_made_can_be_resharded(tmp_path: Path) -> None:
    made = run("checkpoint", "make", tmp_path / "a", *SMALL, "--sharding", "zero1", "--json")
    assert made.exit_code == 0
    found = json.loads(made.stdout)
    assert (found["files"], found["parameters"]) == (4, 7520)
    assert found["bytes"] == sum(file.stat().st_size for file in (tmp_path / "a").glob("*.safetensors"))
    assert run("reshard", tmp_path / "a", tmp_path / "b", "--to", "pp=2", "--verify").exit_code == 0
    plain = run("checkpoint", "make", tmp_path / "c", *SMALL, "--parallelism", "tp=2", "--dtype", "f32", "--gated")
    assert plain.stdout.endswith("(tp=2,pp=1,dp=1)\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parallelism", "tp=3"), "do not divide among 3 tensor-parallel ranks"),
        (("--parallelism", "tp=x"), "parameter tp: 'x' is not a whole number"),
        (("--heads", 3), "hidden 16 does not divide by heads 3"),
        (("--dtype", "int8"), "int8"),
        (("--parallelism", "pp=3"), "pp is 3; expected at most the number of layers, 2"),
    ],
)
def test_what_cannot_be_made_ends_with_one_line(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    ended = run("checkpoint", "make", tmp_path / "a", *SMALL, *arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert not (tmp_path / "a" / "checkpoint.json").exists()


@pytest.mark.long
def test_pytorch_checkpoints_are_read_and_written_without_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for number, (source, form) in enumerate([(STORED, "torch"), (tmp_path / "0", "safetensors")]):
        ended = run("reshard", source, tmp_path / str(number), "--to", "tp=2", "--format", form, "--verify")
        assert ended.exit_code == 0, ended.stderr
    assert Checkpoint.read(tmp_path / "1").iteration == 12


def test_a_cut_says_its_parts_where_there_are_several() -> None:
    cuts = [Cut(dim=1, axis="tensor", parts=(CutPart(8),) * count) for count in (1, 2)]
    assert [*map(checkpoint_command._cut, cuts)] == ["dimension 1 over tensor", "dimension 1 over tensor in 2 parts"]


@pytest.mark.parametrize(
    ("flags", "model", "given"),
    [
        ((), {}, {}),
        (
            ("--layers", 1, "--hidden", 8, "--heads", 2, "--vocabulary", 9, "--positions", 0, "--key-value-heads", 1,
             "--experts", 2, "--gated", "--untied", "--dtype", "f16", "--sharding", "fsdp", "--iteration", 3,
             "--seed", 4, "--parallelism", "ep=2,dp=2"),
            {"num_layers": 1, "hidden": 8, "heads": 2, "vocabulary": 9, "positions": 0, "key_value_heads": 1,
             "experts": 2, "gated": True, "tied": False},
            {"dtype": "F16", "optimiser": Optimiser(sharding="fsdp"), "iteration": 3, "seed": 4,
             "parallelism": StoredParallelism(ep=2, dp=2)},
        ),
    ],
)  # fmt: skip
def test_what_is_made_is_what_was_asked_for(
    flags: tuple[object, ...], model: dict[str, Any], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def make_checkpoint(directory: Path, model: Any, parallelism: Any, **settings: Any) -> None:
        asked.update(settings, directory=directory, model=model, parallelism=parallelism)
        raise InputError("enough")

    monkeypatch.setattr(making, "make_checkpoint", make_checkpoint)
    assert run("checkpoint", "make", "somewhere", *flags).stderr == "ddlsched: error: enough\n"
    assert asked.pop("watch")
    sizes = {"num_layers": 4, "hidden": 256, "heads": 8, "vocabulary": 50257, "positions": 1024}
    assert (
        asked
        == {
            "directory": Path("somewhere"),
            "model": StoredTransformer(**sizes | {"tied": True} | model),
            "parallelism": StoredParallelism(tp=2, dp=2),
            "dtype": "BF16",
            "optimiser": Optimiser(sharding="none"),
            "iteration": 100,
            "seed": 0,
        }
        | given
    )


def test_what_was_made_is_said_in_a_line_or_as_json(folder: Path) -> None:
    flags = ("--layers", 1, "--hidden", 4, "--heads", 2, "--vocabulary", 5, "--positions", 3, "--parallelism", "dp=2")
    parameters = 5 * 4 + 3 * 4 + (2 + 2) * 4 + 12 * 4 + 12 + 4 * 4 + 4 + 16 * 4 + 16 + 4 * 16 + 4 + 2 * 4
    said = run("checkpoint", "make", folder / "a", *flags).stdout
    size = sum((folder / "a" / f"rank_0000{rank}.safetensors").stat().st_size for rank in range(2))
    assert said == (
        f"{folder / 'a'}: {parameters:,} parameters, 65 tensors, 2 files of {size:,} bytes together (tp=1,pp=1,dp=2)\n"
    )  # a weight, its master weight and two moments each of 16, and the step
    text = run("checkpoint", "make", folder / "b", *flags, "--json").stdout
    numbers = {"parameters": parameters, "tensors": 65, "files": 2, "bytes": size}
    assert text == json.dumps({"directory": str(folder / "b")} | numbers, indent=2) + "\n"
    refused(run("checkpoint", "make", folder / "b", *flags), "is not empty")


TWO = TensorCollection(
    tensors=(
        Tensor(name="w", shape=(40, 300), dtype="F32", cuts=(Cut(dim=0),)),
        Tensor(name="layers.0.a", shape=(2,), dtype="U8", places=(0,)),
        Tensor(name="layers.1.a", shape=(2,), dtype="U8", places=(1,)),
        Tensor(name="optimiser.step", shape=(), dtype="I64"),
    ),
    parallelism=StoredParallelism(tp=2),
    stages=(0, 0),
    allocation=StoredRegion(devices=(3, 5), hosts=(0, 1)),
)


def test_inspect_shows_all_that_is_known_of_a_checkpoint(folder: Path) -> None:
    stored(
        folder / "a", TWO, iteration=9, dataset={"samples": 36}, xxh3={"w": "0", "layers.0.a": "1"}, sha256={"w": ""}
    )
    sizes = [(folder / "a" / f"rank_0000{rank}.safetensors").stat().st_size for rank in range(2)]
    assert (
        run("checkpoint", "inspect", folder / "a").stdout
        == f"""\
{folder / "a"}: tp=2,pp=1,dp=1, iteration 9; headers checked, contents not (--verify)
  4 tensors (2 with a content hash) of 0.048 MB; {sum(sizes) / 1e6:.3f} MB in 2 files
  stage 0: layers 0-1
  dataset: {{"samples": 36}}

  tensor          number  dtype  shape     replicas  divided
  w                    1  F32    40 x 300         1  dimension 0 over tensor
  layers.*.a           2  U8     2                2  whole
  optimiser.step       1  I64                     2  whole

  file                    tensor  data  stage  device  host  arrays     MB
  rank_00000.safetensors       0     0      0       3     0       4  {sizes[0] / 1e6:.3f}
  rank_00001.safetensors       1     0      0       5     1       4  {sizes[1] / 1e6:.3f}
"""
    )
    kinds = [
        ("w", 1, "F32", [40, 300], 1, "dimension 0 over tensor"),
        ("layers.*.a", 2, "U8", [2], 2, "whole"),
        ("optimiser.step", 1, "I64", [], 2, "whole"),
    ]
    names = ("name", "count", "dtype", "shape", "replicas", "divided")
    files = [
        {"file": f"rank_0000{rank}.safetensors", "arrays": 4, "bytes": sizes[rank], "rank": rank, "tensor": rank,
         "expert": 0, "data": 0, "stage": 0, "device": 3 + 2 * rank, "host": rank}
        for rank in range(2)
    ]  # fmt: skip
    expected = {
        "parallelism": "tp=2,pp=1,dp=1",
        "stages": [0, 0],
        "iteration": 9,
        "whole_tensors": 4,
        "whole_bytes": 48_012,
        "stored_bytes": sum(sizes),
        "hashed_tensors": 2,
        "model": {},
        "dataset": {"samples": 36},
        "random": {},
        "tensors": [dict(zip(names, kind, strict=True)) for kind in kinds],
        "files": files,
    }
    assert run("checkpoint", "inspect", folder / "a", "--json").stdout == json.dumps(expected, indent=2) + "\n"


def test_inspect_verifies_only_if_asked_to_and_looks_at_every_header(folder: Path) -> None:
    job = TensorCollection(tensors=TWO.tensors[3:], parallelism=StoredParallelism(tp=2))
    stored(folder / "a", job)
    path = folder / "a" / "rank_00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "\n  no layers\n\n" in run("checkpoint", "inspect", folder / "a").stdout
    differs = f"{path}: tensor optimiser.step differs from its replica in rank_00000.safetensors"
    refused(run("checkpoint", "inspect", folder / "a", "--verify"), differs)
    content[-1] ^= 1
    path.write_bytes(content)
    done = run("checkpoint", "inspect", folder / "a", "--verify")
    assert "iteration 0; contents and replicas checked\n  1 tensors (0 with a content hash)" in done.stdout
    path.write_bytes(content[:-1])
    refused(run("checkpoint", "inspect", folder / "a"), f"{path}: ")


def test_checkpoint_alone_says_what_it_can_do() -> None:
    told = run("checkpoint")
    assert "Look into partitioned checkpoints" in told.stdout + told.stderr
