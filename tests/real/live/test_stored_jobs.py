"""Tables of live jobs, what is kept of them, and how long a process tries to meet its group: cases by hand."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from kept_numbers import answered

from ddlsched import errors
from ddlsched.errors import InputError
from ddlsched.real.live import meetings, reports
from ddlsched.real.live.meetings import Seal, meet
from ddlsched.real.live.reports import Ready, Report, ReportSocket, parse_report, send_report
from ddlsched.real.live.seat import Orders
from ddlsched.real.live.store import JobStore, StoredJob, read_jobs

HEAD = "job_id,program,steps,max_nodes"


def read(folder: Path, text: str) -> Any:
    path = folder / "jobs.csv"
    path.write_text(text)
    return read_jobs(path)


def test_a_table_of_jobs_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: object())
    (tmp_path / "own").mkdir()
    script = tmp_path / "own" / "job.py"
    script.touch()
    whole = f"{HEAD},min_nodes,samples_per_s\nA.b_c-1,count,10000000,64,64,1 2.5 3\nb,mlp,1,1,,\nc,own/job.py,5,4,2,\n"
    first = StoredJob("A.b_c-1", "count", 10_000_000, 64, "queued", 0, (1.0, 2.5, 3.0), 64)
    second = StoredJob("b", "mlp", 1, 1, "queued", 0, (), 1)
    assert read(tmp_path, whole) == [first, second, StoredJob("c", str(script), 5, 4, "queued", 0, (), 2)]
    assert read(tmp_path, f"{HEAD}\n{'x' * 64},count,1,1\n")[0].job_id == "x" * 64


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "holds no job; expected at least one row"),
        (f"{'x' * 65},count,1,1", "column job_id: 'xxxxxxx"),
        (".a,count,1,1", "column job_id: '.a'; expected up to 64 letters, digits, _ . and -"),
        ("a,count,1,1\na,count,1,1", "column job_id: 'a' is there twice; expected each name once"),
        ("a,other,1,1", "column program: 'other'; expected count, mlp, or an existing script"),
        ("a,none.py,1,1", "column program: 'none.py'; expected count, mlp, or an existing script"),
        ("a,there.txt,1,1", "column program: 'there.txt'"),
        ("a,count,0,1", "column steps"),
        ("a,count,10000001,1", "column steps"),
        ("a,count,1,65", "column max_nodes"),
        ("a,count,1,0", "column max_nodes"),
        ("a,count,1,3,4", "column min_nodes"),
        ("a,count,1,3,1,0", "column samples_per_s"),
        ("a,count,1,3,1,1 x", "column samples_per_s"),
    ],
)
def test_what_cannot_be_a_job_is_refused_with_its_column(tmp_path: Path, rows: str, said: str) -> None:
    (tmp_path / "there.txt").touch()
    columns = [*HEAD.split(","), "min_nodes", "samples_per_s"]
    head = ",".join(columns[: max(rows.partition("\n")[0].count(","), 3) + 1])
    assert said in answered(read, tmp_path, f"{head}\n{rows}\n")


def test_only_counting_needs_no_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    assert len(read(tmp_path, f"{HEAD}\na,count,1,1\n")) == 1
    assert "row 1 (line 2): the program needs torch" in answered(read, tmp_path, f"{HEAD}\na,mlp,1,1\n")


def states(store: JobStore) -> str:
    return " ".join(f"{job.job_id}:{job.state}:{job.generation}" for job in store.jobs())


def test_jobs_are_kept_with_their_states_and_groups(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    for name in "bac":
        assert store.submit(name, program="count", steps=5, max_nodes=2)
    assert not store.submit("a", program="count", steps=5, max_nodes=2)
    said = "job 'a': is known as ('count', 5, 2); expected the same, or another name"
    for given in ({"program": "mlp"}, {"steps": 6}, {"max_nodes": 1}):
        assert answered(store.submit, "a", **({"program": "count", "steps": 5, "max_nodes": 2} | given)) == said
    assert store.jobs()[1] == StoredJob("a", "count", 5, 2, "queued", 0)
    assert [(job.min_nodes, job.samples_per_s) for job in store.jobs()] == [(1, ())] * 3
    tokens = {store.start(name) for name in "bac"}
    assert len(tokens) == 3
    assert {len(token) for token in tokens} == {32}
    assert store.start("a") not in tokens
    assert [store.regroup(name) for name in "aab"] == [1, 2, 1]
    assert states(store) == "b:running:1 a:running:2 c:running:0"
    assert store.token_of("c") in tokens
    for state, name in (("finished", "b"), ("failed", "c")):
        store.end(name, state)
        assert store.token_of(name) is None
    store.start("b")  # what has ended stays so
    assert states(store) == "b:finished:1 a:running:2 c:failed:0"
    store.close()
    store = JobStore(tmp_path / "jobs.sqlite")
    assert store.token_of("a") is None
    assert store.requeue("running") == ["a"]
    assert store.requeue("running") == []
    assert store.requeue("failed") == ["c"]
    assert states(store) == "b:finished:1 a:queued:2 c:queued:0"
    store.start("a")
    store.end("a", "queued")
    assert states(store) == "b:finished:1 a:queued:2 c:queued:0"
    with pytest.raises(InputError, match="the state of jobs cannot be kept"):
        store.submit("d", program="count", steps=0, max_nodes=1)
    store.close()
    with pytest.raises(InputError, match="the state of jobs cannot be kept"):
        store.jobs()
    (tmp_path / "other").write_text("no database at all, but a text that is long enough")
    with pytest.raises(InputError, match=r"cannot be used \(.*\); expected a file for the state of jobs"):
        JobStore(tmp_path / "other")


class Turns:
    """A seat that notes how long each look for an order to leave may take; so long the clock moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int = 10_000, takes_s: float = 0.0) -> None:
        self.looks, self.now_s, self.last, self.takes_s = list[float](), 0.0, last, takes_s
        monkeypatch.setattr(meetings, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def is_asked_to_leave(self, within_s: float) -> bool:
        self.looks.append(within_s)
        self.now_s += within_s + self.takes_s
        return len(self.looks) >= self.last


class Store(dict[str, bytes]):
    def set(self, key: str, value: bytes) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


ORDERS = Orders(1, 1, 3, "10.0.0.7", 4242)


def test_a_rank_looks_at_once_and_then_every_2_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    seat: Any = Turns(monkeypatch, last=5)
    store = Store(here0=b"")
    assert meet(seat, ORDERS, lambda: store) is None  # type: ignore[arg-type, return-value]
    assert seat.looks == [0.0, 0.002, 0.002, 0.002, 0.002]
    assert store == {"here0": b"", "here1": b""}
    store["here2"] = b"somebody else"
    assert meet(Turns(monkeypatch, last=3), ORDERS, lambda: store) is None  # type: ignore[arg-type, return-value]
    store["here2"] = b""
    assert meet(Turns(monkeypatch), ORDERS, lambda: store) is store  # type: ignore[arg-type, return-value, comparison-overlap]


@pytest.mark.parametrize(
    ("error", "pause_s", "said"),
    [
        (ConnectionRefusedError(111, "no\npage"), 0.002, "[Errno 111] no"),
        (RuntimeError("broken\nand a page"), 0.5, "broken"),
    ],
)
def test_who_is_not_reached_is_tried_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, error: Exception, pause_s: float, said: str
) -> None:
    def fails() -> Any:
        raise error

    seat: Any = Turns(monkeypatch, takes_s=0.25)
    with pytest.raises(SystemExit) as ended:
        meet(seat, ORDERS, fails)
    assert str(ended.value).startswith("10.0.0.7:4242")
    assert said in str(ended.value)
    assert "page" not in str(ended.value)
    assert seat.looks[:2] == [0.0, pause_s]
    assert 60 < seat.now_s <= 60 + pause_s + 0.25


def test_seals_are_of_32_bytes_for_a_group_and_a_key() -> None:
    seal = Seal("token", 1)
    sealed = seal.put_on("k", b"value")
    assert len(sealed) == 32 + 5
    assert seal.take_off("k", sealed) == b"value"
    for other, key in ((Seal("token", 2), "k"), (Seal("other", 1), "k"), (seal, "l")):
        with pytest.raises(meetings.NotSealedError, match="was not written by this group"):
            other.take_off(key, sealed)


def test_reports_are_believed_as_they_were_proven_and_no_longer_than_a_kibibyte(tmp_path: Path) -> None:
    listening = ReportSocket({"a": "right"}.get)
    assert listening.refused == 0
    folder = Path(listening.path).parent
    assert folder.name.startswith("ddlsched-live-")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(listening.path).stat().st_mode & 0o777 == 0o600
    good = Report("a", "right", 1, 2, 3, 4, None, 0.5, 0.25)
    long = Ready("a", "right", 1, 0, "h" * 200, 5, "f" * 64)
    for report in (good, long, Report("a", "wrong", 1, 2, 3, 4, 0.5, 0.5), Ready("b", "right", 1, 0, "h", 5)):
        send_report(listening.path, report)
    came: list[Any] = []
    while len(came) < 2 or listening.refused < 2:
        came += listening.receive(1.0)
    assert came == [good, long]
    assert listening.refused == 2
    assert listening.receive(0.0) == []
    listening.close()
    assert not folder.exists()
    text = msgspec.json.encode(long)
    assert parse_report(text) == long
    more = text.replace(b"{", b'{"more":1,')
    for line in (b"{}", b"", b"[" * 5000, b'{"type":"Report","job":"a"}', more, more.replace(b"Ready", b"Report")):
        assert parse_report(line) is None
    assert reports.address_towards("/a/path") == "127.0.0.1"
    assert reports.address_towards("127.0.0.1:5") == "127.0.0.1"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder in which a socket's path is not too long."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def test_folders_of_managers_that_are_dead_are_removed(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    for name in ("ddlsched-live-dead", "ddlsched-live-empty", "ddlsched-live-busy", "other-live"):
        (short / name).mkdir()
    (short / "ddlsched-live-file").touch()
    (short / "ddlsched-live-link").symlink_to(short / "other-live")
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as busy:
        dead.bind(str(short / "ddlsched-live-dead" / "progress"))
        busy.bind(str(short / "ddlsched-live-busy" / "progress"))
        busy.listen(0)
        first, second = ReportSocket({}.get), ReportSocket({}.get)
        there = {path.name for path in short.iterdir()}
        own = {Path(each.path).parent.name for each in (first, second)}
        kept = {"ddlsched-live-busy", "other-live", "ddlsched-live-file", "ddlsched-live-link"}
        assert there == kept | own
        first.close()
        second.close()
    assert {path.name for path in short.iterdir()} == kept


def test_a_line_is_shorter_than_a_kibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = ReportSocket({"a": "right"}.get)
    encode = reports.msgspec.json.encode
    for length, number in ((1022, 1), (1023, 1), (1024, 0)):

        def padded(report: Any, length: int = length) -> bytes:
            text: bytes = encode(report)
            return text.ljust(length) if report.token else text

        monkeypatch.setattr(reports.msgspec.json, "encode", padded)
        send_report(listening.path, Ready("a", "right", 1, 0, "h", 5))
        monkeypatch.setattr(reports.msgspec.json, "encode", encode)
        refused, came = listening.refused, list[Any]()
        while not came and listening.refused == refused:
            came += listening.receive(1.0)
        assert len(came) == number
    listening.close()


def test_what_cannot_be_removed_of_dead_managers_is_left_there(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(tempfile, "tempdir", str(short))
    (short / "ddlsched-live-dead").mkdir()
    monkeypatch.setattr(reports.os, "rmdir", refuse)
    ReportSocket({}.get).close()
    assert len(list(short.iterdir())) == 2
    monkeypatch.undo()
