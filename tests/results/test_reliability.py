"""What failures cost: by hand, and what must hold of any run."""

from __future__ import annotations

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.results.reliability import GPU_TIME_PARTS, failures_of, gpu_time_of, reliability_by_size


def test_a_failure_by_hand() -> None:
    """2 GPUs, 10 s of work safe every 4 s; down from 7 to 12 s, then 1.5 s to start: 3 s lost, 5 s without GPUs."""
    job = data_parallel_job("a", gpus=2, iterations=10, backward_s=1.0)
    outage = Outage(server=0, from_s=7, to_s=12)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        ddlsched.Cluster(num_servers=1, gpus_per_server=2),
        disturbances=Disturbances(outages=(outage,), checkpoint_iterations=4, restart_s=1.5),
    )
    (row,) = gpu_time_of(result).to_dict("records")
    assert row == {
        "job_id": "a",
        "gpus": 2,
        "held": 2 * 14.5,
        "detection": 0,
        "restart": 2 * 1.5,
        "checkpoints": 0,
        "lost_work": 2 * 3.0,
        "waiting_for_gpus_and_network": 0,
        "training": 2 * 10.0,
        "requeueing": 2 * 5.0,
        "missing": 0,
    }
    (size,) = reliability_by_size(result).to_dict("records")
    assert size["ettr"] == pytest.approx(10 / 19.5)
    assert size["time_to_failure_h"] == pytest.approx(13 / 3600)
    assert failures_of(result)["lost_s"].tolist() == [3.0]


@pytest.mark.long
@pytest.mark.parametrize("undisturbed", [False, True])
@pytest.mark.parametrize("seed", range(3))  # the last goes on with what is left of its GPUs
def test_gpu_time_adds_up_and_no_more_is_lost_than_was_at_risk(seed, undisturbed) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        data_parallel_job(
            f"j{n}",
            gpus=int(rng.integers(1, 6)),
            iterations=30,
            arrival_s=float(n),
            backward_s=0.5,
            message_bytes=0.0 if undisturbed else 1e8,
        )
        for n in range(6)
    ]
    causes = (
        FailureCause(cause="hang", per="gpu", mtbf_s=200.0, noticed_s=3.0, repair_s=4.0),
        FailureCause(cause="software", per="job", mtbf_s=40.0, takes="job", noticed_s=2.0),
        FailureCause(cause="node", per="server", mtbf_s=60.0, repair_s=5.0),
    )
    recovery = "shrink" if seed == 2 else None
    disturbances = Disturbances(failures=causes, checkpoint_iterations=5, restart_s=1.0, recovery=recovery)
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=3, gpus_per_server=2, exclusive=undisturbed),
        disturbances=disturbances,
        seed=seed,
    )
    times, failures = gpu_time_of(result), failures_of(result)
    assert len(failures)
    assert result.jobs["gpus"].tolist() == [job.num_gpus for job in jobs]
    np.testing.assert_allclose(times[list(GPU_TIME_PARTS)].sum(axis=1), times["held"], rtol=1e-12)
    assert (times[list(GPU_TIME_PARTS)] >= -1e-9).all(axis=None)
    held_s = sum((stay.to_ns - stay.from_ns) * len(stay.gpus) / 1e9 for stay in result.finished.stays)
    assert times["held"].sum() == pytest.approx(held_s)
    lost = failures.groupby("job_id")["lost_s"].sum().reindex(times["job_id"], fill_value=0.0)
    np.testing.assert_allclose(lost, result.jobs["lost_s"], atol=1e-9)
    if undisturbed:  # a checkpoint's interval, of which the last iteration runs
        assert failures["lost_s"].max() <= 5 * 0.5
    assert (failures["detection_s"] <= 3.0).all()
    assert not (reliability_by_size(result)["ettr"] > 1).any()
