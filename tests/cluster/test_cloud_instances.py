"""Preemptible instances: how long they live, how long their replacement takes, and what texts and files say."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest

from ddlsched.cluster.capacity import CloudInstances, capacity_of
from ddlsched.errors import InputError

DAY_S = 86_400.0


def stays(instances: CloudInstances, servers: int) -> list[list[tuple[float, float]]]:
    trace = instances.trace(servers)
    by_server: list[list[tuple[float, float]]] = [[] for _ in range(servers)]
    for stay in trace.presences:
        by_server[stay.server].append((stay.join_s, stay.leave_s))
    return by_server


@pytest.mark.long
def test_lives_and_waits_are_exponential_with_the_given_means() -> None:
    found = stays(CloudInstances(mean_life_s=600.0, mean_wait_s=60.0, until_s=10 * DAY_S, seed=1), 20)
    lives_s = np.array([leave - join for each in found for join, leave in each if leave < inf])
    waits_s = np.array([later[0] - before[1] for each in found for before, later in pairwise(each)])
    assert len(lives_s) > 20_000
    for drawn, mean_s in ((lives_s, 600.0), (waits_s, 60.0)):
        assert drawn.mean() == pytest.approx(mean_s, rel=0.03)
        assert drawn.std() == pytest.approx(mean_s, rel=0.05)
        assert np.mean(drawn > mean_s) == pytest.approx(np.exp(-1), abs=0.01)


def test_all_are_there_at_first_and_those_of_the_end_stay() -> None:
    found = stays(CloudInstances(mean_life_s=3600.0, until_s=DAY_S), 50)
    assert all(each[0][0] == 0.0 for each in found)
    assert all(join < DAY_S and (leave < DAY_S or leave == inf) for each in found for join, leave in each[:-1])
    assert all(leave == inf for each in found for _, leave in each[-1:])


def test_replacements_that_come_after_the_end_stay() -> None:
    found = stays(CloudInstances(mean_life_s=3600.0, mean_wait_s=3600.0, until_s=DAY_S), 100)
    assert 20 < sum(each[-1][0] >= DAY_S for each in found) < 80
    assert all(each[-1][1] == inf for each in found)


def test_observed_lifetimes_are_drawn_as_often_as_they_were_seen(tmp_path: Path) -> None:
    table = tmp_path / "lives.csv"
    table.write_text("lifetime_s\n100\n100\n100\n1000\n")
    instances = CloudInstances(lifetimes=str(table), mean_wait_s=10.0, until_s=5 * DAY_S)
    lives_s = [round(leave - join) for each in stays(instances, 4) for join, leave in each if leave < inf]
    assert set(lives_s) == {100, 1000}
    assert lives_s.count(100) / len(lives_s) == pytest.approx(0.75, abs=0.02)


def test_a_seed_is_a_trace_and_a_text_is_the_same_as_its_fields(tmp_path: Path) -> None:
    given = CloudInstances(mean_life_s=7200.0, mean_wait_s=30.0, until_s=DAY_S, warned=True, seed=3)
    text = "instances:mean_life_s=7200,mean_wait_s=30,until_s=86400,warned=true,seed=3"
    assert capacity_of(text, 8) == given.trace(8)
    assert capacity_of(text.replace("seed=3", "seed=4"), 8) != given.trace(8)
    assert all(stay.warned for stay in given.trace(8).presences)
    table = tmp_path / "servers.csv"
    table.write_text("server,join_s,leave_s\n0,0,5\n")
    assert capacity_of(table, 8).presences[0].leave_s == 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("instances:", "expected either mean_life_s or lifetimes"),
        ("instances:until_s=5", "expected either mean_life_s or lifetimes"),
        ("instances:mean_life_s=5,lifetimes=none.csv", "none.csv: no such file"),
        ("instances:mean_life_s=0", "mean_life_s is 0.0; expected seconds from 0.001"),
        ("instances:mean_life_s=nan", "mean_life_s is nan"),
        ("instances:mean_life_s=x", "parameter mean_life_s: 'x' is not a number"),
        ("instances:mean_life_s=5,mean_life_s=6", "parameter mean_life_s is given twice"),
        ("instances:life=5", "no parameter is named 'life'. Did you mean 'lifetimes'"),
        ("instances:mean_life_s=5,warned=2", "'2' is not a truth value; expected true or false"),
        ("instances:mean_life_s=5,seed=-1", "seed is -1"),
        ("instances:mean_life_s=5,seed=1.5", "'1.5' is not a whole number"),
        ("instances:mean_life_s=0.001,mean_wait_s=0.001", "more than 10,000,000 times"),
    ],
)
def test_what_is_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        capacity_of(text, 100)


def test_tables_of_lifetimes_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    table = tmp_path / "lives.csv"
    for content, message in (
        ("lifetime_s\n", "holds no lifetime; expected at least one row"),
        ("lifetime_s\n-3\n", "row 1 .*column lifetime_s"),
        ("lifetime_s\n0\n", "a lifetime is 0.0; expected seconds from 0.001"),
        ("life\n3\n", "lifetime_s"),
    ):
        table.write_text(content)
        with pytest.raises(InputError, match=message):
            CloudInstances(lifetimes=str(table))
