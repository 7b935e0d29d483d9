"""Bounded reading of users' files: sizes, devices, pipes with and without a writer."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddlsched.errors import InputError
from ddlsched.io import files as reading
from ddlsched.io.files import bounded, made_folder, opened, opened_parquet, read_bytes, replacing
from ddlsched.workload.traces import trace_files, trace_import
from ddlsched.workload.traces.trace_import import import_trace


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def writing(path: Path, parts: Iterator[bytes]) -> threading.Thread:
    """Write to a pipe until all is written or nobody reads any more."""

    def write() -> None:
        try:
            with path.open("wb", buffering=0) as file:
                for part in parts:
                    file.write(part)
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_file_of_the_most_bytes_is_read_and_one_byte_more_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"x" * 1000)
    assert read_bytes(path, 1000) == b"x" * 1000
    with pytest.raises(InputError, match=re.escape(f"{path}: is larger than")):
        read_bytes(path, 999)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "sparse.csv"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(InputError, match=r"larger than 268 MB; expected at most that"):
        read_bytes(path)


def test_a_file_that_is_longer_than_it_says_is_cut_off_while_it_is_read():
    # Linux says that its files in /proc have 0 bytes.
    assert Path("/proc/self/smaps").stat().st_size == 0
    with pytest.raises(InputError, match="larger than"):
        read_bytes(Path("/proc/self/smaps"), 100)


@pytest.mark.parametrize(("path", "kind"), [("/dev/zero", "a device"), ("/", "a folder")])
def test_what_is_no_file_is_refused(path, kind):
    with pytest.raises(InputError, match=re.escape(f"{path}: is {kind}; expected a regular file")):
        read_bytes(Path(path))


def test_a_pipe_with_a_writer_is_read_to_its_end(pipe):
    parts = [b"a" * 100_000, b"b" * 100_000, b"c"]
    writer = writing(pipe, iter(parts))
    assert read_bytes(pipe) == b"".join(parts)
    writer.join(10)


@pytest.mark.long
def test_a_pipe_waits_for_a_writer_that_comes_late(pipe, monkeypatch):
    monkeypatch.setattr(reading, "_WRITER_S", 30.0)
    threading.Timer(0.2, lambda: writing(pipe, iter([b"late"]))).start()
    assert read_bytes(pipe) == b"late"


def test_an_endless_pipe_is_cut_off(pipe):
    writer = writing(pipe, itertools.repeat(bytes(4096)))
    with pytest.raises(InputError, match=re.escape(f"{pipe}: is larger than 1 MB")):
        read_bytes(pipe, 1_000_000)
    writer.join(10)
    assert not writer.is_alive()


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(pipe, monkeypatch):
    monkeypatch.setattr(reading, "_WRITER_S", 0.05)
    with pytest.raises(InputError, match="is a pipe through which nothing comes; expected a regular file"):
        read_bytes(pipe)


def test_a_pipe_whose_writer_is_silent_is_given_up(pipe, monkeypatch):
    monkeypatch.setattr(reading, "_SILENCE_S", 0.05)
    descriptor = os.open(pipe, os.O_RDWR)  # a writer, and so that opening it does not wait for a reader
    os.write(descriptor, b"half a ")
    with opened(pipe) as file, pytest.raises(InputError, match=r"nothing came through this pipe for 0\.05 s"):
        file.read()
    os.close(descriptor)


def test_what_a_stream_holds_beyond_the_bound_is_refused_though_it_came_compressed(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    assert path.stat().st_size < 20_000
    with gzip.open(path) as file, pytest.raises(InputError, match="bomb: is larger than"):
        bounded(file, "bomb", 1_000_000).read()


def test_a_parquet_file_of_more_rows_than_memory_holds_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"same": pa.array([0] * 100_000)}), path)
    assert path.stat().st_size < 10_000  # equal values take next to nothing, until they are read
    with opened_parquet(path) as file:
        assert file.read().num_rows == 100_000
    monkeypatch.setattr(reading, "MOST_PARQUET_BYTES", path.stat().st_size - 1)
    with pytest.raises(InputError, match="is larger than"):
        opened_parquet(path)
    monkeypatch.setattr(reading, "MOST_PARQUET_BYTES", path.stat().st_size)
    monkeypatch.setattr(reading, "MOST_ROWS", 99_999)
    with pytest.raises(InputError, match=re.escape(f"{path}: has 100,000 rows; expected at most 99,999")):
        opened_parquet(path)


# ---- Traces, which are read row by row


HEADER = "timestamp,duration,num_gpus\n"


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "_LONGEST_LINE", 1000)
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "1" * 1000)
    with pytest.raises(InputError, match=re.escape(f"{path}, line 2: has 1,000 characters or more")):
        import_trace("philly-csv", [path])


def test_rows_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_import, "MOST_ROWS", 1000)
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "y\n" * 1000)
    assert import_trace("philly-csv", [path]).report["rows"] == 1000
    path.write_text(HEADER + "y\n" * 1001)
    with pytest.raises(InputError, match=re.escape(f"{path}: has more than 1,000 rows")):
        import_trace("philly-csv", [path])


@pytest.mark.parametrize("archive", ["gz", "tar"])
def test_a_trace_that_is_too_large_once_decompressed_is_refused(tmp_path, monkeypatch, archive):
    monkeypatch.setattr(trace_files, "_MOST_BYTES", 100_000)
    text = (HEADER + "\n" * 200_000).encode()
    path = tmp_path / f"trace.csv.{archive}"
    if archive == "gz":
        path.write_bytes(gzip.compress(text))
    else:
        import io
        import tarfile

        with tarfile.open(path, "w:gz") as made:
            member = tarfile.TarInfo("trace.csv")
            member.size = len(text)
            made.addfile(member, io.BytesIO(text))
    with pytest.raises(InputError, match="is larger than"):
        import_trace("philly-csv", [path])


def test_a_trace_comes_through_a_pipe(pipe):
    writing(pipe, iter([HEADER.encode(), b"2017-10-01 00:00:00,100,1\n"]))
    assert import_trace("philly-csv", [pipe]).report["rows"] == 1


@pytest.mark.parametrize("token", [None, "known"])
def test_a_planted_link_is_not_written_through(
    tmp_path: Path, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept := tmp_path / "precious").write_text("kept")
    (tmp_path / f".ddlsched-{os.getpid()}.csv").symlink_to(kept)
    (tmp_path / ".ddlsched-known.csv").symlink_to(kept)
    if token is None:
        with replacing(tmp_path / "out.csv", "--out") as file:
            file.write_text("a,b")
        assert (tmp_path / "out.csv").read_text() == "a,b"
        assert not (tmp_path / "out.csv").is_symlink()
    else:
        monkeypatch.setattr(reading.secrets, "token_hex", lambda _: token)
        refusal = pytest.raises(InputError, match=r"--out .*out\.csv: cannot be written \(File exists\)")
        with refusal, replacing(tmp_path / "out.csv", "--out") as file:
            file.write_text("a,b")
    assert kept.read_text() == "kept"


def test_what_a_killed_writer_left_a_day_ago_is_deleted(tmp_path: Path) -> None:
    left, young, folder = (tmp_path / f".ddlsched-{16 * digit}" for digit in "abc")
    others = [tmp_path / f".ddlsched-{16 * 'x'}", tmp_path / ".ddlsched-live-1", tmp_path / (16 * "a")]
    for path in (left, young, *others):
        path.touch()
    folder.mkdir()
    for path in (left, folder, *others):
        os.utime(path, (0, 0))
    with replacing(tmp_path / "out.csv", "--out") as file:
        file.write_text("whole")
    assert sorted(tmp_path.iterdir()) == sorted([young, folder, *others, tmp_path / "out.csv"])


def test_a_file_has_the_permissions_that_a_new_one_gets(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "out.csv", "--out") as file:
        file.write_text("a")
    assert (tmp_path / "out.csv").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_is_made_with_those_around_it_unless_a_file_is_in_its_way(tmp_path: Path) -> None:
    for _ in "once", "again":
        assert made_folder(tmp_path / "a" / "b", "charts") == tmp_path / "a" / "b"
        assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"/file: cannot be used \(File exists\); expected a folder for charts$"):
        made_folder(tmp_path / "file", "charts")
