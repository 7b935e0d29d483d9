"""The smaller claims: their jobs, what is worked out without runs, and the committed tables."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

import ddlsched
from ddlsched.workload.generators.streams import gpu_seconds

FOLDER = EXPERIMENTS / "smaller_claims"
jobs, run = scripts_of("smaller_claims", "jobs", "run")


@pytest.mark.long
def test_jobs_of_a_user_are_alike_and_those_of_others_are_not():
    workload = jobs.helios_like(seed=1, jobs=2000)
    frame = pd.DataFrame({"user": [job.user for job in workload], "iterations": [job.iterations for job in workload]})
    logs = np.log(frame["iterations"]).groupby(frame["user"])
    middle = (logs.mean() > np.log(20)) & (logs.mean() < np.log(500))  # neither cut nor rounded much
    assert logs.std()[middle].mean() == pytest.approx(jobs.WITHIN_SIGMA, rel=0.15)
    assert logs.mean().std() > 3 * jobs.WITHIN_SIGMA
    work_s = sum(map(gpu_seconds, workload))
    assert work_s / 64 / max(job.arrival_s for job in workload) == pytest.approx(0.95, rel=0.1)


@pytest.mark.long
def test_jobs_like_helios_are_drawn_with_its_published_mean_and_median():
    """206 and 6,652 s of a GPU job, but for the cut of the longest; 1 and 3.716 GPUs."""
    sigma_squared = jobs.BETWEEN_SIGMA**2 + jobs.WITHIN_SIGMA**2
    assert np.exp(sigma_squared / 2) == pytest.approx(6651.681 / 206, rel=0.05)
    medians = [np.median([job.iterations for job in jobs.helios_like(seed=seed, jobs=100)]) for seed in range(20)]
    assert np.exp(np.mean(np.log(medians))) == pytest.approx(jobs.MEDIAN_ITERATIONS, rel=0.2)
    sizes = np.array([job.num_gpus for seed in range(4) for job in jobs.helios_like(seed=seed)])
    assert np.median(sizes) == 1
    assert sizes.mean() == pytest.approx(3.716, rel=0.05)


def test_hidden_communication_takes_as_long_as_the_longer_of_the_two():
    plain, hidden = (ddlsched.Workload.of(jobs.hidden(seed=1, hides=hides).jobs[:1]) for hides in (False, True))
    cluster = ddlsched.Cluster(num_servers=64, gpus_per_server=1)
    (job,) = plain
    sending_s = job.num_gpus > 1 and 8.56e-10 * job.iteration.message_bytes
    compute_s = job.compute_ns / 1e9
    times = [ddlsched.simulate(workload, cluster).jobs.loc[0, "jct_s"] for workload in (plain, hidden)]
    assert times[0] == pytest.approx(job.iterations * (compute_s + sending_s))
    assert times[1] == pytest.approx(job.iterations * max(compute_s, sending_s))


def test_gradients_in_buckets_are_sent_as_soon_as_they_are_there():
    """Each fourth of backward is followed by a fourth of the message, one after the other on the card."""
    job = next(job for job in jobs.hidden(seed=1, buckets=4) if job.num_gpus > 1)
    cluster = ddlsched.Cluster(num_servers=64, gpus_per_server=1)
    part_s = job.iteration.message_bytes * 8.56e-10 / 4
    sent_s = 0.0
    for part in range(1, 5):
        there_s = job.iteration.forward_s + job.iteration.backward_s * part / 4
        sent_s = max(there_s, sent_s) + part_s
    taken_s = ddlsched.simulate(ddlsched.Workload.of([job]), cluster).jobs.loc[0, "jct_s"]
    assert taken_s == pytest.approx(job.iterations * sent_s)


def test_an_ensemble_ends_with_its_last_job():
    workload = jobs.ensembles(seed=1, ensembles=3)
    result = ddlsched.simulate(workload, exclusive=True)
    ends = result.jobs["finish_s"].to_numpy().reshape(3, 8).max(axis=1) - result.jobs["arrival_s"].to_numpy()[::8]
    assert jobs.ensemble_times(result)["ensemble_s"] == pytest.approx(ends.mean())
    assert {job.num_gpus for job in workload} == {1}


def test_codes_against_stragglers_agree_with_trying_every_case():
    found = run.gradient_coding(workers=4)
    for row in found.to_dict("records"):
        for survives in (0, 1, 2):
            mean = 0.0
            for slow in product((False, True), repeat=4):
                chance = np.prod([row["share"] if each else 1 - row["share"] for each in slow])
                times = sorted((survives + 1) * (row["slowdown"] if each else 1.0) for each in slow)
                mean += chance * times[3 - survives]
            assert row[f"code_{survives}"] == pytest.approx(mean)


def test_energy_is_that_of_cluster_design_at_its_own_power():
    worth = pd.read_csv(EXPERIMENTS / "cluster_design" / "expected" / "worth.csv")
    least_j = worth.groupby("cluster", sort=False)["energy_j"].min()
    (own,) = run.energy(worth).query("rest_w == 400").drop(columns="rest_w").to_dict("records")
    assert own == pytest.approx((least_j / least_j["a100-80"]).to_dict(), rel=1e-4)


def test_servers_that_are_maintained_are_away_one_at_a_time(tmp_path):
    tables = run.maintenance(tmp_path)
    away = pd.read_csv(tables["warned"]).groupby("server").agg(leaves=("leave_s", "min"), joins=("join_s", "max"))
    assert (away["joins"] - away["leaves"] == run.AWAY_S).all()
    assert (away["leaves"].to_numpy()[1:] == away["joins"].to_numpy()[:-1]).all()
    assert pd.read_csv(tables["unwarned"])["warned"].sum() == 0


def test_the_committed_tables_are_of_all_studies_and_networks():
    claims = pd.read_csv(FOLDER / "expected" / "claims.csv")
    timers = pd.read_csv(FOLDER / "expected" / "timers.csv").set_index("network")
    asked = run.studies({"warned": "", "unwarned": ""}, timers["timers"])
    studies = {(study.name, policy) for study in asked for policy in study.policies}
    assert set(zip(claims["study"], claims["policy"], strict=True)) == studies
    assert timers.index.tolist() == list(run.TIMED_NETWORKS)


def test_tuned_timers_change_as_much_beside_other_placements_as_where_they_were_tuned():
    timers = pd.read_csv(FOLDER / "expected" / "timers.csv")
    claims = pd.read_csv(FOLDER / "expected" / "claims.csv").query("policy == 'tuned timers'")
    assert claims["change"].tolist() == pytest.approx(timers["change"].tolist(), abs=1e-4)
