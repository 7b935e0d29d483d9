"""Placements that model Slurm: the GPUs that it gives on chosen nodes, and rounds; cases worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import greedy
from jobs_by_hand import data_parallel_job

from algorithms.placement.backfilling import EasyBackfill
from algorithms.placement.conservative_backfill import ConservativeBackfill
from algorithms.placement.rounds import Rounds
from algorithms.placement.slurm_shape import SlurmShape
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.real.slurm.board import shaped
from ddlsched.simulation import simulate
from ddlsched.workload.job import Job, Workload

TWO_NODES = Cluster(num_servers=2, gpus_per_server=4, exclusive=True)


def job(job_id: str, gpus: int, run_s: float, *, limit_s: float = 1000.0, arrival_s: float = 0.0) -> Job:
    made = data_parallel_job(job_id, gpus, forward_s=run_s, arrival_s=arrival_s, memory_mb=0)
    return replace(made, time_limit_s=limit_s)


def table_of(placement: Any, *jobs: Job, cluster: Cluster = TWO_NODES) -> Any:
    return simulate(Workload(jobs), cluster, placement=placement, order="fifo", contention="max-min").jobs


def starts(placement: Any, *jobs: Job) -> dict[str, float]:
    table = table_of(placement, *jobs)
    return dict(zip(table["job_id"], table["start_s"], strict=True))


class LastFirst:
    """The highest free GPUs."""

    def place(self, job: Any, cluster: Any) -> Any:
        gpus = cluster.eligible_gpus(job)
        return gpus[-job.num_gpus :] if len(gpus) >= job.num_gpus else None


def test_slurm_takes_all_of_the_first_node_and_leaves_one_for_each_that_follows():
    class Chosen:
        def __init__(self) -> None:
            self.gpus: list[list[int]] = []

        def place(self, job: Any, cluster: Any) -> Any:
            chosen = SlurmShape(placement=LastFirst()).begin(TWO_NODES, None).place(job, cluster)
            self.gpus.append(chosen)
            return chosen

    chosen = Chosen()
    table_of(chosen, job("five", 5, 1.0))
    assert chosen.gpus == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("seed", range(5))
def test_the_shape_is_that_of_slurm_for_any_free_gpus(seed: int):
    """The rule is stated twice: here, and in the Slurm in memory, which tests hold to the real one."""
    rng = random.Random(seed)
    cluster = Cluster(num_servers=4, gpus_per_server=4, exclusive=True)
    taken = {server: rng.randint(0, 3) for server in range(4)}
    free = {server: 4 - count for server, count in taken.items()}
    wanted = rng.randint(1, sum(free.values()))
    seen: list[dict[int, int]] = []

    class Watched:
        def place(self, asked: Any, view: Any) -> Any:
            if asked.job_id != "asked":
                first = int(asked.job_id) * 4
                return list(range(first, first + asked.num_gpus))
            chosen = SlurmShape(placement=LastFirst()).begin(cluster, None).place(asked, view)
            servers = [gpu // 4 for gpu in chosen]
            assert len(set(chosen)) == wanted
            seen.append({server: servers.count(server) for server in sorted(set(servers))})
            return chosen

    held = [job(str(server), count, 10.0) for server, count in taken.items() if count]
    table_of(Watched(), *held, job("asked", wanted, 1.0), cluster=cluster)
    last, left = {}, wanted
    for server in reversed(range(4)):
        last |= {server: free[server]} if left > 0 else {}
        left -= free[server]
    assert seen == [greedy(dict(sorted(last.items())), wanted)]


def test_what_leaves_the_choice_to_another_gets_the_shape_inside():
    assert shaped(EasyBackfill(placement="lwf")).placement.placement.kappa == 1
    assert isinstance(shaped(Rounds(placement="lwf")).placement, SlurmShape)


def test_jobs_start_in_rounds_only():
    assert starts(Rounds(interval_s=5.0), job("a", 8, 6.0), job("b", 8, 1.0, arrival_s=1.0)) == {"a": 0.0, "b": 10.0}
    assert starts(Rounds(interval_s=5.0), job("late", 8, 6.0, arrival_s=0.1)) == {"late": 5.0}


def test_between_rounds_jobs_start_in_strict_order_if_wanted():
    jobs = job("a", 8, 6.0), job("all", 8, 1.0, arrival_s=1.0), job("next", 1, 1.0, arrival_s=1.0)
    rounds = Rounds(placement="first-fit", interval_s=5.0, in_order_between=True)
    assert starts(rounds, *jobs) == {"a": 0.0, "all": 6.0, "next": 7.0}


def test_backfilling_waits_for_the_round_and_the_first_does_not():
    wide, all_gpus = job("wide", 7, 12.0, limit_s=12.0), job("all", 8, 1.0, arrival_s=1.0)
    short = job("short", 1, 2.0, limit_s=2.0, arrival_s=1.0)
    rounds = Rounds(placement=ConservativeBackfill(), interval_s=5.0, in_order_between=True)
    assert starts(rounds, wide, all_gpus, short) == {"wide": 0.0, "all": 12.0, "short": 5.0}


def test_an_interval_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"interval_s is 0\.0; expected seconds"):
        Rounds(interval_s=0.0)
