"""The better policy's experiment: every policy ends all jobs, variants differ as they say, tables say what runs say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.optimal.bound import average_jct_bound_s
from algorithms.ordering.narrow_first import NarrowFirst
from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError
from ddlsched.network.contention import MaxMin
from ddlsched.testing import job_view
from ddlsched.workload.generators import monkeytree_mix

FOLDER = EXPERIMENTS / "better_policy"
grounds, policies, room, run, variants = scripts_of("better_policy", "grounds", "policies", "room", "run", "variants")
MIX = grounds.GROUNDS["64-GPU mix"]
RACKS = grounds.GROUNDS["MonkeyTree's mix"]
EVERY = policies.ALL | policies.LEARNING | policies.KNOWING_RACKS


@pytest.mark.parametrize("name", EVERY)
def test_every_policy_ends_all_jobs(name, tmp_path):
    ground = MIX if policies.plays_on(EVERY[name], MIX) else RACKS
    jobs = grounds.jobs_of(seed=1, jobs=ground.jobs, num_jobs=12, folder=str(tmp_path))
    result = ddlsched.simulate(jobs, seed=1, **policies.options(EVERY[name], ground, 8.0))
    assert (result.jobs["state"] == "finished").all()
    assert result.most_jobs_on_a_gpu == 1


def test_crux_plays_only_where_links_are_shared_max_min(tmp_path):
    """On a star of the linear model its rows would be of another network than all others."""
    with pytest.raises(InputError, match="contention is 'crux' on '64-GPU mix', whose network is '10gbe'"):
        policies.options(policies.RIVALS["Crux"], MIX, 8.0)
    assert policies.options(policies.RIVALS["Crux"], RACKS, 8.0)["contention"] == "crux"
    runs = run.runs_of([MIX, RACKS], policies.RIVALS, tmp_path, {"most": 1, "large": 1, "slow": 1})
    played = {(one.labels["ground"], one.labels["policy"]) for one in runs}
    assert ("MonkeyTree's mix", "Crux") in played
    assert {policy for ground, policy in played if ground == MIX.name} == set(policies.RIVALS) - {"Crux"}


def test_monkeytree_has_its_order_and_blocks_that_suit_the_jobs(tmp_path):
    jobs = grounds.jobs_of(seed=1001, jobs=MIX.jobs, num_jobs=60, folder=str(tmp_path))
    jct_s = {}
    for block_gpus in (1, MIX.block_gpus):
        chosen = policies.options(policies.RIVALS["MonkeyTree"], replace(MIX, block_gpus=block_gpus), 8.0)
        assert chosen["order"] == chosen["placement"]
        jct_s[block_gpus] = ddlsched.simulate(jobs, seed=1, **chosen).jobs["jct_s"].mean()
    assert jct_s[MIX.block_gpus] < 0.5 * jct_s[1]


@pytest.mark.parametrize("jobs", ["monkeytree", "clos"])
def test_jobs_of_large_grounds_are_drawn_anew_for_each_seed(jobs, tmp_path):
    one, again, other = (grounds.jobs_of(seed=seed, jobs=jobs, num_jobs=20, folder=str(tmp_path)) for seed in (1, 1, 2))
    assert one == again != other
    assert len(one) == 20


def test_narrow_jobs_go_first_until_the_patience_of_a_wide_one_is_over():
    order = NarrowFirst(patience_s=2.0)
    wide, narrow = (job_view(num_gpus=gpus, arrival_s=at_s) for gpus, at_s in ((8, 0.0), (1, 13.0)))
    assert order.key(narrow, 13.0) < order.key(wide, 13.0)
    assert order.key(job_view(num_gpus=1, arrival_s=15.0), 15.0) > order.key(wide, 15.0)
    with pytest.raises(InputError, match="patience_s is -1"):
        NarrowFirst(patience_s=-1)


def test_the_limit_that_jobs_state_is_the_mean_of_their_kind(tmp_path):
    jobs = grounds.jobs_of(seed=1, jobs=MIX.jobs, num_jobs=60, folder=str(tmp_path))
    took_s = alone_s(jobs, MIX.cluster, MIX.contention)
    order = variants.KindsKnown(patience=2.0)
    kinds = {(job.num_gpus, job.model) for job in jobs}
    for kind in kinds:
        own = [(job, took) for job, took in zip(jobs, took_s, strict=True) if (job.num_gpus, job.model) == kind]
        assert [job.time_limit_s for job, _ in own] == pytest.approx(
            [sum(took for _, took in own) / len(own)] * len(own)
        )
    limited = SimpleNamespace(arrival_ns=5, time_limit_s=3.0)
    assert order.key(limited, 0.0) == 5 + 6e9


def test_what_is_to_be_won_is_held_against_the_best_of_the_same_seeds():
    values = {"HiveD": 3.0, policies.NEW: 2.0, policies.BY_HISTORY: 2.5, "Whole racks, FIFO": 4.0}
    values |= {
        "SRTF, HiveD": 1.6,
        "SRTF, whole servers": 1.9,
        "SRTF, whole racks": 1.5,
        "Whole racks, kinds known": 2.4,
    }
    rows = [
        {"ground": MIX.name, "policy": name, "seed": seed, "average_jct_s": value * seed, "p99_jct_s": 2 * value}
        for name, value in values.items()
        for seed in (1, 2, 3)
    ]
    table = room.room(pd.DataFrame(rows), {MIX.name: {1: 1.0, 2: 2.0, 3: 3.0}}).set_index("policy")
    assert table.index.tolist() == ["HiveD", policies.NEW, *policies.LEARNING, "SRTF, whole racks"]
    assert set(table["best_srtf"]) == {"SRTF, whole racks"}
    assert table["over_bound"].tolist()[:3] == pytest.approx([200.0, 100.0, 150.0])
    assert table["over_srtf_low"].tolist()[:3] == pytest.approx([100.0, 100 / 3, 200 / 3])
    assert table.loc["SRTF, whole racks", "over_srtf_high"] == 0.0
    assert table.loc[policies.NEW, ["average_change", "p99_change"]].tolist() == pytest.approx([-100 / 3] * 2)


def test_monkeytree_is_set_beside_the_policy_on_racks_under_spines():
    assert set(room.rivals_of(RACKS)) == {"HiveD", "MonkeyTree"}
    assert set(room.rivals_of(MIX)) == {"HiveD"}


@pytest.mark.parametrize("narrow", [20, 40])
def test_a_wide_job_waits_as_long_as_narrow_ones_come(narrow):
    """It is first in the queue after 4 s, but the queue skips what does not fit, and it never does before they end."""
    jobs = [data_parallel_job(str(n), 1, arrival_s=0.5 * n, iterations=10, forward_s=0.1) for n in range(narrow)]
    jobs += [data_parallel_job("wide", 4, arrival_s=0.1, iterations=1, forward_s=0.1)]
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=2, exclusive=True)
    ours = {"placement": "whole-servers", "order": NarrowFirst(patience_s=1.0)}
    result = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster=cluster, **ours).jobs.set_index("job_id")
    assert result.loc["wide", "start_s"] >= result.loc[str(narrow - 1), "start_s"] == 0.5 * (narrow - 1)


def test_the_table_has_what_the_new_policy_changes():
    rows = [
        {"ground": "g", "policy": policy, "seed": seed, "stops_a_job": 0.0} | dict.fromkeys(run.METRICS, value * seed)
        for policy, value in (("old", 2.0), ("slow", 2.0), (policies.NEW, 1.0))
        for seed in (1, 2, 3)
        if (policy, seed) != ("slow", 2)
    ]
    table = run.compared(pd.DataFrame(rows), policies.NEW, {"g": {1: 1.0, 2: 1.0, 3: 1.0}}).set_index("policy")
    changes = table.loc["old", ["average_change", "average_change_low", "average_change_high", "p99_change"]]
    assert changes.tolist() == pytest.approx([-50.0] * 4)
    assert table.loc["slow", ["seeds", "average_change"]].tolist() == pytest.approx([2, -50.0])
    assert table["over_bound"].tolist() == pytest.approx([4.0, 4.0, 2.0])


def test_the_bound_is_below_every_policy(tmp_path):
    small = replace(MIX, num_jobs=30)
    bound_s = run.bounds_s(small, [7], tmp_path)[7]
    jobs = grounds.jobs_of(seed=7, jobs="microsoft", num_jobs=30, folder=str(tmp_path))
    for differs in (policies.OURS | policies.KNOWING).values():
        result = ddlsched.simulate(jobs, seed=1, **policies.options(differs, MIX, 8.0))
        assert result.jobs["jct_s"].mean() >= bound_s


def test_the_bound_counts_all_reduces_over_groups_as_time_on_gpus(tmp_path):
    """On racks that hold every job; it stays below runs, and the time of a job alone is what MonkeyTree's mix says."""
    small = replace(RACKS, num_jobs=12)
    jobs = grounds.jobs_of(seed=7, jobs=RACKS.jobs, num_jobs=12, folder=str(tmp_path))
    held = run.held_alone(jobs, RACKS)
    models = {model.name: model for model in monkeytree_mix.MODELS}
    assert [job.compute_ns / 1e9 for job in held] == pytest.approx(
        [job.iterations * models[job.model].alone_s(job.num_gpus) for job in jobs], rel=1e-6
    )
    compute_only_s = average_jct_bound_s(jobs, RACKS.cluster, MaxMin())
    bound_s = run.bounds_s(small, [7], tmp_path)[7]
    assert bound_s > 1.5 * compute_only_s
    for name in ("MonkeyTree", "SRTF, whole servers"):
        result = ddlsched.simulate(jobs, seed=1, **policies.options(EVERY[name], RACKS, 8.0))
        assert result.jobs["jct_s"].mean() >= bound_s
