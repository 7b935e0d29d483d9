"""The arena: every rival plays, fixed sizes change no job, decisions are counted, tables say what runs say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster
from experiment_scripts import EXPERIMENTS, scripts_of

import ddlsched
from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.errors import InputError

run, grounds, rivals, league = scripts_of("arena", "run", "grounds", "rivals", "league")
EXPECTED = EXPERIMENTS / "arena" / "expected"
MIX = grounds.GROUNDS["64 GPUs, 10G"]
RACKS = grounds.GROUNDS["MonkeyTree's mix, 256 GPUs"]


@pytest.mark.parametrize("rival", rivals.RIVALS, ids=lambda rival: rival.name)
def test_every_rival_ends_all_jobs(rival):
    workload = grounds.jobs_of(seed=1, ground="mix", jobs=8, fixed_size=rival.allocates)
    result = ddlsched.simulate(workload, seed=1, **rival.options(MIX))
    assert (result.jobs["state"] == "finished").all()


def test_rivals_that_share_gpus_or_allocate_do_not_play_with_jobs_of_several_rings():
    absent = {rival.name for rival in rivals.RIVALS if not rival.plays_on(RACKS)}
    assert absent == {"Muri-S", "Lucid", "Gavel", "Sia", "Rubick"}
    with pytest.raises(InputError, match="has rings of its own"):
        grounds.jobs_of(seed=1, ground="monkeytree", jobs=20, gpus=256, fixed_size=True)


def test_monkeytree_gets_the_better_of_a_gpu_and_a_server():
    """Sizes of the mix fill servers; on the traces jobs of one GPU would hold a server each."""
    (rival,) = (rival for rival in rivals.RIVALS if rival.name == "MonkeyTree")
    workload = grounds.jobs_of(seed=1, ground="mix", jobs=40)
    jct_s = {
        size: ddlsched.simulate(workload, seed=1, **rival.options(replace(MIX, block_gpus=size))).jobs["jct_s"].mean()
        for size in (1, 4)
    }
    assert jct_s[MIX.block_gpus] < 0.8 * jct_s[1]


def test_fixed_jobs_take_as_long_alone():
    made = {fixed: grounds.jobs_of(seed=2, ground="mix", jobs=1, fixed_size=fixed) for fixed in (False, True)}
    gavel, fifo = (next(r for r in rivals.RIVALS if r.name == name) for name in ("Gavel", "FIFO that skips, LWF-1"))
    jct_s = [
        ddlsched.simulate(made[rival.allocates], seed=1, **rival.options(MIX)).jobs["jct_s"].item()
        for rival in (gavel, fifo)
    ]
    assert jct_s[0] == pytest.approx(jct_s[1], rel=1e-6)


def test_the_league_table_has_paired_changes():
    rows = [
        {"ground": "g", "policy": policy, "seed": seed, **dict.fromkeys(league.METRICS, value * seed)}
        for policy, value in ((rivals.BASELINE, 2.0), ("half", 1.0))
        for seed in (1, 2, 3)
    ]
    bound_s = pd.DataFrame([{"ground": "g", "policy": policy, "bound_s": 1.6} for policy in (rivals.BASELINE, "half")])
    table = league.league(pd.DataFrame(rows), bound_s).set_index("policy")
    assert table.loc["half", "average_jct_s"] == pytest.approx(2.0)
    assert table.loc["half", ["jct_change", "jct_change_low", "jct_change_high"]].tolist() == pytest.approx([-0.5] * 3)
    assert table.loc["half", "seeds"] == 3
    assert table["over_bound"].tolist() == pytest.approx([4.0 / 1.6, 2.0 / 1.6])


def test_every_rival_stays_above_its_bound_which_is_lower_on_shared_gpus():
    few = [rival for rival in rivals.RIVALS if rival.name in ("HiveD", "Muri-S")]
    found = league.bounds_of([MIX], few, 1, 60, {}).set_index("policy")["bound_s"]
    assert found["Muri-S"] < found["HiveD"]
    for rival in few:
        result = ddlsched.simulate(grounds.jobs_of(seed=1, ground="mix", jobs=60), seed=1, **rival.options(MIX))
        assert result.jobs["jct_s"].mean() >= found[rival.name]


def test_the_expected_league_has_the_distance_to_the_bound():
    table = pd.read_csv(EXPECTED / "league.csv")
    np.testing.assert_allclose(table["over_bound"], table["average_jct_s"] / table["bound_s"], rtol=2e-4)
    assert (table["over_bound"] >= 1 - 1e-4).all()


def test_the_runs_are_all_rivals_on_all_seeds():
    made = run.runs_of([MIX, RACKS], rivals.RIVALS, 3, 10, {})
    assert len(made) == 3 * (2 * len(rivals.RIVALS) - 5)
    assert len({str((sorted(one.labels.items()), one.seed)) for one in made}) == len(made)


def test_a_league_on_dask_is_that_of_this_machine(tmp_path):
    """A scheduler and a worker in this process, which have the jobs, the rivals and the measure sent to them."""
    few = [rival for rival in rivals.RIVALS if rival.name in (rivals.BASELINE, "crux:paths-only", "Gavel")]
    runs = run.runs_of([MIX], few, 1, 6, {})
    alone = sweep(runs, tmp_path / "alone", processes=1)
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address=None,
        local_directory=str(tmp_path),
    ) as cluster:
        there = sweep(runs, tmp_path / "there", dask=cluster.scheduler_address)
    assert not alone.failures
    assert not there.failures
    tables = [league.league(done.summaries(), league.bounds_of([MIX], few, 1, 6, {})) for done in (alone, there)]
    assert set(tables[0]["policy"]) == {rival.name for rival in few}
    pd.testing.assert_frame_equal(*tables)
