"""``ddlsched slurm-agent`` and ``slurm-trial`` where there is no Slurm, or an argument is none."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import run

from ddlsched.real import slurm_commands
from ddlsched.real.slurm.local_cluster import LocalSlurm


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no program be found, of the daemons either."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ddlsched.real.slurm.local_cluster._search_path", lambda: str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["slurm-agent", "gpus", "--dry-run"], "sinfo: no such program; expected Slurm's commands on this machine"),
        (["slurm-agent", "gpus"], "expected --state DIR, or --dry-run without one"),
        (["slurm-agent", "gpus", "--dry-run", "--every-s", "0"], "every_s is 0.0; expected seconds > 0"),
        (["slurm-agent", "gpus", "--dry-run", "--facts", "no.csv"], "no.csv"),
        (["slurm-agent", "gpus", "--dry-run", "--state", "here"], "expected --state DIR, or --dry-run without one"),
        (["slurm-trial"], "slurmctld slurmd slurm-client munge"),
        (["slurm-trial", "--nodes", "0"], "--nodes is 0; expected a whole number from 1 to 200"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments: list[str], why: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_the_trial_says_what_is_ready_and_waits_for_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(
        "ddlsched.real.slurm.local_cluster.LocalSlurm", lambda *_: nullcontext(SimpleNamespace(folder=Path()))
    )
    monkeypatch.setattr(slurm_commands.signal, "pause", lambda: waited.append(signal.getsignal(signal.SIGTERM)))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        slurm_commands.slurm_trial(nodes=2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert waited == [signal.default_int_handler]  # which raises KeyboardInterrupt
    assert "2 nodes are ready; Ctrl-C ends them" in capsys.readouterr().err


def test_the_nodes_of_a_trial_are_numbered_from_1() -> None:
    assert LocalSlurm.node_names.fget(SimpleNamespace(nodes=3)) == ["n1", "n2", "n3"]  # type: ignore[attr-defined]
