"""Ranges of new files: what was written to them, and whether they still hold it."""

from __future__ import annotations

import pytest

from ddlsched.checkpoints.content import ReadBack, Written, WrittenRange
from ddlsched.checkpoints.gathering import NewArray
from ddlsched.checkpoints.partial_folder import Target

CONTENT = bytes(range(200))


def ranges() -> list[WrittenRange]:
    """Return what was noted of two files that each get CONTENT from byte 50 on, in three pieces out of order."""
    array = NewArray(tensor="t", dtype="U8", sources=(), targets=(Target("a", 50), Target("b", 50)))
    written = Written(["t"])
    for low, high in ((120, 200), (0, 70), (70, 120)):
        middle = (low + high) // 2
        written.note(array, low, [memoryview(CONTENT)[low:middle], memoryview(CONTENT)[middle:high]])
    written.note(NewArray(tensor="other", dtype="U8", sources=(), targets=array.targets), 0, [memoryview(CONTENT)])
    assert written.taken("other") == []
    found = written.taken("t")
    assert written.taken("t") == []
    return found


class Files:
    """Two files with CONTENT from byte 50 on, and a note of what was read of them."""

    def __init__(self) -> None:
        self.content = {name: bytearray(50) + CONTENT for name in "ab"}
        self.read_bytes = 0

    def read(self, file: str, low: int, high: int) -> memoryview:
        self.read_bytes += high - low
        return memoryview(self.content[file])[low:high]

    def seen(self, found: ReadBack, file: str, low: int, high: int) -> None:
        found.see(file, low, memoryview(self.content[file])[low:high])


def test_ranges_are_those_of_each_target_in_order() -> None:
    assert [found[:3] for found in ranges()] == [
        (file, 50 + low, 50 + high) for file in "ab" for low, high in ((0, 70), (70, 120), (120, 200))
    ]


def test_what_an_earlier_run_wrote_in_part_is_not_noted() -> None:
    written = Written(["t", "u"])
    written.leave_out(["t"])
    for name in "tu":
        array = NewArray(tensor=name, dtype="U8", sources=(), targets=(Target("a", 50),))
        written.note(array, 0, [memoryview(CONTENT)])
    assert (written.taken("t"), len(written.taken("u"))) == ([], 1)


def test_what_was_seen_is_not_read_again() -> None:
    files, found = Files(), ReadBack(ranges())
    for low in range(40, 240, 20):  # Some pieces reach over a range's end, the last ones are not seen.
        files.seen(found, "a", low, low + 20)
    found.see("c", 50, memoryview(b"a file of which nothing was written"))
    assert found.is_as_written(files.read)
    assert files.read_bytes == 80 + 200


@pytest.mark.parametrize(
    "pieces", [[(60, 250)], [(50, 60), (70, 250)], [(120, 250), (50, 120)], [(50, 100), (80, 250)]]
)
def test_what_is_seen_in_another_order_is_read_again_where_needed(pieces: list[tuple[int, int]]) -> None:
    files, found = Files(), ReadBack(ranges())
    for low, high in pieces:
        files.seen(found, "a", low, high)
        files.seen(found, "b", low, high)
    assert found.is_as_written(files.read)


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("at", [50, 119, 120, 249])
def test_another_byte_is_found_in_what_is_seen_and_in_what_is_left(seen: bool, at: int) -> None:
    files, found = Files(), ReadBack(ranges())
    files.content["b"][at] ^= 1
    if seen:
        files.seen(found, "b", 0, 250)
    assert not found.is_as_written(files.read)


def test_ranges_that_overlap_or_lack_bytes_do_not_cover() -> None:
    whole = ranges()
    assert ReadBack(whole).covers(400)
    assert not ReadBack(whole).covers(401)
    assert not ReadBack([*whole[:3], whole[2], *whole[3:]]).covers(400)
