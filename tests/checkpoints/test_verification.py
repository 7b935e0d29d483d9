"""What ``--verify`` finds, and that it looks while other tensors are still copied."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from small_jobs import GPT, stored
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
from ddlsched.errors import InputError

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
