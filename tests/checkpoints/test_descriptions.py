"""Descriptions of checkpoints: read as they were written; all else is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import MODELS, stored

from ddlsched.checkpoints import division
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.tensor_models import Optimiser, job_tensors
from ddlsched.checkpoints.tensors import Tensor
from ddlsched.errors import InputError

DESCRIPTIONS = [
    json.loads(
        Checkpoint(
            collection=TensorCollection(
                tensors=job_tensors(model, optimiser=Optimiser(sharding="zero1"))[:6],
                parallelism=StoredParallelism(tp=2),
            ),
            sha256={"a": "b"},
            model={"x": [1, None, 0.5]},
            paths={"a": ("b", 1)},
        ).text()
    )
    for model in MODELS
]
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.0,
    2**63,
    2**64,
    "",
    "first",
    "data",
    "1",
    [],
    [[]],
    {},
    {"tp": 1},
    float("nan"),
    "\ud800",
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container in a value with each of its keys."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    inner = [place for _, item in items if isinstance(item, dict | list) for place in places(item)]
    return [(value, key) for key, _ in items] + inner


def read(text: bytes) -> Checkpoint | str:
    """Return what a text describes, or why it cannot be used."""
    with fsspec.filesystem("memory").open("/descriptions/checkpoint.json", "wb") as file:
        file.write(text)
    try:
        return Checkpoint.read("memory://descriptions")
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_a_description_is_read_as_it_was_written(description: dict[str, Any]) -> None:
    found = read(json.dumps(description).encode())
    assert isinstance(found, Checkpoint)
    assert json.loads(found.text()) == description


LEAST = {
    "parallelism": {"tp": 1, "dp": 2},
    "stages": [],
    "allocation": {"devices": [4, 6], "hosts": [0, 1]},
    "files": ["a", "b"],
    "tensors": [{"name": "w", "shape": [2], "dtype": "U8"}],
}
"""What a description must have."""


def test_what_a_description_leaves_out_is_nothing() -> None:
    found = read(json.dumps(LEAST).encode())
    job = TensorCollection(
        tensors=(Tensor(name="w", shape=(2,), dtype="U8"),),
        parallelism=StoredParallelism(dp=2),
        allocation=StoredRegion(devices=(4, 6), hosts=(0, 1)),
    )
    assert found == Checkpoint(collection=job, files=("a", "b"))
    assert (found.iteration, found.collection.flat_multiple) == (0, 1)
    assert found.model == found.dataset == found.random == found.sha256 == found.xxh3 == found.paths == {}
    assert Checkpoint(collection=job).files == ("rank_00000.safetensors", "rank_00001.safetensors")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"more": 1}, ": Object contains unknown field `more`; expected a description of a checkpoint"),
        ({"version": 2}, ", field version: Invalid enum value 2; expected a description of a checkpoint"),
        ({"format": "x"}, ", field format: Invalid enum value 'x'; expected a description of a checkpoint"),
        ({"files": ["a"]}, ", field files: names 1 files; expected one a rank, 2"),
        ({"files": ["a", "b", "c"]}, ", field files: names 3 files; expected one a rank, 2"),
        ({"files": ["a", "a"]}, ", field files: names a file twice; expected one for each rank"),
        ({"files": ["a", "../b"]}, ", field files[1]: '../b' leaves the directory; expected a file in it"),
    ],
)
def test_a_description_that_cannot_be_is_refused_by_its_field(changed: dict[str, Any], said: str) -> None:
    assert read(json.dumps(LEAST | changed).encode()) == f"memory://descriptions/checkpoint.json{said}"


def test_a_description_has_a_line_a_field_and_a_line_a_tensor() -> None:
    job = TensorCollection(
        tensors=(Tensor(name="w", shape=(2,), dtype="U8"), Tensor(name="v", shape=(), dtype="I64")),
        parallelism=StoredParallelism(dp=2),
        allocation=StoredRegion(devices=(4, 6), hosts=(0, 1)),
    )
    checkpoint = Checkpoint(
        collection=job, files=("a", "b"), iteration=3, model={"a": [1, None]}, xxh3={"w": "00"}, paths={"w": ("x", 1)}
    )
    assert (
        checkpoint.text()
        == """{
  "format": "ddlsched-checkpoint",
  "version": 1,
  "parallelism": {"tp":1,"pp":1,"dp":2,"ep":1},
  "stages": [],
  "allocation": {"devices":[4,6],"hosts":[0,1]},
  "flat_multiple": 1,
  "iteration": 3,
  "model": {"a":[1,null]},
  "dataset": {},
  "random": {},
  "files": ["a","b"],
  "sha256": {},
  "xxh3": {"w":"00"},
  "paths": {"w":["x",1]},
  "tensors": [
    {"name":"w","shape":[2],"dtype":"U8","places":["first"],"cuts":[],"flat":"","kind":"values"},
    {"name":"v","shape":[],"dtype":"I64","places":["first"],"cuts":[],"flat":"","kind":"values"}
  ]
}
"""
    )


@pytest.mark.long
@given(st.data())
def test_any_change_of_a_description_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    description = json.loads(json.dumps(data.draw(st.sampled_from(DESCRIPTIONS))))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(description)))
        match data.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                container[key] = data.draw(st.sampled_from(ODD))
            case "remove":
                del container[key]
            case "add" if isinstance(container, dict):
                container["another"] = 1
    found = read(json.dumps(description, ensure_ascii=data.draw(st.booleans())).encode(errors="surrogatepass"))
    assert isinstance(found, Checkpoint) or "\n" not in found


def test_a_path_of_no_parts_is_refused_by_its_field() -> None:
    # Programs look at a path's first part: of weights it is "model".
    found = read(json.dumps(DESCRIPTIONS[0] | {"paths": {"a": []}}).encode())
    assert isinstance(found, str)
    assert "length >= 1" in found
    assert "paths" in found


@pytest.mark.parametrize(
    "text", [b"", b"[" * 100_000, b"\xff\xfe{\x00}\x00", b"[]", b"null", b'{"format": NaN}', b'"\xff"']
)
def test_anything_else_is_refused_in_one_line(text: bytes) -> None:
    found = read(text)
    assert isinstance(found, str)
    assert found.startswith("memory://descriptions/checkpoint.json")
    assert "\n" not in found


@pytest.mark.long
def test_a_plain_change_imports_no_pydantic(folder: Path) -> None:
    stored(folder / "a", TensorCollection(tensors=job_tensors(MODELS[0]), parallelism=StoredParallelism(tp=2)))
    program = """
import sys
from ddlsched.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    arguments = ["reshard", str(folder / "a"), str(folder / "b"), "--to", "pp=2"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert "pydantic" not in done.stderr.split()


def test_half_a_model_of_one_rank_is_no_division() -> None:
    assert [found.tp for found in division._degrees(2, True)] == [2]
    assert [found.tp for found in division._degrees(8, True)] == [4, 8]
