"""Job arrays and the other ways to ask for GPUs, before a Slurm of its own on this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_real_slurm import FACTS, agent_of, awaited, jobs_of

from ddlsched.real.slurm.local_cluster import LocalSlurm

pytestmark = pytest.mark.slurm

LWF = {"placement": "lwf", "order": "fifo"}


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    with LocalSlurm(nodes=4, gpu_kinds=["v100", "a100", "v100", "a100"]) as made:
        yield made


@pytest.fixture(autouse=True)
def empty(slurm: LocalSlurm) -> Iterator[None]:
    yield
    slurm.run("scancel", "--user=root", "--full")
    awaited(lambda: not any(job.holds or job.state == "PENDING" for job in jobs_of(slurm)))


def submit(slurm: LocalSlurm, *options: str, script: str = "sleep 60") -> int:
    return int(slurm.run("sbatch", "--parsable", "--hold", FACTS, "--output=/dev/null", *options, f"--wrap={script}"))


def running(slurm: LocalSlurm) -> dict[int, dict[str, int]]:
    return {job.job_id: dict(job.gpus_on) for job in jobs_of(slurm) if job.state == "RUNNING"}


@pytest.mark.parametrize("option", ["--gres=gpu:2", "--gpus-per-node=2"])
def test_gpus_for_each_node_are_that_many_on_so_many_nodes(slurm: LocalSlurm, tmp_path: Path, option: str) -> None:
    agent = agent_of(slurm, tmp_path, LWF)
    alone = submit(slurm, "--gpus=3")
    awaited(lambda: (agent.look(), alone in running(slurm))[1])
    even = submit(slurm, option, "--nodes=3")
    awaited(lambda: (agent.look(), even in running(slurm))[1])
    assert sorted(running(slurm)[even].values()) == [2, 2, 2]
    assert not set(running(slurm)[even]) & set(running(slurm)[alone])


@pytest.mark.parametrize(("option", "counts"), [("--gpus=a100:6", [2, 4]), ("--gres=gpu:a100:3", [3])])
def test_gpus_of_a_kind_are_of_that_kind(slurm: LocalSlurm, tmp_path: Path, option: str, counts: list[int]) -> None:
    agent = agent_of(slurm, tmp_path, LWF)
    wanted = submit(slurm, option)
    awaited(lambda: (agent.look(), wanted in running(slurm))[1])
    assert set(running(slurm)[wanted]) <= {"n2", "n4"}
    assert sorted(running(slurm)[wanted].values()) == counts


def test_each_task_of_an_array_is_placed_for_itself_and_its_limit_is_kept(slurm: LocalSlurm, tmp_path: Path) -> None:
    agent = agent_of(slurm, tmp_path, LWF)
    stamps = slurm.folder / "tasks"
    script = f"echo $SLURM_ARRAY_TASK_ID >> {stamps}; sleep 2"
    submit(slurm, "--gpus=3", "--array=0-5%2", script=script)
    most = 0

    def done() -> bool:
        nonlocal most
        agent.look()
        most = max(most, sum(job.array_id > 0 and job.state == "RUNNING" for job in jobs_of(slurm)))
        return stamps.exists() and len(stamps.read_text().split()) == 6

    awaited(done, within_s=90.0)
    assert sorted(stamps.read_text().split()) == list("012345")
    assert most == 2


def test_an_array_without_a_description_stays_in_one_piece(slurm: LocalSlurm, tmp_path: Path) -> None:
    agent = agent_of(slurm, tmp_path, LWF)
    array = int(slurm.run("sbatch", "--parsable", "--hold", "--gpus=1", "--array=0-3", "--wrap=sleep 1"))
    for _ in range(3):
        agent.look()
    [job] = [job for job in jobs_of(slurm) if job.array_id == array]
    assert (job.job_id, job.array_tasks, job.is_held) == (array, (0, 1, 2, 3), True)
