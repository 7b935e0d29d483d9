"""Measuring with agents: rings over loopback and between network namespaces, and what agents refuse."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from command_line import run

from ddlsched.errors import InputError, MeasurementError
from ddlsched.real import channel
from ddlsched.real.calibration import agent as agent_module
from ddlsched.real.calibration.agent import RingAgent, RingRequest, all_reduce
from ddlsched.real.calibration.fit import FORMS, fit_constants
from ddlsched.real.calibration.measurements import (
    Measurements,
    MeasurePlan,
    measure,
    read_measurements,
    write_measurements,
)
from ddlsched.real.channel import Address, Channel, connect, parse_address, proof, read_token
from ddlsched.real.listener import MOST_OF_A_PEER, LineListener

TOKEN = b"a token for tests only"


@pytest.fixture
def agents() -> Iterator[list[RingAgent]]:
    """Three agents on loopback."""
    with contextlib.ExitStack() as stack:
        found = [RingAgent(Address("127.0.0.1", 0), TOKEN, most_bytes=10**8) for _ in range(3)]
        for agent in found:
            stack.callback(agent.stop)
        serving = [threading.Thread(target=agent.serve, daemon=True) for agent in found]
        for thread in serving:
            thread.start()
        yield found
    for thread in serving:
        thread.join(10)
        assert not thread.is_alive()


def addresses(agents: list[RingAgent]) -> tuple[Address, ...]:
    return tuple(agent.address for agent in agents)


# ---- The ring


@pytest.mark.parametrize(("size", "count"), [(2, 2), (2, 1001), (3, 7), (5, 100_003)])
def test_every_rank_ends_with_the_sum(size, count):
    values = np.random.default_rng(0).integers(0, 100, (size, count)).astype(np.float32)
    expected = values.sum(axis=0)
    links = [socket.socketpair() for _ in range(size)]  # links[r]: from rank r to the next
    for pair in links:
        for end in pair:
            end.setblocking(False)
    ranks = [
        threading.Thread(target=all_reduce, args=(values[r], r, size, links[r][0], links[r - 1][1]))
        for r in range(size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    for pair in links:
        for end in pair:
            end.close()
    assert (values == expected).all()


# ---- Measuring on loopback


def test_measurements_on_loopback_have_a_row_a_repeat(agents, tmp_path):
    settings = MeasurePlan(hosts=addresses(agents), jobs=(1, 3), message_bytes=(10_001, 400_000), repeats=2)
    rows = [row for rows in measure(settings, TOKEN) for row in rows]
    keys = sorted((row.concurrent_jobs, row.message_bytes, row.repeat) for row in rows)
    assert keys == [(jobs, size, repeat) for jobs in (1, 3) for size in (10_000, 400_000) for repeat in (1, 2)]
    assert all(0 < row.transfer_s < 30 and row.servers == 3 for row in rows)
    write_measurements(rows, tmp_path / "measured.csv")
    read = read_measurements(tmp_path / "measured.csv")
    assert sorted(read.seconds) == pytest.approx(sorted(row.transfer_s for row in rows), rel=1e-8)


@pytest.mark.long
def test_the_command_measures_and_fits(agents, tmp_path):
    token = tmp_path / "token"
    token.write_bytes(TOKEN + b"\n")
    token.chmod(0o600)
    hosts = [argument for address in addresses(agents) for argument in ("--measure", address)]
    flags = ["--token-file", token, "--jobs", "1,2,4", "--sizes-mb", "0.1,0.5,1", "--repeats", "2"]
    done = run("calibrate", *hosts, *flags, "--out", tmp_path / "m.csv")
    assert done.exit_code == 0, done.stderr
    assert "18 rows, 9 settings" in done.stdout
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 19


@pytest.mark.parametrize(
    ("jobs", "sizes_mb", "why"),
    [
        ("1,2", "1,4", "there are 4 settings of concurrent_jobs and message_bytes; expected at least 5"),
        ("1", "1,2,4", "there are 3 settings of concurrent_jobs and message_bytes; expected at least 4"),
        ("1,2,4", "1", "every row has message_bytes 1e+06; expected at least two sizes"),
        ("2", "1,2,4,8,16", "every row has concurrent_jobs 2; expected 1, or at least two numbers"),
    ],
)
def test_item_17_settings_that_cannot_be_fitted_are_refused_before_anything_is_measured(tmp_path, jobs, sizes_mb, why):
    """Nobody listens at these hosts, so that an attempt to measure would say something else."""
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "token").chmod(0o600)
    hosts = ["--measure", "127.0.0.1:1", "--measure", "127.0.0.2:1", "--token-file", tmp_path / "token"]
    done = run("calibrate", *hosts, "--jobs", jobs, "--sizes-mb", sizes_mb)
    assert done.exit_code == 2
    assert f"--jobs {jobs} --sizes-mb {sizes_mb}: {why}" in done.stderr


def test_an_agent_is_free_again_after_a_measurement(agents):
    settings = MeasurePlan(hosts=addresses(agents), jobs=(2,), message_bytes=(1000,), repeats=1)
    deadline_s, measured = time.monotonic() + 30, []
    while len(measured) < 3:
        try:
            measured += list(measure(settings, TOKEN))
        except MeasurementError as error:  # the agents have yet to notice that the host has left
            if "busy" not in str(error) or time.monotonic() > deadline_s:
                raise
    assert [[(row.concurrent_jobs, row.message_bytes, row.servers) for row in rows] for rows in measured] == [
        [(2, 1000, 3)]
    ] * 3
    assert all(row.transfer_s > 0 for rows in measured for row in rows)


# ---- What goes wrong


def test_a_wrong_token_is_refused(agents):
    settings = MeasurePlan(hosts=addresses(agents), jobs=(1,), message_bytes=(1000,))
    with pytest.raises(MeasurementError, match="does not know the token"):
        list(measure(settings, b"another token of length"))


def test_a_second_host_is_told_that_the_agent_is_busy(agents):
    with connect(agents[0].address, TOKEN, {"kind": "control"}) as first:
        first.send({})  # answered, so the agent has begun to serve it
        assert first.next(10)["kind"] == "error"
        with connect(agents[0].address, TOKEN, {"kind": "control"}) as second:
            assert "busy" in second.next(10)["message"]


def test_an_agent_that_is_not_there_is_named(agents):
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = Address(*free.getsockname())
    settings = MeasurePlan(hosts=(*addresses(agents)[:1], gone), jobs=(1,), message_bytes=(1000,))
    with pytest.raises(MeasurementError, match=str(gone.port)):
        list(measure(settings, TOKEN))


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 1000,
        b"{[}]\xff\n",
        b"[]\n",
        b"{}\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 400 + b"\n",
        b'{"nonce": "\\ud800", "role": "{}", "proof": "\\ud800"}\n',
        b"",
    ],
)
def test_what_is_no_handshake_ends_the_connection_and_nothing_else(agents, data):
    with socket.create_connection(agents[0].address, timeout=10) as stranger:
        greeting = Channel(stranger).next(10)
        assert set(greeting) == {"version", "nonce"}
        with contextlib.suppress(OSError):  # The agent may have closed before all was sent.
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(100) == b""
    assert len(list(measure(MeasurePlan(hosts=addresses(agents), jobs=(1,), message_bytes=(1000,)), TOKEN))) == 1


def test_a_proof_cannot_be_used_twice(agents):
    with Channel(socket.create_connection(agents[0].address, timeout=10)) as first:
        said = first.next(10)["nonce"], "0" * 64, '{"kind": "control"}'
        answer = {"nonce": said[1], "role": said[2], "proof": proof(TOKEN, "asks", *said).hex()}
        first.send(answer)
        assert first.next(10) == {"proof": proof(TOKEN, "answers", *said).hex()}
    with Channel(socket.create_connection(agents[0].address, timeout=10)) as second:
        second.next(10)
        second.send(answer)
        with contextlib.suppress(ConnectionResetError):
            assert second.taken().recv(100) == b""


def measures(agents: list[RingAgent]) -> bool:
    settings = MeasurePlan(hosts=addresses(agents), jobs=(1,), message_bytes=(1000,), repeats=1)
    return len(list(measure(settings, TOKEN))) == 1


def test_two_hundred_slow_connections_lock_nobody_out(agents):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(agents[0].address, timeout=10)) for _ in range(200)]
        assert set(Channel(slow[-1]).next(10)) == {"version", "nonce"}
        assert measures(agents)
        for ended in slow[:-MOST_OF_A_PEER]:
            while ended.recv(1000):
                pass


@pytest.mark.long
def test_one_who_sends_a_byte_now_and_then_is_ended_with_the_handshake(agents):
    agents[0]._within_s = 0.3
    with socket.create_connection(agents[0].address, timeout=10) as slow:
        Channel(slow).next(10)
        assert drips_until_the_end(slow, b"x" * 400) < 200


def drips_until_the_end(connection: socket.socket, data: bytes) -> int:
    """Send a byte every 20 ms until the other side ends the connection; return how many."""
    connection.settimeout(0.02)
    for sent in range(len(data)):
        try:
            connection.sendall(data[sent : sent + 1])
            if connection.recv(1) == b"":
                return sent
        except TimeoutError:
            continue
        except OSError:
            return sent
    return len(data)


@pytest.mark.long
@pytest.mark.parametrize("drips", [False, True])
def test_a_silent_measuring_host_makes_way_for_the_next(agents, monkeypatch, drips):
    monkeypatch.setattr(agent_module, "_IDLE_S", 0.3)
    with connect(agents[0].address, TOKEN, {"kind": "control"}) as silent:
        if drips:
            assert drips_until_the_end(silent.taken(), b"x" * 400) < 200
        else:
            silent.taken().settimeout(10)
            assert silent.taken().recv(1) == b""
        assert measures(agents)


def test_the_oldest_of_too_many_is_ended_a_peer_and_in_all():
    with contextlib.ExitStack() as stack:
        server = socket.create_server(("127.0.0.1", 0))
        listener = stack.enter_context(contextlib.closing(LineListener(server, 512, most_of_a_peer=MOST_OF_A_PEER)))
        others = {}

        def comes(address: str) -> socket.socket:
            ours, other = socket.socketpair()
            stack.callback(other.close)
            other.setblocking(False)
            listener.admit(ours, address)
            others[ours] = other
            return ours

        def is_ended(ours: socket.socket) -> bool:
            try:
                return others[ours].recv(1) == b""
            except BlockingIOError:
                return False

        first = comes("10.0.0.1")
        # The 2**64 addresses of an IPv6 network are one host's.
        found = [comes(f"fe80::{number:x}%eth0") for number in range(MOST_OF_A_PEER)]
        assert not any(map(is_ended, [first, *found]))
        comes("fe80::ffff%eth0")
        assert [is_ended(ours) for ours in [first, *found]] == [False, True] + [False] * (MOST_OF_A_PEER - 1)
        assert listener.refused == 1
        many = [comes(f"10.0.1.{number}") for number in range(128 - 1 - MOST_OF_A_PEER)]
        assert not any(map(is_ended, [first, *many]))
        comes("10.0.2.1")
        assert is_ended(first)
        assert not any(map(is_ended, many))


def test_a_server_that_greets_with_no_text_is_no_agent(agents):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                Channel(connection).send({"version": channel._VERSION, "nonce": "\ud800"})

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(MeasurementError, match="does not know the token, or is no agent"):
            connect(Address(*server.getsockname()), TOKEN, {"kind": "control"})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_token_that_others_can_read_or_change_is_refused(tmp_path, mode):
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(mode)
    with pytest.raises(InputError, match=rf"others can read or change it \(mode {mode:04o}\); expected: chmod 600 "):
        read_token(token)
    token.chmod(0o400)
    assert read_token(token) == TOKEN


@pytest.mark.long
def test_a_token_comes_through_a_pipe_of_the_shell(tmp_path):
    (tmp_path / "token").write_bytes(TOKEN)
    read = "import sys, pathlib; from ddlsched.real.channel import read_token as read; "
    script = f"{sys.executable} -c '{read} print(read(pathlib.Path(sys.argv[1])))' <(cat token)"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{TOKEN!r}\n"


def good() -> dict[str, object]:
    hosts = [["127.0.0.1", 7411], ["127.0.0.1", 7412]]
    fields = {"run": secrets.token_hex(16), "hosts": hosts, "rank": 1}
    return fields | {"jobs": 2, "message_bytes": 1000, "repeats": 1}


def test_a_good_request_is_taken():
    assert RingRequest.parsed(good(), 10**6).hosts[1] == Address("127.0.0.1", 7412)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "../../etc"),
        ("run", 5),
        ("hosts", []),
        ("hosts", [["a", 1]]),
        ("hosts", [["a", 1], ["b", 70_000]]),
        ("hosts", [["a", 1], ["b" * 300, 1]]),
        ("hosts", "ab"),
        ("rank", 2),
        ("rank", -1),
        ("rank", True),
        ("jobs", 65),
        ("jobs", 1.5),
        ("message_bytes", 10**9),
        ("message_bytes", 1001),
        ("message_bytes", 4),
        ("message_bytes", 300_000),
        ("repeats", 0),
        ("repeats", 10**6),
        ("more", 1),
    ],
)
def test_a_request_out_of_bounds_is_refused(field, value):
    with pytest.raises(MeasurementError):
        RingRequest.parsed({**good(), field: value}, 10**6)


def test_the_measuring_host_is_told_what_an_agent_refuses(agents):
    settings = MeasurePlan(hosts=addresses(agents), jobs=(8,), message_bytes=(10**8,))
    with pytest.raises(MeasurementError, match="--memory-mb"):
        list(measure(settings, TOKEN))


@pytest.mark.parametrize("text", ["here", "here:", ":80", "here:0", "here:65536", "here:-1", "here:a"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InputError, match="expected HOST:PORT"):
        parse_address(text)


def test_ipv6_addresses_have_brackets():
    address = parse_address("[::1]:7411")
    assert address == Address("::1", 7411)
    assert str(address) == "[::1]:7411"


def test_a_short_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("short\n")
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(InputError, match="at least 16"):
        read_token(tmp_path / "token")


def test_the_agent_command_refuses_an_address_that_is_taken(agents, tmp_path):
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "token").chmod(0o600)
    done = run("calibrate-agent", agents[0].address, "--token-file", tmp_path / "token")
    assert done.exit_code == 2
    assert "cannot listen there" in done.stderr


# ---- Between network namespaces


MBIT = 100


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Three hosts on one bridge, each sending at most 100 Mbit/s; skips where that is not permitted."""
    tag = f"dd{os.getpid() % 100_000}"
    names = [f"{tag}n{number}" for number in range(3)]
    # A namespace in which the bridge is, so that nothing of this machine's own network is touched.
    outside = f"{tag}b"
    try:
        _ip("netns", "add", outside)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not permitted here ({error})")
    try:
        _ip("-n", outside, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", outside, "link", "set", "bridge0", "up")
        for number, name in enumerate(names, 1):
            _ip("netns", "add", name)
            port = f"port{number}"
            _ip("-n", outside, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", outside, "link", "set", port, "master", "bridge0", "up")
            _ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            shape = f"tc qdisc add dev eth0 root tbf rate {MBIT}mbit burst 64kb latency 50ms"
            _ip("netns", "exec", name, *shape.split())
        yield names
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"rate limits between namespaces are not permitted here ({error})")
    finally:
        for name in (*names, outside):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, check=True)


def fastest_repeats(rows: Measurements) -> Measurements:
    """Return the fastest row of each setting: busy processors only ever add to a time."""
    by_time = np.lexsort((rows.seconds, rows.settings))
    return rows.rows(by_time[np.unique(rows.settings[by_time], return_index=True)[1]])


@pytest.mark.slow
def test_the_rate_between_namespaces_is_found(namespaces, tmp_path):
    token, ready = tmp_path / "token", []
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    program = [sys.executable, "-c", "from ddlsched.cli import main; main()"]
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(namespaces, 1):
            command = ["calibrate-agent", f"10.99.0.{number}:7411", "--token-file", str(token)]
            agent = subprocess.Popen(
                ["ip", "netns", "exec", name, *program, *command], stderr=subprocess.PIPE, text=True
            )
            stack.callback(agent.wait)
            stack.callback(agent.kill)
            ready.append(agent.stderr)
        assert all("listening" in stream.readline() for stream in ready)
        hosts = [argument for number in (1, 2, 3) for argument in ("--measure", f"10.99.0.{number}:7411")]
        flags = ["--token-file", token, "--jobs", "1,2", "--sizes-mb", "0.2,0.4,0.8", "--repeats", "5"]
        command = ["calibrate", *hosts, *flags, "--out", tmp_path / "m.csv"]
        measured = ["ip", "netns", "exec", namespaces[0], *program, *map(str, command)]
        done = subprocess.run(measured, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = read_measurements(tmp_path / "m.csv")
    ring = next(form for form in FORMS if form.ring_bytes)
    per_byte_s = fit_constants(ring, fastest_repeats(rows))["per_byte_s"]
    # Headers take about 5 %; the burst of the rate limit gives some of it back.
    assert per_byte_s == pytest.approx(8 / (MBIT * 1e6), rel=0.2)
