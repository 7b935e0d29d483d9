"""The files of a Slurm of one's own, what its daemons are started with, and how its ports are found."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kept_numbers import assert_kept, digest

from ddlsched.errors import SimulationError
from ddlsched.real.slurm import local_cluster
from ddlsched.real.slurm.commands import SlurmBusyError, SlurmRefusalError
from ddlsched.real.slurm.local_cluster import LocalSlurm, gres_conf, slurm_conf

FOLDER = Path("/a/folder")


def test_files_are_what_they_were() -> None:
    kept = {}
    for name, nodes, gpus, settings, kinds in (
        ("plain", 4, 4, {}, ()),
        ("one", 1, 1, {"KillWait": "9", "Own": "x"}, ()),
        ("kinds", 3, 8, {}, ("a100", "h100", "a100")),
    ):
        conf = slurm_conf(FOLDER, "user", "host", range(100, 101 + nodes), gpus, settings, kinds)
        gres = gres_conf(FOLDER, nodes, gpus, kinds)
        kept[name] = f"{digest([conf])} {len(conf.splitlines())} {digest([gres])} {gres.splitlines()[-1]}"
        kept[f"{name}, nodes"] = "; ".join(line for line in conf.splitlines() if line.startswith("NodeName"))
    assert_kept("local-slurm", kept)


def test_nodes_have_a_port_each_behind_the_controllers() -> None:
    lines = slurm_conf(FOLDER, "u", "h", range(50, 53), 2, {"KillWait": "5"}).splitlines()
    assert "SlurmctldPort=50" in lines
    assert [line for line in lines if line.startswith("KillWait")] == ["KillWait=5"]
    assert lines[-3].startswith(
        "NodeName=n[1-2] NodeHostname=h NodeAddr=127.0.0.1 Port=[51-52] CPUs=64 RealMemory=64000"
    )
    assert [line.split()[0] for line in lines[-2:]] == ["PartitionName=main", "PartitionName=idle"]
    assert gres_conf(FOLDER, 2, 3) == "NodeName=n[1-2] Name=gpu File=/a/folder/gpu[0-2]\n"
    own = slurm_conf(FOLDER, "u", "h", range(50, 53), 2, {}, ("x", "y")).splitlines()[-4:-2]
    assert [(line.split()[0], line.split()[3], line.split()[6]) for line in own] == [
        ("NodeName=n1", "Port=51", "Gres=gpu:x:2"),
        ("NodeName=n2", "Port=52", "Gres=gpu:y:2"),
    ]
    assert gres_conf(FOLDER, 2, 1, ("x", "y")).splitlines()[1] == "NodeName=n2 Name=gpu Type=y File=/a/folder/gpu[0-0]"


class Daemon:
    """A process that ends when it is told to, or is killed."""

    def __init__(self, events: list[Any], name: str, stubborn: bool) -> None:
        self.events, self.name, self.stubborn = events, name, stubborn

    def terminate(self) -> None:
        self.events.append(f"{self.name} is told")

    def wait(self, timeout: float | None = None) -> None:
        self.events.append(f"{self.name} waits {timeout}")
        if timeout is not None and self.stubborn:
            raise subprocess.TimeoutExpired(self.name, timeout)

    def kill(self) -> None:
        self.events.append(f"{self.name} is killed")


def test_daemons_start_one_after_the_other_and_end_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events: list[Any] = []
    now = SimpleNamespace(s=5.0)
    answers = iter([SlurmBusyError("busy"), SlurmRefusalError("no"), "idle\ndown\n", "idle\n", "idle\nidle\n"])

    def popen(command: list[str], *, env: dict[str, str], stdout: Any, stderr: Any, stdin: int) -> Daemon:
        assert stdout is stderr
        assert stdin == subprocess.DEVNULL
        folder = slurm.folder
        assert env["SLURM_CONF"] == f"{folder}/slurm.conf"
        assert env["DDLSCHED_LOCAL_SLURM"] == str(folder)
        assert env["PATH"] == f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
        events.append(" ".join(command).replace(str(folder), "F"))
        if "munged" in command:
            (folder / "munge.socket").touch()
        name = Path(stdout.name).name
        return Daemon(events, name, name in ("munged.out", "n1.out"))

    def run(command: Any) -> str:
        events.append(" ".join(command))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(while_s: float) -> None:
        now.s += while_s

    monkeypatch.setattr(local_cluster.shutil, "which", lambda name, path: name)
    monkeypatch.setattr(local_cluster.subprocess, "Popen", popen)
    monkeypatch.setattr(local_cluster, "runner", lambda environment: run)
    monkeypatch.setattr(local_cluster, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))
    monkeypatch.setattr(local_cluster, "_free_ports", lambda count: range(70, 70 + count))
    monkeypatch.setattr(local_cluster.socket, "gethostname", lambda: "name.of.host")
    monkeypatch.setattr(local_cluster.os, "kill", lambda *given: events.append(given))
    monkeypatch.setattr(LocalSlurm, "processes", lambda _: [77])
    slurm = LocalSlurm(nodes=2, gpus_per_node=3, gpu_kinds=("x", "y"), settings={"KillWait": "7"})
    assert (LocalSlurm().nodes, LocalSlurm().gpus_per_node) == (4, 4)
    with slurm:
        folder = slurm.folder
        host = "name"
        user = pwd.getpwuid(os.geteuid()).pw_name
        conf = slurm_conf(folder, user, host, range(70, 73), 3, {"KillWait": "7"}, ("x", "y"))
        assert (folder / "slurm.conf").read_text() == conf
        assert (folder / "gres.conf").read_text() == gres_conf(folder, 2, 3, ("x", "y"))
        assert {path.name for path in folder.glob("gpu*")} == {"gpu0", "gpu1", "gpu2"}
        assert (folder / "munge.key").stat().st_size == 128
        assert (folder / "munge.key").stat().st_mode & 0o777 == 0o600
        assert (folder / "state").is_dir()
        assert (folder / "spool").is_dir()
        dies = "setpriv --pdeathsig KILL"
        files = "--key-file=F/munge.key --pid-file=F/munge.pid --log-file=F/munge.log --seed-file=F/munge.seed"
        assert events[:4] == [
            f"{dies} munged --foreground --force --socket=F/munge.socket {files}",
            f"{dies} slurmctld -D",
            f"{dies} slurmd -D -N n1",
            f"{dies} slurmd -D -N n2",
        ]
        assert events[4:] == ["sinfo --noheader --Node --partition=main --format=%T"] * 5
        assert now.s == pytest.approx(5.4)
        events.clear()
        slurm.kill("n2")
        assert events == ["n2.out is killed", "n2.out waits None"]
        events.clear()
        now.s = 100.0
    names = ["munged.out", "slurmctld.out", "n1.out"]
    assert events == [
        *[f"{name} is told" for name in names],
        *[f"{name} waits 10.0" for name in names],
        *[word for name in names for word in (f"{name} is killed", f"{name} waits None")],
        (77, 9),
    ]
    assert not folder.exists()


def test_what_is_awaited_is_awaited_for_60_s(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(s=1.0)

    def sleep(while_s: float) -> None:
        assert while_s == 0.1
        now.s += 20

    monkeypatch.setattr(local_cluster, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))
    with pytest.raises(SimulationError, match=r"it failed within 60 s; the logs are in /a/folder"):
        local_cluster._await(lambda: False, "it failed", FOLDER)
    assert now.s == 81.0
    local_cluster._await(lambda: now.s > 120, "it failed", FOLDER)


def test_ports_are_neighbours_on_which_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([0, 14_999, 7])
    asked: list[int] = []

    def is_free(port: int) -> bool:
        asked.append(port)
        return port not in (15_002, 29_999)

    monkeypatch.setattr(local_cluster.secrets, "randbelow", lambda below: next(drawn) if below == 15_000 else None)
    monkeypatch.setattr(local_cluster, "_is_free", is_free)
    assert local_cluster._free_ports(3) == range(15_007, 15_010)
    assert asked == [15_000, 15_001, 15_002, 29_999, 15_007, 15_008, 15_009]
    monkeypatch.setattr(local_cluster.secrets, "randbelow", lambda _: asked.append(-1) or 0)
    monkeypatch.setattr(local_cluster, "_is_free", lambda _: False)
    asked.clear()
    with pytest.raises(SimulationError, match="no 5 neighbouring ports from 15000 to 30000 are free"):
        local_cluster._free_ports(5)
    assert len(asked) == 100
