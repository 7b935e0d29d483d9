"""Folders and URLs that checkpoints are read from: names, ranges of bytes, versions, and what is read ahead."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from ddlsched.checkpoints import locations
from ddlsched.checkpoints.file_forms import files_beside, has_file
from ddlsched.checkpoints.locations import (
    begin_reading,
    is_file_name,
    location_of,
    read_soon,
    refuse_leaving,
)
from ddlsched.errors import InputError

CONTENT = bytes(range(100))
MB = 1 << 20


@pytest.mark.parametrize("name", ["a", "a.b", "...", ".a", "a b", "é"])
def test_names_of_files(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "c:", "a:b", None, 3, b"a"])
def test_what_is_no_name_of_a_file(name: Any, tmp_path: Path) -> None:
    assert not is_file_name(name)
    with pytest.raises(InputError, match=r"^where: .* leaves the directory; expected a file in it$"):
        refuse_leaving(location_of(tmp_path), name, "where")


def test_a_link_leaves_the_directory_only_if_it_leads_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").write_bytes(CONTENT)
    (tmp_path / "in" / "own").write_bytes(CONTENT)
    (tmp_path / "in" / "inside").symlink_to("own")
    (tmp_path / "in" / "outside").symlink_to("../out")
    place = location_of(tmp_path / "in")
    refuse_leaving(place, "own", "w")
    refuse_leaving(place, "inside", "w")
    with pytest.raises(InputError, match="'outside' leaves the directory"):
        refuse_leaving(place, "outside", "w")
    assert [has_file(place, name) for name in ("own", "inside", "outside", "none")] == [True, False, False, False]
    ((tensor, (part,)),) = files_beside(place, ("none", "own", "inside"))
    assert (tensor.name, tensor.shape, tensor.kind) == ("own", (100,), "file")
    assert bytes(part.sources[0].data(part.layout.pieces[0])) == CONTENT


def test_links_of_a_snapshot_lead_to_the_files_of_all_snapshots(tmp_path: Path) -> None:
    for folder in ("snapshots/1", "blobs", "other/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "blobs" / "abc").write_bytes(CONTENT)
    for folder in ("snapshots", "other"):
        (tmp_path / folder / "1" / "file").symlink_to("../../blobs/abc")
    (tmp_path / "snapshots" / "1" / "plain").write_bytes(b"12")
    place = location_of(tmp_path / "snapshots" / "1")
    assert [place.holds(name) for name in ("file", "plain")] == [True, True]
    assert [place.num_bytes(name) for name in ("file", "plain")] == [100, 2]
    place.refuse_changes()
    elsewhere = location_of(tmp_path / "other" / "1")
    assert not elsewhere.holds("file")
    with pytest.raises(InputError, match=r"other/1/file: cannot be read \(is a link, which is not followed\)"):
        elsewhere.num_bytes("file")


RANGES = [
    (0, 100, CONTENT), (0, 5, CONTENT[:5]), (95, 100, CONTENT[95:]), (95, 200, CONTENT[95:]), (7, 7, b""), (9, 3, b""),
]  # fmt: skip


@pytest.mark.parametrize("most", [1, 7, 100])
def test_ranges_of_a_file_are_read_however_much_the_system_gives_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda to, size, at: pread(to, min(size, most), at))
    place = location_of(tmp_path)
    assert [bytes(place.read("file", low, high)) for low, high, _ in RANGES] == [found for *_, found in RANGES]
    assert place.read_all("file") == CONTENT
    assert (place.name_of("file"), place.num_bytes("file")) == (str(tmp_path / "file"), 100)


def test_a_file_that_became_shorter_or_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    place = location_of(tmp_path)
    assert place.num_bytes("file") == 100
    os.truncate(tmp_path / "file", 50)
    assert bytes(place.read("file", 0, 50)) == CONTENT[:50]
    with pytest.raises(InputError, match=r"file: has changed while it was read; expected a checkpoint that nobody"):
        place.read("file", 0, 51)
    with pytest.raises(InputError, match="file: has changed while it was read; expected"):
        place.refuse_changes()
    (tmp_path / "file").unlink()
    with pytest.raises(InputError, match=r"has changed while it was read \(No such file or directory\); expected"):
        place.refuse_changes()

    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(InputError, match=r"file: cannot be read \(Input/output error\); expected a file of a check"):
        place.read("file", 0, 1)
    with pytest.raises(InputError, match=r"cannot be read \(embedded null byte\)"):
        place.num_bytes("a\0b")


def test_a_version_is_another_when_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    there = (tmp_path / "file").stat()
    text = location_of(tmp_path).version("file")
    assert text == f"{there.st_dev}:{there.st_ino} 100 {there.st_mtime_ns}"
    place = location_of(tmp_path)
    assert place.version("file") == text
    assert place.touched() == set()
    place.refuse_changes()
    time.sleep(0.01)  # Times of files advance in steps.
    (tmp_path / "file").chmod(0o600)
    assert place.touched() == {"file"}
    place.refuse_changes()


def test_only_what_is_small_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    fsspec.filesystem("memory").pipe("/whole/file", CONTENT)
    for place in (location_of(tmp_path), location_of("memory://whole")):
        monkeypatch.setattr(locations, "MOST_BYTES", 100)
        assert place.read_all("file") == CONTENT
        monkeypatch.setattr(locations, "MOST_BYTES", 99)
        with pytest.raises(InputError, match="file: has 100 bytes; expected at most 99"):
            place.read_all("file")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is fetched of a file of 100 bytes in memory, in blocks of 16."""
    found: list[tuple[int, int]] = []
    memory = fsspec.filesystem("memory")
    memory.pipe("/blocks/file", CONTENT)
    cat_file = type(memory).cat_file

    def noted(self: Any, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        found.append((start or 0, 100 if end is None else end))
        return cat_file(self, path, start, end, **more)

    monkeypatch.setattr(type(memory), "cat_file", noted)
    monkeypatch.setattr(locations, "_BLOCK_BYTES", 16)
    return found


def test_a_file_elsewhere_is_read_in_blocks_that_are_fetched_once(asked: list[tuple[int, int]]) -> None:
    place = location_of("memory://blocks/")
    assert (place.name_of("file"), place.num_bytes("file"), place.descriptor("file")) == (
        "memory://blocks/file", 100, None,
    )  # fmt: skip
    assert place.holds("anything")
    assert place.touched() == set()
    assert bytes(place.read("file", 16, 32)) == CONTENT[16:32]
    assert asked == [(16, 32)]
    assert bytes(place.read("file", 20, 50)) == CONTENT[20:50]
    assert asked == [(16, 32), (32, 48), (48, 64)]
    assert bytes(place.read("file", 95, 100)) == CONTENT[95:]
    assert asked[3:] == [(80, 96), (96, 100)]
    assert [bytes(place.read("file", low, high)) for low, high in ((7, 7), (9, 3))] == [b"", b""]
    assert len(asked) == 5
    assert bytes(place.read("file", 15, 17)) == CONTENT[15:17]
    assert asked[5:] == [(0, 16)]


def test_the_latest_blocks_are_kept(asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_KEPT_BLOCKS", 2)
    place = location_of("memory://blocks")
    for low in (0, 16, 0, 32, 16, 32, 0):
        place.read("file", low, low + 1)
    assert [low for low, _ in asked] == [0, 16, 32, 0]


def test_blocks_are_of_a_mebibyte_and_64_are_kept(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "_BLOCK_BYTES", 1)
    place = location_of("memory://blocks")
    for low in (*range(64), 0, 64, 1, 0):
        place.read("file", low, low + 1)
    assert [low for low, _ in asked] == [*range(64), 64, 0]
    monkeypatch.undo()
    memory = fsspec.filesystem("memory")
    memory.pipe("/blocks/large", bytes(MB + 5))
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(
        type(memory), "cat_file", lambda _, path, start, end: found.append((start, end)) or bytes(end - start)
    )
    assert location_of("memory://blocks").read("large", MB - 1, MB + 1) == bytes(2)
    assert found == [(0, MB), (MB, MB + 5)]


def test_files_are_closed_with_their_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    opened = sorted(Path("/proc/self/fd").iterdir())
    place = location_of(tmp_path)
    assert bytes(place.read("file", 1, 3)) == CONTENT[1:3]
    assert len(list(Path("/proc/self/fd").iterdir())) == len(opened) + 1
    del place
    assert sorted(Path("/proc/self/fd").iterdir()) == opened


def test_a_file_elsewhere_that_changes_is_refused(asked: list[tuple[int, int]]) -> None:
    place, memory = location_of("memory://blocks"), fsspec.filesystem("memory")
    place.read("file", 0, 1)
    place.refuse_changes()
    memory.pipe("/blocks/file", CONTENT[:90])
    with pytest.raises(InputError, match="memory://blocks/file: has changed while it was read"):
        place.refuse_changes()
    with pytest.raises(InputError, match="file: gave 10 bytes of 16; expected a whole file"):
        place.read("file", 80, 96)


def test_a_version_elsewhere_is_all_that_its_file_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"name": "x", "created": "c", "size": 7, "etag": '"e"', "mtime": 1.5, "colour": "red"}
    files = SimpleNamespace(info=lambda _: told)
    monkeypatch.setattr(locations, "file_system", lambda *_: (files, ""))
    place = location_of("odd://host/folder")
    assert (place.version("file"), place.num_bytes("file")) == ('7 "e" 1.5 c', 7)


def test_what_a_file_system_remembers_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    there, remembered = {"size": 7, "etag": "a"}, {"size": 7, "etag": "a"}
    files = SimpleNamespace(info=lambda _: dict(remembered), invalidate_cache=lambda: remembered.update(there))
    monkeypatch.setattr(locations, "file_system", lambda *_: (files, ""))
    place = location_of("odd://host/folder")
    assert place.version("file") == "7 a"
    place.refuse_changes()
    there["etag"] = "b"
    assert place.version("file") == "7 a"
    with pytest.raises(InputError, match=r"^odd://host/folder/file: has changed while it was read; expected"):
        place.refuse_changes()


def test_what_a_file_system_says_is_cut_to_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> None:
        raise RuntimeError("x" * 300 + "\nmore")

    monkeypatch.setattr(locations, "file_system", lambda *_: (SimpleNamespace(info=fails), ""))
    with pytest.raises(InputError) as raised:
        location_of("odd://host").num_bytes("file")
    why = f"RuntimeError: {'x' * 186}"
    assert str(raised.value) == f"odd://host/file: cannot be read ({why}); expected a file of a checkpoint"


@pytest.mark.parametrize(
    ("ranges", "joined"),
    [
        ([], []),
        ([(3, 5, 9)], [(3, 5, 9)]),
        ([(3, 0, 9), (3, MB + 9, MB + 20)], [(3, 0, MB + 20)]),
        ([(3, 0, 9), (3, MB + 10, MB + 20)], [(3, 0, 9), (3, MB + 10, MB + 20)]),
        ([(3, 0, 90), (3, 10, 20), (3, 30, 95)], [(3, 0, 95)]),
        ([(4, 0, 9), (3, 9, 20)], [(3, 9, 20), (4, 0, 9)]),
        ([(3, 20, 30), (3, 0, 10), (5, 0, 1), (3, 9 * MB, 9 * MB + 1)],
         [(3, 0, 30), (3, 9 * MB, 9 * MB + 1), (5, 0, 1)]),
    ],
)  # fmt: skip
def test_ranges_that_lie_close_are_joined(ranges: list[tuple[int, int, int]], joined: object) -> None:
    assert list(locations._merged(ranges)) == joined


@pytest.mark.parametrize(("there", "is_asked"), [((), True), ((5,), True), ((8,), True), ((5, 8), False)])
def test_a_range_whose_ends_are_in_memory_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, there: tuple[int, ...], is_asked: bool
) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(locations, "_is_there", lambda _, at: at in there)
    monkeypatch.setattr(os, "posix_fadvise", lambda *what: asked.append(what))
    read_soon([(3, 5, 9)])
    assert asked == ([(3, 5, 4, os.POSIX_FADV_WILLNEED)] if is_asked else [])


def test_what_is_in_memory_is_told_without_reading(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    with (tmp_path / "file").open("rb") as file:
        assert locations._is_there(file.fileno(), 50)
        assert locations._is_there(file.fileno(), 99)
        assert not locations._is_there(file.fileno(), 100)
    reads, writes = os.pipe()
    assert not locations._is_there(reads, 0)
    os.close(reads)
    os.close(writes)


def test_the_begins_of_a_folders_files_are_read_ahead_each_as_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("a", 50), ("b", 30), ("empty", 0)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "more").mkdir()
    found: list[tuple[str, int, int]] = []

    def noted(ranges: list[tuple[int, int, int]]) -> None:
        found.extend((Path(f"/proc/self/fd/{file}").readlink().name, low, high) for file, low, high in ranges)

    monkeypatch.setattr(locations, "read_soon", noted)
    opened = sorted(Path("/proc/self/fd").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(locations, "_FIRST_BYTES", 200)  # Of five names.
        locations._read_begins(str(tmp_path))
    assert found == [("a", 0, 40), ("b", 0, 30)]
    assert sorted(Path("/proc/self/fd").iterdir()) == opened
    (tmp_path / "more" / "large").touch()
    os.truncate(tmp_path / "more" / "large", 600 * MB)  # Takes no space.
    locations._read_begins(str(tmp_path / "more"))
    assert found[2:] == [("large", 0, 512 * MB)]


def test_it_is_read_while_the_program_does_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told = threading.Event(), list[Any]()

    def noted(folder: str) -> None:
        told.extend([folder, threading.current_thread().daemon])
        begun.set()

    monkeypatch.setattr(locations, "_read_begins", noted)
    begin_reading(str(tmp_path))
    assert begun.wait(60)
    assert told == [str(tmp_path), True]
