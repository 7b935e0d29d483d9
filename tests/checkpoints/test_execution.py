"""How a plan falls into chunks, jobs of one thread and batches, and what is told and noted of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.checkpoints import execution
from ddlsched.checkpoints.content import Written
from ddlsched.checkpoints.copying import Copy, chunks
from ddlsched.checkpoints.execution import _batches, _Flusher, _jobs, _ranges, _taken, _width, copied
from ddlsched.checkpoints.gathering import Buffers, NewArray
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.partial_folder import OpenFiles, PartialFolder, Target, claimed
from ddlsched.checkpoints.reading import Source
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import Piece

CONTENT = bytes(range(100))


def run_of(elements: int, offset: int = 0) -> Piece:
    return Piece((0,), (elements,), offset, (1,))


def array(name: str, elements: int, *, dtype: str = "U8", targets: int = 1, read: Piece | None = None) -> NewArray:
    """Return an array that one source has, as a run unless told otherwise."""
    copies = (Copy(0, run_of(elements) if read is None else read, run_of(elements)),)
    if read is not None:
        copies = (Copy(0, read, Piece((0,) * len(read.extent), read.extent, 0, (read.extent[1], 1))),)
    source: Any = SimpleNamespace(place=SimpleNamespace(descriptor=lambda _: 3), file="s")
    places = tuple(Target(f"{name}{number}", 0) for number in range(targets))
    return NewArray(tensor=name, dtype=dtype, sources=(source,), copies=copies, targets=places)


@pytest.mark.parametrize(
    ("buffer_bytes", "chunk_bytes"),
    [(0, 1), (23, 1), (24, 1), (47, 1), (48, 2), (24 * 524_287, 524_287), (24 * 524_288, 524_288), (10**9, 524_288)],
)
def test_eight_threads_hold_a_chunk_and_twice_as_much_of_what_they_read(buffer_bytes: int, chunk_bytes: int) -> None:
    assert execution.chunk_bytes_of(buffer_bytes) == chunk_bytes


@pytest.mark.parametrize(("processors", "threads"), [(1, 2), (3, 6), (4, 8), (5, 8), (64, 8)])
def test_two_threads_a_processor_copy_and_eight_at_most(
    monkeypatch: pytest.MonkeyPatch, processors: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", {0: range(processors)}.__getitem__)
    assert execution.num_threads() == threads


def test_names_before_one_are_taken_once() -> None:
    names = dict.fromkeys("abcd")
    assert [_taken(names, before=name) for name in "aaccd"] == [[], [], ["a", "b"], [], ["c"]]
    assert _taken(names, before="none") == ["d"]
    assert not names


@pytest.mark.parametrize(
    ("extent", "strides", "width"),
    [((6,), (1,), 1), ((2, 3), (3, 1), 1), ((2, 3), (4, 1), 2), ((2, 3), (9, 1), 2), ((2, 3), (10, 1), 3), ((), (), 1)],
)
def test_what_is_read_is_so_many_times_what_is_wanted(
    extent: tuple[int, ...], strides: tuple[int, ...], width: int
) -> None:
    piece = Piece((0,) * len(extent), extent, 5, strides)
    assert _width(Copy(0, piece, piece)) == width


def told(jobs: Any) -> list[list[tuple[str, int, int]]]:
    return [[(job.array.targets[0].file, job.chunk.low, job.chunk.high) for job in each] for each in jobs]


def test_chunks_of_a_tensors_runs_follow_each_other_and_are_apart() -> None:
    arrays = [array("a", 5, dtype="F32"), array("b", 5, dtype="F32")]
    expected = [[("a0", 0, 2)], [("b0", 0, 2)], [("a0", 2, 4)], [("b0", 2, 4)], [("a0", 4, 5)], [("b0", 4, 5)]]
    assert told(_jobs(arrays, 8)) == expected
    assert told(_jobs(arrays, 11)) == expected
    assert told(_jobs(arrays[:1], 3)) == [[("a0", low, low + 1)] for low in range(5)]


def test_chunks_of_arrays_of_other_lengths_go_by_their_share() -> None:
    found = told(_jobs([array("a", 6), array("b", 3), array("c", 4)], 2))
    shares = [["a0", "b0", "c0"], ["a0"], ["c0"], ["a0", "b0"]]  # At none, a third, half and two thirds of each.
    assert [name for each in found for name, *_ in each] == [name for names in shares for name in names]


def test_rows_that_lie_apart_are_for_one_thread_eight_arrays_at_a_time() -> None:
    read = Piece((0, 0), (4, 2), 0, (6, 1))  # A third of what is read is wanted.
    arrays = [array(f"t{number}-", 8, read=read) for number in range(10)]
    found = told(_jobs(arrays, 15))  # So five bytes, which are two rows, are wanted at a time.
    assert [[low for _, low, _ in each] for each in found] == [[0] * 8, [0] * 2, [4] * 8, [4] * 2]
    assert [(low, high) for each in found for _, low, high in each][::9] == [(0, 4), (0, 4), (4, 8)]


def test_a_batch_ends_with_the_chunk_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [array("a", 20), array("b", 10, targets=2), array("c", 3)]
    monkeypatch.setattr(execution, "_BATCH_BYTES", 16)
    batches = [[name for each in told(batch) for name, *_ in each] for batch in _batches(arrays, 8)]
    assert batches == [["a0", "a0"], ["a0", "b0"], ["b0", "c0"]]
    monkeypatch.setattr(execution, "_BATCH_BYTES", 17)
    batches = [[name for each in told(batch) for name, *_ in each] for batch in _batches(arrays, 8)]
    assert batches == [["a0", "a0", "a0"], ["b0", "b0"], ["c0"]]
    batches = [[name for each in told(batch) for name, *_ in each] for batch in _batches([array("d", 48)], 8)]
    assert batches == [["d0"] * 3] * 2
    assert list(_batches([], 8)) == []


def test_a_batch_is_of_128_mebibytes() -> None:
    sizes = [
        sum(job.num_bytes for jobs in batch for job in jobs) for batch in _batches([array("a", 300 << 20)], 1 << 20)
    ]
    assert sizes == [128 << 20, 128 << 20, 44 << 20]


def test_what_a_batch_reads_of_local_files_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(descriptor={"near": 7, "far": None}.__getitem__)
    sources: Any = tuple(
        SimpleNamespace(place=place, file=file, byte_range=lambda piece: (piece.offset, piece.offset + 4))
        for file in ("near", "far")
    )
    copies = (Copy(0, run_of(2), run_of(2)), Copy(1, run_of(1), run_of(1, 2)), Copy(0, run_of(1, 50), run_of(1, 3)))
    near = NewArray(tensor="t", dtype="F16", sources=sources, copies=copies, targets=(Target("f", 0),))
    batch = [tuple(execution._Job(near, chunk) for chunk in chunks(copies, 2))] * 2
    asked: set[int] = set()
    monkeypatch.setattr(execution, "_BATCH_BYTES", 8)  # As much as the four elements.
    assert list(_ranges(batch, asked)) == [(7, 0, 4), (7, 50, 54)]
    assert list(_ranges(batch, asked)) == []
    monkeypatch.setattr(execution, "_BATCH_BYTES", 7)
    assert list(_ranges(batch, set())) == []


@pytest.fixture
def arrays(tmp_path: Path) -> list[NewArray]:
    """Two tensors of 20 and 30 bytes; the second one goes into two files."""
    (tmp_path / "source").write_bytes(CONTENT)
    place = location_of(tmp_path)
    return [
        NewArray(
            tensor=name,
            dtype="U8",
            sources=(Source(place, "source", Entry("U8", (size,), begin)),),
            copies=(Copy(0, run_of(size), run_of(size)),),
            targets=targets,
        )
        for name, size, begin, targets in (
            ("a", 20, 0, (Target("x", 0),)),
            ("b", 30, 60, (Target("x", 20), Target("y", 1))),
        )
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PartialFolder]:
    with claimed(tmp_path / "part", "f", {"x": 50, "y": 31}) as found:
        yield found


def run(
    arrays: list[NewArray], folder: PartialFolder, threads: int = 1, written: Written | None = None
) -> tuple[int, list[Any]]:
    """Copy in batches of 16 bytes; returns the bytes of an earlier run, and all that is told in order."""
    said: list[Any] = []
    with (
        closing(OpenFiles(folder.path, folder.directory, {"x": 50, "y": 31})) as files,
        copied(
            arrays, files, folder.journal, chunk_bytes=8, threads=threads, written=written,
            finished=lambda names: said.append(list(names)), watch=lambda *of: said.append(of),
        ) as resumed,
    ):  # fmt: skip
        pass
    return resumed, said


def test_batches_are_told_and_noted(
    arrays: list[NewArray], folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_BATCH_BYTES", 16)
    resumed, said = run(arrays, folder)
    told = [("copying", done, 80) for done in (16, 36, 52, 68, 80)]
    finished: list[list[str]] = [[], ["a"], [], [], []]
    expected = [each for pair in zip(finished, told, strict=True) for each in pair]
    assert said == [*expected, ["b"], ("copying", 80, 80)]
    assert resumed == 0
    assert (folder.path / "x").read_bytes() == CONTENT[:20] + CONTENT[60:90]
    assert (folder.path / "y").read_bytes() == bytes(1) + CONTENT[60:90]
    assert (folder.path / "journal").read_text() == "f\n" + "".join(f"batch {number}\n" for number in range(1, 6))


@pytest.mark.parametrize(("batches", "before"), [(1, 16), (2, 36), (5, 80)])
def test_batches_of_an_earlier_run_are_left_as_they_are(
    arrays: list[NewArray], folder: PartialFolder, monkeypatch: pytest.MonkeyPatch, batches: int, before: int
) -> None:
    monkeypatch.setattr(execution, "_BATCH_BYTES", 16)
    folder.journal.record(batches)
    resumed, said = run(arrays, folder)
    assert resumed == before
    assert [of[1] for of in said if isinstance(of, tuple)] == [*(d for d in (16, 36, 52, 68, 80) if d > before), 80]
    assert [name for names in said if isinstance(names, list) for name in names] == ["a", "b"]
    assert (folder.path / "x").read_bytes()[:16] == bytes(16)
    assert ((folder.path / "x").read_bytes()[16:20] == CONTENT[16:20]) == (batches == 1)


@pytest.mark.parametrize(("batches", "names"), [(0, ["a", "b"]), (1, ["b"]), (2, [])])
def test_only_tensors_that_this_run_writes_whole_are_noted(
    arrays: list[NewArray], folder: PartialFolder, monkeypatch: pytest.MonkeyPatch, batches: int, names: list[str]
) -> None:
    monkeypatch.setattr(execution, "_BATCH_BYTES", 16)
    folder.journal.record(batches)
    written = Written({"a", "b"})
    run(arrays, folder, written=written)
    assert {name: sum(found.high - found.low for found in written.taken(name)) for name in "ab"} == {
        name: size * (name in names) for name, size in (("a", 20), ("b", 2 * 30))
    }


def test_each_thread_holds_twice_a_chunk_and_what_follows_is_read_ahead(
    arrays: list[NewArray], folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_BATCH_BYTES", 31)  # So of 36, 32 and 12 bytes.
    made, ahead = list[int](), list[list[tuple[int, int]]]()
    monkeypatch.setattr(execution, "Buffers", lambda size: made.append(size) or Buffers(size))  # type: ignore[func-returns-value]
    monkeypatch.setattr(execution, "read_soon", lambda ranges: ahead.append([(low, high) for _, low, high in ranges]))
    run(arrays, folder, threads=3)
    assert made == [16] * 3
    assert ahead == [[(60, 90)], [], []]


def test_files_without_a_batch_are_brought_to_the_disk_too(
    folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink().name))
    assert run([], folder) == (0, [[], ("copying", 0, 0)])
    assert flushed == ["x", "y"]
    assert (folder.path / "journal").read_text() == "f\n"


def test_one_batch_after_the_other_is_flushed_and_what_has_not_begun_at_the_end_is_not() -> None:
    before = threading.enumerate()
    begun, second, may_end = threading.Event(), threading.Event(), threading.Event()

    def flush() -> None:
        (second if begun.is_set() else begun).set()
        may_end.wait(60)

    journal: Any = SimpleNamespace(done=0, record=lambda _: None, path=Path("p"))
    flusher = _Flusher(SimpleNamespace(flush=flush), journal)  # type: ignore[arg-type]
    flusher.begin(1)
    assert begun.wait(60)
    flusher.begin(2)
    waiting = flusher._begun[-1]
    assert not second.wait(0.02)
    closing_thread = threading.Thread(target=flusher.close)
    closing_thread.start()
    end_s = time.monotonic() + 20
    while not waiting.cancelled() and time.monotonic() < end_s:
        time.sleep(0.001)
    may_end.set()
    closing_thread.join(60)
    assert waiting.cancelled()
    assert not second.is_set()
    assert threading.enumerate() == before


def test_one_who_copies_waits_for_a_disk_that_is_eight_batches_behind() -> None:
    may_flush, recorded = threading.Event(), list[int]()
    journal: Any = SimpleNamespace(done=0, record=recorded.append, path=Path("p"))
    files: Any = SimpleNamespace(flush=lambda: may_flush.wait(60))
    with closing(_Flusher(files, journal)) as flusher:
        for batch in range(1, 9):
            flusher.begin(batch)
        ninth = threading.Thread(target=flusher.begin, args=(9,))
        ninth.start()
        ninth.join(0.05)
        assert ninth.is_alive()
        may_flush.set()
        ninth.join(60)
        assert not ninth.is_alive()
        flusher.wait()
    assert recorded[0] in range(1, 10)
    assert recorded[-1] == 9


def test_what_is_on_disk_already_is_not_flushed_again() -> None:
    flushed: list[int] = []
    journal: Any = SimpleNamespace(done=3, record=flushed.append, path=Path("p"))
    with closing(_Flusher(SimpleNamespace(flush=lambda: None), journal)) as flusher:  # type: ignore[arg-type]
        for batches in (2, 3, 4):
            flusher.begin(batches)
            flusher.wait()
    assert flushed == [4]
