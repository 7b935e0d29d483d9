"""The temporary folder and its files: sizes, modes, limits, the journal, and what is on disk before what."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.checkpoints import partial_folder
from ddlsched.checkpoints.partial_folder import (
    BatchJournal,
    OpenFiles,
    Target,
    allow_open_files,
    claimed,
    refuse_full_disk,
)
from ddlsched.errors import InputError

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is brought to the disk, in order."""
    found: list[str] = []

    def noted(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "fdatasync", noted)
    return found


def test_a_disk_may_become_full_to_the_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**10, 0, 2_000_000))
    refuse_full_disk(tmp_path, 2_000_000)
    refuse_full_disk(tmp_path, -5)
    with pytest.raises(InputError, match=r"has 2\.0 MB free of 1,234\.5 MB that the new files take; expected enough"):
        refuse_full_disk(tmp_path, 1_234_500_000)
    with pytest.raises(InputError, match=r"has 2\.0 MB free of 2\.0 MB"):
        refuse_full_disk(tmp_path, 2_000_001)


@pytest.mark.parametrize(
    ("soft", "hard", "files", "becomes"),
    [
        (200, 1000, 100, None),
        (200, 1000, 101, (201, 1000)),
        (200, 1000, 900, (1000, 1000)),
        (200, 1000, 901, InputError),
        (200, UNLIMITED, 5000, (5100, UNLIMITED)),
        (UNLIMITED, UNLIMITED, 5000, None),
    ],
)
def test_as_many_files_may_be_open_as_are_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, files: int, becomes: Any
) -> None:
    given: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NOFILE: (soft, hard)}.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: given.append(limits))
    if becomes is InputError:
        with pytest.raises(
            InputError, match=r"^901 files of ranks, .* and this process may open 1,000; expected fewer"
        ):
            allow_open_files(files)
        assert not given
    else:
        allow_open_files(files)
        assert given == ([] if becomes is None else [(resource.RLIMIT_NOFILE, becomes)])


def test_files_have_their_size_and_mode_and_keep_what_has_it_already(tmp_path: Path, directory: int) -> None:
    (tmp_path / "right").write_bytes(b"12345")
    (tmp_path / "long").write_bytes(b"1234567")
    before = os.umask(0)
    try:
        files = OpenFiles(tmp_path, directory, {"right": 5, "long": 5, "new": 3, "empty": 0})
        BatchJournal(tmp_path, directory).close()
    finally:
        os.umask(before)
    found = {name: (tmp_path / name).read_bytes() for name in ("right", "long", "new", "empty")}
    assert found == {"right": b"12345", "long": b"12345", "new": bytes(3), "empty": b""}
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "journal")] == [0o666, 0o666]
    descriptors = list(files.descriptors.values())
    files.close()
    assert not files.descriptors
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_parts_are_written_one_behind_the_other_into_each_file(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    monkeypatch.setattr(partial_folder, "_MOST_PARTS", 2)
    files = OpenFiles(tmp_path, directory, {"a": 12, "b": 9})
    parts = [memoryview(part) for part in (b"12", b"3", b"456", b"7", b"8")]
    files.write([Target("a", 3), Target("b", 0)], 1, parts, "t")
    files.flush()
    files.close()
    assert (tmp_path / "a").read_bytes() == bytes(4) + b"12345678"
    assert (tmp_path / "b").read_bytes() == bytes(1) + b"12345678"
    assert synced == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "why"),
    [(errno.ENOSPC, "no space left"), (errno.EDQUOT, "no space left"), (errno.EIO, "Input/output error")],
)
def test_what_cannot_be_written_says_why(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    files = OpenFiles(tmp_path, directory, {"a": 3})
    monkeypatch.setattr(os, "fdatasync", fails)
    kept = f"what is done is kept: run again to go on, or remove {tmp_path}"
    with pytest.raises(InputError) as raised:
        files.flush()
    assert str(raised.value) == f"{tmp_path / 'a'}: its tensors cannot be written ({why}); {kept}"
    monkeypatch.setattr(os, "pwritev", fails)
    with pytest.raises(InputError) as raised:
        files.write([Target("a", 0)], 0, [memoryview(b"1")], "t")
    assert str(raised.value) == f"{tmp_path / 'a'}: tensor t cannot be written ({why}); {kept}"
    files.close()


@pytest.mark.parametrize(
    ("lines", "found", "kept"),
    [
        ("", ("", 0, False), ""),
        ("f", ("", 0, False), ""),
        ("f\n", ("f", 0, False), "f\n"),
        ("f\nbatch 1\nbatch 2\n", ("f", 2, False), "f\nbatch 1\nbatch 2\n"),
        ("f\nbatch 1\nbatch 2", ("f", 1, False), "f\nbatch 1\n"),
        ("f\nbatch 1\ndescriptions\n", ("f", 1, True), "f\nbatch 1\ndescriptions\n"),
        ("f\ndescriptions\nbatch 1\n", ("f", 1, True), "f\ndescriptions\nbatch 1\n"),
        ("f\nbatch 2\n", ("unknown", 0, False), "f\nbatch 2\n"),
        ("f\nbatch 1\nbatch 1\n", ("unknown", 0, False), "f\nbatch 1\nbatch 1\n"),
        ("f\nother\n", ("unknown", 0, False), "f\nother\n"),
    ],
)
def test_a_journal_is_read_as_far_as_its_lines_are_whole(
    tmp_path: Path, directory: int, lines: str, found: tuple[str, int, bool], kept: str
) -> None:
    (tmp_path / "journal").write_text(lines)
    journal = BatchJournal(tmp_path, directory)
    assert (journal.fingerprint, journal.done, journal.described) == found
    opened = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(InputError, match=rf"^{tmp_path}: another run is writing it; expected one at a time$"):
        BatchJournal(tmp_path, directory)
    assert sorted(Path("/proc/self/fd").iterdir()) == opened
    journal.close()
    assert (tmp_path / "journal").read_text() == kept
    journal = BatchJournal(tmp_path, directory)
    journal.record(found[1] + 2)
    journal.close()
    more = "".join(f"batch {number}\n" for number in (found[1] + 1, found[1] + 2))
    assert (tmp_path / "journal").read_text() == kept + more


def test_each_line_of_a_journal_is_on_disk_when_it_counts(tmp_path: Path, directory: int, synced: list[str]) -> None:
    journal = BatchJournal(tmp_path, directory)
    journal.begin("f")
    journal.record(1)
    journal.record(3)
    journal.begin_descriptions()
    journal.begin_descriptions()
    journal.close()
    assert (journal.fingerprint, journal.done, journal.described) == ("f", 3, True)
    assert (tmp_path / "journal").read_text() == "f\nbatch 1\nbatch 2\nbatch 3\ndescriptions\n"
    assert synced == ["journal"] * 4


def test_a_folder_gets_its_name_between_its_files_and_the_end_of_its_journal(tmp_path: Path, synced: list[str]) -> None:
    with claimed(tmp_path / "part", "f", {"a": 2}) as folder:
        (folder.path / "a").write_bytes(b"12")
        folder.journal.record(1)
        folder.begin_descriptions()
        (folder.path / "d").write_text("described")
        synced.clear()
        folder.finish(tmp_path / "final", [folder.path / "d"])
    assert synced == ["d", "part", "final", tmp_path.name]
    assert sorted(path.name for path in (tmp_path / "final").iterdir()) == ["a", "d"]
    assert not (tmp_path / "part").exists()


def test_a_folder_leaves_no_file_open(tmp_path: Path) -> None:
    before = [path.name for path in sorted(Path("/proc/self/fd").iterdir())]
    with claimed(tmp_path / "part", "f", {}) as folder:
        (folder.path / "d").write_text("described")
        folder.journal.begin_descriptions()
        folder.finish(tmp_path / "final", [folder.path / "d"])
    assert [path.name for path in sorted(Path("/proc/self/fd").iterdir())] == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_that_is_too_large_is_found_by_the_number_of_its_error(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def library(_name: None, use_errno: bool = False) -> Any:
        def fallocate(*of: Any) -> int:
            if use_errno:
                ctypes.set_errno(code)
            assert (of[1], of[2].value, of[3].value) == (0, 0, 7)
            return -1

        return SimpleNamespace(fallocate=fallocate)

    ctypes.set_errno(0)
    monkeypatch.setattr(ctypes, "CDLL", library)
    with pytest.raises(InputError, match="a: the file cannot be written"):
        OpenFiles(tmp_path, directory, {"a": 7})
    OpenFiles(tmp_path, directory, {"b": 0}).close()


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    with claimed(tmp_path / "part", "f", {"a": 2}) as folder:
        folder.journal.record(1)
    (tmp_path / "own").write_bytes(b"12")
    (tmp_path / "part" / "a").symlink_to(tmp_path / "own")
    with (
        pytest.raises(InputError, match=r"holds a, which no run with these arguments wrote \(a file of its own\)"),
        claimed(tmp_path / "part", "f", {"a": 2}),
    ):
        pass


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "own").write_text("keep")
    for link, message in (
        (None, r"holds own, which no run with these arguments wrote \(no such file\); remove it to begin anew$"),
        ("nowhere", r"part: cannot be written \(Too many levels of symbolic links\); expected a writable folder$"),
        ("own", r"part: cannot be written \(Too many levels of symbolic links\); expected a writable folder$"),
    ):
        if link is not None:
            (tmp_path / "part" / "journal").unlink(missing_ok=True)
            (tmp_path / "part" / "journal").symlink_to(link)
        with pytest.raises(InputError, match=message), claimed(tmp_path / "part", "f", {}):
            pass
        left = sorted(path.name for path in (tmp_path / "part").iterdir())
        assert left == (["own"] if link is None else ["journal", "own"])
    assert (tmp_path / "part" / "own").read_text() == "keep"


def test_a_name_that_is_taken_meanwhile_is_said(tmp_path: Path) -> None:
    with claimed(tmp_path / "part", "f", {}) as folder:
        (tmp_path / "final").write_text("a file")
        with pytest.raises(InputError, match=r"final: cannot be made of .*part \(.*\); expected a new folder"):
            folder.finish(tmp_path / "final", [])
        folder.remove()
        folder.remove()
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize("instead", ["nothing", "a folder", "a link"])
def test_a_folder_that_was_moved_away_is_not_made_final(tmp_path: Path, instead: str) -> None:
    part = tmp_path / "part"
    with claimed(part, "f", {}) as folder:
        part.rename(tmp_path / "away")
        if instead == "a folder":
            part.mkdir()
        elif instead == "a link":
            part.symlink_to("away")
        with pytest.raises(InputError) as raised:
            folder.finish(tmp_path / "final", [])
    why = "has been moved or replaced while it was written; expected a folder that nobody else touches"
    assert str(raised.value) == f"{part}: {why}: nothing was made of it"
    assert not (tmp_path / "final").exists()
    assert [path.name for path in (tmp_path / "away").iterdir()] == ["journal"]


def test_a_later_run_makes_descriptions_anew_and_keeps_batches(tmp_path: Path) -> None:
    with claimed(tmp_path / "part", "f", {"a": 2}) as folder:
        (folder.path / "a").write_bytes(b"12")
        folder.journal.record(1)
        folder.begin_descriptions()
        (folder.path / "d").write_text("half")
    with claimed(tmp_path / "part", "f", {"a": 2}) as folder:
        assert (folder.journal.done, folder.journal.described) == (1, True)
        assert sorted(path.name for path in folder.path.iterdir()) == ["a", "journal"]
    with (
        pytest.raises(InputError, match="holds part of another change of parallelism"),
        claimed(tmp_path / "part", "g", {"a": 2}),
    ):
        pass
    (tmp_path / "part" / "d").write_text("a stranger's")
    (tmp_path / "part" / "journal").write_text("f\nbatch 1\n")
    with (
        pytest.raises(InputError, match=r"holds d, which no run with these arguments wrote \(no such file\)"),
        claimed(tmp_path / "part", "f", {"a": 2}),
    ):
        pass


def test_files_from_before_the_first_batch_are_removed(tmp_path: Path) -> None:
    with claimed(tmp_path / "part", "f", {"a": 2, "b": 2}) as folder:
        (folder.path / "a").write_bytes(b"12")
    with claimed(tmp_path / "part", "f", {"a": 2, "b": 2}) as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["journal"]
        (folder.path / "a").write_bytes(b"12")
        folder.journal.record(1)
    for content, message in ((None, "b is missing; expected 2 bytes"), (b"1", "b is of 1 bytes; expected 2 bytes")):
        if content is not None:
            (tmp_path / "part" / "b").write_bytes(content)
        with pytest.raises(InputError, match=message), claimed(tmp_path / "part", "f", {"a": 2, "b": 2}):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_built_on(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    os.chown(tmp_path / "part", 12345, 12345)
    with pytest.raises(InputError, match="belongs to another user"), claimed(tmp_path / "part", "f", {}):
        pass
