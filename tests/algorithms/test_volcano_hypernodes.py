"""Volcano's HyperNodes by hand: the lowest tier with room, up to the highest that is allowed."""

from __future__ import annotations

import pytest

from algorithms.placement.volcano_hypernodes import VolcanoHyperNodes
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view
from topologies.clos import Clos

CLOS = Clos(servers_per_rack=2, racks_per_pod=2)
"""Servers 0 1 | 2 3 are racks of the first pod, 4 5 | 6 7 of the second; each has two GPUs."""


def place(*taken: int, gpus: int, **demands: str) -> list[int] | None:
    residents = {gpu: [job_view(number=9)] for gpu in taken}
    view = cluster_view(num_servers=8, gpus_per_server=2, residents=residents, topology=CLOS)
    return VolcanoHyperNodes().place(job_view(num_gpus=gpus, **demands), view)


def test_hard_waits_at_the_highest_tier_allowed():
    """With a GPU of each rack taken none has four; a pod has."""
    assert place(0, 4, 8, 12, gpus=4, required_levels="rack") is None
    assert place(0, 4, 8, 12, gpus=4, required_levels="pod") == [1, 5, 2, 3], "its fullest servers first"


def test_the_lowest_tier_with_room_and_its_fullest_unit():
    assert place(0, gpus=3, required_levels="pod") == [1, 2, 3], "a rack, though a pod is allowed; the fullest"
    assert place(0, 1, 8, gpus=2, required_levels="rack") == [2, 3]
    assert place(0, 1, 8, gpus=3, required_levels="rack") == [9, 10, 11]
    assert place(0, gpus=2, required_levels="server") == [2, 3]
    assert place(0, 4, gpus=2, required_levels="pod") == [1, 2], "one rack, though 1 and 5 are on fuller servers"


def test_soft_goes_up_and_at_last_anywhere():
    assert place(0, 4, 8, 12, gpus=4, preferred_levels="rack") == [1, 5, 2, 3]
    assert place(0, 2, gpus=10, preferred_levels="rack") == [1, 3, *range(4, 12)], "no pod has ten"
    assert place(0, 9, gpus=2) == [1, 8], "without a wish the fullest servers"
    assert place(*range(15), gpus=2) is None


def test_slices_are_refused():
    with pytest.raises(InputError, match="expected one level of the whole job"):
        place(gpus=4, required_levels="2:rack")
    with pytest.raises(InputError, match="expected one level of the whole job"):
        place(gpus=4, required_levels="pod rack")
