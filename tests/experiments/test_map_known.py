"""The map goes on from tables of earlier runs: what they know is not simulated, what they lack of seeds is."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

answers, choosing, points, run = scripts_of("map", "answers", "choosing", "points", "run")
COMMITTED = EXPERIMENTS / "map" / "expected" / "map.csv"


class Asked:
    """Stands for simulating: takes note of the points that it is asked for, and gives all the same rows."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows_of_one, self.points = rows, []

    def rows(self, batch):
        self.points.extend(batch)
        return [(point, self.rows_of_one.assign(**point.axes)) for point in batch]


@pytest.fixture
def known():
    return run.known_points([COMMITTED], 20)


def test_points_of_a_committed_table_are_those_of_the_grid_and_its_rows_are_kept(known):
    first = [*choosing.grid(choosing.START), *choosing.grid(choosing.FURTHER, choosing.FURTHER_KINDS)]
    assert set(known) & set(first)
    table = run.rows_in(COMMITTED)
    pd.testing.assert_frame_equal(pd.concat(known.values(), ignore_index=True), table[table["seeds"] >= 20])


def test_a_known_point_is_not_simulated_and_its_rows_come_first(known):
    point = next(iter(known))
    new = replace(point, gbps=200.0)
    asked = Asked(known[point])
    table = run.explored(asked, [point, new], 2, float("inf"), adding=False, known={point: known[point]})
    assert asked.points == [new]
    first = table.head(len(known[point]))
    pd.testing.assert_frame_equal(first, known[point].reset_index(drop=True), check_dtype=False)


def test_no_time_gives_the_known_table(known):
    asked = Asked(known[next(iter(known))])
    table = run.explored(asked, choosing.grid(choosing.START), 300, 0.0, known=known)
    assert asked.points == []
    assert len(answers.answers(table)) == len(known)


def test_a_table_with_too_few_seeds_is_not_known(tmp_path):
    table = run.rows_in(COMMITTED)
    table.assign(seeds=6).to_csv(tmp_path / "few.csv", index=False)
    assert run.known_points([tmp_path / "few.csv"], 20) == {}
    both = run.known_points([COMMITTED, tmp_path / "few.csv"], 6)
    assert {rows["seeds"].max() for rows in both.values()} == {6}


def test_points_halfway_are_those_wanted():
    slow, fast = (
        points.Point(gbps=25.0, load=load, oversubscription=4.0, jobs_per_gpu=1, interference=0.0, sizes=size)
        for load, size in (("0.8", "any"), (points.BURST, "any"))
    )
    of_a_door = {"door": ["order"], "priced": [True], "on": ["a"], "best_placement": ["a"], "change": [-0.2]}
    rows = pd.DataFrame({**of_a_door, "seeds": [20]})
    earlier = {slow: rows.assign(high=0.0), fast: rows.assign(high=-0.1)}
    for wanted, found in ((["load=0.95"], ["0.95"]), (["load=0.9"], [])):
        asked = Asked(rows.assign(high=0.0))
        run.explored(asked, [], 300, float("inf"), known=earlier, wanted=wanted)
        assert [point.load for point in asked.points] == found


def test_several_values_of_an_axis_are_any_of_them():
    grid = choosing.grid(choosing.START)
    some = run.only(grid, ["load=0.8", "load=0.5", "gbps=25", "sizes=any"])
    assert [(point.load, point.gbps) for point in some] == [("0.8", 25.0), ("0.5", 25.0)]
