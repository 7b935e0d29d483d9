"""Traces: every row becomes a job or is refused with its reason; a job alone lasts as long as its trace says."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import import_table
import numpy as np
import pandas as pd
import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from measurements import DATA, needs_data
from tiers import examples
from trace_counts import counts

import ddlsched
from ddlsched.cluster.failure_causes import read_causes
from ddlsched.errors import InputError, UnknownNameError
from ddlsched.network.contention import EqualShare, Linear, MaxMin
from ddlsched.workload.generators.microsoft import MODELS
from ddlsched.workload.traces import trace_import, trace_models
from ddlsched.workload.traces.columns import FORMATS, reader_of
from ddlsched.workload.traces.text_formats import APPLICATIONS, STEPS_PER_S
from ddlsched.workload.traces.trace_import import ImportedTrace, Selection, failure_rows, import_trace, write_jobs
from ddlsched.workload.traces.trace_models import PARAMETERS, JobRule
from ddlsched.workload.traces.traced import TracedJob, moment_s

SAMPLES = Path(__file__).parent / "samples"
REAL = DATA / "traces"
real_traces = needs_data("traces")


def sample(format_name: str, **options: Any) -> ImportedTrace:
    return import_trace(format_name, sorted(SAMPLES.glob(f"{format_name}.*")), **options)


def refused(trace: ImportedTrace) -> list[tuple[int, str]]:
    return list(trace.refused[["line", "reason"]].itertuples(index=False, name=None))


# format: jobs as (id, arrival_s, GPUs, duration_s), refused rows as (line, reason)
EXPECTED: dict[str, tuple[list[tuple[str, float, int, float]], list[tuple[int, str]]]] = {
    "philly": (
        [("application_1_7", 0, 1, 30), ("application_1_1", 200, 4, 650)],
        [
            (7, "never started"),
            (8, "an attempt has no end"),
            (10, "an attempt has no start"),
            (12, "negative duration"),
            (14, "0 GPUs"),
            (16, "not a job"),
        ],
    ),
    "philly-csv": (
        [("3", 0, 8, 50.5), ("2", 100, 1, 100)],
        [
            (4, "duration is 0"),
            (5, "duration is negative"),
            (6, "duration is missing"),
            (7, "0 GPUs"),
            (8, "timestamp is no date and time"),
            (9, "wrong number of values"),
            (10, "num_gpus is not whole"),
        ],
    ),
    "microsoft-itp": (
        [("0a0a0a0a-0000-0000-0000-000000000002", 0, 1, 60), ("0a0a0a0a-0000-0000-0000-000000000001", 400, 8, 3600)],
        [(4, "id occurs twice"), (5, "duration is no finite number"), (6, "job_id is missing"), (7, "not CSV")],
    ),
    "elasticflow": (
        [("e1", 0, 4, 200), ("e2", 10, 1, 100), ("e3", 20, 1, 100)],
        [(5, "num_iteration is no finite number")],
    ),
    "elasticflow-older": ([("0", 0, 1, 100)], [(3, "0 GPUs")]),
    "tiresias": ([("0", 0, 1, 150), ("1", 30, 8, 150)], [(4, "0 GPUs")]),
    "muri": ([("0", 0, 1, 500), ("1", 4, 4, 250)], []),
    "pollux": (
        [("cifar10-0", 0, 4, math.nan), ("bert-1", 100.5, 2, math.nan)],
        [(4, "unknown application"), (5, "batch_size is 0")],
    ),
    "sia": (
        [("cifar10-0", 0, 4, math.nan), ("bert-1", 100.5, 2, math.nan)],
        [(4, "unknown application"), (5, "batch_size is 0")],
    ),
    "gavel": (
        [("1", 0, 1, 10000 / 4.3948), ("3", 30, 2, 2000 / 7.9221), ("2", 60.5, 4, 500 / 7.1758)],
        [(4, "unknown job type"), (5, "wrong number of values"), (6, "0 steps")],
    ),
    "alibaba-openb": (
        [("pod-a", 0, 1, 4990), ("pod-b", 100, 1, 200)],
        [(4, "0 GPUs"), (5, "never started"), (6, "duration is 0 or less")],
    ),
    "helios": (
        [("103", 0, 1, 30), ("100", 1, 8, 100)],
        [(3, "0 GPUs"), (4, "never started")],
    ),
    "batsim": (
        [("w0!1", 0, 16, 100), ("0", 4.25, 4, 20.5), ("2", 5, 1, 500)],
        [
            (4, "profile without a delay"),
            (5, "unknown profile"),
            (6, "res is no finite number"),
            (7, "not a job"),
        ],
    ),
    "acme": (
        [("5778432", 0, 8, 117), ("5778469", 336, 8, 2693)],
        [(4, "0 GPUs"), (5, "never started")],
    ),
    "alibaba-dlrm": (
        [("instance_4", 0, 2, 500), ("instance_3", 200, 1, 1000)],
        [(2, "never started"), (3, "0 GPUs"), (4, "never ended")],
    ),
    "alibaba-spot": (
        [
            ("239255", 0, 1, 2764799),
            ("253689", 0, 1, 15897599),
            ("437260", 9589663, 16, 41060),
            ("437261", 9589663, 188, 71718),
        ],
        [(6, "0 GPUs"), (7, "gpu_request is not whole")],
    ),
    "csv": (
        [("b", 0, 1, 60), ("a", 3600, 2, 600)],
        [(4, "arrival_s is no date and time"), (5, "duration_s is 0")],
    ),
    "swf": (
        [("2", 0, 4, 60), ("1", 50, 16, 3600)],
        [
            (5, "run time is missing"),
            (6, "part of a job"),
            (7, "wrong number of values"),
            (8, "requested processors is missing"),
        ],
    ),
}


@pytest.mark.long
def test_requested_times_are_time_limits(tmp_path):
    fields = "{job} {job} 0 {run} 4 -1 -1 4 {asked} -1 1 7 -1 -1 0 -1 -1 -1\n"
    jobs = [{"job": 1, "run": 50, "asked": 100}, {"job": 2, "run": 50, "asked": -1}, {"job": 3, "run": 1, "asked": 0}]
    (tmp_path / "a.swf").write_text("".join(fields.format(**job) for job in jobs))
    imported = import_trace("swf", [tmp_path / "a.swf"])
    assert [job.time_limit_s for job in imported.workload] == [100, None, None]
    assert imported.report["alone_less_duration"]["jobs"] == 3
    for name in ("w.csv", "w.parquet"):
        write_jobs(imported, tmp_path / name)
        assert [job.time_limit_s for job in ddlsched.read_workload(tmp_path / name)] == [100, None, None]
    tenth = import_trace("swf", [tmp_path / "a.swf"], selection=Selection(scale=0.1)).workload
    assert [job.time_limit_s for job in tenth] == [10, None, None]
    assert [job.time_limit_s for job in sample("batsim").workload].count(100) > 0
    assert sample("batsim").report["notes"] == {"cut off at its walltime": 1}
    assert "time_limit_s" not in sample("helios").jobs


def test_every_format_has_a_sample() -> None:
    assert set(EXPECTED) == set(FORMATS) | {"elasticflow-older"}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_row_of_a_sample_becomes_a_job_or_is_refused(name: str) -> None:
    jobs, rows = EXPECTED[name]
    [path] = SAMPLES.glob(f"{name}.*")
    trace = import_trace(name.removesuffix("-older"), [path])
    assert refused(trace) == rows
    assert trace.report["rows"] == len(jobs) + len(rows)
    table = trace.jobs[["job_id", "arrival_s", "gpus"]].itertuples(index=False, name=None)
    assert list(table) == [job[:3] for job in jobs]
    alone_s = [alone(job, JobRule(contention=Linear())) for job in trace.workload]
    for (_, _, _, duration_s), length_s, job in zip(jobs, alone_s, trace.workload, strict=True):
        if not math.isnan(duration_s):
            assert length_s == pytest.approx(duration_s, abs=0.5 * length_s / job.iterations + 1e-6)


def alone(job: ddlsched.Job, rule: JobRule) -> float:
    """The time of a job alone by its own numbers, seconds."""
    assert isinstance(job.iteration, ddlsched.DataParallelIteration)
    compute_s = job.iteration.forward_s + job.iteration.backward_s
    return job.iterations * (compute_s + rule.all_reduce_s(job.iteration.message_bytes, job.num_gpus))


@pytest.mark.parametrize("contention", [Linear(latency_s=0.01), EqualShare(per_byte_s=1e-9), MaxMin(per_byte_s=2e-9)])
def test_a_job_alone_in_the_simulator_lasts_as_long_as_traced(contention: Any) -> None:
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=4)
    trace = import_trace("tiresias", [SAMPLES / "tiresias.csv"], contention=contention)
    for job, duration_s in zip(trace.workload, (150.0, 150.0), strict=True):
        result = ddlsched.simulate(
            ddlsched.Workload((job,)), cluster, scheduler="srsf-1", contention=contention, placement="lwf:kappa=1"
        )
        row = result.jobs.iloc[0]
        iteration_s = duration_s / job.iterations
        assert row["finish_s"] - row["start_s"] == pytest.approx(duration_s, abs=0.51 * iteration_s)


def test_models_are_the_traces_own_or_drawn_by_seed_and_id() -> None:
    trace = sample("elasticflow", seed=3)
    rows = trace.jobs.set_index("job_id")
    assert rows.loc["e1", ["model", "message_bytes"]].tolist() == ["bert", 4.0 * PARAMETERS["bert"]]
    assert rows.loc["e2", ["model", "message_bytes"]].tolist() == ["VGG-16", 526.4e6]
    assert rows.loc["e3", "model"] == MODELS[JobRule(contention=Linear(), seed=3).drawn("e3")].name
    assert trace.report["models_drawn"] == 1
    # A traced iteration keeps its length: 100 s / 2000 iterations on one GPU.
    assert rows.loc["e2", ["iterations", "forward_s", "backward_s"]].tolist() == [2000, 0.02, 0.03]


@pytest.mark.long
def test_drawn_models_depend_on_the_seed_and_not_on_the_other_jobs() -> None:
    rule = JobRule(contention=Linear(), seed=1)
    draws = [rule.drawn(str(number)) for number in range(4000)]
    assert all(900 < count < 1100 for count in np.bincount(draws, minlength=4))
    other = [JobRule(contention=Linear(), seed=2).drawn(str(number)) for number in range(4000)]
    together = pd.crosstab(pd.Series(draws), pd.Series(other)).to_numpy()
    assert together.shape == (4, 4)
    assert together.min() > 180  # 250 expected in each of the 16 if the seeds are independent
    everything, one = sample("swf"), sample("swf", selection=Selection(from_s=50))
    assert one.jobs["model"].tolist() == everything.jobs["model"].tolist()[1:]


@pytest.mark.parametrize(
    ("traced", "name"),
    [("vgg16", "VGG-16"), ("inception3", "Inception-V3"), ("ResNet-50", "ResNet-50"), ("BERT", "bert"), ("A3C", None)],
)
def test_names_of_models(traced: str, name: str | None) -> None:
    job = TracedJob(job_id="a", arrival_s=0.0, num_gpus=1, duration_s=60.0, model=traced)
    made = JobRule(contention=Linear()).apply(pd.DataFrame([job])).iloc[0]
    assert (None if made["drawn"] else made["model"]) == name


def test_models_have_the_parameters_that_are_published() -> None:
    """In millions, to the last: torchvision's, timm's and Hugging Face's pages of each model."""
    assert {name: number / 1e6 for name, number in PARAMETERS.items()} == {
        "alexnet": 61.100840,
        "vgg11": 132.863336,
        "vgg19": 143.667240,
        "resnet18": 11.689512,
        "resnet101": 44.549160,
        "resnet152": 60.192808,
        "googlenet": 6.624904,
        "shufflenet_v2_x1_0": 2.278604,
        "inception4": 42.679816,
        "bert": 109.482240,
        "gpt2": 124.439808,
    }


@pytest.mark.long
def test_selection_window_limit_size_and_scale() -> None:
    whole = sample("batsim").jobs.set_index("job_id")
    late = sample("batsim", selection=Selection(from_s=4, to_s=5))
    assert late.jobs[["job_id", "arrival_s"]].to_numpy().tolist() == [["0", 0.25]]
    assert late.report["left_out"] == {"outside the window of arrivals": 2}
    small = sample("batsim", selection=Selection(gpus_at_most=4, limit=1))
    assert small.jobs["job_id"].tolist() == ["0"]
    assert small.report["left_out"] == {"more than 4 GPUs": 1, "after the limit": 1}
    tenth = sample("batsim", selection=Selection(scale=0.1)).jobs.set_index("job_id")
    assert tenth["arrival_s"].tolist() == pytest.approx((whole["arrival_s"] * 0.1).tolist())
    assert tenth["iterations"].tolist() == pytest.approx((whole["iterations"] * 0.1).tolist(), abs=1)
    assert tenth["forward_s"].tolist() == whole["forward_s"].tolist()
    halved = sample("pollux", selection=Selection(scale=0.5)).jobs
    assert halved["iterations"].tolist() == [round(n / 2) for n in sample("pollux").jobs["iterations"]]
    assert halved["forward_s"].tolist() == sample("pollux").jobs["forward_s"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"from_s": -1}, "from_s is -1"),
        ({"from_s": 5, "to_s": 5}, "to_s is 5"),
        ({"limit": 0}, "limit is 0"),
        ({"gpus_at_most": 0}, "gpus_at_most is 0"),
        ({"scale": 0}, "scale is 0"),
    ],
)
def test_wishes_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Selection(**options)


def test_the_rule_refuses_a_model_that_knows_no_time_of_a_byte() -> None:
    with pytest.raises(InputError, match="per_byte_s is unknown without a network"):
        JobRule(contention=MaxMin())
    with pytest.raises(InputError, match="gpus_per_server is 0"):
        JobRule(contention=Linear(), gpus_per_server=0)
    with pytest.raises(UnknownNameError, match="Did you mean 'philly-csv' or 'philly'"):
        reader_of("philly-cvs")


def test_item_19_a_table_of_ones_own_is_read_by_the_columns_that_are_named(tmp_path: Path) -> None:
    table, out = tmp_path / "mine.csv", tmp_path / "jobs.csv"
    table.write_text(
        "Id,SubmitTime,NumGPU,RuntimeSec,user,Network\n7,100,4,60.5,ann,resnet50\n8,30,1,10,bob,unheard of\n"
    )
    named = ["job_id=Id", "arrival_s=SubmitTime", "gpus=NumGPU", "duration=RuntimeSec", "model=Network"]
    flags = [part for name in named for part in ("--column", name)]
    done = run("workload", "import", "csv", table, *flags, "--out", out)
    assert done.exit_code == 0, done.stderr
    written = pd.read_csv(out)
    assert written[["job_id", "arrival_s", "gpus", "user"]].to_numpy().tolist() == [
        [8, 0.0, 1, "bob"],
        [7, 70.0, 4, "ann"],
    ]
    assert written["model"].tolist()[1] == "ResNet-50"
    rule = JobRule(contention=Linear())
    assert [alone(job, rule) for job in ddlsched.read_workload(out)] == pytest.approx([10, 60.5], abs=0.3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no column tells arrival_s; expected --column arrival_s=COLUMN"),
        (["--column", "arrival_s=when"], "no column tells gpus"),
        (["--column", "arrival_s=when", "--column", "gpus=n"], "no column tells duration_s"),
        (["--column", "arival_s=when"], "Did you mean 'arrival_s'"),
        (["--column", "arrival_s"], "expected such as arrival_s=SubmitTime"),
        (["--column", "gpus=a", "--column", "gpus=b"], "one again"),
        (["--column", "arrival_s=x", "--column", "gpus=n", "--column", "duration=n"], "column 'x' is missing"),
    ],
)
def test_a_table_of_ones_own_whose_columns_are_unknown_is_refused(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    (tmp_path / "mine.csv").write_text("when,n\n0,1\n")
    done = run("workload", "import", "csv", tmp_path / "mine.csv", *flags)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]
    other = run("workload", "import", "helios", SAMPLES / "helios.csv", "--column", "gpus=n")
    assert "expected the format csv" in other.stderr


def test_item_19_kalos_durations_are_from_start_to_end(tmp_path: Path) -> None:
    # The two jobs that the trace's documentation shows: their column duration counts the wait, too.
    path = tmp_path / "trace_kalos.csv"
    path.write_text(
        "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
        "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
        "dlctk696s0jbvitv,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
        "2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0\n"
        "dlc1t2ypl09b8qtp,uf794,8,64,960,1000,100.0,Other,CANCELLED,2023-05-17 11:28:42+00:00,"
        "2023-05-17 11:28:54+00:00,2023-05-17 11:30:04+00:00,,2023-05-17 11:30:04+00:00,82,12.0,5248.0\n"
    )
    trace = import_trace("acme", [path])
    assert trace.report["gpu_hours"] == pytest.approx(64 * (8 + 70) / 3600, abs=64 * 0.6 / 3600)
    assert trace.report["notes"] == {"state FAILED": 1, "state CANCELLED": 1}


def test_item_19_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("seed0", "seed1"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b436b2.trace").write_bytes((SAMPLES / "gavel.trace").read_bytes())
    files = [tmp_path / folder / "b436b2.trace" for folder in ("seed0", "seed1")]
    ids = import_trace("gavel", files).jobs["job_id"].tolist()
    assert sorted(ids) == sorted([*(f"b436b2/{n}" for n in (1, 2, 3)), *(f"seed1/b436b2/{n}" for n in (1, 2, 3))])
    with pytest.raises(InputError, match="is called like"):
        import_trace("gavel", [*files, files[1]])


def test_item_19_zip_archives_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(SAMPLES / "helios.csv", "data/Saturn/cluster_log.csv")
        packed.write(SAMPLES / "helios.csv", "data/Venus/cluster_log.csv")
        packed.writestr("data/README.md", "none of it")
    trace = import_trace("helios", [archive])
    assert [file["rows"] for file in trace.report["files"]] == [4, 4]
    assert {job_id.rpartition("/")[0] for job_id in trace.jobs["job_id"]} == {"cluster_log", "Venus/cluster_log"}
    with pytest.raises(InputError, match="holds no file named like"):
        import_trace("gavel", [archive])
    whole = bytearray(archive.read_bytes())
    whole[60:90] = bytes(30)
    archive.write_bytes(whole)
    with pytest.raises(InputError, match="cannot be read"):
        import_trace("helios", [archive])


def test_gavel_notes_jobs_whose_throughput_is_that_of_fewer_gpus(tmp_path: Path) -> None:
    line = "ResNet-50 (batch size 64)\tpython3 main.py\t--num_minibatches\t1\t500\t0.000000\t{}\n"
    (tmp_path / "a.trace").write_text("".join(line.format(gpus) for gpus in (1, 2, 3, 4)))
    assert import_trace("gavel", [tmp_path / "a.trace"]).report["notes"] == {"throughput of fewer GPUs": 1}


def test_a_zip_archive_that_is_encrypted_is_refused_in_one_line(tmp_path: Path) -> None:
    archive = tmp_path / "locked.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a.trace", "x")
    locked = archive.read_bytes().replace(b"PK\x03\x04\x14\x00\x00", b"PK\x03\x04\x14\x00\x01")
    archive.write_bytes(locked.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"))
    with pytest.raises(InputError, match="cannot be read"):
        import_trace("gavel", [archive])


def test_item_19_lists_of_pods_without_times_are_refused(tmp_path: Path) -> None:
    # As openb_pod_list_multigpu50.csv.
    path = tmp_path / "multigpu50.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\nopenb-pod-0000,12000,16384,1,1000\n")
    with pytest.raises(InputError, match="column 'creation_time' is missing"):
        import_trace("alibaba-openb", [path])


def test_archives_gzip_and_several_files_are_merged_on_one_clock(tmp_path: Path) -> None:
    text = "job_id,submission_time,duration,num_gpu\n"
    first, second = tmp_path / "cluster01.csv", tmp_path / "cluster02.csv"
    first.write_text(f"{text}a,100,60,1\n")
    second.write_text(f"\ufeff{text}a,50,60,1\r\n")
    archive = tmp_path / "both.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in (first, second):
            tar.add(path, f"data/{path.name}")
        tar.add(first, "LICENSE")
    zipped = tmp_path / "cluster03.csv.gz"
    zipped.write_bytes(gzip.compress(first.read_bytes()))
    trace = import_trace("microsoft-itp", [archive, zipped])
    assert trace.jobs[["job_id", "arrival_s", "user"]].to_numpy().tolist() == [
        ["cluster02/a", 0.0, "cluster02"],
        ["cluster01/a", 50.0, "cluster01"],
        ["cluster03/a", 50.0, "cluster03"],
    ]
    assert [file["rows"] for file in trace.report["files"]] == [1, 1, 1]
    with pytest.raises(InputError, match="is called like"):
        import_trace("microsoft-itp", [first, first])


def test_a_byte_that_is_no_text_spoils_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"job_id,submission_time,duration,num_gpu\na\xff,1,60,1\nb,2,60,\xfe\nc,3,60,1\n")
    trace = import_trace("microsoft-itp", [path])
    assert trace.jobs["job_id"].tolist() == ["c"]
    assert refused(trace) == [(2, "job_id is no plain text"), (3, "num_gpu is no finite number")]


def test_what_the_clock_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,9.3e9,1\nb,0,9.1e9,1\nc,0,9.1e9,2\nd,1e300,60,1\n")
    trace = import_trace("microsoft-itp", [path])
    assert refused(trace) == [(2, "too large"), (4, "too large"), (5, "too large")]
    assert [job.job_id for job in trace.workload] == ["b"]


@pytest.mark.long
def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    cut_late = tmp_path / "cut_late.csv.gz"
    lines = [f"{number:x},{number},{number * number % 997 + 1},1\n" for number in range(50_000)]
    packed = gzip.compress(("job_id,submission_time,duration,num_gpu\n" + "".join(lines)).encode())
    cut_late.write_bytes(packed[: len(packed) // 2])
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress((SAMPLES / "microsoft-itp.csv").read_bytes())[:-20])
    foreign, broken, empty = tmp_path / "a.csv", tmp_path / "a.json", tmp_path / "empty.csv"
    foreign.write_text("a,b\n1,2\n")
    broken.write_text('[{"jobid": "a"}, {"jobid" 3}]')
    empty.write_text("")
    cases = [
        ("microsoft-itp", cut, "cannot be read"),
        ("microsoft-itp", cut_late, "cannot be read"),
        ("microsoft-itp", foreign, "column 'job_id' is missing"),
        ("microsoft-itp", empty, "column 'job_id' is missing"),
        ("microsoft-itp", tmp_path, "is a folder"),
        ("microsoft-itp", tmp_path / "absent", "no such file"),
        ("philly", broken, "line 1: is no JSON"),
        ("philly", foreign, "expected a JSON array"),
        ("batsim", broken, "is no JSON"),
        ("batsim", SAMPLES / "philly.json", "lacks jobs or profiles"),
    ]
    for name, path, message in cases:
        with pytest.raises(InputError, match=message):
            import_trace(name, [path])


def test_json_is_read_across_the_windows_of_the_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample("philly")
    for size in (1, 7, 64):
        monkeypatch.setattr("ddlsched.workload.traces.trace_files._CHUNK", size)
        pieces = sample("philly")
        pd.testing.assert_frame_equal(pieces.jobs, whole.jobs)
        pd.testing.assert_frame_equal(pieces.refused, whole.refused)


CELLS = st.one_of(
    st.integers(-2, 10**7).map(str),
    st.floats().map(str),
    st.sampled_from(["", "1e300", "9007199254740993", "1_0", "a", "\x00", "\x85", '"', '"x"', " 4 ", "\u2028", "１"]),
    st.text(max_size=5),
)


@pytest.mark.long
@settings(max_examples=examples(40, by_default=10))
@given(rows=st.lists(st.lists(CELLS, min_size=3, max_size=5), max_size=8))
def test_whatever_a_table_holds_each_line_is_a_job_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "trace.csv"
    text = "".join(",".join(row) + "\n" for row in [["job_id", "submission_time", "duration", "num_gpu"], *rows])
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    with path.open(encoding="utf-8") as file:
        lines = [line for line in list(file)[1:] if not line.isspace()]
    trace = import_trace("microsoft-itp", [path])
    assert trace.report["rows"] == len(lines) == len(trace.jobs) + len(trace.refused)
    if len(trace.jobs):
        written = folder / "jobs.csv"
        ddlsched.write_workload(trace.workload, written)
        assert ddlsched.read_workload(written) == trace.workload


@pytest.mark.long
def test_the_command_writes_jobs_refusals_and_a_report(tmp_path: Path) -> None:
    table, parquet, rejected = tmp_path / "jobs.csv", tmp_path / "jobs.parquet", tmp_path / "rejected.csv"
    source = SAMPLES / "alibaba-openb.csv"
    done = run("workload", "import", "alibaba-openb", source, "--out", table, "--rejected", rejected, "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert (report["rows"], report["jobs"]) == (5, 2)
    assert report["notes"] == {"state Running": 1, "state Succeeded, share of a GPU counted as a whole one": 1}
    assert "refused 1: 0 GPUs" in done.stderr
    assert f"{source}, line 4: num_gpu is 0; expected at least 1 GPU" in done.stderr
    assert "models: 2 of 2 drawn with seed 1" in done.stderr
    with rejected.open(newline="") as file:
        lines = [(row["file"], row["line"], row["reason"]) for row in csv.DictReader(file)]
    assert lines == [(str(source), str(line), reason) for line, reason in EXPECTED["alibaba-openb"][1]]
    assert run("workload", "import", "alibaba-openb", source, "--out", parquet).exit_code == 0
    assert ddlsched.read_workload(table) == ddlsched.read_workload(parquet) == sample("alibaba-openb").workload
    printed = run("workload", "import", "alibaba-openb", source)
    assert printed.stdout == table.read_text()


def test_where_no_terminal_shows_how_far_a_long_trace_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddlsched.workload.traces.trace_import._WATCH_EVERY", 1)
    assert run("workload", "import", "alibaba-openb", SAMPLES / "alibaba-openb.csv").exit_code == 0


def test_parquet_keeps_the_report_and_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("ddlsched.workload.traces.trace_import._BATCH", 1)
    for name in ("helios", "muri"):  # With users, and without.
        out = tmp_path / f"{name}.parquet"
        assert run("workload", "import", name, *SAMPLES.glob(f"{name}.*"), "--out", out).exit_code == 0
        file = pq.ParquetFile(out)
        assert file.num_row_groups == 2
        assert json.loads(file.schema_arrow.metadata[b"ddlsched"])["rule"]["seed"] == 1
        assert ddlsched.read_workload(out) == sample(name).workload


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["phily", "x"], "unknown trace format 'phily'. Did you mean 'philly'"),
        (["swf", "absent.swf"], "absent.swf: no such file"),
        (["swf", SAMPLES / "swf.swf", "--out", "jobs.json"], "expected one of .csv, .parquet"),
        (["swf", SAMPLES / "swf.swf", "--rejected", "r.parquet"], "expected .csv"),
        (["swf", SAMPLES / "swf.swf", "--json"], "expected --out FILE with it"),
        (["swf", SAMPLES / "swf.swf", "--from-s", "1e9"], "no job of 6 rows is left"),
        (["swf", SAMPLES / "swf.swf", "--contention", "max-min"], "per_byte_s is unknown without a network"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[Any], message: str) -> None:
    done = run("workload", "import", *args)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_traces_that_the_benchmark_generates_are_whole(tmp_path: Path) -> None:
    import trace_import

    for name in trace_import.GENERATORS:
        path = tmp_path / name
        trace_import.generate(path, name, 50)
        trace = import_trace(name, [path])
        assert (len(trace.jobs), len(trace.refused)) == (50, 0)


@pytest.mark.long
def test_help_lists_every_format_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom ddlsched.cli import main\n"
        "try:\n    main(['workload', 'import', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'pandas', 'numba', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in FORMATS:
        assert f" {name}: " in done.stdout


GAVEL_CHECKSUM = "bb169577653d04cc"
REAL_ROWS = {
    "pollux-osdi21/philly.csv.gz": (82_247, {}),
    "microsoft-elasticflow-traces/raw-traces.tar.gz": (69_351, {}),
    "microsoft-elasticflow-traces/elasticflow-traces.tar.gz": (69_351 + 195, {}),
    "elasticflow/philly_103959.csv": (876, {}),
    "tiresias-nsdi19/60_job.csv": (60, {}),
    "muri-sigcomm22/trace*.csv": (1_494 + 5_755 + 992 + 2_638, {}),
    "pollux-osdi21/workloads/*.csv": (8 * 160, {}),
    "sia-sosp23/saturn/*.csv": (10 * 160, {}),
    "sia-sosp23/newtrace/*.csv": (10 * 960, {}),
    "gavel-osdi20/msr-seed0/*.gz": (15_264, {}),
    "gavel-osdi20/physical_cluster/*.trace": (287, {}),
    "alibaba-clusterdata/disaggregated_DLRM_trace.csv": (
        23_871,
        {"0 GPUs": 16_485, "never started": 3_123, "never ended": 1_045, "duration is 0 or less": 16},
    ),
    "alibaba-clusterdata/openb_pod_list_default.csv": (8_152, {"0 GPUs": 1_088, "never started": 861}),
    "batsim/*.json": (250, {}),
    "swf/*.swf": (10_000, {}),
}


@pytest.fixture(scope="module")
def real_reports() -> dict[str, dict[str, Any]]:
    return {row["pattern"]: row for row in counts(REAL)}


@real_traces
@pytest.mark.slow
def test_real_traces_have_their_published_numbers_of_jobs(real_reports: dict[str, dict[str, Any]]) -> None:
    assert {pattern: (row["rows"], row["refused"]) for pattern, row in real_reports.items()} == REAL_ROWS
    for row in real_reports.values():
        assert row["jobs"] == row["rows"] - sum(row["refused"].values())


@real_traces
@pytest.mark.slow
def test_real_jobs_are_off_by_half_an_iteration_at_most(real_reports: dict[str, dict[str, Any]]) -> None:
    for pattern, row in real_reports.items():
        told = row["alone_less_duration"]
        # Pollux and Sia tell no duration.
        assert told["jobs"] == (0 if row["format"] in ("pollux", "sia") else row["jobs"]), pattern
        assert told["largest_iterations"] <= 0.5 + 1e-6, pattern


@real_traces
@pytest.mark.slow
def test_itp_has_ten_clusters_and_the_gpu_hours_its_readme_states(real_reports: dict[str, dict[str, Any]]) -> None:
    row = real_reports["microsoft-elasticflow-traces/raw-traces.tar.gz"]
    assert len(row["files"]) == 10
    assert row["gpu_hours"] == pytest.approx(1_632_719.7, rel=1e-6)


def checksum(rows: dict[str, tuple[float, ...]]) -> str:
    """Of names and of throughputs to five digits."""
    lines = [f"{name} {' '.join(f'{steps_per_s:.5g}' for steps_per_s in rows[name])}" for name in sorted(rows)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_no_cell_of_gavels_throughputs_has_changed() -> None:
    assert checksum(STEPS_PER_S) == GAVEL_CHECKSUM  # that of Gavel's own file, by the next test


@real_traces
def test_throughputs_are_those_that_gavel_measured() -> None:
    with gzip.open(REAL / "gavel-osdi20/simulation_throughputs.json.gz", "rt") as file:
        measured = json.load(file)["v100"]
    ours = {str((name, 1 << i)): steps for name, row in STEPS_PER_S.items() for i, steps in enumerate(row)}
    theirs = {name: row["null"] for name, row in measured.items()}
    assert ours == pytest.approx(theirs, rel=1e-4)
    sizes = {name: [1 << i for i in range(len(row))] for name, row in STEPS_PER_S.items()}
    assert checksum({name: tuple(theirs[str((name, n))] for n in of) for name, of in sizes.items()}) == GAVEL_CHECKSUM


@real_traces
@pytest.mark.parametrize("name", APPLICATIONS)
def test_step_times_are_the_line_through_polluxs_measurements_on_one_gpu(name: str) -> None:
    table = pd.read_csv(REAL / f"pollux-osdi21/placements/{name}.csv", dtype={"placement": str})
    alone = table[table["placement"] == "1"]
    slope, intercept = np.polyfit(alone["local_bsz"], alone["step_time"], 1)
    application = APPLICATIONS[name]
    assert (application.step_per_sample_s, application.step_s) == pytest.approx((slope, intercept), rel=1e-4)


def test_a_selection_may_be_of_jobs_of_one_gpu() -> None:
    found = sample("batsim", selection=Selection(gpus_at_most=1))
    assert (found.jobs["gpus"] == 1).all()


def test_who_watches_is_told_the_rows_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_import, "_WATCH_EVERY", 1)
    told: list[int] = []
    rows = sample("batsim", watch=told.append).report["rows"]
    assert told == [*range(1, rows + 1)]


def test_item_19_what_the_page_says_of_the_table_is_in_it() -> None:
    docs = Path(ddlsched.__file__).parents[1] / "docs"
    shown = pd.read_csv(docs / "import_table.csv", keep_default_na=False)
    traces, kineto = shown[shown["format"] != "kineto"], shown[shown["format"] == "kineto"]
    held = kineto[kineto["collective_events_pandas"].astype(float) > 0]["refused"]
    page = (docs / "traces.md").read_text(encoding="utf-8")
    assert f"beside each of {len(traces)} files of twelve formats" in page
    assert (
        f"Of {len(kineto)} traces of `torch.profiler` from HolisticTraceAnalysis {len(held)} hold collectives" in page
    )
    assert (traces["format"].nunique(), (shown["differs"] != "").sum(), (traces["refused"] != "").sum()) == (12, 0, 1)
    why = [(held == "").sum(), *(held.str.contains(part).sum() for part in ("how many ranks", "PyTorch 2.2"))]
    assert [*why, held.str.contains("neither a call|Input Dims").sum()] == [1, 1, 6, 7]


@pytest.mark.slow
@real_traces
def test_item_19_public_traces_have_what_pandas_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_table.main(DATA / "traces") == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    shown = pd.read_csv(Path(ddlsched.__file__).parents[1] / "docs" / "import_table.csv")
    shown = shown[shown["format"] != "kineto"][list(printed)]
    pd.testing.assert_frame_equal(printed, shown, check_dtype=False, rtol=1e-9)


@pytest.mark.parametrize(
    ("told", "differs"),
    [
        (("submit_time", "num_gpu", ["duration"]), []),
        (("submit_time", "num_gpu", ["interval"]), ["duration_s", "gpu_hours", "gpu_hours_of_jobs"]),
        (("interval", "num_gpu", ["duration"]), ["first_arrival_s", "last_arrival_s"]),
        (("submit_time", "iterations", ["duration"]), ["gpus", "gpu_hours", "gpu_hours_of_jobs"]),
    ],
)
def test_item_19_what_is_not_as_pandas_reads_it_is_named(
    told: Any, differs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    trace = tmp_path / "tiresias-nsdi19" / "2_job.csv"
    trace.parent.mkdir()
    trace.write_text(f"{header}0,1,5,60000,vgg19,600,7\n1,8,30,133000,vgg11,1470,23\n")
    monkeypatch.setitem(import_table._COLUMNS, "tiresias", told)
    assert import_table.main(tmp_path) == int(bool(differs))
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out), keep_default_na=False)
    assert printed["differs"].item().split() == differs


def test_failures_of_a_trace_are_a_table_of_causes(tmp_path) -> None:
    """Two jobs fail in three job-days, one of them after a day of two; one of 8 GPUs loses a node in 8 GPU-days."""
    header = "job_id,user,gpu_num,state,type,submit_time,start_time,end_time,fail_time"
    day = ["2023-03-01 00:00:00+08:00", "2023-03-02 00:00:00+08:00", "2023-03-03 00:00:00+08:00"]
    rows = [
        f"a,u,1,FAILED,Other,{day[0]},{day[0]},{day[2]},{day[1]}",
        f"b,u,1,FAILED,Other,{day[0]},{day[0]},{day[1]},",
        f"c,u,1,COMPLETED,Other,{day[0]},{day[0]},{day[1]},",
        f"d,u,8,NODE_FAIL,Other,{day[0]},{day[0]},{day[1]},",
    ]
    (tmp_path / "trace_kalos.csv").write_text("\n".join([header, *rows]) + "\n")
    out = tmp_path / "causes.csv"
    run("workload", "failures", "acme", str(tmp_path / "trace_kalos.csv"), "--out", str(out))
    causes = {cause.cause: cause for cause in read_causes(str(out))}
    assert causes["node"].mtbf_s == pytest.approx(11 * 86_400)
    assert (causes["node"].per, causes["node"].takes) == ("gpu", "server")
    assert causes["failed-from-1-gpus"].mtbf_s == pytest.approx(1.5 * 86_400)
    assert set(causes) == {"node", "failed-from-1-gpus"}


@pytest.mark.parametrize("share", ["gpu_milli", "milli"])
def test_failures_of_a_table_of_your_own_count_jobs_with_a_share_of_a_gpu(tmp_path: Path, share: str) -> None:
    """Two of three jobs fail in three days of one GPU, one of them with half a GPU."""
    table = tmp_path / "own.csv"
    table.write_text(
        f"at,gpus,duration_s,outcome,{share}\n0,1,86400,FAILED,500\n0,1,86400,Failed,1000\n9,1,86400,OK,1000\n"
    )
    columns = ["arrival_s=at", "state=outcome", *(["gpu_milli=milli"] if share == "milli" else [])]
    out = tmp_path / "causes.csv"
    run(
        "workload",
        "failures",
        "csv",
        table,
        *(part for column in columns for part in ("--column", column)),
        "--out",
        out,
    )
    (cause,) = read_causes(str(out))
    assert (cause.per, cause.mtbf_s) == ("job", pytest.approx(1.5 * 86_400))


def test_failures_are_counted_by_size_at_each_bound(tmp_path: Path) -> None:
    """Jobs of a day: 1 of 4, 1 of 2, 3 of 4 and 2 of 2 fail; each larger size has a quarter more than the one below."""
    outcomes = {1: "+-", 7: "++", 8: "-", 63: "+", 64: "--", 511: "+-", 512: "-", 600: "-"}
    rows = [f"0,{gpus},86400,{'OK' if one == '+' else 'FAIL'}" for gpus, each in outcomes.items() for one in each]
    (table := tmp_path / "own.csv").write_text("\n".join(["arrival_s,gpus,duration_s,state", *rows]) + "\n")
    found = failure_rows("csv", [table], {"state": "state"})
    expected = [(f"failed-from-{size}-gpus", "job", 250.0, "job", size) for size in (1, 8, 64, 512)]
    assert [row[:5] for row in found] == expected
    gpu_days = 2 * 1 + 2 * 7 + 8 + 63 + 2 * 64 + 2 * 511 + 512 + 600
    assert {row[5] for row in found} == {f"csv: 0 jobs lost a node and 7 failed in {gpu_days} GPU-days"}


def test_a_trace_without_failures_is_no_table_of_causes() -> None:
    with pytest.raises(InputError, match="expected jobs whose state is NODE_FAIL"):
        failure_rows("tiresias", [SAMPLES / "tiresias.csv"])


@pytest.mark.parametrize("text", ["1970-01-02 00:00:01", "1970-01-02 00:00:01+00:00", "1970-01-02 08:00:01+08:00"])
def test_a_moment_counts_from_1970_in_any_zone(text: str) -> None:
    assert moment_s({"at": text}, "at") == 86_401.0


def test_a_job_that_failed_within_a_second_ran_no_longer_than_that() -> None:
    job = TracedJob(
        job_id="a", arrival_s=0.0, num_gpus=2, duration_s=86_400.0, failed_after_s=0.864, note="state FAILED"
    )
    _, gpu_days, failed, job_days = trace_import._counted([job])
    assert (gpu_days, sum(failed.values()), sum(job_days.values())) == pytest.approx((2e-5, 1, 1e-5))


def test_a_long_iteration_is_whole_nanoseconds_each_way() -> None:
    known = pd.DataFrame({"forward_s": [1.0], "backward_s": [1.0]})
    traced = pd.DataFrame({"iterations": [1.0], "duration_s": [math.nan], "compute_s": [10_000.000000005]})
    forward_s, backward_s = trace_models._passes(traced, known)
    assert (forward_s[0], backward_s[0]) == (4_000.000000002, 6_000.000000003)
