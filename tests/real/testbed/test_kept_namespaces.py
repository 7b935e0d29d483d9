"""What is asked of the tools that make a network of namespaces, on stand-ins for them, and what is said of failures."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_numbers import answered, assert_kept, digest

from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.errors import InputError, TestbedError
from ddlsched.real.testbed import namespaces
from ddlsched.real.testbed.cabling import cabling
from ddlsched.real.testbed.namespaces import Made, Registry, build, described, existing, refuse_unable, remove

CLUSTERS = {
    "two": Cluster(num_servers=2),
    "cards": Cluster(servers=(Server(nic_gbps=0.8), Server(nic_gbps=0.4), Server()), topology="star:nic_gbps=2"),
    "leaves": Cluster(num_servers=5, topology="leaf-spine:servers_per_leaf=2,spines=2"),
}


class Tools:
    """Stand-ins for ``ip``, ``tc`` and ``bridge``: they note what they are told, and namespaces come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[tuple[list[str], str]] = []
        self.settings: list[dict[str, Any]] = []
        self.fails: Callable[[list[str]], Any] = lambda _: None

    def run(self, command: list[str], **settings: Any) -> Any:
        self.told.append((command, settings.pop("input")))
        self.settings.append(settings)
        answer = self.fails(command)
        if command[:3] == ["ip", "netns", "add"]:
            (self.folder / command[3]).touch()
        if command[:3] == ["ip", "netns", "del"]:
            (self.folder / command[3]).unlink()
        return answer or subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    there = Tools(tmp_path / "netns")
    there.folder.mkdir()
    monkeypatch.setattr(namespaces, "NAMESPACES", there.folder)
    monkeypatch.setattr(subprocess, "run", there.run)
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: f"/sbin/{tool}")
    return there


def test_tools_are_told_what_they_were_told(tools: Tools) -> None:
    kept = {}
    for name, cluster in CLUSTERS.items():
        plan = cabling(cluster)
        build(plan)
        assert existing(["ddlsched-9", *plan.namespaces]) == list(plan.namespaces)
        assert remove(["ddlsched-9", *plan.namespaces]) == list(plan.namespaces)
        made = plan.namespaces[1:]
        assert [len(text.splitlines()) for command, text in tools.told if command[0] == "tc"] == [
            *[3] * len(made),  # one card a server
            3 * sum(len(cable.ends) for cable in plan.cables),
        ]
        kept[name] = f"{len(tools.told)} {digest(tools.told)}"
        kept[f"{name}, described"] = described(cluster)
        tools.told.clear()
    every = {"capture_output": True, "text": True, "timeout": 60.0, "check": False}
    assert all(settings == every for settings in tools.settings)
    assert_kept("namespaces", kept)


def test_two_servers_have_a_card_each_with_an_address_and_know_each_other(tools: Tools) -> None:
    build(cabling(CLUSTERS["two"]))
    assert [command for command, _ in tools.told[:3]] == [
        ["ip", "netns", "add", "ddlsched-net"],
        ["ip", "-n", "ddlsched-net", "link", "set", "lo", "up"],
        ["ip", "netns", "exec", "ddlsched-net", "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"],
    ]
    assert {" ".join(command): text for command, text in tools.told}["ip -n ddlsched-1 -batch -"].splitlines() == [
        "link set net0 up",
        "address add 10.77.0.2/32 dev net0",
        "route add 10.77.0.0/16 dev net0 src 10.77.0.2 congctl cubic",
        "neigh add 10.77.0.1 lladdr 02:dd:00:00:00:01 dev net0 nud permanent",
    ]


def failing(**given: Any) -> Callable[[list[str]], Any]:
    return lambda command: subprocess.CompletedProcess(command, **given)


def raising(error: Exception) -> Callable[[list[str]], Any]:
    def fails(_: list[str]) -> Any:
        raise error

    return fails


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (failing(returncode=1, stderr=" no\n such ", stdout="else"), "no such"),
        (failing(returncode=2, stderr="", stdout="b" * 400), "b" * 300),
        (failing(returncode=-9, stderr="", stdout=""), "exit code -9"),
        (raising(OSError("no memory")), "no memory"),
        (raising(subprocess.TimeoutExpired("ip", 60)), "Command 'ip' timed out after 60 seconds"),
    ],
)
def test_a_tool_that_fails_is_told_with_what_it_said(tools: Tools, fails: Any, said: str) -> None:
    tools.fails = fails
    with pytest.raises(TestbedError) as told:
        build(cabling(CLUSTERS["two"]))
    assert str(told.value) == f"ip netns add ddlsched-net: {said}"
    assert len(tools.told) == 1


def test_who_cannot_make_namespaces_is_told_what_is_missing(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unable()
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: tool if tool == "tc" else None)
    assert answered(refuse_unable).startswith("ip, bridge: not found; expected iproute2")
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert answered(refuse_unable).startswith("a testbed of namespaces needs root; expected: sudo")


def test_a_registry_makes_writes_down_and_removes(tools: Tools, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "a" / "b"
    with Registry(folder) as held:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "lock").stat().st_mode & 0o777 == 0o600
        assert (folder / "lock").read_text() == str(namespaces.os.getpid())
        assert answered(Registry, folder).startswith(f"another testbed is in use (process {namespaces.os.getpid()})")
        assert held.made() is None
        assert held.remove() == held.remove_dead() == []
        made = held.make(CLUSTERS["cards"], "up")
        names = ("ddlsched-net", "ddlsched-0", "ddlsched-1", "ddlsched-2")
        network = "3 servers, star:nic_gbps=2, card 0 1e+08 B/s, card 1 5e+07 B/s"
        assert made == held.made() == Made("up", namespaces.os.getpid(), network, names)
        assert held.remove_dead() == []
        assert answered(held.make, CLUSTERS["two"], "run").startswith(f"a testbed is up ({network}); expected")
        with held.used(CLUSTERS["cards"]) as used:
            assert used == made
        assert existing(names) == list(names)
        (tools.folder / "ddlsched-1").unlink()
        (tools.folder / "ddlsched-0").unlink()
        assert answered(held.used(CLUSTERS["cards"]).__enter__).startswith("ddlsched-0 is gone; expected")
        assert held.remove() == ["ddlsched-net", "ddlsched-2"]
        assert held.made() is None
        with held.used(CLUSTERS["two"]) as used:
            assert used.kind == "run"
            assert held.remove_dead() == ["ddlsched-net", "ddlsched-0", "ddlsched-1"]
            (tools.folder / "ddlsched-1").touch()
        assert answered(held.make, CLUSTERS["two"], "run").startswith("the namespace ddlsched-1 exists and is not")
        (folder / "made.json").write_text("{}")
        assert "is no list of namespaces ('namespaces')" in answered(held.made)
        (folder / "made.json").unlink()
        (tools.folder / "ddlsched-1").unlink()
        held.make(CLUSTERS["two"], "up")
        monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
        assert answered(held.remove) == answered(held.make, CLUSTERS["two"], "up") == answered(refuse_unable)
        assert held.made() is not None
    (folder / "lock").write_text("9" * 15)  # of a process before
    with Registry(folder):
        assert (folder / "lock").read_text() == str(namespaces.os.getpid())


def test_a_registry_that_is_held_is_not_opened_and_its_holder_is_told(tmp_path: Path) -> None:
    files = Path("/proc/self/fd")
    with Registry(tmp_path) as held:
        open_files = len(list(files.iterdir()))
        for holder, said in (("123 ", "123"), ("", "?")):
            (tmp_path / "lock").write_text(holder)
            with pytest.raises(InputError) as told:
                Registry(tmp_path)
            assert str(told.value) == (
                f"another testbed is in use (process {said}); expected it to end: a machine has one"
            )
            assert len(list(files.iterdir())) == open_files
        assert held.made() is None
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as told:
        Registry(tmp_path / "file")
    assert str(told.value) == f"{tmp_path / 'file'}: cannot be used (File exists); expected a folder of root's"


def test_what_was_made_in_part_is_removed(tools: Tools, tmp_path: Path) -> None:
    tools.fails = lambda command: subprocess.CompletedProcess(command, 1, "", "full") if command[0] == "tc" else None
    with Registry(tmp_path / "held") as held, pytest.raises(TestbedError, match="full"):
        held.make(CLUSTERS["two"], "run")
    assert list(tools.folder.iterdir()) == []
