"""Agents killed at random moments before a Slurm of its own: nothing lost, nothing twice, no orphan.

``KILLS=200 tests/real/slurm/run tests/real/slurm/test_slurm_kills.py`` for more than the default.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from ddlsched.real.slurm.agent import AgentEvent, AgentSettings, SlurmAgent
from ddlsched.real.slurm.commands import jobs_of_squeue, runner
from ddlsched.real.slurm.journal import AgentJournal
from ddlsched.real.slurm.local_cluster import LocalSlurm

pytestmark = pytest.mark.slurm

KILLS = int(os.environ.get("KILLS", "30"))
# Slurm forgets jobs that have ended after five minutes, unless told otherwise.
SETTINGS = {"MinJobAge": "86400"}
LEAST_S, MOST_S = 0.02, 2.0
"""How long an agent lives."""


def agent(slurm: LocalSlurm, folder: Path, order: str) -> None:
    """Be an agent until killed."""
    policies = {"placement": "lwf", "order": order}
    settings = AgentSettings(partition="main", user="root", policies=policies, every_s=0.1)
    journal = AgentJournal(folder / "agent.sqlite")
    SlurmAgent(settings, journal, runner(slurm.environment), list[AgentEvent]().append).run(lambda: False)


def submit(slurm: LocalSlurm, rng: random.Random) -> int:
    """Submit a job of half a second to six that notes each of its beginnings and its end."""
    run_s = rng.choice([0.5, 1.0, 2.0, 6.0])
    stamps = slurm.folder / "stamps"
    script = f"echo $SLURM_JOB_ID begins >> {stamps}; sleep {run_s}; echo $SLURM_JOB_ID ends >> {stamps}"
    facts = f"--comment=ddlsched:iterations={round(run_s * 10)},forward_s=0.1"
    options = ["--parsable", "--hold", f"--gpus={rng.randint(1, 10)}", facts, "--output=/dev/null"]
    return int(slurm.run("sbatch", *options, f"--wrap={script}"))


@pytest.mark.parametrize("order", ["srsf", "stopping-srtf"])
def test_killed_agents_lose_no_job_and_start_none_twice(order: str, tmp_path: Path) -> None:
    rng = random.Random(order)
    fork = multiprocessing.get_context("fork")
    with LocalSlurm(nodes=4, settings=SETTINGS) as slurm:
        daemons = set(slurm.processes())
        jobs: list[int] = []
        kills = 0
        while kills < KILLS // 2 or not is_done(slurm):
            if kills < KILLS // 2 and waiting(slurm) < 8:
                jobs += [submit(slurm, rng) for _ in range(2)]
            process = fork.Process(target=agent, args=(slurm, tmp_path, order))
            process.start()
            time.sleep(rng.uniform(LEAST_S, MOST_S) if kills < KILLS // 2 else 3.0)
            assert process.is_alive()
            process.kill()
            process.join()
            kills += 1
            assert kills < 2 * KILLS + 100, f"jobs are left: {slurm.run('squeue')}"
        assert_once(slurm, jobs)
        decisions = AgentJournal(tmp_path / "agent.sqlite").decisions()
        broken_off = sum(outcome == "intended" for *_, outcome in decisions)
        print(f"{order}: {kills} kills, {len(jobs)} jobs, {len(decisions)} decisions, {broken_off} of them broken off")
        orphans = set(slurm.processes()) - daemons
        assert not orphans, [Path(f"/proc/{orphan}/cmdline").read_bytes() for orphan in orphans]


def waiting(slurm: LocalSlurm) -> int:
    return sum(job.state == "PENDING" for job in jobs_of_squeue(slurm.run("squeue", "--json")))


def is_done(slurm: LocalSlurm) -> bool:
    there = jobs_of_squeue(slurm.run("squeue", "--json"))
    return not any(job.holds or job.state == "PENDING" for job in there)


def assert_once(slurm: LocalSlurm, jobs: list[int]) -> None:
    """Check that each job ended, and began and ended at most once more than it was requeued for the agent."""
    stamps = Counter((slurm.folder / "stamps").read_text().splitlines())
    restarts = {job.job_id: job.restarts for job in jobs_of_squeue(slurm.run("squeue", "--json"))}
    for job in jobs:
        lives = 1 + restarts[job]
        assert 1 <= stamps[f"{job} ends"] <= stamps[f"{job} begins"] <= lives, slurm.run(
            "scontrol", "show", "job", str(job)
        )
    assert len(jobs) >= KILLS // 8
