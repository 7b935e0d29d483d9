"""Small files that would take all memory or time: refused in one line, at once."""

from __future__ import annotations

import pickle
import shutil
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import run

from ddlsched.checkpoints import torch_archives
from ddlsched.checkpoints.formats import foreign_reading
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.plain_pickles import shape_of, unpickled
from ddlsched.checkpoints.torch_archives import StoredChunk, chunk_entry
from ddlsched.errors import InputError

SAVED = Path(__file__).parent / "distributed"
MOST_BYTES = 50_000_000
MOST_S = 5.0
ROUNDS = 2500


@contextmanager
def cheaply() -> Iterator[None]:
    """Assert that what is done takes little memory and time."""
    tracemalloc.start()
    begin_s = time.monotonic()
    try:
        yield
        assert time.monotonic() - begin_s < MOST_S
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def doubled(begin: bytes, again: bytes) -> bytes:
    """Return a pickle whose value is made of the one before, twice, again and again."""
    rounds = (
        pickle.LONG_BINPUT
        + n.to_bytes(4, "little")
        + again.replace(b"GET", pickle.LONG_BINGET + n.to_bytes(4, "little"))
        for n in range(ROUNDS)
    )
    return pickle.PROTO + b"\x02" + begin + b"".join(rounds) + pickle.STOP


GLOBALS = b"ctorch\nSize\n", b"cpathlib\nPosixPath\n", b"ctorch.serialization\n_get_layout\n"
TUPLES = doubled(b")", b"GET" + pickle.TUPLE2)
HOSTILE = {
    "tuples": TUPLES,
    "a key of tuples": TUPLES[:2] + b"}" + TUPLES[2:-1] + b"Ns.",
    "sizes": TUPLES[:2] + GLOBALS[0] + TUPLES[2:-1] + pickle.TUPLE1 + b"R.",
    "lists": doubled(b"]", b"]GETaGETa"),
    "a path": doubled(b"U\x08pathpath", GLOBALS[1] + b"GETGET" + pickle.TUPLE2 + b"R"),
    "a text of lists": doubled(b"]", b"]GETaGETa")[:-1] + b"0" + GLOBALS[2] + pickle.LONG_BINGET + bytes(4) + b"\x85R.",
    "bytes that are not there": b"\x80\x05" + pickle.BYTEARRAY8 + (1 << 40).to_bytes(8, "little") + b".",
    "a state of a function": b"\x80\x02" + GLOBALS[0] + b"N}U\x08__code__K\x01s\x86b.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_item_14_metadata_that_grows_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    assert len(HOSTILE[name]) < 100_000
    shutil.copytree(SAVED, tmp_path / "a")
    (tmp_path / "a" / ".metadata").write_bytes(HOSTILE[name])
    with cheaply(), pytest.raises(InputError) as raised:
        foreign_reading(tmp_path / "a")
    assert len(str(raised.value)) < 600
    assert "\n" not in str(raised.value)


def test_a_list_of_lists_where_a_shape_belongs_is_refused_in_one_line() -> None:
    nested = unpickled(HOSTILE["lists"], {}, "lists")
    with cheaply(), pytest.raises(ValueError, match="is no shape"):
        shape_of(nested)


def test_a_state_of_as_many_levels_as_may_be_is_read_and_one_more_is_refused() -> None:
    value: object = "a value"
    for level in range(32):
        value = [value] if level % 2 else {"a": value}
    ((path, leaf),) = torch_archives._leaves(value)
    assert (path, leaf) == ((0, "a") * 16, "a value")
    with pytest.raises(ValueError, match="too many levels"):
        list(torch_archives._leaves([value]))


@pytest.mark.parametrize("value", [(1,) * 65, (1 << 63,), (True,), (-1,), [1]])
def test_what_no_tensor_has_is_no_shape(value: object) -> None:
    with pytest.raises(ValueError, match="is no shape"):
        shape_of(value)


@pytest.mark.long
def test_item_14_an_archive_that_inflates_is_refused_in_one_line(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("archive/data.pkl", "w") as member,
    ):
        for _ in range(100):
            member.write(bytes(1 << 20))
    num_bytes = (tmp_path / "a").stat().st_size
    assert num_bytes < 500_000
    chunk = StoredChunk((0,), (1,), "a", 0, num_bytes)
    with cheaply(), pytest.raises(InputError, match=r"is no archive of a tensor .*data\.pkl is compressed") as raised:
        chunk_entry(location_of(tmp_path), "w", "F32", chunk)
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_an_archive_of_very_many_members_is_refused_in_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        for number in range(20_000):
            archive.writestr(f"archive/{number}", b"")
    chunk = StoredChunk((0,), (1,), "a", 0, (tmp_path / "a").stat().st_size)
    with cheaply(), pytest.raises(InputError, match="directory or a description is too long"):
        chunk_entry(location_of(tmp_path), "w", "F32", chunk)


def test_a_folder_whose_name_is_too_long_is_refused_in_one_line(tmp_path: Path) -> None:
    for command in (
        ["reshard", "a" * 5000, str(tmp_path / "b"), "--to", "tp=1"],
        ["checkpoint", "inspect", "a" * 5000],
    ):
        done = run(*command)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "File name too long" in done.stderr
