"""Standard output and error that cannot be written: full, closed, or with a reader that has gone away."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from command_line import COMMAND, run
from golden_cases import FOLDER
from tiers import tried

from ddlsched.cli import installation_commands

JOBS = str(FOLDER / "case1.csv")
FULL = Path("/dev/full")
WRITERS = [
    "--help",
    "--version",
    "",
    "list",
    "list bundle --help",
    "simulate --help",
    "design --help",
    "checkpoint",
    "workload import --help",
    f"simulate {JOBS}",
    f"simulate {JOBS} --json",
    f"validate {JOBS}",
    f"validate {JOBS} --json",
    "workload microsoft-160 --seed 1 --scale 0.02",
    "estimate gpt3-175b --cluster a100-80 --tensor 8 --pipeline 8 --data 16 --global-batch 1536",
    "design gpt3-1.3b --cluster a100-80 --gpus 8 --global-batch 64",
    "checkpoint inspect CHECKPOINT",
]
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@needs_full
@pytest.mark.parametrize("command", WRITERS)
def test_a_full_stdout_is_one_line_whatever_is_written(command: str, tmp_path: Path) -> None:
    if "CHECKPOINT" in command:
        made = run("checkpoint", "make", tmp_path / "made", *["--layers", "1", "--hidden", "8", "--vocabulary", "8"])
        assert made.exit_code == 0, made.stderr
    arguments = command.replace("CHECKPOINT", str(tmp_path / "made")).split()
    said = io.StringIO()
    with FULL.open("w") as full, redirect_stdout(full), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        COMMAND.main(arguments, prog_name="ddlsched")
    last = said.getvalue().splitlines()[-1]
    assert (ended.value.code, last) == (
        2,
        "ddlsched: error: the result cannot be written to stdout (No space left on device)",
    )
    assert "Traceback" not in said.getvalue()


def process(arguments: str, redirections: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the shell's redirections."""
    program = f"'{sys.executable}' -c 'from ddlsched.cli import main; main()'"
    return subprocess.run(f"{program} {arguments} {redirections}", shell=True, capture_output=True, text=True)


@pytest.mark.long
@needs_full
@pytest.mark.parametrize("arguments", ["--help", "--version", ""])
def test_a_whole_process_with_a_full_stdout(arguments: str) -> None:
    done = process(arguments, ">/dev/full")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ddlsched: error: the result cannot be written to stdout (No space left on device)\n"


@pytest.mark.long
@pytest.mark.parametrize("arguments", ["--help", "--version"])
def test_a_stdout_that_was_closed(arguments: str) -> None:
    done = process(arguments, ">&-")
    assert done.returncode == 2
    assert done.stderr == "ddlsched: error: the result cannot be written to stdout (it is closed)\n"


@pytest.mark.long
def test_a_reader_of_the_help_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "from ddlsched.cli import main; main(['--help'])"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.long
@needs_full
@pytest.mark.parametrize("redirections", ["2>/dev/full", "2>&-", ">/dev/full 2>&1"])
@pytest.mark.parametrize("arguments", tried(["--no-such-flag", "validate no-such-file.csv"], lambda place: place == 0))
def test_a_stderr_that_cannot_be_written_changes_no_exit_code(arguments: str, redirections: str) -> None:
    assert process(arguments, redirections).returncode == 2


@pytest.mark.long
@needs_full
def test_a_notice_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    out = tmp_path / "times.csv"
    done = process(f"simulate {JOBS} --json --jobs-out {out}", "2>/dev/full")
    assert done.returncode == 0
    assert '"average_jct_s"' in done.stdout
    assert out.exists()


def test_memory_that_does_not_suffice_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(_: str) -> None:
        raise MemoryError

    monkeypatch.setattr(installation_commands, "emit", hungry)
    done = run("list")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "the memory does not suffice" in done.stderr


@pytest.mark.long
def test_what_the_locale_cannot_write_becomes_a_question_mark(tmp_path: Path) -> None:
    made = run("checkpoint", "make", tmp_path / "a", "--layers", "1", "--hidden", "8", "--vocabulary", "8")
    assert made.exit_code == 0, made.stderr
    command = [sys.executable, "-c", "from ddlsched.cli import main; main()", "reshard", str(tmp_path / "a")]
    done = subprocess.run(
        [*command, str(tmp_path / "b"), "--to", "tp=2"],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1), done.stderr
    assert b"?" in done.stdout
