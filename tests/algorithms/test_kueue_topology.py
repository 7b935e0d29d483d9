"""Where Kueue puts pods, on clusters small enough to see; benchmarks/kueue_tables.py compares with its own tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.placement.kueue_topology import Domain, KueueTopology, fewest
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view
from topologies.clos import Clos

CLOS = Clos(servers_per_rack=2, racks_per_pod=2)
"""Servers 0 1 | 2 3 are racks of the first pod, 4 5 | 6 7 of the second."""


def place(*taken: int, gpus: int, policy: KueueTopology | None = None, **demands: str) -> list[int] | None:
    """Return where a job goes on eight servers of two GPUs, of which some are held."""
    other = job_view(number=9)
    residents = {gpu: [other] for gpu in taken}
    view = cluster_view(num_servers=8, gpus_per_server=2, residents=residents, topology=CLOS)
    return (policy or KueueTopology()).place(job_view(num_gpus=gpus, **demands), view)


def test_without_a_level_the_fullest_servers_or_the_fewest():
    assert place(0, 4, gpus=3) == [1, 2, 5], "two servers have one GPU free"
    assert place(0, 4, gpus=3, policy=KueueTopology(least_free=False)) == [1, 2, 3], "a whole server, and the best fit"
    assert place(*range(15), gpus=2) is None


def test_a_required_level_waits_and_takes_the_best_fit():
    assert place(0, gpus=3, required_levels="rack") == [1, 2, 3]
    assert place(0, 4, 8, 12, gpus=4, required_levels="rack") is None
    assert place(0, gpus=2, required_levels="server") == [2, 3]
    assert place(0, 8, 9, gpus=5, required_levels="pod") == [10, 11, 12, 13, 14]


def test_a_preferred_level_widens():
    assert place(0, 4, 8, 12, gpus=4, preferred_levels="rack") == [2, 3, 6, 7], "whole servers of a pod"
    assert place(gpus=12, preferred_levels="rack") == [*range(12)]


def test_slices_are_whole_in_their_level():
    assert place(0, gpus=4, required_levels="2:server") == [2, 3, 4, 5]
    assert place(0, 4, gpus=8, required_levels="pod 4:rack") == [*range(8, 16)]
    assert place(0, 4, 8, gpus=8, required_levels="4:rack") is None
    with pytest.raises(InputError, match="required slices by a number"):
        place(gpus=2, required_levels="pod rack")


def test_balanced_takes_as_few_racks_as_evenly_as_can_be():
    even = KueueTopology(balanced=True)
    assert place(gpus=6, preferred_levels="pod") == [0, 1, 2, 3, 4, 5]
    assert place(gpus=6, preferred_levels="pod", policy=even) == [0, 1, 2, 4, 5, 6]
    domains = [Domain((name,), room, room) for name, room in ((1, 9), (2, 6), (3, 4), (4, 2))]
    assert [domain.path[0] for domain in fewest(domains, 10, 1) or ()] == [2, 3]
    assert fewest(domains, 22, 1) is None


def test_a_run_waits_for_a_rack():
    jobs = [data_parallel_job("a", 3, forward_s=4.0), data_parallel_job("b", 3, forward_s=4.0)]
    workload = ddlsched.Workload.of([replace(job, required_levels="rack") for job in jobs])
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=2, exclusive=True, topology=CLOS)
    result = ddlsched.simulate(workload, cluster, placement="kueue-topology")
    assert result.jobs["finish_s"].tolist() == [4.0, 8.0]
