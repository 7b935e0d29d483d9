"""The steady stream of the comparison of backfilling, and the comparison's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import run
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError

(stream,) = scripts_of("arena", "steady_stream")


@pytest.mark.long
@pytest.mark.parametrize("load", [0.6, 0.8])
def test_stream_has_the_load_it_is_asked_for_and_limits_from_one_to_five_times_the_run_time(load):
    workload = stream.steady_stream(seed=1, load=load, num_jobs=4000)
    run_s = alone_s(workload, stream.CLUSTER, stream.CONTENTION)
    gpu_s = run_s * np.array([job.num_gpus for job in workload])
    assert gpu_s.sum() / (workload[-1].arrival_s * 64) == pytest.approx(load, rel=0.06)
    factors = np.array([job.time_limit_s for job in workload]) / run_s
    assert 1.0 <= factors.min() < 1.01
    assert 4.99 < factors.max() <= 5.0


@pytest.mark.long
def test_gaps_between_arrivals_are_exponential():
    gaps_s = np.diff([job.arrival_s for job in stream.steady_stream(seed=2, num_jobs=4000)])
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.06)


def test_the_same_seed_gives_the_same_jobs_and_loads_that_are_none_are_refused():
    assert stream.steady_stream(seed=3) == stream.steady_stream(seed=3) != stream.steady_stream(seed=4)
    for wrong in ({"load": 0.0}, {"load": float("nan")}, {"num_jobs": 0}):
        with pytest.raises(InputError, match=r"expected a load from 0\.01 to 2 and at least one job"):
            stream.steady_stream(seed=1, **wrong)


@pytest.mark.long
def test_the_file_of_the_comparison_is_one(monkeypatch):
    monkeypatch.chdir(EXPERIMENTS.parent)
    done = run("validate", str(Path("experiments", "arena", "backfilling.yaml")))
    assert done.exit_code == 0, done.stderr
