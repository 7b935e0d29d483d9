"""``ddlsched slurm-agent`` and ``slurm-trial`` where there is no Slurm, or an argument is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run


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
