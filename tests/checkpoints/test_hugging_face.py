"""Hugging Face directories, read and written; the other side is the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from safetensors.numpy import load_file, save_file
from small_jobs import assert_holds

from ddlsched.checkpoints import hugging_face
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.content import Digest
from ddlsched.checkpoints.distributed_reading import read_distributed
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.file_forms import FileForm
from ddlsched.checkpoints.hugging_face import HUGGING_FACE, read_hugging_face, weights_of
from ddlsched.checkpoints.resharding import reshard
from ddlsched.errors import InputError

INDEX = "model.safetensors.index.json"
HASHES = "ddlsched.hashes.json"
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
CONFIG = b'{"model_type": "llama"}'


def llama() -> dict[str, np.ndarray]:
    """Return the tensors of two layers, as float32."""
    shapes = {"model.embed_tokens.weight": (37, 8), "lm_head.weight": (37, 8), "model.norm.weight": (8,)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (8, 8) for part in "qkvo"}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (11, 8) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (8, 11), f"{name}.input_layernorm.weight": (8,)}
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype("<f4") for name, shape in shapes.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a directory of two files, as ``save_pretrained`` writes it."""
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = llama()
    where = {name: FILES[number % 2] for number, name in enumerate(tensors)}
    for file in FILES:
        save_file({n: a for n, a in tensors.items() if where[n] == file}, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": where}))
    (folder / "config.json").write_bytes(CONFIG)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("form", [HUGGING_FACE, TORCH_FILES])
@pytest.mark.parametrize("digest", ["xxh3", "sha256"])
def test_item_14_hashes_stand_beside_what_is_written_and_verify_finds_later_damage(
    model: Path, tmp_path: Path, form: FileForm, digest: Digest
) -> None:
    def again(name: str, *, verify: bool = True) -> None:
        source = read_distributed(new) if form is TORCH_FILES else read_hugging_face(new)
        reshard(source, tmp_path / name, to=StoredParallelism(tp=2), verify=verify, digest=digest)

    new = tmp_path / "new"
    reshard(read_hugging_face(model), new, to=StoredParallelism(), form=form, verify=True, digest=digest)
    again("sound")
    file = max(new.iterdir(), key=lambda path: path.stat().st_size)
    file.write_bytes(torn(file.read_bytes()))
    again("unchecked", verify=False)
    with pytest.raises(InputError, match="lm_head"):
        again("damaged")


def torn(archive: bytes) -> bytes:
    """Return a file with another number at the end of a tensor."""
    values = llama()["lm_head.weight"].tobytes()
    assert archive.count(values) == 1
    return archive.replace(values, values[:-4] + bytes(4))


def test_item_14_hashes_that_are_none_are_refused(model: Path) -> None:
    (model / "ddlsched.hashes.json").write_text('{"md5": {}}')
    with pytest.raises(InputError, match=r"ddlsched\.hashes\.json: .*; expected hashes by tensor, or no such file"):
        read_hugging_face(model)


def loaded(folder: Path) -> dict[str, np.ndarray]:
    """Return all tensors, each from the file that the index names."""
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    files = {file: load_file(folder / file) for file in set(where.values())}
    assert sum(map(len, files.values())) == len(where)
    return {name: files[file][name] for name, file in where.items()}


@pytest.mark.long
def test_a_model_is_divided_by_its_names_and_comes_back(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reshard(read_hugging_face(model), tmp_path / "ours", to=StoredParallelism(tp=3, pp=2), verify=True)
    assert_holds(tmp_path / "ours", llama() | {"config.json": np.frombuffer(CONFIG, "u1")})
    arrays = Checkpoint.read(tmp_path / "ours").collection.arrays
    assert arrays[0]["model.layers.0.mlp.gate_proj.weight"].shape == (4, 8)
    assert arrays[5]["model.layers.1.mlp.down_proj.weight"].shape == (8, 3)
    assert "model.layers.1.mlp.down_proj.weight" not in arrays[0]
    assert [rank for rank in range(6) if "lm_head.weight" in arrays[rank]] == [3, 4, 5]
    monkeypatch.setattr(hugging_face, "_FILE_BYTES", 2000)
    reshard(tmp_path / "ours", tmp_path / "back", to=StoredParallelism(), form=HUGGING_FACE, verify=True)
    back = loaded(tmp_path / "back")
    assert back.keys() == llama().keys()
    for name, expected in llama().items():
        np.testing.assert_array_equal(back[name], expected)
    assert (tmp_path / "back" / "config.json").read_bytes() == CONFIG
    assert {path.name for path in (tmp_path / "back").iterdir()} == {
        INDEX, HASHES, "config.json", *(f"model-0000{number + 1}-of-00004.safetensors" for number in range(4)),
    }  # fmt: skip


def test_a_small_model_is_one_file_without_an_index(model: Path, tmp_path: Path) -> None:
    ended = run("reshard", model, tmp_path / "new", "--format", "huggingface", "--verify")
    assert ended.exit_code == 0, ended.stderr
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "config.json", "model.safetensors", HASHES,
    }  # fmt: skip
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert all(np.array_equal(found[name], expected) for name, expected in llama().items())
    assert read_hugging_face(tmp_path / "new").job.tensors == read_hugging_face(model).job.tensors


@pytest.mark.long
def test_of_a_training_checkpoint_the_weights_are_kept(tmp_path: Path) -> None:
    source = Path(__file__).parent / "fsdp2"
    ended = run("reshard", source, tmp_path / "new", "--format", "huggingface", "--verify")
    assert "left out what huggingface has no place for: 14 tensors" in ended.stderr
    assert load_file(tmp_path / "new" / "model.safetensors").keys() == {"layers.0.weight"}
    assert weights_of(read_distributed(source)).job.parallelism == StoredParallelism(tp=2, dp=2)


def changed(model: Path, **where: str | None) -> None:
    """Change the index: the file of a tensor, or that there is none."""
    index = json.loads((model / INDEX).read_text())
    name = "model.norm.weight"
    index["weight_map"] |= {name.replace("norm", key) if key != "norm" else name: file for key, file in where.items()}
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file is not None}
    (model / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"norm": None}, r"model-00001-of-00002\.safetensors: tensor model\.norm\.weight is not listed there"),
        ({"more": FILES[1]}, r"model-00002-of-00002\.safetensors: tensor model\.more\.weight is missing"),
        (
            {"norm": "../a.safetensors"},
            r"index\.json, field weight_map, model\.norm\.weight: '\.\./a\.safetensors' leav",
        ),
        ({"norm": "no.safetensors"}, r"tensor model\.norm\.weight is not listed there|no\.safetensors: cannot be read"),
    ],
)
def test_an_index_that_contradicts_the_files_is_refused(
    where: dict[str, str | None], message: str, model: Path
) -> None:
    changed(model, **where)
    with pytest.raises(InputError, match=message):
        read_hugging_face(model)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_an_index_that_is_none_is_refused(content: str, model: Path) -> None:
    (model / INDEX).write_text(content)
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json"):
        read_hugging_face(model)


def test_ranks_are_refused_where_there_are_none(model: Path, tmp_path: Path) -> None:
    ended = run("reshard", model, tmp_path / "new", "--to", "tp=2", "--lost", "1")
    assert ended.exit_code == 2
    assert "has no files of ranks, which --lost names" in ended.stderr


def cached(model: Path, cache: Path) -> Path:
    """Return a snapshot of a model as Hugging Face's cache has it: links to files that are named by their hashes."""
    blobs, snapshot = cache / "models--a--b" / "blobs", cache / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        (blobs / f"{number:064x}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / f"{number:064x}")
    return snapshot


def test_a_snapshot_of_the_cache_is_read_through_its_links(model: Path, tmp_path: Path) -> None:
    snapshot = cached(model, tmp_path / "cache")
    done = run("reshard", snapshot, tmp_path / "b", "--to", "tp=2", "--verify")
    assert done.exit_code == 0, done.stderr
    assert_holds(tmp_path / "b", {**llama(), "config.json": np.frombuffer(CONFIG, "u1")})


def test_a_link_out_of_the_cache_is_refused(model: Path, tmp_path: Path) -> None:
    snapshot = cached(model, tmp_path / "cache")
    (tmp_path / FILES[0]).write_bytes((model / FILES[0]).read_bytes())
    (snapshot / FILES[0]).unlink()
    (snapshot / FILES[0]).symlink_to(tmp_path / FILES[0])
    with pytest.raises(InputError, match="leaves the directory"):
        read_hugging_face(snapshot)
