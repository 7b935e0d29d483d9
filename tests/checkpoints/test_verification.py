"""What ``--verify`` finds, and that it looks while other tensors are still copied."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from small_jobs import GPT, random_tensors, read_whole, stored
from tiers import tried

from ddlsched.checkpoints import execution, gathering, locations, verification
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import content_hash
from ddlsched.checkpoints.gathering import GATHERED_BYTES, ThreadBuffers
from ddlsched.checkpoints.locations import begin_reading
from ddlsched.checkpoints.partial_folder import OpenFiles
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, job_tensors
from ddlsched.checkpoints.tensors import Cut, Tensor
from ddlsched.errors import FaultyInputError, InputError

JOB = TensorCollection(tensors=job_tensors(GPT, optimiser=Optimiser()), parallelism=StoredParallelism(tp=2))
NAMES = [tensor.name for tensor in JOB.tensors]


@pytest.fixture(params=["in threads", "in a process"])
def everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks be made where small checkpoints' are, and where large ones' are."""
    if request.param == "in a process":
        monkeypatch.setattr(verification, "_WORTH_A_PROCESS_BYTES", 0)


@pytest.mark.long
@pytest.mark.usefixtures("everywhere")
def test_a_tensor_is_checked_before_the_last_one_is_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copying of the last tensor waits until the first one is checked: it would wait for ever otherwise."""
    stored(folder / "a", JOB)
    checked = multiprocessing.get_context("fork").Event()
    found, write = verification.content_hash, OpenFiles.write

    def content_hash(tensor: Any, *settings: Any) -> str:
        digest_of = found(tensor, *settings)
        if tensor.name == NAMES[0]:
            checked.set()
        return digest_of

    def waiting_write(self: OpenFiles, targets: Any, offset: int, parts: Any, tensor: str) -> None:
        if tensor == NAMES[-1]:
            assert checked.wait(60)
        write(self, targets, offset, parts, tensor)

    monkeypatch.setattr(execution, "_BATCH_BYTES", 1 << 10)
    monkeypatch.setattr(verification, "content_hash", content_hash)
    monkeypatch.setattr(OpenFiles, "write", waiting_write)
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)
    assert set(Checkpoint.read(folder / "b").xxh3) == set(NAMES)


@pytest.mark.long
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", tried([NAMES[0], NAMES[len(NAMES) // 2], NAMES[-1]], lambda place: place != 1))
def test_a_byte_that_is_written_wrongly_is_found_whenever_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stored(folder / "a", JOB)
    write = OpenFiles.write

    def wrong_write(self: OpenFiles, targets: Any, offset: int, parts: Sequence[memoryview], tensor: str) -> None:
        whole = bytearray(b"".join(parts))
        whole[0] ^= tensor == name
        write(self, targets, offset, [memoryview(whole)], tensor)

    monkeypatch.setattr(execution, "_BATCH_BYTES", 1 << 10)
    monkeypatch.setattr(OpenFiles, "write", wrong_write)
    with pytest.raises(InputError, match=rf"tensor {name} has content hash"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)
    assert {path.name for path in folder.iterdir()} == {"a"}


@pytest.mark.long
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", tried([NAMES[0], NAMES[len(NAMES) // 2], NAMES[-1]], lambda place: place != 1))
def test_a_byte_that_changes_in_the_new_file_after_it_was_written_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is checked is what the file holds, not what was on its way to it."""
    stored(folder / "a", JOB)
    write = OpenFiles.write

    def write_and_flip(self: OpenFiles, targets: Any, offset: int, parts: Sequence[memoryview], tensor: str) -> None:
        write(self, targets, offset, parts, tensor)
        if tensor == name:
            file, begin = targets[0]
            descriptor, at = self.descriptors[file], begin + offset
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 1]), at)

    monkeypatch.setattr(OpenFiles, "write", write_and_flip)
    with pytest.raises(InputError, match=rf"tensor {name} has content hash"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)
    assert {path.name for path in folder.iterdir()} == {"a"}


def full_checks(folder: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> list[str]:
    """Reshard ``a`` to ``b``; return the tensors whose hashes were taken from the old files."""
    found, names = verification.content_hash, []

    def content_hash(tensor: Any, parts: Any, *settings: Any) -> str:
        if parts[0].sources[0].name.startswith(f"{folder / 'a'}/"):
            names.append(tensor.name)
        return found(tensor, parts, *settings)

    monkeypatch.setattr(verification, "content_hash", content_hash)
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True, **arguments)
    return names


def divided(collection: Any, name: str) -> tuple[Any, ...]:
    """Return how a tensor is divided, and which ranks hold it."""
    ranks = tuple(rank for rank, arrays in enumerate(collection.arrays) if name in arrays)
    return tuple(collection.shards(collection.by_name[name])), ranks


@pytest.mark.long
def test_old_files_are_read_once_but_for_the_first_tensor_of_each_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = stored(folder / "a", JOB)
    names = full_checks(folder, monkeypatch)
    new = Checkpoint.read(folder / "b").collection
    kinds = {
        name: (whole.shape, whole.dtype, *(divided(c, name) for c in (JOB, new))) for name, whole in wholes.items()
    }
    assert 0 < len(names) < len(NAMES) / 2
    assert {kinds[name] for name in names} == set(kinds.values())


@pytest.mark.long
@pytest.mark.parametrize("digest", ["xxh3", "sha256"])
def test_recorded_hashes_are_taken_from_the_new_files_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, digest: Any
) -> None:
    stored(folder / "first", JOB)
    reshard(folder / "first", folder / "a", to=StoredParallelism(tp=2), verify=True, digest=digest)
    assert full_checks(folder, monkeypatch, digest=digest) == []


@pytest.mark.long
def test_large_checkpoints_are_checked_in_another_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", JOB)
    found = verification.content_hash

    def content_hash(*settings: Any) -> str:
        with (folder / "processes").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return found(*settings)

    monkeypatch.setattr(verification, "content_hash", content_hash)
    monkeypatch.setattr(verification, "_WORTH_A_PROCESS_BYTES", 0)
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)
    assert len(found_in := set((folder / "processes").read_text().split())) == 1
    assert str(os.getpid()) not in found_in


@pytest.mark.long
def test_what_a_process_that_was_killed_had_to_check_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", JOB)
    found, own = verification.content_hash, os.getpid()

    def content_hash(tensor: Any, *settings: Any) -> str:
        if os.getpid() != own and tensor.name == NAMES[3]:
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found(tensor, *settings)

    monkeypatch.setattr(verification, "content_hash", content_hash)
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)
    monkeypatch.setattr(verification, "_WORTH_A_PROCESS_BYTES", 0)
    reshard(folder / "a", folder / "c", to=StoredParallelism(tp=4), verify=True)
    assert (folder / "killed").exists()
    assert Checkpoint.read(folder / "c").xxh3 == Checkpoint.read(folder / "b").xxh3


@pytest.mark.long
def test_what_a_process_was_given_as_it_was_killed_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's pool may take that without ever giving an answer."""
    monkeypatch.setattr(verification, "_WORTH_A_PROCESS_BYTES", 0)
    checks = verification.Checks(lambda name, _: name, 1, apart=True)
    checks._pool.submit(os._exit, 1)
    with suppress(BrokenExecutor):
        for _ in range(6000):
            checks._pool.submit(os.getpid)
            time.sleep(0.01)
        pytest.fail("the process lives")
    checks._begun["x"] = (), Future()
    assert checks.result("x") == "x"
    checks.close()


def answered(name: str, ranges: Sequence[Any]) -> tuple[str, Sequence[Any], int]:
    """A check, and in which process it was made."""
    return name, ranges, os.getpid()


@pytest.mark.parametrize(
    ("apart", "num_bytes", "platform", "daemon", "in_process"),
    [
        (True, 2**28, "linux", False, True),
        (True, 2**28 - 1, "linux", False, False),
        (False, 2**40, "linux", False, False),
        (True, 2**28, "darwin", False, False),
        (True, 2**28, "linux", True, False),
    ],
)
def test_another_process_checks_where_that_is_worth_it_and_can_be(
    apart: bool, num_bytes: int, platform: str, daemon: bool, in_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(multiprocessing, "current_process", lambda: mock.Mock(daemon=daemon))
    own, one = mock.Mock(), mock.Mock()
    monkeypatch.setattr(verification, "as_many_threads_as_processors", lambda: own)
    monkeypatch.setattr(verification, "_one_process", lambda _check: one)
    checks = verification.Checks(answered, num_bytes, apart=apart)
    checks.begin("x", ())
    pool, other, made = (one, own, verification._make) if in_process else (own, one, answered)
    assert pool.mock_calls == [mock.call.submit(made, "x", ())]
    assert other.mock_calls == []
    checks.close()
    assert pool.mock_calls[1:] == [mock.call.shutdown(cancel_futures=True)]


def test_the_other_process_is_there_at_once_is_one_and_follows_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_WORTH_A_PROCESS_BYTES", 0)
    before = set(multiprocessing.active_children())
    checks = verification.Checks(answered, 0, apart=True)
    (child,) = set(multiprocessing.active_children()) - before
    for name in "ab":
        checks.begin(name, (name,))
    assert "a" in checks
    assert "c" not in checks
    assert [checks.result(name) for name in "ab"] == [(name, (name,), child.pid) for name in "ab"]
    checks.close()
    assert set(multiprocessing.active_children()) == before
    followed: list[int] = []
    monkeypatch.setattr(verification, "follow_parent", followed.append)
    monkeypatch.setattr(verification, "_check", None, raising=False)
    verification._begin(answered, 7)
    assert followed == [7]
    assert verification._make("x", ()) == ("x", (), os.getpid())


def test_what_a_process_that_is_gone_refuses_is_checked_here_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, wait = verification.Checks(answered, 0, apart=False), verification.wait
    checks.close()
    monkeypatch.setattr(checks, "_pool", mock.Mock(submit=mock.Mock(side_effect=BrokenExecutor)))
    checks.begin("x", ("range",))

    def wait_for(futures: list[Future[Any]], timeout: float) -> Any:
        assert all(future.done() for future in futures)
        return wait(futures, timeout)

    monkeypatch.setattr(verification, "wait", wait_for)
    assert checks.result("x") == ("x", ("range",), os.getpid())


def test_what_has_not_begun_when_checks_end_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "as_many_threads_as_processors", lambda: ThreadPoolExecutor(1))
    has_begun, made = threading.Event(), list[str]()

    def check(name: str, _: object) -> None:
        has_begun.set()
        deadline_s = time.monotonic() + 20
        while not checks._begun["b"][1].cancelled() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        made.append(name)

    checks = verification.Checks(check, 0, apart=False)
    checks._begun["b"] = (), Future()
    checks.begin("a", ())
    assert has_begun.wait(60)
    checks.begin("b", ())
    checks.close()
    assert made == ["a"]


DP2 = StoredParallelism(dp=2)
THREE = TensorCollection(tensors=tuple(Tensor(name=name, shape=(4,), dtype="U8") for name in "abc"), parallelism=DP2)


def verified(folder: Path, digest: Any = "xxh3", **recorded: Any) -> verification.Verification:
    """Begin to check a copy of three tensors; of the third nothing has been noted."""
    stored(folder / "old", THREE, **recorded)
    stored(folder / "new", THREE)
    return verification.Verification(Reading.at(folder / "old"), Reading.at(folder / "new"), digest)


def flip_last(path: Path, behind: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[-behind] ^= 1
    path.write_bytes(content)


def test_new_files_that_are_cut_or_gone_are_refused_before_anything_is_checked(folder: Path) -> None:
    verified(folder).close()
    path = folder / "new" / "rank_00001.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(InputError, match=r"new/rank_00001\.safetensors: tensor c: ends at byte"):
        verification.Verification(Reading.at(folder / "old"), Reading.at(folder / "new"), "xxh3")
    path.unlink()
    with pytest.raises(InputError, match=r"new/rank_00001\.safetensors"):
        verification.Verification(Reading.at(folder / "old"), Reading.at(folder / "new"), "xxh3")


def test_hashes_are_told_one_by_one_in_the_order_of_tensors(folder: Path) -> None:
    checked, told = verified(folder, "sha256"), list[Any]()
    checked.begin("b")
    found = checked.hashes(lambda *said: told.append(said))
    contents = {name: whole.tobytes() for name, whole in read_whole(folder / "old").items()}
    assert list(found.items()) == [(name, hashlib.sha256(contents[name]).hexdigest()) for name in "abc"]
    assert told == [("checking", done, 12) for done in (4, 8, 12)]
    checked.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        checked.begin("a")


def test_all_that_is_wrong_is_said_of_old_replicas_new_contents_and_what_is_gone(folder: Path) -> None:
    contents = {name: whole.tobytes() for name, whole in random_tensors(THREE).items()}
    right = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    checked = verified(folder, "sha256", sha256={"b": right["b"], "d": "4" * 64, "c": "3" * 64})
    flip_last(folder / "new" / "rank_00000.safetensors", 5)  # of b
    flip_last(folder / "old" / "rank_00001.safetensors", 9)  # of a
    wrong = hashlib.sha256(contents["b"][:-1] + bytes([contents["b"][-1] ^ 1])).hexdigest()
    with pytest.raises(FaultyInputError) as raised:
        checked.hashes(lambda *_: None)
    new = folder / "new" / "rank_00000.safetensors"
    assert str(raised.value).splitlines() == [
        f"{folder / 'new'}: tensor d has a content hash, but is not there; expected it",
        f"{folder / 'old' / 'rank_00001.safetensors'}: tensor a differs from its replica in rank_00000.safetensors; "
        "expected the same contents",
        f"{new}: tensor b has content hash {wrong[:12]}; expected {right['b'][:12]}: "
        "its contents are not those that were saved",
        f"{folder / 'new' / 'rank_00001.safetensors'}: tensor b differs from its replica in rank_00000.safetensors; "
        "expected the same contents",
        f"{new}: tensor c has content hash {right['c'][:12]}; expected 333333333333: "
        "its contents are not those that were saved",
    ]
    checked.close()


def test_a_tensor_that_the_new_files_lack_is_said(folder: Path) -> None:
    stored(folder / "few", TensorCollection(tensors=(Tensor(name="a", shape=(4,), dtype="U8"),), parallelism=DP2))
    verified(folder).close()
    checked = verification.Verification(Reading.at(folder / "old"), Reading.at(folder / "few"), "xxh3")
    with pytest.raises(FaultyInputError) as raised:
        checked.hashes(lambda *_: None)
    assert str(raised.value).splitlines() == [
        f"{folder / 'few'}: tensor {name} has a content hash, but is not there; expected it" for name in "bc"
    ]
    checked.close()


def changed_unseen(path: Path, content: bytes) -> None:
    """Write a file of which only the time of its last change of any kind tells it."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_old_files_that_were_touched_are_read_once_more(folder: Path) -> None:
    checked = verified(folder)
    right = checked.hashes(lambda *_: None)
    checked.refuse_other_sources({})  # none was touched: no hash is asked for
    path = folder / "old" / "rank_00001.safetensors"
    content = path.read_bytes()
    changed_unseen(path, content)
    checked.refuse_other_sources(right)
    changed_unseen(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FaultyInputError) as raised:
        checked.refuse_other_sources(right | {"a": "0" * 32})
    assert sorted(str(raised.value).splitlines()) == [
        f"{folder / 'old' / 'rank_00000.safetensors'}: tensor a has content hash {right['a'][:12]}; "
        "expected 000000000000: its contents are not those that were saved",
        f"{path}: tensor c differs from its replica in rank_00000.safetensors; expected the same contents",
    ]
    checked.close()


@pytest.mark.long
@pytest.mark.usefixtures("everywhere")
def test_a_tensor_that_is_brought_to_the_wrong_places_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is what is read back: only a look at the old files tells."""
    stored(folder / "a", JOB)
    filled = execution.filled

    def turned(*settings: Any) -> list[memoryview]:
        return [memoryview(b"".join(filled(*settings))[::-1])]

    monkeypatch.setattr(execution, "filled", turned)
    with pytest.raises(InputError, match="has content hash"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)


def by_columns(folder: Path, number: int = 1) -> Reading:
    """Return a checkpoint of tensors whose rows lie apart, and are too long for numpy to gather."""
    columns = [Tensor(name=f"c{n}", shape=(64, 512), dtype="F32", cuts=(Cut(dim=1),)) for n in range(number)]
    stored(folder / "columns", TensorCollection(tensors=tuple(columns), parallelism=StoredParallelism(tp=2)))
    return Reading.at(folder / "columns")


def test_a_hash_is_of_what_the_file_holds_now(folder: Path) -> None:
    reading, buffers = by_columns(folder), ThreadBuffers(GATHERED_BYTES)
    tensor = reading.checkpoint.collection.tensors[0]
    first = content_hash(tensor, reading.replicas(tensor), "xxh3", buffers)
    assert content_hash(tensor, reading.replicas(tensor), "xxh3", buffers) == first
    file = folder / "columns" / reading.checkpoint.files[1]
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        last = opened.read(1)[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last ^ 1]))
    assert content_hash(tensor, reading.replicas(tensor), "xxh3", buffers) != first


def test_rows_of_tensors_that_lie_alike_are_found_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read in their order to the same places; a list for each tensor took most of the time of a check."""
    reading, buffers, made = by_columns(folder, number=20), ThreadBuffers(GATHERED_BYTES), []
    in_order = gathering._in_order
    monkeypatch.setattr(gathering, "_in_order", lambda *args: made.append(args) or in_order(*args))
    for tensor in reading.checkpoint.collection.tensors:
        content_hash(tensor, reading.replicas(tensor), "xxh3", buffers)
    assert len(made) == 1


def test_rows_are_read_again_once_a_run_was_read_over_them(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(range(100)))
    with (folder / "file").open("rb") as opened:
        place = mock.Mock(descriptor=mock.Mock(return_value=opened.fileno()))
        source, buffers = mock.Mock(place=place, byte_range=lambda piece: piece), gathering.Buffers(100)
        rows: list[Any] = [gathering._Rows(source, 0, 10)]
        buffers.begins(rows)
        run: Any = (50, 90)
        assert bytes(buffers.data(source, run)) == bytes(range(50, 90))
        assert buffers.begins(rows) == [0]
        assert bytes(buffers._read[:10]) == bytes(range(10))


@pytest.mark.long
def test_a_run_that_was_stopped_checks_what_it_does_not_copy_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder / "a", JOB)
    monkeypatch.setattr(execution, "_BATCH_BYTES", 1 << 10)
    write = OpenFiles.write

    def failing_write(self: OpenFiles, targets: Any, offset: int, parts: Any, tensor: str) -> None:
        if tensor == NAMES[-1]:
            raise InputError("stopped")
        write(self, targets, offset, parts, tensor)

    monkeypatch.setattr(OpenFiles, "write", failing_write)
    with pytest.raises(InputError, match="stopped"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)
    monkeypatch.setattr(OpenFiles, "write", write)
    file = folder / ".b.partial" / "rank_00000.safetensors"
    content = bytearray(file.read_bytes())
    content[8 + int.from_bytes(content[:8], "little")] ^= 1  # The first byte behind the header.
    file.write_bytes(content)
    with pytest.raises(InputError, match="has content hash"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), verify=True)


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_reading_ahead_of_what_cannot_be_read_does_nothing(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    before = open_files()
    for where in (str(folder), str(folder / "none"), "http://host/folder", "/dev/null"):
        begin_reading(where)
    for thread in threading.enumerate():
        if "_read_begins" in thread.name:
            thread.join(60)
    assert open_files() == before


def test_what_is_read_soon_is_joined_and_only_what_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, low, length, _what: asked.append((low, low + length)))
    monkeypatch.setattr(locations, "_is_there", lambda _file, at: at < 1000)
    locations.read_soon([(3, 0, 900), (3, 5_000_000, 6_000_000), (3, 6_000_000, 6_000_010), (3, 800, 850)])
    assert asked == [(5_000_000, 6_000_010)]
