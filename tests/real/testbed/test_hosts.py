"""Runs on hosts with agents: on addresses of this machine, and in namespaces with shaped links between them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest
from real_testbed import COMMAND, ENVIRONMENT, FOUR, HEADER, children, eventually, finished, ours

from ddlsched.real.testbed.cabling import address_of, server_name

pytestmark = pytest.mark.testbed
pytest.importorskip("torch")

LOCAL = [f"127.0.0.{number + 2}:0" for number in range(4)]


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def agents_at(
    addresses: Sequence[str], token: Path, inside: Sequence[Sequence[str]] = ((), (), (), ())
) -> Iterator[tuple[list[subprocess.Popen[str]], Path]]:
    """Give agents that listen, and the hosts file with where they do; ``inside`` is put before their commands."""
    agents = [
        subprocess.Popen(
            [*before, *COMMAND, "agent", address, "--token-file", str(token)],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for before, address in zip(inside, addresses, strict=True)
    ]
    try:
        lines = [agent.stderr.readline() for agent in agents if agent.stderr is not None]
        hosts = token.with_name("hosts")
        hosts.write_text("".join(line.rpartition(" ")[2] for line in lines) + "# all\n")
        yield agents, hosts
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def run_on(hosts: Path, token: Path, workload: Path) -> list[str]:
    return ["run", str(workload), *FOUR, "--hosts", str(hosts), "--token-file", str(token)]


def test_the_same_command_runs_on_hosts_with_agents(workload: Path, token: Path) -> None:
    with agents_at(LOCAL, token) as (agents, hosts):
        for _ in range(2):  # agents stay
            done = finished(*run_on(hosts, token, workload), "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["transfers"] == 32
        assert eventually(lambda: not any(children(agent.pid) for agent in agents))
        token.write_text("another-token-of-enough-length\n")
        done = finished(*run_on(hosts, token, workload))
        assert (done.returncode, "does not know the token" in done.stderr) == (1, True), done.stderr


def test_hosts_in_namespaces_reduce_over_the_links_between_them(workload: Path, token: Path, tmp_path: Path) -> None:
    """Agents and the gate each see but their own server's card, of 100 Mbit/s."""
    assert finished("up", "--servers", 4).returncode == 0
    try:
        inside = [["ip", "netns", "exec", server_name(server)] for server in range(4)]
        with agents_at([f"{address_of(server)}:7412" for server in range(4)], token, inside) as (_, hosts):
            command = [*inside[0], *COMMAND, *run_on(hosts, token, workload), "--scheduler", "srsf-1"]
            out = tmp_path / "out"
            done = subprocess.run(
                [*command, "--out", str(out)], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stderr
        transfers = pd.read_parquet(out / "transfers.parquet")
        assert len(transfers) == 32
        bits = transfers.message_bytes * 1.5 * 8  # 2 (n - 1) / n, on four servers
        assert (transfers.ended_s - transfers.granted_s >= bits / 105e6).all()
    finally:
        finished("down")
    assert ours() == []


@contextlib.contextmanager
def endless_run(
    hosts: Path, token: Path, tmp_path: Path, agents: list[subprocess.Popen[str]]
) -> Iterator[subprocess.Popen[str]]:
    """Give a run without an end, with a worker at each agent."""
    path = tmp_path / "endless.csv"
    path.write_text(HEADER + "a,0,4,100000,0.02,0.03,400000,100,1\n")
    command = [*COMMAND, *run_on(hosts, token, path)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: all(children(agent.pid) for agent in agents), 60)
        time.sleep(1)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_gets_a_signal_leaves_agents_and_no_worker(
    token: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with agents_at(LOCAL, token) as (agents, hosts), endless_run(hosts, token, tmp_path, agents) as process:
        process.send_signal(number)
        _, stderr = process.communicate(timeout=10)
        assert (process.returncode, len(stderr.splitlines())) == (130, 1), stderr
        assert eventually(lambda: not any(children(agent.pid) for agent in agents))
        assert all(agent.poll() is None for agent in agents)


def test_an_agent_that_ends_ends_the_run_and_names_its_server(token: Path, tmp_path: Path) -> None:
    with agents_at(LOCAL, token) as (agents, hosts), endless_run(hosts, token, tmp_path, agents) as process:
        agents[2].send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=15)
        assert process.returncode == 1, stderr
        (line,) = stderr.splitlines()
        assert "server 2" in line or "an all-reduce failed" in line, line
        assert eventually(lambda: not any(children(agent.pid) for agent in agents))


def test_a_host_without_an_agent_is_named(workload: Path, token: Path) -> None:
    with agents_at(LOCAL, token) as (agents, hosts):
        agents[1].kill()
        agents[1].wait()
        done = finished(*run_on(hosts, token, workload))
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "server 1: " in line, line
        assert "ddlsched testbed agent" in line, line
