"""The map of what pays where: its points, what counts as earning, and what is committed."""

from __future__ import annotations

import re
import sys

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

import ddlsched
from ddlsched.workload.workload_files import workload_of
from experiments.arrivals import alone_gpu_s

FOLDER = EXPERIMENTS / "map"
TABLE = FOLDER / "expected" / "map.csv"
answers, picture, points, run = scripts_of("map", "answers", "picture", "points", "run")
POINT = points.Point(mix="CNNs", load="0.8", gbps=100.0, oversubscription=4.0)


@pytest.mark.parametrize("mix", points.MIXES)
def test_the_text_of_a_point_makes_its_jobs_at_its_load(mix):
    (point,) = run.only(points.POINTS, [f"mix={mix}", "load=0.8", "gbps=400", "oversubscription=1"])
    made, other = workload_of(point.workload(), 4), workload_of(point.workload(), 5)
    assert made == points.jobs_of(seed=4, mix=mix, load="0.8", gbps=400.0) != other
    gpus = points.MIXES[mix].servers * points.GPUS_PER_SERVER
    assert max(job.num_gpus for job in made) <= gpus
    asked = sum(alone_gpu_s(job, points.GPUS_PER_SERVER, 400.0) for job in made) / made.jobs[-1].arrival_s
    assert asked / gpus == pytest.approx(0.8, rel=0.4)


def test_a_burst_comes_within_a_minute():
    jobs = points.jobs_of(seed=1, mix="fine-tuning", load=points.BURST, gbps=100.0)
    assert 50 < max(job.arrival_s for job in jobs) <= points.BURST_S


@pytest.mark.long
def test_every_policy_of_a_point_runs_sampled_with_one_job_a_gpu():
    few = ddlsched.Workload.of(points.jobs_of(seed=1, mix="CNNs", load="0.8", gbps=100.0).jobs[:10])
    for options in [*answers.placements_of(POINT).values(), *answers.trials_of(POINT, "HiveD").values()]:
        result = ddlsched.simulate(few, seed=1, **options)
        assert (result.jobs["state"] == "finished").all()
        assert result.most_jobs_on_a_gpu == 1
        assert options["sample"]


def rows_at(factors: dict[str, float], seeds: int = 6) -> pd.DataFrame:
    """Return the rows of a point where a policy's JCT is that of first-fit x its factor in every seed."""
    runs = pd.DataFrame(
        [
            {"policy": name, "seed": seed, "average_jct_s": (100.0 + seed) * factors.get(name, 1.0)}
            for seed in range(seeds)
            for name in [*answers.PLACEMENTS, *answers.TRIALS]
        ]
    )
    placements = runs[runs["policy"].isin(answers.PLACEMENTS)]
    return pd.DataFrame(answers.rows_of(POINT, answers.best_placement(placements), runs))


def test_a_part_earns_by_more_than_5_percent_on_top_of_the_best_placement():
    best = {"HiveD": 0.5, "LWF-1": 0.8, **dict.fromkeys(answers.TRIALS, 0.5)}
    for factor, expected in ((0.5 * 0.96, {"placement"}), (0.5 * 0.94, {"placement", "paths"})):
        counted = answers.counting(rows_at(best | {"SGLB": factor}))
        assert set(counted.loc[answers.earning(counted), "part"]) == expected
        assert counted.loc[counted["part"] == "placement", "policy"].tolist() == ["HiveD"]


def test_where_first_fit_is_best_placement_earns_nothing_and_others_are_held_against_it():
    counted = answers.counting(rows_at({"HiveD": 1.2, "LWF-1": 1.1, "whole racks": 1.3, "SRTF": 0.7}))
    assert set(counted["part"]) == set(answers.PARTS) - {"placement"}
    assert set(counted["against"]) == {"first-fit"}
    shares = answers.shares(rows_at({"HiveD": 1.2, "LWF-1": 1.1, "whole racks": 1.3, "SRTF": 0.7}))
    assert shares[["points", "placement", "order", "paths"]].iloc[0].tolist() == [1, 0, 1, 0]


@pytest.mark.long
def test_the_worst_placement_is_named_where_none_earns_and_it_is_worse_for_certain():
    worse = answers.worst_placements(rows_at({"HiveD": 1.02, "LWF-1": 1.0, "whole racks": 1.3}))
    assert worse["policy"].tolist() == ["whole racks"]
    assert answers.worst_placements(rows_at({"HiveD": 1.2, "LWF-1": 0.9, "whole racks": 1.3})).empty
    assert answers.worst_placements(rows_at({"HiveD": 0.98})).empty


@pytest.mark.long
def test_a_cell_says_by_how_much_which_placement_earns_or_is_worse(tmp_path):
    rows = rows_at({"HiveD": 0.5, "whole racks": 0.6, **dict.fromkeys(answers.TRIALS, 0.4)})
    worse = rows_at({"whole racks": 1.3}).assign(gbps=6400.0)
    texts = re.findall(r"<!-- (.*?) -->", picture.picture(pd.concat([rows, worse]), tmp_path)[1].read_text("utf-8"))
    assert {"\N{MINUS SIGN}50", "HiveD", "+30", "whole racks"} <= set(texts)
    assert "SRTF on top: \N{MINUS SIGN}20 to \N{MINUS SIGN}20 % at 1 of 2" in texts


def test_every_committed_point_has_every_policy_and_as_many_seeds():
    table = pd.read_csv(TABLE, dtype={"load": str})
    counted = table.groupby(list(points.Point.__dataclass_fields__)).size()
    assert counted.unique().tolist() == [len(answers.PLACEMENTS) - 1 + len(answers.TRIALS)]
    assert len(counted) == len(points.POINTS)
    assert (table.groupby("mix")["seeds"].nunique() == 1).all()
    pd.testing.assert_frame_equal(answers.shares(table), pd.read_csv(FOLDER / "expected" / "shares.csv"))


def test_the_document_counts_as_the_table_does():
    document = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = pd.read_csv(TABLE, dtype={"load": str})
    counted = answers.counting(table)
    won = counted[answers.earning(counted)]
    placed = won[won["part"] == "placement"]
    by_speed = pd.DataFrame([point.axes for point in points.POINTS]).groupby("gbps").size().to_frame("points")
    by_speed["won"] = placed.groupby("gbps").size()
    slow, *others, fast = (f"{row.won} of {row.points} with {row.Index:,g}" for row in by_speed.itertuples())
    said = f"at {slow} Gbit/s a server, {', '.join(others)} and {fast}"
    assert f"earns at {len(placed)} of {len(points.POINTS)} points: {said}" in document
    order = -100 * counted[(counted["part"] == "order") & (counted["load"] == points.BURST)]["change"]
    assert f"takes {order.min():.0f} to {order.max():.0f} % off FIFO's average JCT in every burst" in document
    assert set(won["part"]) == {"placement", "order"}
    assert set(won.loc[won["part"] == "order", "load"]) == {points.BURST}
    worse, stops = answers.worst_placements(table), table[table["part"] == "stops"]
    least, most = 100 * worse["change"].min(), 100 * worse["change"].max()
    assert f"by {least:.0f} to {most:.0f} %, whole interval, at {len(worse)} points" in document
    assert f"than FIFO by more than 5 %, whole interval, at {(stops['low'] > 0.05).sum()} points" in document


def test_the_advice_holds_at_every_point_that_it_covers():
    table = pd.read_csv(TABLE, dtype={"load": str})
    covered = "gbps == 100 and oversubscription >= 2 or gbps == 400 and oversubscription >= 4"
    racks = table.query(covered).query("policy == 'whole racks'")
    assert len(racks) == 5 * len(points.MIXES) * len(points.LOADS)
    assert answers.earning(racks).all()
    half = table.query("load == '0.5' and oversubscription >= 2 and gbps <= 400 and policy == 'whole racks'")
    assert answers.earning(half).all()


@pytest.mark.slow
def test_a_table_is_drawn_without_a_run_and_an_unknown_axis_is_refused(tmp_path, monkeypatch, capsys):
    command = ["run.py", "--draw", str(TABLE), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    assert run.main() == 0
    assert (tmp_path / "charts" / "map.png").stat().st_size > 20_000
    monkeypatch.setattr(sys, "argv", [*command, "--only", "speed=4"])
    with pytest.raises(SystemExit, match="2"):
        run.main()
    assert "expected AXIS=VALUE with one of mix, load, gbps, oversubscription" in capsys.readouterr().err
