"""A Slurm of one's own whose programs are stand-ins: what is started, where it writes, and that nothing is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddlsched.errors import InputError, SimulationError
from ddlsched.real.slurm import local_cluster
from ddlsched.real.slurm.local_cluster import _PROGRAMS, LocalSlurm

STAYS = "exec sleep 60\n"
SCRIPTS = {
    "munged": 'for word; do case $word in --socket=*) touch "${word#--socket=}";; esac; done\n' + STAYS,
    "slurmctld": "echo $0 $*\necho $SLURM_CONF >&2\n" + STAYS,
    "slurmd": "echo $0 $*\n" + STAYS,
    "sinfo": 'for log in "${SLURM_CONF%/*}"/n*.out; do echo idle; done\n',
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in {*_PROGRAMS, *SCRIPTS}:
        (folder / name).write_text("#!/bin/sh\n" + SCRIPTS.get(name, ""))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(local_cluster, "_LOOK_S", 0.01)
    return folder


def eventually(what: Path, holds: str, count: int = 1) -> bool:
    until_s = time.monotonic() + 10
    while what.read_text().count(holds) < count and time.monotonic() < until_s:
        time.sleep(0.01)
    return what.read_text().count(holds) == count


@pytest.mark.long
def test_daemons_run_in_a_folder_and_are_gone_with_it(programs: Path) -> None:
    with LocalSlurm(nodes=3, gpus_per_node=2) as slurm:
        folder = slurm.folder
        assert slurm.node_names == ["n1", "n2", "n3"]
        assert len(slurm.processes()) == 5
        assert eventually(folder / "slurmctld.out", "slurmctld -D")
        assert eventually(folder / "slurmctld.out", f"{folder}/slurm.conf")
        for name in slurm.node_names:
            assert eventually(folder / f"{name}.out", f"slurmd -D -N {name}")
        assert {path.name for path in folder.glob("gpu*")} == {"gpu0", "gpu1"}
        assert (folder / "munge.key").stat().st_mode & 0o77 == 0
        assert slurm.run("sinfo").split() == ["idle"] * 3
        slurm.kill("n2")
        assert len(slurm.processes()) == 4
        slurm.start("n2")
        assert eventually(folder / "n2.out", "slurmd -D -N n2\n", 2)  # behind what was there
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 8  # nothing had to be killed
    assert (slurm.processes(), folder.exists()) == ([], False)


@pytest.mark.long
def test_a_daemon_that_does_not_start_is_told_and_nothing_is_left(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "_START_S", 0.1)
    (programs / "munged").write_text("#!/bin/sh\n" + STAYS)
    slurm = LocalSlurm(nodes=2)
    with pytest.raises(SimulationError, match=r"munged did not start within 0\.1 s; the logs are in "), slurm:
        pass
    assert (slurm.processes(), slurm.folder.exists()) == ([], False)


@pytest.mark.long
def test_nodes_that_do_not_come_are_told(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_START_S", 3.0)
    (programs / "sinfo").write_text("#!/bin/sh\necho idle\necho down\n")
    slurm = LocalSlurm(nodes=2)
    with pytest.raises(SimulationError, match=r"2 nodes did not become idle within 3 s; the logs are in "), slurm:
        pass
    assert (slurm.processes(), slurm.folder.exists()) == ([], False)


def test_a_program_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_search_path", lambda: "/nowhere")
    with pytest.raises(InputError, match=f"{', '.join(_PROGRAMS)}: no such program; expected Slurm here"):
        LocalSlurm()
