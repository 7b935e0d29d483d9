"""Files that change, vanish or are planted while a checkpoint is resharded: one line, and nothing wrong is written."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_jobs import GPT, assert_holds, stored

from ddlsched.checkpoints import execution, partial_folder, resharding
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.partial_folder import claimed
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, job_tensors
from ddlsched.errors import FaultyInputError, InputError

JOB = TensorCollection(tensors=job_tensors(GPT, optimiser=Optimiser()), parallelism=StoredParallelism(tp=2))
RANK_1 = "rank_00001.safetensors"
TO = StoredParallelism(tp=4)


@pytest.fixture
def source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that is copied in many batches."""
    monkeypatch.setattr(execution, "_BATCH_BYTES", 4096)
    stored(folder / "a", JOB)
    return folder / "a"


def refused(source: Path, **arguments: Any) -> str:
    with pytest.raises(InputError) as raised:
        reshard(source, source.parent / "b", **{"to": TO} | arguments)
    assert not (source.parent / "b").exists()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def once(act: Callable[[], object]) -> Callable[[str, int, int], None]:
    """Return a watch that acts after the first batch."""
    left = [act]

    def watch(what: str, done: int, total: int) -> None:
        if left:
            left.pop()()

    return watch


def cut(path: Path) -> None:
    os.truncate(path, 5000)


def overwritten(path: Path) -> None:
    time.sleep(0.01)  # Times of files advance in steps.
    with path.open("r+b") as file:
        file.seek(-50, os.SEEK_END)
        file.write(b"x" * 50)


def replaced(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@pytest.mark.long
@pytest.mark.parametrize("file", [RANK_1, "checkpoint.json"])
@pytest.mark.parametrize("change", [cut, overwritten, replaced, Path.unlink])
def test_a_source_that_changes_during_a_run_is_refused(
    source: Path, change: Callable[[Path], object], file: str
) -> None:
    text = refused(source, watch=once(lambda: change(source / file)))
    assert f"{source / file}: has changed while it was read" in text
    assert not (source.parent / ".b.partial").exists()


@pytest.mark.long
def test_a_change_that_hides_its_time_is_found_by_its_contents(source: Path) -> None:
    def hidden() -> None:
        before = (source / RANK_1).stat()
        overwritten(source / RANK_1)
        os.utime(source / RANK_1, ns=(before.st_atime_ns, before.st_mtime_ns))

    ends = lambda what, done, total: hidden() if (what, done) == ("copying", total) else None  # noqa: E731
    with pytest.raises(FaultyInputError, match="differs from its replica"):
        reshard(source, source.parent / "b", to=TO, verify=True, watch=ends)
    assert [path.name for path in source.parent.iterdir()] == ["a"]


def first_byte_of(source: Path, name: str) -> int:
    """Return where in the first rank's file a tensor begins."""
    return Checkpoint.read(source).entries(location_of(source), 0)[name].begin


@pytest.mark.long
@pytest.mark.parametrize("moment", ["copying", "checking"])
def test_a_change_that_hides_its_time_is_found_after_all_was_copied_and_checked(source: Path, moment: str) -> None:
    """In a tensor without replicas, whose old file is not read again unless the file was touched."""
    file, name = source / "rank_00000.safetensors", cut_tensor()
    at = first_byte_of(source, name)

    def hidden(what: str, done: int, total: int) -> None:
        if (what, done) == (moment, total):
            before = file.stat()
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(b"changed")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(FaultyInputError, match=rf"tensor {name} has content hash"):
        reshard(source, source.parent / "b", to=TO, verify=True, watch=hidden)
    assert [path.name for path in source.parent.iterdir()] == ["a"]


def cut_tensor() -> str:
    return [tensor.name for tensor in JOB.tensors if tensor.cuts and tensor.cuts[0].dim == 0][-1]


@pytest.mark.long
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("act", [lambda path: path.chmod(0o600), lambda path: os.link(path, path.parent.parent / "l")])
def test_another_mode_or_link_of_a_source_is_no_change(
    source: Path, act: Callable[[Path], object], verify: bool
) -> None:
    wholes = stored(source.parent / "same", JOB)
    reshard(source, source.parent / "b", to=TO, verify=verify, watch=once(lambda: act(source / RANK_1)))
    assert_holds(source.parent / "b", wholes)


@pytest.mark.parametrize("file", [RANK_1, "checkpoint.json"])
def test_a_pipe_as_a_file_is_refused_at_once(source: Path, file: str) -> None:
    (source / file).unlink()
    os.mkfifo(source / file)
    assert f"{source / file}: is no regular file" in refused(source)


@pytest.mark.parametrize("file", [RANK_1, "checkpoint.json"])
def test_links_are_not_followed_within_the_folder_either(source: Path, file: str) -> None:
    (source / file).rename(source / "other")
    (source / file).symlink_to("other")
    assert f"{source / file}: cannot be read (is a link, which is not followed)" in refused(source)


class StoppedError(Exception):
    """Stands for a kill."""


def stop(*_: object) -> None:
    raise StoppedError


def stopped_run(source: Path, to: StoredParallelism = TO) -> Path:
    """Return the temporary folder of a run that ended after some batches."""
    with pytest.raises(StoppedError):
        reshard(source, source.parent / "b", to=to, watch=stop)
    return source.parent / ".b.partial"


def planted_file(partial: Path) -> None:
    (partial / "rank_00009.safetensors").write_bytes(b"stray")


def planted_link(partial: Path) -> None:
    (partial / "rank_00003.safetensors").unlink()
    (partial / "rank_00003.safetensors").symlink_to(partial.parent / "precious")


def planted_hard_link(partial: Path) -> None:
    (partial / "rank_00003.safetensors").unlink()
    (partial / "rank_00003.safetensors").hardlink_to(partial.parent / "precious")


def planted_folder(partial: Path) -> None:
    (partial / "more").mkdir()


def linked_journal(partial: Path) -> None:
    (partial / "journal").rename(partial.parent / "journal")
    (partial / "journal").symlink_to(partial.parent / "journal")


NOT_OWN = "which no run with these arguments wrote"
PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a stray file": (
        planted_file,
        f"holds rank_00009.safetensors, {NOT_OWN} (no such file)",
    ),
    "a link": (
        planted_link,
        f"holds rank_00003.safetensors, {NOT_OWN} (a file of its own)",
    ),
    "a hard link": (planted_hard_link, "holds rank_00003.safetensors, which"),
    "a folder": (planted_folder, "holds more, which"),
    "a linked journal": (linked_journal, "cannot be written (Too many levels of symbolic links)"),
    "no journal": (lambda partial: planted_file(partial) or (partial / "journal").unlink(), "holds rank_00009"),
    "another journal": (lambda partial: (partial / "journal").write_bytes(b"\xff\n" * 9), "part of another change"),
    "a shorter file": (lambda partial: cut(partial / "rank_00000.safetensors"), "is of 5,000 bytes; expected"),
    "a file gone": (lambda partial: (partial / "rank_00000.safetensors").unlink(), "rank_00000.safetensors is missing"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", PLANTED)
def test_a_temporary_folder_with_anything_else_in_it_is_not_built_on(source: Path, what: str) -> None:
    (source.parent / "precious").write_bytes(b"keep this")
    partial = stopped_run(source)
    plant, message = PLANTED[what]
    plant(partial)
    text = refused(source)
    assert text.startswith(f"{partial}: ")
    assert message in text
    assert (source.parent / "precious").read_bytes() == b"keep this"


@pytest.mark.long
def test_a_temporary_folder_that_is_a_link_is_not_followed(source: Path) -> None:
    (source.parent / "elsewhere").mkdir()
    (source.parent / ".b.partial").symlink_to(source.parent / "elsewhere")
    assert "is a link or a file; expected a folder" in refused(source)
    assert not list((source.parent / "elsewhere").iterdir())


@pytest.mark.long
def test_a_temporary_folder_of_other_arguments_or_of_an_older_source_is_not_built_on(source: Path) -> None:
    partial = stopped_run(source, StoredParallelism(tp=4, dp=2))
    assert "holds part of another change of parallelism" in refused(source)
    shutil.rmtree(partial)
    stopped_run(source)
    replaced(source / RANK_1)
    assert "holds part of another change of parallelism" in refused(source)


@pytest.mark.long
def test_a_line_of_the_journal_that_was_cut_short_does_not_count(source: Path) -> None:
    journal = stopped_run(source) / "journal"
    lines = journal.read_text().splitlines()
    assert len(lines) > 1
    journal.write_text("\n".join([*lines, f"batch {len(lines)}"])[:-1])
    wholes = stored(source.parent / "same", JOB)
    done = reshard(source, source.parent / "b", to=TO)
    assert done.resumed_bytes < 4096 * (len(lines) + 1)
    assert_holds(source.parent / "b", wholes)
    with claimed(source.parent / "c", "f", {}) as other:
        other.journal.record(1)
    with (source.parent / "c" / "journal").open("a") as file:
        file.write("bat")
    with claimed(source.parent / "c", "f", {}) as other:
        assert other.journal.done == 1
        other.journal.record(2)
    assert (source.parent / "c" / "journal").read_text() == "f\nbatch 1\nbatch 2\n"


@pytest.mark.long
def test_a_run_that_ended_between_its_last_file_and_its_name_goes_on(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = stored(source.parent / "same", JOB)
    with monkeypatch.context() as patched:
        patched.setattr(partial_folder.PartialFolder, "finish", stop)
        for _ in range(2):
            with pytest.raises(StoppedError):
                reshard(source, source.parent / "b", to=TO)
    (source.parent / ".b.partial" / ".ddlsched-17.json").write_text("half a descr")
    seen: list[int] = []
    done = reshard(source, source.parent / "b", to=TO, watch=lambda what, copied, total: seen.append(copied))
    assert seen == [done.resumed_bytes]
    assert_holds(source.parent / "b", wholes)
    assert sorted(path.name for path in (source.parent / "b").iterdir()) == [
        "checkpoint.json",
        *(f"rank_{rank:05d}.safetensors" for rank in range(4)),
    ]


@pytest.mark.long
def test_a_run_that_was_killed_right_before_the_name_is_given_goes_on(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = stored(source.parent / "same", JOB)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stop)
        with pytest.raises(StoppedError):
            reshard(source, source.parent / "b", to=TO)
    assert reshard(source, source.parent / "b", to=TO).resumed_bytes > 0
    assert_holds(source.parent / "b", wholes)


@pytest.mark.long
@pytest.mark.parametrize("replaced_by_another", [True, False])
def test_a_temporary_folder_that_is_moved_away_meanwhile_is_missed(source: Path, replaced_by_another: bool) -> None:
    partial = source.parent / ".b.partial"

    def move(_what: str, done: int, total: int) -> None:
        if done == total and not (source.parent / "stolen").exists():
            partial.rename(source.parent / "stolen")
            if replaced_by_another:
                partial.mkdir()

    with pytest.raises(InputError, match=r"\.b\.partial.*(moved or replaced while it was written|cannot be written)"):
        reshard(source, source.parent / "b", to=TO, watch=move)
    assert not (source.parent / "b").exists()


@pytest.mark.long
def test_what_is_left_before_the_first_batch_is_begun_anew(source: Path) -> None:
    wholes = stored(source.parent / "same", JOB)
    partial = stopped_run(source)
    (partial / "journal").write_text("")
    (partial / "rank_00000.safetensors").write_bytes(b"wrong" * 100_000)
    assert reshard(source, source.parent / "b", to=TO, verify=True).resumed_bytes == 0
    assert_holds(source.parent / "b", wholes)
    assert sorted(path.name for path in (source.parent / "b").iterdir()) == [
        "checkpoint.json",
        *(f"rank_{rank:05d}.safetensors" for rank in range(4)),
    ]


def test_a_journal_that_cannot_be_written_is_one_line(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(partial_folder.BatchJournal, "record", full)
    assert ".b.partial: cannot be written (No space left on device)" in refused(source)


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs Linux's /sys, where nobody can make a folder")
def test_a_destination_that_cannot_be_written_is_said_before_anything_is_read(folder: Path) -> None:
    with pytest.raises(InputError, match=r"^/sys/b: cannot be written \(.*\); expected a writable folder$"):
        reshard(folder / "none", "/sys/b", to=TO)


@pytest.mark.long
def test_far_too_many_ranks_are_refused_before_they_are_planned(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "plan", stop)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1_000_000))
    monkeypatch.setattr(resource, "setrlimit", stop)
    with pytest.raises(InputError, match="dp is 1000000; expected a whole number from 1 to 100000"):
        StoredParallelism(dp=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, 10**9))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert "has 1,000.0 MB free of" in refused(source, to=StoredParallelism(dp=100_000))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert "10,002 files of ranks, old and new" in refused(source, to=StoredParallelism(dp=10_000))
