"""Slurm's blocks: what a real Slurm 24.11 chose of the same free nodes (benchmarks/slurm_decisions.py)."""

from __future__ import annotations

import pytest

from algorithms.placement.slurm_block import SlurmBlock
from ddlsched.testing import cluster_view, job_view
from topologies.leaf_spine import LeafSpine


def place(count: int, free: set[int], gpus_per_server: int = 1) -> list[int] | None:
    other = job_view(number=9)
    residents = {gpu: [other] for gpu in range(16 * gpus_per_server) if gpu not in free}
    racks = LeafSpine(servers_per_leaf=4)
    size = {"num_servers": 16, "gpus_per_server": gpus_per_server}
    view = cluster_view(**size, residents=residents, topology=racks, exclusive=True)
    return SlurmBlock().place(job_view(num_gpus=count), view)


@pytest.mark.parametrize(
    ("count", "free", "chosen"),
    [
        (6, {*range(16)}, [8, 9, 12, 13, 14, 15]),
        (2, {*range(8), 10, 11}, [10, 11]),
        (4, {*range(8, 16)}, [12, 13, 14, 15]),
        (2, {*range(8)}, [4, 5]),
        (6, {*range(4), *range(6, 12)}, [6, 7, 8, 9, 10, 11]),
        (6, {*range(12)}, [4, 5, 8, 9, 10, 11]),
        (1, {6, 7, 12, 14}, [12]),
        (1, {4, 5, 11}, [11]),
        (3, {1, 2}, None),
        (3, {2, 3, 12}, None),
        (6, {4, 5, 7, 11, 12, 13}, None),
    ],
)
def test_as_slurm_chose(count: int, free: set[int], chosen: list[int] | None) -> None:
    assert place(count, free) == chosen


def test_whole_servers_or_part_of_one() -> None:
    assert place(4, {1, *range(4, 16)}, gpus_per_server=2) == [4, 5, 6, 7]
    assert place(1, {1, *range(4, 16)}, gpus_per_server=2) == [1]
    assert place(3, {*range(4, 10)}, gpus_per_server=2) == [4, 5, 6]
