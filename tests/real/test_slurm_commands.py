"""``ddlsched slurm-agent`` and ``slurm-trial`` where there is no Slurm, or an argument is none."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run

from ddlsched.errors import InputError
from ddlsched.real import slurm_commands
from ddlsched.real.slurm.agent import AgentEvent
from ddlsched.real.slurm.journal import AgentJournal
from ddlsched.real.slurm.local_cluster import LocalSlurm
from ddlsched.real.slurm.settings import AgentSettings, JobFacts
from ddlsched.real.state_folder import Ownership


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
    said = capsys.readouterr()
    assert (said.out, said.err) == ("export SLURM_CONF=slurm.conf\n", "ddlsched: 2 nodes are ready; Ctrl-C ends them\n")


@pytest.mark.parametrize(
    ("nodes", "gpus", "said"), [(201, 1, "--nodes is 201"), (1, 201, "--gpus-per-node is 201"), (1, 0, "is 0")]
)
def test_a_trial_has_one_to_two_hundred_nodes_and_as_many_gpus(
    nodes: int, gpus: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []

    def start(*given: int) -> nullcontext[SimpleNamespace]:
        made.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("ddlsched.real.slurm.local_cluster.LocalSlurm", start)
    monkeypatch.setattr(slurm_commands.signal, "signal", lambda *_: None)
    with pytest.raises(InputError, match=f"{said}; expected a whole number from 1 to 200"):
        slurm_commands.slurm_trial(nodes=nodes, gpus_per_node=gpus)
    for asked in ((1, 200), (200, 1)):
        slurm_commands.slurm_trial(nodes=asked[0], gpus_per_node=asked[1])
    slurm_commands.slurm_trial()
    assert made == [(1, 200), (200, 1), (4, 4)]


class Agent:
    """Notes how it was made and what it was told to do, and says two things."""

    told: list[Any] = []  # noqa: RUF012

    def __init__(self, settings: AgentSettings, journal: AgentJournal, runs: Any, watch: Any) -> None:
        self.told += [settings, journal.decisions()]
        watch(AgentEvent(1.5, "start", 7, "on n1"))
        watch(AgentEvent(2.0, "fail", 0, "Slurm is busy"))

    def look(self) -> None:
        self.told.append("looks once")

    def run(self, until: Any) -> None:
        self.told.append(("runs", until()))


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr("ddlsched.real.slurm.agent.SlurmAgent", Agent)
    monkeypatch.setattr(Agent, "told", [])
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    return Agent.told


def test_an_agent_is_that_of_its_options(agent: list[Any], tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text("name,iterations,forward_s\nmine,5,1\n")
    options = (
        "--state STATE --facts FACTS --all-users --every-s 2 --start-s 3 --give-up-s 4 --placement lwf --order las"
    )
    paths = {"STATE": tmp_path / "state", "FACTS": tmp_path / "facts.csv"}
    words = [paths.get(word, word) for word in options.split()]
    nodes = [
        "--placement",
        "lwf",
        "--order",
        "las",
        "--topology",
        "leaf-spine",
        "--gpu-memory-mb",
        5,
        "--contention",
        "max-min",
    ]
    done = run("slurm-agent", "gpus", *words, *nodes)
    assert (done.exit_code, done.stdout) == (0, "start: job 7: on n1\nfail: Slurm is busy\n")
    [settings, decisions, runs] = agent
    assert (decisions, runs) == ([], ("runs", False))
    given = {"placement": "lwf", "order": "las", "topology": "leaf-spine", "gpu_memory_mb": 5.0}
    assert settings == AgentSettings(
        partition="gpus",
        user=None,
        policies=given | {"contention": "max-min"},
        facts={"mine": JobFacts(iterations=5, forward_s=1.0)},
        every_s=2.0,
        start_s=3.0,
        give_up_s=4.0,
        dry_run=False,
    )
    assert (tmp_path / "state" / "agent.sqlite").exists()
    agent.clear()
    other = Ownership(tmp_path / "state")  # of an agent that runs
    assert "another manager runs its jobs" in run("slurm-agent", "gpus", "--state", tmp_path / "state").stderr
    other.close()
    assert agent == []


def test_an_agent_that_looks_once_in_a_dry_run_touches_the_users_own_jobs(agent: list[Any]) -> None:
    done = run("slurm-agent", "gpus", "--dry-run", "--once", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"time_s": 1.5, "what": "start", "job_id": 7, "detail": "on n1"},
        {"time_s": 2.0, "what": "fail", "job_id": 0, "detail": "Slurm is busy"},
    ]
    [settings, _, looks] = agent
    assert looks == "looks once"
    assert settings == AgentSettings(partition="gpus", user="me", policies={"contention": "linear"}, dry_run=True)


def test_the_nodes_of_a_trial_are_numbered_from_1() -> None:
    assert LocalSlurm.node_names.fget(SimpleNamespace(nodes=3)) == ["n1", "n2", "n3"]  # type: ignore[attr-defined]
