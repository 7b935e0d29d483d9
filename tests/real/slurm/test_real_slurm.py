"""The agent before a Slurm of its own on this host."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddlsched.real.slurm.agent import AgentEvent, AgentSettings, SlurmAgent
from ddlsched.real.slurm.commands import SlurmBusyError, SlurmJob, SlurmRefusalError, jobs_of_squeue, runner
from ddlsched.real.slurm.journal import AgentJournal
from ddlsched.real.slurm.local_cluster import LocalSlurm

pytestmark = pytest.mark.slurm

FACTS = "--comment=ddlsched:iterations=100,forward_s=1"
_SAVED_S = 7.0
"""Slurm writes its state every 5 s; jobs that are younger when its controller is killed are lost, by Slurm itself."""
LWF = {"placement": "lwf", "order": "fifo"}


@pytest.fixture(scope="module")
def shared_slurm() -> Iterator[LocalSlurm]:
    with LocalSlurm(nodes=4) as slurm:
        yield slurm


@pytest.fixture
def slurm(shared_slurm: LocalSlurm) -> Iterator[LocalSlurm]:
    yield shared_slurm
    shared_slurm.run("scancel", "--user=root", "--full")
    awaited(lambda: not any(job.holds or job.state == "PENDING" for job in jobs_of(shared_slurm)))


def jobs_of(slurm: LocalSlurm) -> list[SlurmJob]:
    return jobs_of_squeue(slurm.run("squeue", "--json"))


def job_of(slurm: LocalSlurm, job_id: int) -> SlurmJob:
    return next(job for job in jobs_of(slurm) if job.job_id == job_id)


def submit(slurm: LocalSlurm, gpus: int, script: str = "sleep 60", facts: str = FACTS) -> int:
    options = ["--parsable", "--hold", f"--gpus={gpus}", facts, f"--output={slurm.folder}/%j.out"]
    return int(slurm.run("sbatch", *options, f"--wrap={script}"))


def awaited(done: Callable[[], bool], within_s: float = 40.0) -> None:
    until_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < until_s, "did not happen in time"
        time.sleep(0.2)


def agent_of(slurm: LocalSlurm, folder: Path, policies: dict[str, Any] = LWF, **settings: object) -> SlurmAgent:
    chosen = AgentSettings(partition="main", user="root", policies=policies, **settings)  # type: ignore[arg-type]
    return SlurmAgent(
        chosen, AgentJournal(folder / "agent.sqlite"), runner(slurm.environment), list[AgentEvent]().append
    )


def test_a_cluster_leaves_no_process_and_no_folder_behind() -> None:
    with LocalSlurm(nodes=2) as slurm:
        job = submit(slurm, 2, "sleep 1000 & sleep 1000")
        slurm.run("scontrol", "release", str(job))
        awaited(lambda: job_of(slurm, job).state == "RUNNING")
        folder, processes = slurm.folder, slurm.processes()
        bystander = subprocess.Popen(["sleep", "60"], env=slurm.environment)  # a user's shell that reaches this Slurm
    assert bystander.poll() is None
    bystander.kill()
    assert bystander.wait() == -signal.SIGKILL
    assert len(processes) >= 6  # munged, slurmctld, two slurmds, the job
    assert slurm.processes() == []
    assert not folder.exists()


def test_jobs_get_the_gpus_that_the_policy_chose_node_by_node(slurm: LocalSlurm, tmp_path: Path) -> None:
    agent = agent_of(slurm, tmp_path)
    rng = random.Random(0)
    jobs = [submit(slurm, gpus) for gpus in [3, 2, 5, 1, *(rng.randint(1, 3) for _ in range(2))]]
    awaited(lambda: (agent.look(), sum(job.holds for job in jobs_of(slurm)) == len(jobs))[1])
    agent.look()
    known = AgentJournal(tmp_path / "agent.sqlite").jobs()
    for job in jobs:
        seats = {node: len(gpus) for node, gpus in known[job].seats.items()}
        assert seats == dict(job_of(slurm, job).gpus_on)
    decided = {job: nodes for _, _, job, nodes, _ in AgentJournal(tmp_path / "agent.sqlite").decisions()}
    assert {job: ",".join(known[job].seats) for job in jobs} == decided


def test_an_order_that_stops_jobs_takes_and_gives_back_gpus(slurm: LocalSlurm, tmp_path: Path) -> None:
    agent = agent_of(slurm, tmp_path, {"placement": "first-fit", "order": "stopping-srtf"})
    long = submit(slurm, 16, facts="--comment=ddlsched:iterations=1000,forward_s=1,resumes=true")
    awaited(lambda: (agent.look(), job_of(slurm, long).state == "RUNNING")[1])
    short = submit(slurm, 16, "sleep 1", facts="--comment=ddlsched:iterations=2,forward_s=0.5")
    awaited(lambda: (agent.look(), job_of(slurm, short).state == "RUNNING")[1])
    assert job_of(slurm, long).is_held
    awaited(lambda: (agent.look(), job_of(slurm, long).state == "RUNNING")[1])
    assert job_of(slurm, long).restarts == 1


def test_a_controller_that_is_killed_and_comes_back_keeps_every_job(slurm: LocalSlurm, tmp_path: Path) -> None:
    agent = agent_of(slurm, tmp_path)
    running, waiting = submit(slurm, 16), submit(slurm, 16)
    awaited(lambda: (agent.look(), job_of(slurm, running).state == "RUNNING")[1])
    time.sleep(_SAVED_S)
    slurm.kill("slurmctld")
    with pytest.raises(SlurmBusyError):
        agent.look()
    slurm.start("slurmctld")

    def answers() -> bool:
        try:
            agent.look()
        except SlurmBusyError:
            return False
        return True

    awaited(answers)
    assert job_of(slurm, running).state == "RUNNING"
    assert job_of(slurm, waiting).is_held
    slurm.run("scancel", str(running))
    awaited(lambda: (agent.look(), job_of(slurm, waiting).state == "RUNNING")[1])


def test_a_job_of_a_node_that_dies_starts_on_another(tmp_path: Path) -> None:
    with LocalSlurm(nodes=2) as slurm:
        agent = agent_of(slurm, tmp_path)
        job = submit(slurm, 2)
        awaited(lambda: (agent.look(), job_of(slurm, job).state == "RUNNING")[1])
        assert job_of(slurm, job).gpus_on == {"n1": 2}
        agent.look()  # it may have started just after the last one; then the agent would give it a minute to start
        slurm.kill("n1")
        slurm.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
        awaited(lambda: (agent.look(), job_of(slurm, job).gpus_on == {"n2": 2})[1])
        assert job_of(slurm, job).restarts == 1


def test_commands_of_somebody_without_permission_are_told_as_refusals(slurm: LocalSlurm) -> None:
    job = submit(slurm, 1)
    slurm.folder.chmod(0o755)
    (slurm.folder / "slurm.conf").chmod(0o644)

    def as_nobody(*command: str) -> str:
        environment = {key: slurm.environment[key] for key in ("SLURM_CONF", "PATH")}
        return runner(environment)(["setpriv", "--reuid=nobody", "--clear-groups", *command])

    for command in (("scontrol", "release"), ("scontrol", "requeuehold"), ("scontrol", "uhold")):
        with pytest.raises(SlurmRefusalError, match=r"Invalid user id|denied"):
            as_nobody(*command, str(job))
    assert job_of(slurm, job).is_held


def test_the_command_starts_jobs_and_names_a_partition_that_does_not_exist(slurm: LocalSlurm, tmp_path: Path) -> None:
    job = submit(slurm, 3)
    program = [sys.executable, "-c", "from ddlsched.cli import main; main()", "slurm-agent"]
    options = ["--placement", "lwf", "--order", "fifo", "--once"]
    done = subprocess.run(
        [*program, "main", *options, "--state", str(tmp_path)], env=slurm.environment, capture_output=True, text=True
    )
    assert (done.stderr, done.returncode, done.stdout) == ("", 0, f"start: job {job}: 3 on n1\n")
    wrong = subprocess.run(
        [*program, "mian", *options, "--dry-run"], env=slurm.environment, capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "partition 'mian' does not exist; Slurm has idle, main" in wrong.stderr
