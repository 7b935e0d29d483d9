"""Checkpoints that cannot be used: one line that names tensor and file; nothing changed, nothing half done."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_jobs import GPT, contents, stored

from ddlsched.checkpoints import partial_folder
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.content import DIGESTS, Digest, content_hashes
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, CutPart, Tensor
from ddlsched.errors import InputError

RANK_1 = "rank_00001.safetensors"
QKV = "layers.2.attention.qkv.weight"


def a_job(**degrees: int) -> TensorCollection:
    tensors = job_tensors(GPT, dtype="F32", optimiser=Optimiser())
    return TensorCollection(tensors=tensors, parallelism=StoredParallelism(**degrees))


def refused(folder: Path, **arguments: Any) -> str:
    """Return why a checkpoint cannot be resharded; it stays as it is and leaves nothing that looks whole."""
    before = contents(folder / "a")
    with pytest.raises(InputError) as raised:
        reshard(folder / "a", folder / "b", **{"to": StoredParallelism(tp=4)} | arguments)
    assert contents(folder / "a") == before
    assert not (folder / "b").exists()
    assert not list(folder.glob(".b*/checkpoint.json"))
    return str(raised.value)


def rewritten(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut_short, "tensor optimiser.step: ends at byte"),
    "longer": (lengthened, "has 4 bytes behind its last tensor"),
    "empty": (lambda path: path.write_bytes(b""), "is truncated or no safetensors file (of 0 bytes)"),
    "text": (lambda path: path.write_text("hello, world"), "is truncated or no safetensors file (of 12 bytes)"),
    "a header of 8 bytes too many": (
        lambda path: path.write_bytes((10).to_bytes(8, "little") + b"{}"),
        "is truncated or no safetensors file (of 10 bytes)",
    ),
    "no JSON": (lambda path: path.write_bytes((8).to_bytes(8, "little") + b"{notjson"), "its header: is no JSON"),
    "a list": (lambda path: path.write_bytes((8).to_bytes(8, "little") + b"[1,2,3] "), "its header is no JSON object"),
    "missing": (Path.unlink, "cannot be read (No such file or directory)"),
    "a tensor missing": (
        lambda path: rewritten(path, lambda a: a.pop(QKV)),
        f"tensor {QKV} is missing; expected F32 [12, 8]",
    ),
    "a tensor too many": (
        lambda path: rewritten(path, lambda a: a.update(odd=np.ones(3))),
        "tensor odd is not rank 1's",
    ),
    "another shape": (
        lambda path: rewritten(path, lambda a: a.update({QKV: a[QKV].T.copy()})),
        f"tensor {QKV} is F32 [8, 12]; expected F32 [12, 8], as checkpoint.json says",
    ),
    "another dtype": (
        lambda path: rewritten(path, lambda a: a.update({QKV: np.zeros((12, 8), "f2")})),
        f"tensor {QKV} is F16 [12, 8]; expected F32 [12, 8]",
    ),
}  # fmt: skip


def test_a_faulty_copy_of_which_nothing_is_needed_is_refused_all_the_same(folder: Path) -> None:
    stored(folder / "a", a_job(dp=3))
    last = folder / "a" / "rank_00002.safetensors"
    cut_short(last)
    assert refused(folder, to=StoredParallelism()).startswith(f"{last}: ")


@pytest.mark.parametrize("fault", FILES)
def test_faulty_files_are_named_with_the_tensor(folder: Path, fault: str) -> None:
    stored(folder / "a", a_job(tp=2))
    change, message = FILES[fault]
    change(folder / "a" / RANK_1)
    text = refused(folder)
    assert text.startswith(f"{folder / 'a' / RANK_1}: ")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "expected dtype, shape and offsets that agree"),
        ({"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}, "expected dtype, shape and offsets that agree"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}, "expected dtype, shape and offsets that agree"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "begins at byte"),
        (3, "expected dtype, shape and offsets that agree"),
    ],
)
def test_headers_that_contradict_themselves(folder: Path, item: object, message: str) -> None:
    stored(folder / "a", a_job(tp=2))
    text = json.dumps({"w": item}).encode()
    (folder / "a" / RANK_1).write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    found = refused(folder)
    assert "tensor w: " in found
    assert message in found


@pytest.mark.long
@pytest.mark.parametrize("digest", DIGESTS)
def test_a_flipped_bit_is_found_by_its_hash(folder: Path, digest: Digest) -> None:
    job = a_job(tp=2)
    stored(folder / "a", job)
    reading = Reading.at(folder / "a")
    Checkpoint(collection=job, **{digest: content_hashes(reading, digest)}).write_description(folder / "a")
    path, entry = folder / "a" / RANK_1, reading.source(1, QKV).entry
    data = bytearray(path.read_bytes())
    data[entry.begin + 17] ^= 64
    path.write_bytes(data)
    text = refused(folder, verify=True, digest=digest)
    assert f"tensor {QKV} has content hash" in text
    assert "its contents are not those that were saved" in text
    assert not (folder / ".b.partial").exists()


@pytest.mark.long
def test_a_hash_of_a_tensor_that_is_not_there_is_a_fault(folder: Path) -> None:
    job = a_job(tp=2)
    stored(folder / "a", job)
    Checkpoint(collection=job, xxh3={"odd": "0" * 32}).write_description(folder / "a")
    assert "tensor odd has a content hash, but is not there" in refused(folder, verify=True)


DESCRIPTIONS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a path upwards": (
        lambda d: d["files"].__setitem__(1, "../rank.safetensors"),
        "field files[1]: '../rank.safetensors' leaves the directory",
    ),
    "an absolute path": (
        lambda d: d["files"].__setitem__(1, "/etc/passwd"),
        "field files[1]: '/etc/passwd' leaves the directory",
    ),
    "a file twice": (lambda d: d["files"].__setitem__(1, d["files"][0]), "field files: names a file twice"),
    "a file too few": (lambda d: d["files"].pop(), "field files: names 1 files; expected one a rank, 2"),
    "another format": (lambda d: d.update(format="zip"), "field format: Invalid enum value 'zip'"),
    "a later version": (lambda d: d.update(version=2), "field version: Invalid enum value 2"),
    "an unknown field": (lambda d: d.update(colour=2), "unknown field `colour`"),
    "no tensors": (lambda d: d.pop("tensors"), "missing required field `tensors`"),
    "an odd dtype": (lambda d: d["tensors"][0].update(dtype="F31"), "dtype 'F31'; expected one of"),
    "a tensor twice": (lambda d: d["tensors"].append(d["tensors"][0]), "tensor embedding.word.weight: is there twice"),
    "no such dimension": (lambda d: d["tensors"][0]["cuts"][0].update(dim=7), "cut on dimension 7; expected one of 2"),
    "a text for a number": (lambda d: d["tensors"][0].update(shape=["many"]), "field tensors[0].shape[0]"),
    "another shape": (
        lambda d: d["tensors"][0].update(shape=[900, 16]),
        "rank_00000.safetensors: tensor embedding.word.weight is",
    ),
    "a negative degree": (lambda d: d["parallelism"].update(tp=-2), "tp is -2; expected a whole number"),
    "stages too few": (lambda d: d.update(stages=[0]), "the stage map has 1 layers; expected the model's 4"),
    "no such stage": (lambda d: d.update(stages=[0, 0, 0, 3]), "has stage 3; expected stages from 0 to 0"),
    "a device twice": (lambda d: d["allocation"].update(devices=[1, 1]), "a device has two ranks"),
}  # fmt: skip


@pytest.mark.parametrize("fault", DESCRIPTIONS)
def test_faulty_descriptions_are_named_with_the_field(folder: Path, fault: str) -> None:
    stored(folder / "a", a_job(tp=2))
    change, message = DESCRIPTIONS[fault]
    path = folder / "a" / "checkpoint.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))
    text = refused(folder)
    assert text.startswith(f"{folder / 'a'}/")
    assert message in text


def test_no_description_is_no_checkpoint(folder: Path) -> None:
    stored(folder / "a", a_job(tp=2))
    (folder / "a" / "checkpoint.json").write_text('{"format": ')
    assert "checkpoint.json: Input data was truncated; expected a description" in refused(folder)
    (folder / "a" / "checkpoint.json").unlink()
    assert "checkpoint.json: cannot be read (No such file" in refused(folder)


def test_a_link_out_of_the_directory_is_refused(folder: Path) -> None:
    stored(folder / "a", a_job(tp=2))
    shutil.move(folder / "a" / RANK_1, folder / "elsewhere.safetensors")
    (folder / "a" / RANK_1).symlink_to(folder / "elsewhere.safetensors")
    assert "field files[1]: 'rank_00001.safetensors' leaves the directory" in refused(folder)


def test_a_destination_that_is_there_or_cannot_be_is_refused(folder: Path) -> None:
    stored(folder / "a", a_job(tp=2))
    for destination, message in {
        folder / "a": "exists; expected the name of a new folder",
        folder / "a" / "b": "is in the source",
        folder / "no" / "b": "there is no folder",
        "http://host/b": "is no local folder",
    }.items():
        with pytest.raises(InputError, match=message):
            reshard(folder / "a", destination, to=StoredParallelism())


def test_a_parallelism_that_does_not_divide_is_refused(folder: Path) -> None:
    stored(folder / "a", a_job(tp=2))
    assert refused(folder, to=StoredParallelism(tp=3)).startswith(
        "tensor layers.0.attention.qkv.weight: 4 blocks of 6 rows"
    )
    assert refused(folder, to=StoredParallelism(pp=5)) == "pp is 5; expected at most the number of layers, 4"


def test_no_space_is_said_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", a_job(tp=2))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 10, 10))
    assert "has 0.0 MB free of" in refused(folder)
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.long
def test_no_space_while_writing_names_the_tensor_and_can_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", a_job(tp=2))

    pwritev = os.pwritev

    def full(descriptor: int, parts: list[memoryview], offset: int) -> int:
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(descriptor, parts, offset)

    with monkeypatch.context() as patched:
        patched.setattr(partial_folder.os, "pwritev", full)
        text = refused(folder)
    assert "rank_0000" in text
    assert "tensor " in text
    assert "cannot be written (no space left)" in text
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)


def test_tensors_cuts_and_models_that_cannot_be() -> None:
    for make, message in {
        lambda: Tensor(name="w", shape=(4,), dtype="F32", cuts=(Cut(dim=0, parts=(CutPart(3),)),)): "parts of 3 rows",
        lambda: Tensor(name="w", shape=(4,), dtype="F32", cuts=(Cut(dim=0, axis="data"),), flat="a"): "both cut",
        lambda: Tensor(name="w", shape=(4,), dtype="F32", places=()): "is in no place",
        lambda: Tensor(name="w", shape=(-4,), dtype="F32"): "expected sizes from 0",
        lambda: Cut(dim=-1): "negative number",
        lambda: Cut(dim=0, parts=(CutPart(5, 2),)): "5 rows do not divide into 2 units",
        lambda: Cut(dim=0, parts=(CutPart(5),), pad_multiple=2): "both parts and padding",
        lambda: StoredRegion(devices=(0, 1), hosts=(0,)): "expected a host for each device",
        lambda: StoredRegion(devices=(-1,), hosts=(0,)): "negative number",
        lambda: StoredRegion.packed(2, 0): "gpus_per_host is 0",
        lambda: TensorCollection(tensors=(), parallelism=StoredParallelism(), allocation=StoredRegion.packed(3)): "3 devices",  # noqa: E501
        lambda: Tensor(name="w", shape=(4, 4), dtype="F32", cuts=(Cut(dim=0), Cut(dim=1))): "cut twice over tensor",
        lambda: StoredTransformer(num_layers=1, hidden=9, heads=2, vocabulary=4): "hidden 9 does not divide by heads 2",
        lambda: StoredTransformer(num_layers=1, hidden=8, heads=4, key_value_heads=3, vocabulary=4): "key-value heads 3",  # noqa: E501
        lambda: StoredTransformer(num_layers=0, hidden=8, heads=4, vocabulary=4): "num_layers is 0",
        lambda: StoredTransformer(num_layers=2**31, hidden=8, heads=4, vocabulary=4): "from 1 to 9999",
        lambda: Optimiser(sharding="zero9"): "sharding is 'zero9'",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=message):
            make()
