"""``ddlsched estimate`` and ``ddlsched design``: what they print, write and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from command_line import refused, run

from ddlsched.training.estimate.rows import COLUMNS

ROWS = f"""{",".join(COLUMNS)},iteration_ms
8,32,2,2048,16,24,1024,4,2,1,600
64,512,4,3072,32,30,2048,1,64,1,3600
"""


@pytest.fixture(autouse=True)
def _files(in_a_new_folder) -> None:
    Path("rows.csv").write_text(ROWS)


def test_an_estimate_for_a_reader() -> None:
    plan = ["--tensor", 8, "--pipeline", 8, "--data", 16, "--global-batch", 1536, "--recompute", "selective"]
    result = run("estimate", "gpt3-175b", *plan)
    assert result.exit_code == 0
    assert result.stdout.startswith("gpt3-175b on 1024 GPUs of a100-80\n")
    for part in ("computation", "pipeline bubble", "FLOPs utilisation", "energy", "cost", "fits", "activations"):
        assert part in result.stdout
    told = {of: re.search(rf"^ +{of} +(\S+)", result.stdout, re.M) for of in ("step", "sequences a second")}
    step_s, rate = (float(found[1]) for found in told.values() if found)
    assert rate == pytest.approx(1536 / step_s, rel=1e-3)


def test_an_estimate_for_programs_adds_up() -> None:
    found = json.loads(run("estimate", "gpt3-6.7b", "--tensor", 8, "--json").stdout)
    parts = ["compute_s", "tensor_s", "pipeline_s", "bubble_s", "data_s", "optimiser_s", "offload_s"]
    assert sum(found[part] for part in parts) == pytest.approx(found["step_s"])
    items = ["weights_gb", "gradients_gb", "optimiser_gb", "activations_gb"]
    assert sum(found[item] for item in items) == pytest.approx(found["memory_gb"])


def test_what_does_not_fit_says_by_how_much() -> None:
    found = json.loads(run("estimate", "gpt3-175b", "--json").stdout)
    assert not found["fits"]
    assert found["missing_gb"] == pytest.approx(found["memory_gb"] - 80)
    assert f"does not fit by {found['missing_gb']:.2f} GB" in run("estimate", "gpt3-175b").stdout


@pytest.mark.long
def test_rows_are_kept_and_predicted() -> None:
    result = run("estimate", "--rows", "rows.csv", "--out", "predicted.csv")
    assert result.exit_code == 0
    assert "wrote 2 rows to predicted.csv" in result.stderr
    table = pd.read_csv("predicted.csv")
    assert table.columns.tolist() == [
        *ROWS.splitlines()[0].split(","),
        "predicted_ms",
        "measured_step_s",
        "predicted_step_s",
        "predicted_memory_gb",
        "remark",
    ]
    assert (table["predicted_ms"] > 0).all()
    for said, in_seconds in (("predicted_ms", "predicted_step_s"), ("iteration_ms", "measured_step_s")):
        assert table[said].tolist() == pytest.approx((1e3 * table[in_seconds]).tolist())
    assert run("estimate", "--rows", "rows.csv").stdout == Path("predicted.csv").read_text()


def test_what_is_given_twice_counts_once() -> None:
    once, twice = (
        run("design", "gpt3-6.7b", "--gpus", gpus, "--cluster", "h100", "--sweep", f"tensor={tensor}", "--json").stdout
        for gpus, tensor in (("8", "4,8"), ("8,8", "4,4,8"))
    )
    assert once == twice


@pytest.mark.long
def test_rows_need_not_be_measured() -> None:
    Path("rows.csv").write_text(ROWS.replace(",600\n", ",\n").replace(",3600\n", ",\n"))
    result = run("estimate", "--rows", "rows.csv", "--out", "predicted.csv")
    assert result.stderr == "ddlsched: wrote 2 rows to predicted.csv\n"


def test_a_job_for_the_simulator() -> None:
    result = run("estimate", "gpt3-350m", "--data", 8, "--job-out", "job.json", "--iterations", 5)
    assert "(weights and optimiser are --state-mb 4982)" in result.stderr  # 2 + 12 bytes of 355.9 million parameters
    assert result.exit_code == 0
    done = run("simulate", "job.json", "--servers", 1, "--gpus-per-server", 8, "--gpu-memory-mb", 80_000, "--json")
    step_s = json.loads(run("estimate", "gpt3-350m", "--data", 8, "--json").stdout)["step_s"]
    assert json.loads(done.stdout)["makespan_s"] == pytest.approx(5 * step_s, rel=1e-6)


def test_a_job_with_groups_for_the_simulator() -> None:
    given = ("estimate", "gpt3-350m", "--cluster", "h100", "--tensor", 2, "--data", 2, "--pipeline", 2)
    result = run(*given, "--global-batch", 8, "--job-out", "job.json", "--groups", "--iterations", 5)
    assert result.exit_code == 0
    kinds = {task["kind"] for task in json.loads(Path("job.json").read_text())["jobs"][0]["tasks"]}
    assert kinds == {"compute", "all-reduce", "send"}
    network = ("--topology", "rail-optimised:nvlink_gbps=3600", "--contention", "max-min")
    done = run(
        "simulate", "job.json", "--servers", 1, "--gpus-per-server", 8, "--gpu-memory-mb", 80_000, *network, "--json"
    )
    step_s = json.loads(run(*given, "--global-batch", 8, "--json").stdout)["step_s"]
    assert json.loads(done.stdout)["makespan_s"] == pytest.approx(5 * step_s, rel=0.25)
    said = run("validate", "job.json").stdout
    assert "valid (workload)" in said
    assert re.search(r"jobs with groups +1\n", said)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--groups",), {"all-reduce": "hierarchical", "send": "ring"}),
        (("--groups", "--algorithm", "ring"), {"all-reduce": "hierarchical", "send": "ring"}),
        (("--groups", "--algorithm", "halving-doubling"), {"all-reduce": "halving-doubling", "send": "ring"}),
        (("--groups", "--algorithm", "nccl"), {"all-reduce": "nccl", "send": "ring"}),
        ((), {"all-reduce": None}),
        (("--algorithm", "hierarchical"), {"all-reduce": "hierarchical"}),
        (("--algorithm", "direct"), {"all-reduce": "direct"}),
        (("--algorithm", "double-binary-tree"), {"all-reduce": "double-binary-tree"}),
    ],
)
def test_the_jobs_collectives_are_sent_by_the_algorithm(given: tuple[str, ...], expected: dict[str, str]) -> None:
    plan = ("--cluster", "h100", "--tensor", 2, "--data", 8, "--pipeline", 2, "--global-batch", 16)
    assert run("estimate", "gpt3-350m", *plan, *given, "--job-out", "job.json").exit_code == 0
    tasks = json.loads(Path("job.json").read_text())["jobs"][0]["tasks"]
    assert {task["kind"]: task.get("algorithm") for task in tasks if task["kind"] != "compute"} == expected
    network = ("--topology", "rail-optimised:nvlink_gbps=3600", "--contention", "max-min")
    assert (
        run(
            "simulate", "job.json", "--servers", 4, "--gpus-per-server", 8, "--gpu-memory-mb", 80_000, *network
        ).exit_code
        == 0
    )


@pytest.mark.filterwarnings("error")  # a warning of numpy would be a further line
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("estimate", "expected one of MODEL"),
        ("estimate gpt3-175b --rows rows.csv", "expected one of MODEL"),
        ("estimate gpt3-175b --out x.csv", "--out x.csv: belongs to --rows"),
        ("estimate gpt3-17b", "no model is named 'gpt3-17b'"),
        ("estimate gpt3-175b --tensor 7", "heads 96 not divisible by tensor 7"),
        ("estimate gpt3-175b --tensor 0", "tensor is 0"),
        ("estimate gpt3-175b --cluster h100:nodes=2 --tensor 8", "expected their product to be the 16 GPUs"),
        ("estimate gpt3-175b --data 4 --global-batch 6", "not divisible by data 4"),
        ("estimate gpt3-175b --pipeline 5", "layers 96 not divisible by pipeline"),
        ("estimate gpt3-175b --micro-batch 0", "micro_batch is 0; expected a whole number from 1"),
        ("estimate gpt3-175b --pipeline 0", "pipeline is 0; expected a whole number from 1"),
        ("estimate resnet-50 --data 0", "data is 0; expected a whole number from 1"),
        ("estimate gpt3-175b --sequence 0", "--sequence 0: expected a whole number of tokens from 1"),
        ("estimate gpt3-175b --sequence -5", "--sequence -5: expected a whole number of tokens from 1"),
        ("estimate gpt3-175b --sequence 99999999999999999999", "of tokens from 1 to 1,000,000,000,000"),
        ("estimate gpt3-175b --recompute all", "recompute is 'all'"),
        ("estimate gpt3-175b --efficiency best", "no efficiency is named 'best'"),
        ("estimate gpt3-175b --algorithm tree", "no collective is named 'tree'"),
        ("estimate gpt3-350m --algorithm nccl:switches=some", "switches"),
        ("estimate gpt3-175b --precision fp8", "multiplies no matrices in fp8"),
        ("estimate gpt3-175b --topology stra", "no topology is named 'stra'"),
        ("estimate gpt3-175b --job-out job.json", "does not fit by"),
        ("estimate gpt3-6.7b --tensor 8 --job-out nowhere/job.json", "there is no folder nowhere"),
        ("estimate gpt3-350m --job-out job.txt", "job.txt: the suffix is '.txt'"),
        ("estimate gpt3-350m --groups", "--groups: belongs to --job-out; expected --job-out FILE.json beside it"),
        ("estimate resnet-50 --job-out job.json --groups", "the model has no blocks to deal out to stages"),
        ("estimate gpt3-350m --job-out job.csv", "which a table cannot hold; write it as .json"),
        ("estimate --rows none.csv", "none.csv: no such file"),
        ("estimate --rows none.csv --out nowhere/all.csv", "there is no folder nowhere"),  # before all that takes long
        ("estimate gpt3-17b --job-out nowhere/job.json", "there is no folder nowhere"),
        ("design gpt3-17b --out nowhere/all.csv", "there is no folder nowhere"),
        ("design gpt3-17b --by size --out nowhere/all.csv", "--by size: is unknown"),
        ("calibrate-gpu --out nowhere/kernels.csv", "there is no folder nowhere"),
        ("import-training none.et --out nowhere/job.json", "there is no folder nowhere"),
        ("record --out nowhere/job.json none.py", "there is no folder nowhere"),
        ("estimate --rows rows.csv --json", "--json: has no effect on --rows"),
        ("estimate --rows rows.csv --tensor 1", "--tensor: has no effect on --rows"),
        ("estimate gpt3-175b --global-batch 99999999999999999999", "expected at most 1,000,000,000,000"),
        ("design gpt3-6.7b --global-batch 99999999999999999999", "expected a whole number from 1 to 1,000,000,000,000"),
        ("design gpt3-6.7b --top 0", "--top 0: is no number of configurations"),
        ("design gpt3-6.7b --cluster h100:nodes=4 --gpus 64", "the cluster has 32 GPUs; expected the 64"),
        ("design gpt3-17b", "no model is named 'gpt3-17b'"),
        ("design gpt3-6.7b --gpus 8,x", "--gpus 8,x: is no list of sizes"),
        ("design gpt3-6.7b --gpus 12", "12 GPUs do not fill nodes of 8"),
        ("design gpt3-6.7b --sweep tensr=1", "Did you mean 'tensor'"),
        ("design gpt3-6.7b --sweep tensor=1.5", "expected whole numbers, such as tensor=1,2"),
        ("design gpt3-6.7b --sweep compute=0", "expected numbers > 0"),
        ("design gpt3-6.7b --sweep compute", "has no usable values"),
        ("design gpt3-6.7b --sweep expansion_gb=1", "expected both or neither"),
        ("design gpt3-6.7b --sweep zero=0,4", "expected whole numbers from 0 to 3"),
        ("design gpt3-6.7b --sweep overlap=2", "expected whole numbers from 0 to 1"),
        ("design gpt3-6.7b --sweep tensor=1 --sweep tensor=2", "tensor was given before"),
        (
            "design gpt3-6.7b --charts rows.csv",
            "rows.csv: cannot be used (File exists); expected a folder for --charts",
        ),
        ("design gpt3-6.7b --by size", "--by size: is unknown; expected time, cost, energy"),
        ("design gpt3-6.7b --recompute some", "'some' is unknown"),
        ("design gpt3-6.7b --gpus 8 --sweep tensor=3", "no combination keeps all rules"),
        ("design gpt3-6.7b --gpus 8 --cluster a100-80:memory_gb=1 --charts c", "no configuration fits in memory"),
    ],
)
def test_refused(args, message) -> None:
    refused(run(*args.split()), message)


@pytest.mark.long
def test_a_design_prints_the_best_first() -> None:
    best = json.loads(run("design", "gpt3-6.7b", "--gpus", "8,16", "--top", 3, "--json").stdout)
    assert len(best) == 3
    assert [row["step_s"] for row in best] == sorted(row["step_s"] for row in best)
    assert {row["gpus"] for row in best} == {16}
    cheap = json.loads(run("design", "gpt3-6.7b", "--gpus", "8,16", "--top", 1, "--by", "cost", "--json").stdout)
    assert cheap[0]["cost"] <= best[0]["cost"]


@pytest.mark.long
def test_a_cluster_of_given_size() -> None:
    best = json.loads(run("design", "gpt3-6.7b", "--cluster", "h100:nodes=2", "--top", 1, "--json").stdout)
    assert best[0]["gpus"] == 16


@pytest.mark.long
def test_a_design_for_a_reader() -> None:
    result = run("design", "gpt3-6.7b", "--gpus", 8, "--cluster", "h100", "--cluster", "a100-80", "--top", 2)
    head, columns, *rows = result.stdout.splitlines()
    assert "valid configurations" in head
    assert "cluster" in columns.split()
    assert len(rows) == 2


@pytest.mark.long
def test_a_design_writes_tables_and_charts() -> None:
    sweep = ["--sweep", "memory_bandwidth=0.5,1,2", "--sweep", "network_bandwidth=0.5,1"]
    result = run("design", "gpt3-6.7b", "--gpus", 16, *sweep, "--out", "all.csv", "--charts", "charts")
    assert result.exit_code == 0
    table = pd.read_csv("all.csv")
    assert set(table["memory_bandwidth"]) == {0.5, 1, 2}
    drawn = {path.name for path in Path("charts").glob("*.png")}
    assert drawn == {
        "tensor_data.png",
        "tensor_pipeline.png",
        "memory_bandwidth_network_bandwidth.png",
        "pareto_time_cost.png",
    }
