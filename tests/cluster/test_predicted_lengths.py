"""Lengths of jobs that policies misjudge: what they see, how wrong it is, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from jobs_by_hand import Fixed, data_parallel_job

import ddlsched
from ddlsched import Disturbances, Workload
from ddlsched.engine.compiled_forms import compile_method
from ddlsched.errors import InputError
from ddlsched.workload.workload_files import workload_of

ONE_GPU = ddlsched.Cluster(num_servers=1, gpus_per_server=1)
job = partial(data_parallel_job, backward_s=1.0)


@dataclass
class Spy:
    """FIFO that notes what it sees of jobs: (true iterations ended, seen left, seen in all, service left, attained)."""

    seen: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    compiled = False

    def key(self, job, now_s):
        ended = job.attained_service_ns // (job.compute_ns * job.num_gpus)
        seen = ended, job.iterations_left, job.iterations, job.remaining_service_ns, job.service_ns
        self.seen.setdefault(job.job_id, []).append(seen)
        return job.arrival_ns


def predictions(error: float, jobs: int = 400, iterations: int = 1000, seed: int = 1) -> np.ndarray:
    """Return what each of many jobs is taken to have before it starts."""
    spy = Spy()
    many = [job(f"{n}", iterations=iterations, backward_s=1e-4) for n in range(jobs)]
    ddlsched.simulate(
        Workload.of(many),
        ONE_GPU,
        order=spy,
        seed=seed,
        until_s=1e-5,
        disturbances=Disturbances(prediction_error=error),
    )
    return np.array([spy.seen[f"{n}"][0][2] for n in range(jobs)])


@pytest.mark.long
@pytest.mark.parametrize("error", [0.3, 1.0])
def test_the_logarithm_of_the_factor_has_the_stated_deviation_and_median_0(error):
    logs = np.log(predictions(error) / 1000)
    assert logs.std() == pytest.approx(error, rel=0.1)
    assert abs(np.median(logs)) < 3 * 1.25 * error / np.sqrt(400)


@pytest.mark.long
def test_predictions_follow_from_the_seed():
    assert (predictions(0.5) == predictions(0.5)).all()
    assert (predictions(0.5) != predictions(0.5, seed=2)).mean() > 0.9
    assert (predictions(0.0) == 1000).all()


@pytest.mark.long
def test_a_job_that_outlasts_its_prediction_has_one_iteration_left_until_it_ends():
    spy = Spy()
    six = [job(f"{n}", iterations=12) for n in range(6)]
    disturbances = Disturbances(prediction_error=1.0)
    ddlsched.simulate(Workload.of(six), ONE_GPU, order=spy, seed=3, disturbances=disturbances)
    outlasted = []
    for notes in spy.seen.values():
        predicted = notes[0][2]
        for ended, left, in_all, service_left_ns, service_ns in notes:
            if ended < 12:
                assert left == max(predicted - ended, 1)
                assert in_all == predicted
                assert (service_left_ns, service_ns) == (left * 10**9, predicted * 10**9)
        outlasted.append(predicted < 12)
    assert any(outlasted)


@pytest.mark.long
def test_who_goes_first_is_what_is_predicted_and_compiled_code_sees_the_same():
    """Of 20 jobs on a GPU, started one by one; SRTF starts them by the predictions, not by their lengths."""
    jobs = Workload.of([job(f"{n}", iterations=50 + n) for n in range(20)])
    cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=1, exclusive=True)
    disturbances = Disturbances(prediction_error=0.5)
    spy = Spy()
    ddlsched.simulate(jobs, cluster, order=spy, seed=5, disturbances=disturbances)
    predicted = [spy.seen[f"{n}"][0][2] for n in range(20)]
    started = ddlsched.simulate(jobs, cluster, order="srtf", seed=5, disturbances=disturbances).jobs["start_s"]
    assert np.argsort(started, kind="stable").tolist() == np.argsort(predicted, kind="stable").tolist()
    assert predicted != sorted(predicted)


@dataclass(frozen=True)
class FewLeftFirst:
    """Preemptive: a job of few iterations first, then one whose neighbours have few; both as predicted."""

    compiled: ClassVar[bool] = True

    def transfer_key(self, transfer, network):
        met = sum(other.job.remaining_service_ns for other in network.met_by(transfer))
        return transfer.job.iterations_left, met


@dataclass(frozen=True)
class FewLeftFirstInPython(FewLeftFirst):
    compiled: ClassVar[bool] = False


@pytest.mark.long
def test_views_that_come_from_transfers_and_lists_see_predictions_too():
    def finish_s(communication, error):
        pairs = [job(f"{n}", gpus=2, iterations=20 + n, message_bytes=1e9) for n in range(6)]
        cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=6, exclusive=True)
        disturbances = Disturbances(prediction_error=error)
        placement = Fixed(gpus={f"{n}": [n, 6 + n] for n in range(6)})
        result = ddlsched.simulate(
            Workload.of(pairs),
            cluster,
            placement=placement,
            communication=communication,
            seed=4,
            disturbances=disturbances,
        )
        return result.jobs["finish_s"].tolist()

    for error in (0.0, 1.0):
        assert finish_s(FewLeftFirst(), error) == finish_s(FewLeftFirstInPython(), error)
    assert finish_s(FewLeftFirst(), 0.0) != finish_s(FewLeftFirst(), 1.0)


@pytest.mark.long
def test_a_policy_is_compiled_apart_for_runs_with_predictions():
    plain, predicting = (compile_method(FewLeftFirst(), "transfer_key", predicted) for predicted in (False, True))
    assert plain.address != predicting.address
    assert compile_method(FewLeftFirst(), "transfer_key").address == plain.address


@pytest.mark.long
def test_fifo_does_not_care():
    text = "microsoft-160:scale=0.01"
    jct = [
        ddlsched.simulate(
            text, seed=2, order="fifo", placement="first-fit", disturbances=Disturbances(prediction_error=s)
        )
        .jobs["jct_s"]
        .tolist()
        for s in (0.0, 1.0)
    ]
    assert jct[0] == jct[1]


@pytest.mark.long
def test_a_run_with_an_error_draws(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(
        "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
        + "".join(f"{n},0,1,{100 + n},0.1,0.1,1e6,15000\n" for n in range(30))
    )
    options = {"disturbances": {"prediction_error": 1.0}}
    asked = {"seeds": 3, "servers": 1, "options": options, "processes": 1}
    compared = ddlsched.compare(path, ["srsf-1"], **asked, folder=tmp_path / "out")
    assert compared.runs["average_jct_s"].nunique() == 3


@pytest.mark.long
def test_elastic_jobs_are_refused():
    workload = workload_of("elastic-mix:gpus=8", 1)
    with pytest.raises(InputError, match="prediction_error is given, and jobs grow and shrink"):
        ddlsched.simulate(
            workload, servers=2, allocation="elastic-scaling", disturbances=Disturbances(prediction_error=0.3)
        )
