"""The steps of one measurement, each by itself: what a rank sends, hears and refuses, and what a command hands on."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import refused, run

from ddlsched.errors import InputError, MeasurementError
from ddlsched.real import calibrate_command
from ddlsched.real.calibration import agent, fit, measurements
from ddlsched.real.calibration.agent import RingRequest, timed_all_reduce
from ddlsched.real.calibration.measurements import Measured, Measurements
from ddlsched.real.channel import Address, ChannelEndedError, WireError, _prove, is_proven, proof
from ddlsched.real.listener import Caller, LineListener


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10)
    with ends[0], ends[1]:
        yield ends


def test_what_comes_in_single_bytes_is_put_together(link: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = link
    incoming, outgoing = np.zeros(2, np.float32), np.array([5.0], np.float32)
    wanted = np.array([1.5, -2.0], np.float32).tobytes()

    def drip() -> None:
        for byte in wanted:
            theirs.sendall(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    agent._exchange(ours, outgoing, ours, incoming)
    dripping.join(10)
    assert incoming.tolist() == [1.5, -2.0]
    assert theirs.recv(100) == outgoing.tobytes()


def test_a_rank_before_that_is_gone_ends_an_exchange(link: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = link
    theirs.sendall(b"\0\0\0")
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(MeasurementError, match=r"^the rank before ended its connection$"):
        agent._exchange(ours, np.zeros(0, np.float32), ours, np.zeros(1, np.float32))


def test_an_exchange_in_which_nothing_moves_is_given_up(
    link: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "STALL_S", 0.01)
    with pytest.raises(MeasurementError, match=r"^nothing moved for 0\.01 s$"):
        agent._exchange(link[0], np.zeros(0, np.float32), link[0], np.zeros(1, np.float32))


@pytest.mark.parametrize(("rank", "size", "heard"), [(0, 3, b"\1"), (1, 3, b"\1"), (2, 3, b"")])
def test_the_signal_goes_round_once(rank: int, size: int, heard: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 sends it first, the last one hands it on to nobody; then come the values."""
    told: list[Any] = []

    def reduce(values: np.ndarray, *ring: Any) -> None:
        told.append(("reduces", values.tolist(), ring[:2]))
        values[:] = size * (size + 1) / 2

    monkeypatch.setattr(agent, "all_reduce", reduce)
    after = SimpleNamespace(settimeout=lambda s: told.append(("after", s)), sendall=told.append)
    before = SimpleNamespace(settimeout=lambda s: told.append(("before", s)), recv=lambda count: b"\1" * count)
    assert 0 <= timed_all_reduce(2, rank, size, after, before) < 10  # type: ignore[arg-type]
    waited = [("before", 60.0)] if rank else []
    sent = [("after", 60.0), heard] if heard else []
    assert told == [*waited, *sent, ("reduces", [rank + 1.0] * 2, (rank, size))]
    before.recv = lambda count: b""
    if rank:
        with pytest.raises(MeasurementError, match="the rank before ended its connection"):
            timed_all_reduce(2, rank, size, after, before)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, 1])
def test_sums_are_checked_one_by_one(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def reduce(values: np.ndarray, *_: Any) -> None:
        values[:] = 3.0
        values[wrong] += 1

    monkeypatch.setattr(agent, "all_reduce", reduce)
    quiet: Any = SimpleNamespace(settimeout=lambda s: None, sendall=lambda line: None)
    with pytest.raises(MeasurementError, match="an all-reduce came to wrong sums; expected every rank's values"):
        timed_all_reduce(2, 0, 2, quiet, quiet)


class Channel:
    """Gives answers, and notes what it is told and how long it is waited at."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.told, self.waits = list(answers), list[Any](), list[float]()

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def next(self, within_s: float) -> dict[str, Any]:
        self.waits.append(within_s)
        answer = self.answers.pop(0)
        return answer(self.told[-1]) if callable(answer) else answer  # type: ignore[no-any-return]


def test_a_step_waits_for_three_stalls_and_for_its_word_only() -> None:
    channel = Channel({"kind": "start"}, {"kind": "connect", "more": "x" * 100})
    agent._step(channel, "ready", "start")  # type: ignore[arg-type]
    assert (channel.told, channel.waits) == ([{"kind": "ready"}], [180.0])
    with pytest.raises(MeasurementError, match=r"^.{80} came; expected 'connect'$"):
        agent._step(channel, "known", "connect")  # type: ignore[arg-type]


def test_a_handshake_has_one_time_for_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0])
    monkeypatch.setattr("ddlsched.real.channel.time", SimpleNamespace(monotonic=lambda: next(clock)))

    def answer(said: dict[str, Any]) -> dict[str, Any]:
        assert is_proven(said["proof"], b"token", "asks", "n" * 64, said["nonce"], said["role"])
        return {"proof": proof(b"token", "answers", "n" * 64, said["nonce"], said["role"]).hex()}

    channel = Channel({"version": "ddlsched 2", "nonce": "n" * 64}, answer)
    _prove(channel, b"token", {"kind": "ring"})  # type: ignore[arg-type]
    assert channel.waits == [10.0, 6.0]
    assert (len(channel.told[0]["nonce"]), channel.told[0]["role"]) == (64, '{"kind": "ring"}')


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        ({"version": "ddlsched 1", "nonce": "n"}, "^it speaks 'ddlsched 1'; expected 'ddlsched 2'$"),
        ({"version": "v" * 50}, "^it speaks 'v{40}'; expected 'ddlsched 2'$"),
        ({"version": "ddlsched 2", "nonce": "n"}, "^its proof is wrong$"),
    ],
)
def test_who_speaks_otherwise_or_proves_nothing_is_no_agent(greeting: dict[str, str], said: str) -> None:
    with pytest.raises(WireError, match=said):
        _prove(Channel(greeting, {"proof": "00"}), b"token", {})  # type: ignore[arg-type]


def request(**more: Any) -> dict[str, Any]:
    usual = {"run": "0" * 32, "rank": 1, "jobs": 2, "message_bytes": 800, "repeats": 3}
    return {**usual, "hosts": [["a", 1], ["b", 2]], **more}


@pytest.mark.parametrize(
    ("more", "most_bytes", "said"),
    [
        ({}, 3200, ""),
        ({}, 3199, "2 all-reduces of 800 B would take 0 MB; expected at most 0 MB"),
        ({"message_bytes": 8}, 3200, ""),  # an item a rank
        ({"message_bytes": 4}, 3200, "rank 1 of 2, 4 B came, out of bounds"),
        ({"rank": 2}, 3200, "rank 2 of 2, 800 B came, out of bounds"),
        ({"message_bytes": 802}, 3200, "a request came that is none: "),
        ({"jobs": 64, "message_bytes": 1_500_000}, 10**8, r"64 all-reduces of 1500000 B would take 192 MB; .* 100 MB"),
    ],
)
def test_what_an_agent_takes_part_in_is_bounded(more: dict[str, Any], most_bytes: int, said: str) -> None:
    if not said:
        assert RingRequest.parsed(request(**more), most_bytes).hosts == (Address("a", 1), Address("b", 2))
        return
    with pytest.raises(MeasurementError, match=said):
        RingRequest.parsed(request(**more), most_bytes)


def test_times_of_a_repeat_are_the_mean_over_its_rings_but_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    lock = threading.Lock()

    def timed(count: int, rank: int, size: int, after: Any, before: Any) -> float:
        with lock:
            told.append((count, rank, size, after, before))
            return 10.0 * after + sum(each[3] == after for each in told)  # which repeat of the ring it is

    monkeypatch.setattr(agent, "timed_all_reduce", timed)
    asked = RingRequest.parsed(request(), 3200)
    assert agent._measured(asked, [1, 2], [5, 6]) == [17.0, 18.0, 19.0]  # type: ignore[list-item]
    assert sorted(set(told)) == [(200, 1, 2, 1, 5), (200, 1, 2, 2, 6)]
    assert len(told) == 8


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (WireError("nothing whole came in time"), ["refused there: nothing whole came in time"]),
        (ChannelEndedError(), []),
    ],
)
def test_an_agent_is_free_after_each_host_and_tells_of_those_that_say_nothing(said: Exception, told: list[str]) -> None:
    def ends(_: Any) -> Any:
        raise said

    tells: list[str] = []
    one: Any = agent.RingAgent.__new__(agent.RingAgent)
    one._busy, one._run, one._tell = threading.Lock(), None, tells.append
    carried: list[Any] = []
    one._carry_out = lambda channel, message: carried.append(message) or channel.send({})
    for _ in range(2):
        channel = Channel({"asks": 1}, ends)
        one._run = "0"
        one._control(Caller(nullcontext(channel), {}, "there"))  # type: ignore[arg-type]
        assert channel.waits == [120.0, 120.0]
        assert one._run is None
    assert (tells, carried) == (told * 2, [{"asks": 1}] * 2)
    one._busy.acquire()
    channel = Channel()
    one._control(Caller(nullcontext(channel), {}, "there"))  # type: ignore[arg-type]
    assert channel.told == [{"kind": "error", "message": "the agent is busy with another measurement"}]


@pytest.mark.parametrize(
    ("role", "taken"),
    [
        ({"kind": "ring", "run": "r", "ring": 0}, True),
        ({"kind": "ring", "run": "r", "ring": 63}, True),
        ({"kind": "ring", "run": "r", "ring": 64}, False),
        ({"kind": "ring", "run": "r", "ring": -1}, False),
        ({"kind": "ring", "run": "r", "ring": True}, False),
        ({"kind": "ring", "run": "q", "ring": 0}, False),
        ({"kind": "rings", "run": "r", "ring": 0}, False),
    ],
)
def test_connections_of_this_measurements_rings_are_taken(role: dict[str, Any], taken: bool) -> None:
    one: Any = agent.RingAgent.__new__(agent.RingAgent)
    refusals: list[str] = []
    one._run, one._arrived, one._turn_away = "r", queue.Queue(), lambda caller, why: refusals.append(why)
    one._take_ring(Caller(SimpleNamespace(taken=lambda: "a socket"), role, "there"))  # type: ignore[arg-type]
    if taken:
        assert one._arrived.get_nowait() == (role["ring"], "a socket")
    assert one._arrived.empty()
    assert refusals == ["a connection for no ring of this measurement came"] * (not taken)


@pytest.mark.parametrize(("rank", "waits"), [(0, 8), (1, 0)])
def test_rank_0_starts_all_rings_of_a_repeat_together(rank: int, waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    class Barrier(threading.Barrier):
        def wait(self, timeout: float | None = None) -> int:
            waited.append(self.parties)
            return super().wait(timeout)

    monkeypatch.setattr(agent.threading, "Barrier", Barrier)
    monkeypatch.setattr(agent, "timed_all_reduce", lambda *_: 1.0)
    agent._measured(RingRequest.parsed(request(rank=rank), 3200), [1, 2], [5, 6])  # type: ignore[list-item]
    assert waited == [2] * waits


@pytest.mark.parametrize("times", [[0.5], [0.5, 0.25, 1.0], None, "ab", []])
def test_rank_0_says_a_time_for_each_repeat(times: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent is told of its rank, to connect once all know of the run, and to start once all are ready."""
    channels: list[Channel] = []

    def connected(host: Address, token: bytes, role: dict[str, str]) -> Any:
        assert (token, role) == (b"token", {"kind": "control"})
        steps = [{"kind": kind} for kind in ("known", "ready")]
        done = {"kind": "done", "seconds": said if host.port == 1 else [9.0, 9.0]}
        channels.append(Channel(*steps, done))
        return nullcontext(channels[-1])

    monkeypatch.setattr(measurements, "connect", connected)
    hosts = (Address("a", 1), Address("b", 2))
    plan = measurements.MeasurePlan(hosts=hosts, jobs=(3,), message_bytes=(801,), repeats=2)
    said: Any = [0.5, 0.25]
    assert list(measurements.measure(plan, b"token")) == [[Measured(3, 800, 0.5, 2, 1), Measured(3, 800, 0.25, 2, 2)]]
    for rank, channel in enumerate(channels):
        asked, *others = channel.told
        assert (asked["rank"], asked["jobs"], asked["message_bytes"], asked["repeats"]) == (rank, 3, 800, 2)
        assert others == [{"kind": "connect"}, {"kind": "start"}]
        assert channel.waits == [300.0] * 3
    said = times
    with pytest.raises(MeasurementError, match=r"a:1: .* came; expected 2 times"):
        list(measurements.measure(plan, b"token"))


def test_halves_have_half_of_the_settings_with_all_their_rows() -> None:
    rows = Measurements(np.array([1.0, 1, 2, 2, 3, 4, 5]), np.full(7, 8.0), np.ones(7), None)
    halves = fit.random_halves(rows, 60, seed=3)
    assert {len(set(rows.settings[half])) for half in halves} == {2}
    assert all(half[0] == half[1] and half[2] == half[3] for half in halves)
    assert halves.any(axis=0).all()
    assert not halves.all(axis=0).any()


def test_rings_need_the_number_of_servers() -> None:
    form = next(form for form in fit.FORMS if form.ring_bytes)
    rows = Measurements(np.ones(2), np.ones(2), np.ones(2), None)
    with pytest.raises(InputError, match="the number of servers is unknown; expected a column 'servers'"):
        form.amounts(rows)


def test_lines_of_a_chart_are_those_of_the_servers_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def predicted(form: str, values: Any, rows: Measurements) -> np.ndarray:
        drawn.append((rows.message_bytes[0], rows.jobs[0], rows.jobs[-1], len(rows), set(rows.servers)))
        return rows.jobs

    monkeypatch.setattr(fit, "predicted_s", predicted)
    count, servers = np.array([1.0, 3, 2, 4]), np.array([2.0, 5, 7, 3])
    rows = Measurements(count, np.array([8.0, 8, 16, 16]), np.ones(4), servers)
    fitted: Any = SimpleNamespace(form=SimpleNamespace(name="f"), values={}, tested_error=ERROR)
    figure = fit.fit_chart(rows, fitted)
    assert drawn == [(8.0, 1.0, 3.0, 50, {2.0}), (16.0, 2.0, 4.0, 50, {7.0})]
    assert figure.get_suptitle() == "f: 5.0 % off on rows not fitted"
    lines = figure.axes[0].get_lines()
    assert [line.get_xdata().tolist() for line in lines[::2]] == [[1, 3], [2, 4]]


def test_who_listens_waits_for_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = LineListener(server, 512)
        assert not server.getblocking()
        assert listener.lines(0.0) == []
        listener.close()


# ---- The commands


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let nothing be measured; what should be is noted, and every time is what the message takes at 1 us and 1 ns/B."""
    told: list[Any] = []

    def measure(plan: Any, token: bytes) -> Iterator[list[Measured]]:
        told.append((plan, token))
        for jobs in plan.jobs:
            for size in plan.message_bytes:
                yield [Measured(jobs, size, 1e-6 + jobs * size * 1e-9, 2, 1)]

    best = SimpleNamespace(form=SimpleNamespace(name="one"), constants={}, preset="one:a=1", tested_error=ERROR)
    monkeypatch.setattr(measurements, "measure", measure)
    monkeypatch.setattr(
        "ddlsched.real.calibration.fit.calibrate", lambda rows: told.append(rows.seconds.tolist()) or [best]
    )
    return told


ERROR = SimpleNamespace(value=0.05, low=0.04, high=0.0625)


def test_what_is_measured_is_what_was_asked_for_and_kept(measured: list[Any], token: Path, tmp_path: Path) -> None:
    hosts = ["--measure", "10.0.0.1:5", "--measure", "10.0.0.2:6", "--token-file", token]
    sizes = ["--jobs", "1,3", "--sizes-mb", "0.5,1,2.25", "--repeats", 7]
    done = run("calibrate", *hosts, *sizes, "--out", tmp_path / "m.csv")
    assert done.exit_code == 0, done.stderr
    [(plan, given), seconds] = measured
    assert (plan.hosts, given) == ((Address("10.0.0.1", 5), Address("10.0.0.2", 6)), b"0123456789abcdef")
    assert (plan.jobs, plan.message_bytes, plan.repeats) == ((1, 3), (500_000, 1_000_000, 2_250_000), 7)
    assert seconds == pytest.approx([1e-6 + jobs * size * 1e-3 for jobs in (1, 3) for size in (0.5, 1, 2.25)])
    assert done.stdout.splitlines()[0] == "measured: 6 rows, 6 settings of jobs and bytes; intervals hold 95 %"
    assert "\n  --contention one:a=1\n" in done.stdout
    assert "6 measurements" in done.stderr
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--jobs", "1,x"], "--jobs 1,x: 'x'"),
        (["--sizes-mb", "1;2"], "--sizes-mb 1;2: '1;2'"),
        (["--jobs", "1,2", "--out", "/dev/null/m.csv"], "--out"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(measured: list[Any], token: Path, more: list[str], said: str) -> None:
    done = run("calibrate", "--measure", "10.0.0.1:5", "--measure", "10.0.0.2:6", "--token-file", token, *more)
    refused(done, said)
    assert measured == []


def test_a_chart_is_refused_where_either_file_cannot_be_written(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("concurrent_jobs,message_bytes,transfer_s\n")
    for suffix in (".png", ".svg"):
        (tmp_path / f"c{suffix}").mkdir()
        refused(run("calibrate", rows, "--chart", tmp_path / "c.PNG"), "--chart", f"c{suffix}")
        (tmp_path / f"c{suffix}").rmdir()


def test_an_agent_serves_with_the_memory_that_it_may_take(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Agent:
        def __init__(self, address: Address, given: bytes, *, most_bytes: int, tell: Any) -> None:
            told.append((address, given, most_bytes))
            self.address = "there"
            tell("told")

        def serve(self) -> None:
            told.append("serves")

    monkeypatch.setattr(agent, "RingAgent", Agent)
    done = run("calibrate-agent", "127.0.0.1:0", "--token-file", token, "--memory-mb", 1.5)
    assert (done.exit_code, done.stderr) == (0, "ddlsched: told\nddlsched: listening on there\n")
    assert told == [(Address("127.0.0.1", 0), b"0123456789abcdef", 1_500_000), "serves"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("latency_s", 1.5e-5, "latency         15 [7.5, 30] us"),
        ("per_byte_s", 8e-10, "time of a byte  0.8 [0.4, 1.6] ns/B"),
        ("penalty_per_byte_s", 3e-9, "penalty         3 [1.5, 6] ns/B"),
        ("step_s", 1e-4, "time of a step  100 [50, 200] us"),
        ("exponent", 0.25, "exponent        0.25 [0.125, 0.5]"),
        ("window_bytes", 3e5, "window          300 [150, 600] kB"),
        ("chunk_s", 2e-6, "time of a chunk 2 [1, 4] us"),
    ],
)
def test_constants_are_told_in_units_that_people_read(name: str, value: float, said: str) -> None:
    constant: Any = SimpleNamespace(value=value, low=value / 2, high=2 * value)
    assert calibrate_command._constant(name, constant) == said
