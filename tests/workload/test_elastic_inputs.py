"""Elastic jobs, curves, costs and capacity traces: what they hold, and what they refuse."""

from __future__ import annotations

import functools
import json
from math import inf

import pytest
from jobs_by_hand import elastic_job

from ddlsched.cluster.capacity import CapacityTrace, Presence
from ddlsched.cluster.disturbances import CapacityChange
from ddlsched.errors import InputError, PluginError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import elastic_job_of
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.workload.elastic_job import BatchCurve, ConstantRescaleCost, LinearCurve, Rescale, ThroughputCurve
from ddlsched.workload.generators.elastic_mix import elastic_mix
from ddlsched.workload.job import Workload
from ddlsched.workload.workload_files import read_curve, read_workload, write_workload

S = 1_000_000_000
job = functools.partial(elastic_job, samples=100, gpu_batch=8)


def test_curves_between_and_beyond_their_points():
    throughput = ThroughputCurve(num_gpus=(2, 4), samples_per_s=(100.0, 160.0))
    assert [throughput.throughput(n) for n in (1, 2, 3, 4, 9)] == [50.0, 100.0, 130.0, 160.0, 160.0]
    assert throughput.iteration_s(2, 50) == 0.5
    batches = BatchCurve(gpu_batch=(2, 6), seconds=(0.1, 0.2))
    assert [batches.iteration_s(1, b) for b in (1, 2, 4, 6, 10)] == pytest.approx([0.1, 0.1, 0.15, 0.2, 0.3])
    assert batches.iteration_s(3, 10) == pytest.approx(0.15)  # the largest share is 4
    assert LinearCurve(fixed_s=1.0, sample_s=0.1).iteration_s(2, 5) == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ThroughputCurve(num_gpus=(1, 2), samples_per_s=(1.0,)), "2 num_gpus and 1 samples_per_s"),
        (lambda: ThroughputCurve(num_gpus=(2, 1), samples_per_s=(1.0, 2.0)), r"\(2, 1\); expected ascending"),
        (lambda: BatchCurve(gpu_batch=(1,), seconds=(0.0,)), "seconds is .*; expected finite numbers above 0"),
        (lambda: LinearCurve(fixed_s=-1.0, sample_s=0.1), "fixed_s is -1.0; expected seconds from 0"),
        (lambda: LinearCurve(fixed_s=0.0, sample_s=0.0), "both 0"),
        (lambda: ConstantRescaleCost(up_s=-1.0), "up_s is -1.0; expected seconds from 0"),
        (lambda: job(samples=0), "samples is 0; expected a whole number from 1"),
        (lambda: job(min_gpus=5), "max_gpus is 4; expected at least 5"),
        (lambda: job(min_batch=9), "no batch from 9 to None has a sample for each of 1 GPUs and at most 8 on one"),
        (lambda: job(max_batch=3), "no batch from 1 to 3 has a sample for each of 4 GPUs"),
        (lambda: job(message_bytes=-1.0), "message_bytes is -1.0; expected a number from 0 to 1e[+]18"),
        (lambda: Presence(server=-1), "server is -1; expected a server's number"),
        (
            lambda: Presence(server=0, join_s=5.0, leave_s=5.0),
            "join_s 5.0, leave_s 5.0; expected 0 <= join_s < leave_s",
        ),
        (lambda: CapacityTrace(()), "names no server"),
        (lambda: CapacityTrace.of([(0, 0, 5), (0, 4, 9)]), "server 0 is there from 0 to 5 s and joins again at 4 s"),
        (lambda: CapacityTrace.of([(7, 0, 5)]).changes(7), "server 7: the cluster's servers are 0 to 6"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_the_batches_of_a_job():
    one = job(min_batch=4, max_batch=20)
    assert [(one.smallest_batch(n), one.largest_batch(n)) for n in range(1, 5)] == [(4, 8), (4, 16), (4, 20), (4, 20)]
    assert job(max_gpus=6).smallest_batch(6) == 6


def test_a_curve_that_fails_names_the_job():
    class Broken:
        def iteration_s(self, num_gpus, batch):
            raise ValueError("no such point")

    with pytest.raises(PluginError, match="job 'a': scaling curve"):
        job(curve=Broken())

    class Endless(Broken):
        def iteration_s(self, num_gpus, batch):
            return inf

    with pytest.raises(InputError, match="job 'a': scaling curve answered inf for 4 GPUs, batch 32"):
        job(curve=Endless())


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        ({"from_gpus": 0, "added_gpus": 2, "is_first": True}, 4.0),
        ({"from_gpus": 0, "added_gpus": 2}, 3.0),
        ({"added_gpus": 1}, 1.0),
        ({"removed_gpus": 1}, 2.0),
        ({"added_gpus": 1, "removed_gpus": 1, "lost_gpus": 1}, 2.0),
        ({}, 5.0),
    ],
)
def test_the_dearest_constant_that_applies_counts(change, seconds):
    cost = ConstantRescaleCost(up_s=1.0, down_s=2.0, resume_s=3.0, start_s=4.0, batch_s=5.0)
    nothing = {
        "job_id": "a",
        "time_s": 0.0,
        "from_gpus": 2,
        "to_gpus": 2,
        "from_batch": 8,
        "to_batch": 8,
        "lost_gpus": 0,
        "added_gpus": 0,
        "removed_gpus": 0,
        "to_servers": 1,
        "is_first": False,
        "pending_s": 0.0,
        "lost_samples": 0,
    }
    assert cost(Rescale(**nothing | change)) == seconds


def test_a_trace_tells_who_joins_and_leaves():
    trace = CapacityTrace(
        (
            Presence(server=1, join_s=2.0, leave_s=5.0),
            Presence(server=0, leave_s=3.0, warned=True),
            Presence(server=1, join_s=5.0, leave_s=6.0),  # touches the one before: it stays
            Presence(server=2),
        )
    )
    assert list(trace.changes(4)) == [
        CapacityChange(0, True, 1),
        CapacityChange(0, True, 3),
        CapacityChange(2 * S, False, 1),
        CapacityChange(3 * S, True, 0, True),
        CapacityChange(6 * S, True, 1),
    ]


def test_a_trace_is_read_from_a_table(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("server,join_s,leave_s,warned\n0,0,10.5,1\n0,20,,\n1,0,30,0\n")
    assert CapacityTrace.read(path).presences == (
        Presence(server=0, leave_s=10.5, warned=True),
        Presence(server=0, join_s=20.0),
        Presence(server=1, leave_s=30.0),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server,join_s\n0,1\n", "column 'leave_s' is missing"),
        ("server,join_s,leave_s\n0,x,9\n", r"row 1 \(line 2\), column join_s: 'x' is no number"),
        ("server,join_s,leave_s\n0,9,3\n", r"row 1 \(line 2\): capacity: join_s 9.0, leave_s 3.0"),
        ("server,join_s,leave_s,warned\n0,1,3,yes\n", "column warned: 'yes' is no number"),
        (
            "server,join_s,leave_s\n0,1,5\n0,2,3\n",
            r"row 2 \(line 3\): .* joins again at 2.0 s; expected stays of a server that do not overlap",
        ),
        ("server,join_s,leave_s\n", "names no server"),
    ],
)
def test_a_faulty_table_is_refused(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        CapacityTrace.read(path)
    assert str(path) in str(error.value)


# ---- files


def test_elastic_jobs_go_into_json_and_back(tmp_path):
    curves = [
        LinearCurve(fixed_s=0.1, sample_s=0.01),
        BatchCurve(gpu_batch=(1, 8), seconds=(0.1, 0.2)),
        ThroughputCurve(num_gpus=(1, 4), samples_per_s=(10.0, 30.5)),
    ]
    jobs = [job(job_id=f"j{n}", curve=curve, message_bytes=1e6 * n, model="m") for n, curve in enumerate(curves)]
    write_workload(Workload.of(jobs), tmp_path / "jobs.json")
    assert read_workload(tmp_path / "jobs.json").jobs == tuple(jobs)
    mix = elastic_mix(seed=2, gpus=8, hours=1.0)
    write_workload(mix, tmp_path / "mix.json")
    assert read_workload(tmp_path / "mix.json").jobs == mix.jobs


def test_what_files_cannot_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match="is elastic, which a table cannot hold; write it as"):
        write_workload(Workload.of([job()]), tmp_path / "jobs.csv")
    with pytest.raises(InputError, match="a rescale cost of its own, which a file cannot hold"):
        write_workload(Workload.of([job(rescale_cost=ConstantRescaleCost())]), tmp_path / "jobs.json")


ROW = {"job_id": "a", "arrival_s": 0, "samples": 9, "gpu_batch": 8, "max_gpus": 2}
CURVE = {"kind": "linear", "fixed_s": 0.1, "sample_s": 0.1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW, "row 1: field 'curve' is missing"),
        (ROW | {"curve": CURVE, "gpus": 3}, "row 1: unknown field 'gpus'"),
        (ROW | {"curve": CURVE, "samples": 0.5}, "row 1, column samples: 0.5 is out of range or not whole"),
        (ROW | {"curve": 7}, "row 1, field curve: its kind is 7; expected an object with the kind"),
        (ROW | {"curve": {"kind": "cubic"}}, "its kind is 'cubic'; expected an object with the kind throughput"),
        (ROW | {"curve": CURVE | {"slope": 1}}, "row 1, field curve: unknown field 'slope'"),
        (ROW | {"curve": {"kind": "batch", "seconds": [1]}}, "field curve: field 'gpu_batch' is missing"),
        (ROW | {"curve": {"kind": "batch", "gpu_batch": 3, "seconds": [1]}}, "gpu_batch: is 3; expected a list"),
        (ROW | {"curve": {"kind": "batch", "gpu_batch": [2, 1], "seconds": [1, 2]}}, "expected ascending"),
        (ROW | {"curve": CURVE, "max_batch": 1}, "row 1: job 'a': no batch from 1 to 1"),
    ],
)
def test_a_faulty_elastic_job_is_refused(tmp_path, row, message):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [row]}))
    with pytest.raises(InputError, match=message) as error:
        read_workload(path)
    assert str(error.value).startswith(str(path))


def test_measured_curves_are_read_from_tables(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("gpus,samples_per_s\n1,100\n4,250.5\n")
    assert read_curve(path) == ThroughputCurve(num_gpus=(1, 4), samples_per_s=(100.0, 250.5))
    path.write_text("gpu_batch,seconds\n8,0.1\n16,0.15\n")
    assert read_curve(path) == BatchCurve(gpu_batch=(8, 16), seconds=(0.1, 0.15))
    path.write_text("gpus,samples_per_s\n4,100\n1,250\n")
    with pytest.raises(InputError, match=r"curve.csv: scaling curve: num_gpus is \(4, 1\); expected ascending"):
        read_curve(path)
    path.write_text("gpus,samples_per_s\n")
    with pytest.raises(InputError, match="0 num_gpus and 0 samples_per_s"):
        read_curve(path)


def test_constants_of_changes_in_a_text():
    assert ConstantRescaleCost.parse("up_s=18, down_s=12") == ConstantRescaleCost(up_s=18, down_s=12)
    assert ConstantRescaleCost.parse("restart_s=30,batch_s=5") == ConstantRescaleCost(
        up_s=30, down_s=30, resume_s=30, batch_s=5
    )
    for text, message in (("up=3", "'up=3' names no constant"), ("up_s=x", "up_s is 'x'"), ("up_s=1,up_s=2", "again")):
        with pytest.raises(InputError, match=message):
            ConstantRescaleCost.parse(text)


def test_a_job_from_the_training_time_model():
    plan = parse_cluster("v100:nodes=4,gpus_per_node=4,nic_gbps=10")
    model = MODELS["gpt3-350m"]
    made = elastic_job_of(model, plan, job_id="a", samples=1000, max_gpus=16)
    assert made.gpu_batch == made.curve.gpu_batch[-1] == 2  # more does not fit
    alone = parse_cluster("v100:nodes=1,gpus_per_node=1,nic_gbps=10").machine(1)
    found = estimate_checked(model, Parallelism(micro_batch=2, global_batch=2), alone)
    assert made.curve.iteration_s(4, 8) == pytest.approx(float(found.step_s))
    assert made.message_bytes == pytest.approx(float(found.reduced_bytes))
    with pytest.raises(InputError, match=r"does not fit one GPU with any batch of \[512\]"):
        elastic_job_of(model, plan, job_id="a", samples=1000, max_gpus=16, gpu_batches=[512])


@pytest.mark.parametrize("name", ["priority", "queue", "required_levels", "time_limit_s", "num_gpus"])
def test_what_only_jobs_of_a_fixed_size_have_is_no_argument(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        elastic_job(**{name: 1})


@pytest.mark.parametrize(("message_bytes", "names"), [(0.0, ["compute"]), (5.0, ["compute", "all-reduce"])])
def test_a_job_without_messages_only_computes(message_bytes: float, names: list[str]) -> None:
    dag = job(message_bytes=message_bytes).dag
    assert [task.name for task in dag.tasks] == names
    assert [task.after for task in dag.tasks] == [(), ("compute",)][: len(names)]
