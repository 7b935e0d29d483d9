"""HiveD's cell rules: split, merge, bind, give back, and that a tenant's cells are there whenever it asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.placement.hived import Cells, HiveD, tenants_of
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_view

SMALL = ddlsched.Cluster(num_servers=4, gpus_per_server=4)


def test_levels_are_powers_of_two_inside_a_server_and_of_servers() -> None:
    assert Cells([4] * 4).sizes == [1, 2, 4, 8, 16]
    assert Cells([4] * 6).sizes == [1, 2, 4, 8, 16]
    assert Cells([6] * 2).sizes == [1, 6, 12]


def test_servers_that_are_no_power_of_two_are_several_cells() -> None:
    cells = Cells([4] * 7)
    assert [sorted(free) for free in cells.free] == [[], [], [24], [16], [0]]


def test_a_cell_is_split_from_the_lowest_larger_one() -> None:
    """Of 16 GPUs, one for a single GPU leaves its buddies: 1, 2-3, 4-7, 8-15."""
    cells = Cells([4] * 4)
    assert cells.take(0) == 0
    assert [sorted(free) for free in cells.free] == [[1], [2], [4], [8], []]
    assert cells.take(2) == 4  # the free server, and not half of 8-15
    assert cells.take(2) == 8


def test_what_is_given_back_merges_with_its_buddies() -> None:
    cells = Cells([4] * 4)
    taken = [cells.take(0), cells.take(0), cells.take(1)]
    assert taken == [0, 1, 2]
    for level, first in ((0, 1), (1, 2)):
        cells.give_back(level, first)
    assert [sorted(free) for free in cells.free] == [[1], [2], [4], [8], []]
    cells.give_back(0, 0)
    assert [sorted(free) for free in cells.free] == [[], [], [], [], [0]]


def test_on_a_star_a_job_of_several_servers_takes_any_free_ones() -> None:
    """With servers 0 and 2 busy, 1 and 3 hold no cell of eight GPUs, but two of four each."""
    jobs = [
        data_parallel_job(str(n), 4, arrival_s=n / 100, iterations=i, forward_s=0.1)
        for n, i in enumerate((90, 2, 90, 2))
    ]
    jobs.append(data_parallel_job("wide", 8, arrival_s=0.05, iterations=1))
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=4, exclusive=True)
    servers = {}
    for top in (0, 1):
        placement = HiveD(top_servers=top)
        result = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster=cluster, placement=placement, order="fifo")
        servers[top] = result.jobs.set_index("job_id")
    assert servers[1].loc["wide", "start_s"] < servers[0].loc["wide", "start_s"]
    assert servers[1].loc["wide", "start_s"] == servers[1].loc[["1", "3"], "finish_s"].max()
    with pytest.raises(InputError, match="top_servers is 3"):
        HiveD(top_servers=3)


def test_cells_do_not_merge_beyond_what_there_was() -> None:
    cells = Cells([4] * 6)
    for first in (cells.take(3), cells.take(3), cells.take(3)):
        cells.give_back(3, first)  # type: ignore[arg-type]
    assert [sorted(free) for free in cells.free] == [[], [], [], [16], [0]]


@pytest.mark.long
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 99)), max_size=60), st.integers(1, 9))
def test_free_cells_and_those_taken_are_all_gpus_once(steps: list[tuple[bool, int, int]], servers: int) -> None:
    cells, taken = Cells([4] * servers), list[tuple[int, int]]()
    for takes, level, which in steps:
        if takes and level < len(cells.sizes):
            first = cells.take(level)
            taken += [] if first is None else [(level, first)]
        elif taken:
            cells.give_back(*taken.pop(which % len(taken)))
        there = [*taken, *((level, first) for level, free in enumerate(cells.free) for first in free)]
        gpus = sorted(gpu for level, first in there for gpu in range(first, first + cells.sizes[level]))
        assert gpus == list(range(4 * servers))
        assert all((first - cells._top_of(first)) % cells.sizes[level] == 0 for level, first in there)


@pytest.mark.long
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 99)), max_size=60))
def test_a_tenants_cell_is_there_whenever_its_private_cluster_would_have_it(steps: Any) -> None:
    """Tenants own, in all, 1 x 8, 1 x 4, 2 x 2 of 16 GPUs: within these counts take never fails."""
    cells, owned, taken = Cells([4] * 4), {3: 1, 2: 1, 1: 2}, list[tuple[int, int]]()
    for takes, place, which in steps:
        level = [3, 2, 1][place]
        if takes and sum(own == level for own, _ in taken) < owned[level]:
            first = cells.take(level)
            assert first is not None
            taken.append((level, first))
        elif taken:
            cells.give_back(*taken.pop(which % len(taken)))


# --- decisions


def begun(cells: str = "") -> Any:
    return HiveD(cells=cells).begin(SMALL, np.random.default_rng(0))


def test_a_tenants_jobs_share_its_cell_and_others_do_not() -> None:
    policy = begun("alice/1x8+bob/2x4")
    view = cluster_view()
    assert policy.place(job_view(number=0, num_gpus=2, user="alice"), view) == [0, 1]
    assert policy.place(job_view(number=1, num_gpus=1, user="bob"), cluster_view(residents=on(0, 0, 1))) == [8]
    assert sorted(policy.cells()) == [("alice", range(8)), ("bob", range(8, 12))]


def on(number: int, *gpus: int) -> dict[int, list[Any]]:
    job = job_view(number=number, num_gpus=len(gpus), gpus=gpus, servers=tuple({gpu // 4 for gpu in gpus}))
    return {gpu: [job] for gpu in gpus}


def test_the_bound_cell_with_the_most_in_use_goes_first_and_there_the_fullest_server() -> None:
    policy = begun("alice/1x8+alice/1x4")
    policy.place(job_view(number=0, num_gpus=8, user="alice"), cluster_view())
    policy._owned.bound[0].used[0] = (0, 1)  # as if it needed two
    there = on(0, 0, 1)
    assert policy.place(job_view(number=1, num_gpus=2, user="alice"), cluster_view(residents=there)) == [2, 3]
    there |= on(1, 2, 3)
    assert policy.place(job_view(number=2, num_gpus=4, user="alice"), cluster_view(residents=there)) == [4, 5, 6, 7]
    there |= on(2, 4, 5, 6, 7)
    assert policy.place(job_view(number=3, num_gpus=4, user="alice"), cluster_view(residents=there)) == [8, 9, 10, 11]


def test_opportunistic_jobs_leave_the_cells_that_are_owned() -> None:
    """bob owns 8 of 16 GPUs and has no job: others get the other half, and no more."""
    policy = begun("bob/1x8")
    assert policy.place(job_view(number=0, num_gpus=8), cluster_view()) == list(range(8))
    there = on(0, *range(8))
    assert policy.place(job_view(number=1, num_gpus=1), cluster_view(residents=there)) is None
    assert policy.place(job_view(number=2, num_gpus=8, user="bob"), cluster_view(residents=there)) == list(range(8, 16))


def test_a_job_larger_than_its_tenants_cells_is_opportunistic() -> None:
    policy = begun("bob/1x4")
    assert policy.place(job_view(number=0, num_gpus=8, user="bob"), cluster_view()) == list(range(8))
    assert next(policy.cells()) == (None, range(8))


def test_a_tenant_without_a_cell_left_waits() -> None:
    policy = begun("bob/1x4")
    policy.place(job_view(number=0, num_gpus=4, user="bob"), cluster_view())
    assert policy.place(job_view(number=1, num_gpus=1, user="bob"), cluster_view(residents=on(0, 0, 1, 2, 3))) is None


def test_a_cell_is_given_back_when_its_last_job_has_left() -> None:
    jobs = [data_parallel_job("a", 4, forward_s=1.0), data_parallel_job("b", 16, forward_s=1.0)]
    result = ddlsched.simulate(ddlsched.Workload.of(jobs), SMALL, placement="hived", order="fifo", exclusive=True)
    assert result.jobs["finish_s"].tolist() == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("text", ["alice", "alice/2", "alice/2x", "alice/0x4", "/1x4", "alice/1x4+", "a/1.5x4"])
def test_cells_that_are_none_are_refused(text: str) -> None:
    if text == "alice/1x4+":
        assert tenants_of(text) == {"alice": {4: 1}}
        return
    with pytest.raises(InputError, match=r"hived: cells has .*; expected tenant/count x GPUs"):
        HiveD(cells=text)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("alice/1x3", r"cells has one of 3 GPUs; expected one of \[1, 2, 4, 8, 16\]"),
        ("alice/1x16+bob/1x1", "ask for more than the 16 GPUs hold"),
    ],
)
def test_cells_that_the_cluster_lacks_are_refused(cells: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        begun(cells)


def test_servers_must_be_alike() -> None:
    cluster = ddlsched.Cluster(servers=(ddlsched.Server(gpus=2), ddlsched.Server(gpus=4)))
    with pytest.raises(InputError, match="servers differ in their GPUs"):
        HiveD().begin(cluster, np.random.default_rng(0))
