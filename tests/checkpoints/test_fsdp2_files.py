"""A PyTorch distributed checkpoint with optimiser state, read and written without PyTorch.

``fsdp2/`` was written by PyTorch 2.13: a matrix of 10 x 6 under tensor parallelism (2) with FSDP2 (2), AdamW's state of
it, and the settings of its group as Python objects.
"""

from __future__ import annotations

import errno
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ddlsched.checkpoints.arrays import whole_tensor
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.distributed_reading import read_distributed, read_metadata
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.division import Box, cuts_by_name, found_division, place_by_name
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.partial_folder import OpenFiles
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensors import Cut, dense_layout
from ddlsched.checkpoints.torch_archives import archive_of

STORED = Path(__file__).parent / "fsdp2"
WEIGHT = "model.layers.0.weight"
GROUP = "optim.param_groups.layers.0.weight."


def objects(folder: Path) -> dict[str, object]:
    """Return the numbers that are saved as Python objects, by name."""
    place = location_of(folder)
    found = {}
    for name, held in read_metadata(place).objects.items():
        with zipfile.ZipFile(io.BytesIO(bytes(place.read(held.file, held.low, held.high)))) as archive:
            found[name] = pickle.loads(archive.read("archive/data.pkl"))
    return found


@pytest.mark.long
def test_shards_are_found_and_settings_kept_through_a_change(tmp_path: Path) -> None:
    reading = read_distributed(STORED)
    assert reading.described.collection.parallelism == StoredParallelism(tp=2, dp=2)
    assert [cut.axis for cut in reading.described.collection.by_name[WEIGHT].cuts] == ["tensor", "data"]
    reshard(reading, tmp_path / "ours", to=StoredParallelism(tp=3), verify=True)
    reshard(tmp_path / "ours", tmp_path / "back", to=StoredParallelism(dp=4), form=TORCH_FILES, verify=True)
    assert objects(tmp_path / "back") == objects(STORED)
    assert objects(STORED)[GROUP + "lr"] == 0.25
    before, after = read_metadata(location_of(STORED)), read_metadata(location_of(tmp_path / "back"))
    assert after.paths == before.paths
    assert {chunk.extent for chunk in after.tensors[WEIGHT].chunks} == {(3, 6), (1, 6)}
    ours = Checkpoint.read(tmp_path / "ours")
    assert ours.iteration == 1
    momentum = whole_tensor(ours, location_of(tmp_path / "ours"), "optim.state.layers.0.weight.exp_avg")
    np.testing.assert_array_equal(momentum, np.ones((10, 6)))


@pytest.mark.long
def test_replicas_share_the_chunks_that_are_written(tmp_path: Path) -> None:
    reshard(read_distributed(STORED), tmp_path / "new", to=StoredParallelism(dp=2, tp=2), form=TORCH_FILES)
    files = {path.name: path.stat().st_size for path in (tmp_path / "new").glob("*.distcp")}
    assert len(files) == 4
    assert max(files.values()) < 2 * min(files.values())


def chunks(shape: tuple[int, ...], cuts: tuple[Cut, ...], *degrees: int) -> tuple[tuple[int, ...], frozenset[Box]]:
    places = [()] if not degrees else [((i, degrees[0]),) for i in range(degrees[0])]
    for degree in degrees[1:]:
        places = [(*place, (i, degree)) for place in places for i in range(degree)]
    pieces = [piece for place in places for piece in dense_layout(shape, cuts, place).pieces]
    return shape, frozenset(Box(piece.start, piece.extent) for piece in pieces)


def test_divisions_are_found_from_chunks_and_else_from_names() -> None:
    rows = (Cut(dim=0, axis="tensor", uneven=True), Cut(dim=0, axis="data", uneven=True))
    columns = (Cut(dim=1, axis="tensor", uneven=True), Cut(dim=0, axis="data", uneven=True))
    kinds = {
        "wq": chunks((13, 9), rows, 2, 3), "wo": chunks((13, 9), columns, 2, 3), "norm": chunks((13,), rows[1:], 3),
        "step": chunks((), ()), "odd": ((4, 4), frozenset({Box((0, 0), (1, 4)), Box((1, 0), (3, 4))})),
        "a.w2.weight": ((6, 6), frozenset({Box((0, 0), (1, 6)), Box((1, 0), (5, 6))})),
    }  # fmt: skip
    degrees, cuts = found_division(kinds)
    assert degrees == StoredParallelism(tp=2, dp=3)
    assert cuts == {
        "wq": rows, "wo": columns, "norm": rows[1:], "step": (), "odd": (), "a.w2.weight": columns[:1],
    }  # fmt: skip
    whole = {name: chunks((6, 6), ()) for name in ("h.1.q_proj.weight", "h.1.o_proj.weight", "h.1.router.weight")}
    degrees, cuts = found_division(whole)
    assert degrees == StoredParallelism()
    assert list(cuts.values()) == [rows[:1], columns[:1], ()]


def test_a_tensor_of_one_row_is_on_the_first_rank() -> None:
    rows = (Cut(dim=0, axis="data", uneven=True),)
    assert [len(dense_layout((1, 4), rows, ((rank, 2),)).pieces) for rank in range(2)] == [1, 0]


@pytest.mark.parametrize(
    ("name", "dims"),
    [("c_attn", [1, 0]), ("c_fc", [1, 0]), ("c_proj", [0, None]), ("q_proj", [0, 0]), ("o_proj", [1, None])],
)
def test_matrices_of_known_models_are_cut_as_their_names_say_and_their_biases_with_them(
    name: str, dims: list[int | None]
) -> None:
    """GPT-2's own matrices are transposed."""
    cuts = [cuts_by_name(f"h.1.{name}", shape) for shape in ((12, 12), (12,))]
    assert [cut[0].dim if cut else None for cut in cuts] == dims


def test_layers_are_known_by_their_names() -> None:
    names = ["model.layers.7.mlp.w1", "transformer.h.0.ln_1.bias", "model.norm.weight", "model.embed_tokens.weight"]
    assert [place_by_name(name) for name in names] == [(7,), (0,), ("last",), ("first",)]


def test_archives_larger_than_4_gib_say_so() -> None:
    before, behind = archive_of("F32", (2**30 + 5,))
    num_bytes = 4 * (2**30 + 5)

    class Sparse(io.RawIOBase):
        at = 0

        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return True

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = offset + (0, self.at, len(before) + num_bytes + len(behind))[whence]
            return self.at

        def read(self, size: int = -1) -> bytes:
            low, self.at = self.at, self.at + size if size >= 0 else len(before) + num_bytes + len(behind)
            whole = before[low : self.at]
            end = len(before) + num_bytes
            return whole + behind[max(low - end, 0) : max(self.at - end, 0)]

    with zipfile.ZipFile(Sparse()) as archive:
        found = archive.getinfo("archive/data/0")
        assert (found.file_size, len(before) % 64) == (num_bytes, 0)
        assert archive.read("archive/byteorder") == b"little"


@pytest.mark.long
def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(OpenFiles, "flush", full)
        with pytest.raises(OSError, match="No space left"):
            reshard(read_distributed(STORED), tmp_path / "new", to=StoredParallelism(dp=3), form=TORCH_FILES)
    assert not (tmp_path / "new").exists()
    reshard(read_distributed(STORED), tmp_path / "new", to=StoredParallelism(dp=3), form=TORCH_FILES, verify=True)
    assert objects(tmp_path / "new") == objects(STORED)
