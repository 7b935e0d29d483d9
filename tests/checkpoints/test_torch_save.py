"""Files of ``torch.save`` as the source of a change; the archives are written by hand, as PyTorch writes them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import refused, run
from small_jobs import assert_holds

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.plain_pickles import Name, Persistent, PickledCall, pickled

ARRAYS = {
    "model.wq.weight": np.arange(48, dtype="<f4").reshape(8, 6),
    "model.norm.weight": np.ones(6, dtype="<f2"),
    "optimizer.state.0.exp_avg": np.arange(48, dtype="<f4")[::-1].reshape(8, 6).copy(),
}
STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage"}


def tensor(number: int, array: np.ndarray, offset: int = 0) -> PickledCall:
    storage = Persistent(("storage", Name("torch", STORAGES[array.dtype.name]), str(number), "cpu", array.size))
    strides = tuple(stride // array.itemsize for stride in array.strides)
    hooks = PickledCall(Name("collections", "OrderedDict"), ())
    return PickledCall(
        Name("torch._utils", "_rebuild_tensor_v2"), (storage, offset, array.shape, strides, False, hooks)
    )


def saved(file: Path, state: object) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("state/data.pkl", pickled(state))
        archive.writestr("state/byteorder", b"little")
        for number, array in enumerate(ARRAYS.values()):
            archive.writestr(f"state/data/{number}", array.tobytes())
    return file


def state() -> dict[str, object]:
    query, norm, moment = (tensor(number, array) for number, array in enumerate(ARRAYS.values()))
    parameter = PickledCall(
        Name("torch._utils", "_rebuild_parameter"), (norm, True, PickledCall(Name("collections", "OrderedDict"), ()))
    )
    return {
        "model": {"wq.weight": query, "norm.weight": parameter},
        "optimizer": {
            "state": {0: {"exp_avg": moment, "step": 7}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95)}],
        },
    }


def test_item_17_a_file_of_torch_save_is_divided(tmp_path: Path) -> None:
    file = saved(tmp_path / "model.pt", state())
    done = run("reshard", file, tmp_path / "b", "--to", "tp=2", "--verify")
    assert done.exit_code == 0, done.stderr
    assert "left out what safetensors has no place for: 4 tensors, objects, files or other values" in done.stderr
    assert f"no xxh3 hash of 3 tensors in {file}: damage that they have already is not found" in done.stderr
    assert_holds(tmp_path / "b", ARRAYS)
    found = Checkpoint.read(tmp_path / "b")
    assert found.paths["optimizer.state.0.exp_avg"] == ("optimizer", "state", 0, "exp_avg")
    assert found.collection.arrays[0]["model.wq.weight"].shape == (4, 6)


def test_a_view_is_read_from_its_place_in_the_storage(tmp_path: Path) -> None:
    whole = ARRAYS["model.wq.weight"]
    file = saved(tmp_path / "model.pt", {"column": tensor(0, whole[2:, 1], offset=13), "whole": tensor(0, whole)})
    assert run("reshard", file, tmp_path / "b").exit_code == 0
    assert_holds(tmp_path / "b", {"column": whole[2:, 1], "whole": whole})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"epoch": 3}, "holds no tensor"),
        ({"model": tensor(0, ARRAYS["model.wq.weight"], offset=1)}, "has 192 bytes; expected 48 elements of F32"),
        ({"model": tensor(9, ARRAYS["model.wq.weight"])}, "is no archive of a tensor"),
        ({"model": PickledCall(Name("os", "system"), ("true",))}, "os.system is no part of the format"),
        (
            {"a.b": tensor(0, ARRAYS["model.wq.weight"]), "a": {"b": tensor(0, ARRAYS["model.wq.weight"])}},
            "two tensors",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, state: object, message: str) -> None:
    refused(run("reshard", saved(tmp_path / "model.pt", state), tmp_path / "b"), message)


def test_a_file_that_is_no_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"no archive")
    refused(run("reshard", tmp_path / "model.pt", tmp_path / "b"), "is no archive of a tensor")
