"""Namespaces that are really made: rates are the cables', packets arrive, nothing is left. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddlsched.cluster.cluster import Cluster
from ddlsched.real.testbed.cabling import address_of, scaled, server_name
from ddlsched.real.testbed.namespaces import NAMESPACES, Registry, existing

pytestmark = pytest.mark.testbed

_RECEIVER = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
connection, _ = listener.accept()
connection.recv(1)
begin, count = time.perf_counter(), 0
while data := connection.recv(1 << 16):
    count += len(data)
print(count * 8 / (time.perf_counter() - begin) / 1e6)
"""
_SENDER = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), timeout=10)
connection.sendall(bytes(int(sys.argv[2])))
"""


def inside(server: int, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", server_name(server), sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measured_mbps(source: int, target: int, num_bytes: int) -> float:
    receiver = inside(target, _RECEIVER, address_of(target))
    assert receiver.stdout is not None
    receiver.stdout.readline()
    inside(source, _SENDER, address_of(target), str(num_bytes)).communicate(timeout=60)
    return float(receiver.communicate(timeout=60)[0])


def ours() -> list[str]:
    return [path.name for path in NAMESPACES.glob("ddlsched-*")] if NAMESPACES.exists() else []


def test_cables_have_their_rates_and_nothing_is_left(tmp_path: Path) -> None:
    topology = "leaf-spine:servers_per_leaf=2,spines=2,oversubscription=4,nic_gbps=10"
    cluster = scaled(Cluster(num_servers=4, topology=topology), 0.01)
    with Registry(tmp_path) as held, held.used(cluster) as made:
        assert existing(made.namespaces) == list(made.namespaces)
        within, between = measured_mbps(0, 1, 5_000_000), measured_mbps(0, 3, 1_500_000)
    assert 85 < within < 100
    assert 20 < between < 25  # 100 x 2 servers / (2 spines x 4)
    assert ours() == []


@pytest.mark.parametrize("topology", ["star", "fat-tree", "clos:servers_per_rack=2,nic_gbps=10"])
def test_every_server_reaches_every_other(tmp_path: Path, topology: str) -> None:
    with Registry(tmp_path) as held, held.used(scaled(Cluster(num_servers=4, topology=topology), 0.01)):
        for source, target in [(0, 3), (3, 0), (1, 2), (2, 1)]:
            assert measured_mbps(source, target, 100_000) > 10


def test_what_a_killed_process_left_the_next_one_removes(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from ddlsched.cluster.cluster import Cluster
from ddlsched.real.testbed.namespaces import Registry
from ddlsched.real.testbed.cabling import scaled
Registry(Path({str(tmp_path)!r})).make(scaled(Cluster(num_servers=2), 0.01), "run")
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], env=os.environ, check=False)
    assert (killed.returncode, len(ours())) == (-signal.SIGKILL, 3)
    with Registry(tmp_path) as held:
        assert len(held.remove_dead()) == 3
    assert ours() == []
