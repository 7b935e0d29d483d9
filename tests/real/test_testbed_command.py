"""The testbed's commands where nothing can be made: bad input, no root, no PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import refused, run

from ddlsched import errors
from ddlsched.errors import InputError
from ddlsched.real import testbed_command
from ddlsched.real.testbed import namespaces

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + "a,0,2,3,0.01,0.01,1000,10\n")
    return path


@pytest.fixture
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces.Registry.__init__, "__defaults__", (tmp_path / "registry",))


@pytest.fixture
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("_own_registry", "_nobody")
@pytest.mark.parametrize("command", ["up", "run JOBS", "compare JOBS --out OUT --scheduler srsf-1"])
def test_without_root_nothing_is_made(jobs: Path, tmp_path: Path, command: str) -> None:
    words = command.replace("JOBS", str(jobs)).replace("OUT", str(tmp_path / "out")).split()
    refused(run("testbed", *words), "needs root; expected: sudo ddlsched testbed")


@pytest.mark.usefixtures("_own_registry")
def test_list_and_down_without_a_testbed() -> None:
    listed, gone = run("testbed", "list"), run("testbed", "down")
    assert (listed.exit_code, listed.stdout, listed.stderr) == (0, "", "ddlsched: there is no testbed\n")
    assert (gone.exit_code, gone.stderr) == (0, "ddlsched: there was nothing to remove\n")


def test_without_pytorch_a_run_says_what_to_install(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    refused(run("testbed", "run", jobs), r"needs torch; expected: pip install 'ddlsched[real]'")


HOSTS = {
    "10.0.0.1:7411\n": "has 1 hosts; expected 2, one a server (--servers)",
    "10.0.0.1:7411\n10.0.0.1:7411\n": "line 2: 10.0.0.1:7411 stands there twice",
    "# two\n10.0.0.1\n": "line 2: '10.0.0.1' is no address; expected HOST:PORT",
    "": "has 0 hosts",
}


@pytest.mark.parametrize("text", HOSTS)
def test_a_hosts_file_that_does_not_fit_is_refused(jobs: Path, token: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    words = ["--servers", 2, "--hosts", tmp_path / "hosts", "--token-file", token]
    refused(run("testbed", "run", jobs, *words), str(tmp_path / "hosts"), HOSTS[text])


def test_hosts_and_token_belong_together(jobs: Path, token: Path) -> None:
    expected = "--hosts and --token-file belong together"
    refused(run("testbed", "run", jobs, "--token-file", token), expected)


def test_a_host_without_an_agent_is_named(jobs: Path, token: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1:1\n127.0.0.2:1\n")
    words = ["--servers", 2, "--hosts", tmp_path / "hosts", "--token-file", token]
    done = run("testbed", "run", jobs, *words)
    refused(done, "server 0: 127.0.0.1:1: cannot be reached", "expected `ddlsched testbed agent` there", exit_code=1)


BAD = {
    "run JOBS --window 0": "window is 0; expected a whole number from 1 to 64",
    "run JOBS --chunk-bytes 5": "chunk_bytes is 5.0; expected a number from 1000 to",
    "run JOBS --scale 0": "--scale is 0.0; expected a number above 0",
    "run JOBS --communication preemtive": "preemptive",
    "run JOBS --slots --train": "--slots with --train: training computes when it can; expected one of the two",
    "run nothing.csv": "nothing.csv: no such file",
    "compare JOBS --out OUT": "nothing to compare; expected --scheduler BUNDLE or --communication NAME",
    "compare JOBS --out OUT --scheduler srsf-1 --repeats 0": "repeats is 0; expected at least 1",
    "agent nowhere --token-file TOKEN": "'nowhere' is no address; expected HOST:PORT",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_arguments_are_refused(
    jobs: Path, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: name)
    paths = {"JOBS": jobs, "OUT": tmp_path / "out", "TOKEN": token}
    refused(run("testbed", *(paths.get(word, word) for word in command.split())), BAD[command])


@pytest.mark.long
@pytest.mark.parametrize("command", ["gate", "agent"])
def test_nobody_listens_without_a_token(command: str) -> None:
    done = run("testbed", command, "127.0.0.1:0")
    assert done.exit_code == 2
    assert "Missing option '--token-file'" in done.stderr


@pytest.mark.parametrize("command", ["", "run", "up", "down", "list", "compare", "gate", "agent"])
def test_every_command_has_help(command: str) -> None:
    done = run("testbed", *command.split(), "--help")
    assert done.exit_code == 0
    assert "Usage" in done.stdout


def test_an_agent_says_before_it_listens_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)

    def lacking(*asked: str, extra: str) -> None:
        raise InputError(f"{asked} {extra}")

    monkeypatch.setattr(testbed_command, "need", lacking)
    monkeypatch.setattr("ddlsched.real.testbed.crews.WorkerAgent", lambda *_, **__: pytest.fail("it listens"))
    with pytest.raises(InputError, match=r"'the testbed', 'torch'.*real"):
        testbed_command.agent("127.0.0.1:0", token_file=token)


def test_item_27_without_options_a_testbed_has_four_servers() -> None:
    assert testbed_command.NetworkOfNamespaces().cluster().num_servers == 4
