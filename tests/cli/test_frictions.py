"""What a new user meets: each case says in a line what is the matter, and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run
from golden_cases import FOLDER
from jobs_by_hand import data_parallel_job

from ddlsched import Cluster, Disturbances, Workload, simulate
from ddlsched.cli import reporting
from ddlsched.cluster.disturbances import jitter_factors
from ddlsched.errors import InputError, PluginError, SimulationError, UnknownNameError
from ddlsched.network.contention import MaxMin
from ddlsched.plugins.names import resolve
from ddlsched.results.paired_comparison import compare_runs
from ddlsched.testing import python_form
from ddlsched.workload.workload_files import read_workload

GOLDEN = FOLDER / "case1.csv"
POLICIES = """
class Endless:
    compiled = False

    def key(self, job, now_s):
        while True:
            job.num_gpus


class Second:
    def key(self, job, now_s):
        return now_s
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    path = tmp_path / "mypol.py"
    path.write_text(POLICIES)
    return path


@pytest.mark.long
@pytest.mark.parametrize("several", [[], ["--order", "fifo", "--processes", "2"]])
def test_item_25_an_endless_loop_is_named_with_its_line_when_the_run_is_interrupted(
    policies: Path, several: list[str]
) -> None:
    noticed = "import sys; from ddlsched.cli import main; print('begun', flush=True); main()"
    order = ["compare" if several else "simulate", str(GOLDEN), "--exclusive", "--order", f"{policies}:Endless"]
    order += [*several, "--out", str(policies.parent / "out")] if several else []
    policies.write_text(POLICIES.replace("while True:", "print('asked', flush=True)\n        while True:"))
    with subprocess.Popen(
        [sys.executable, "-c", noticed, *order],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},  # nothing is compiled for this
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "asked\n"]
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"error: interrupted in {policies}, line " in told
    assert ", key: a policy that never answers ends no run" in told


def test_item_25_a_file_without_a_class_names_those_in_it(policies: Path) -> None:
    refused(run("simulate", GOLDEN, "--order", policies), f"expected {policies}:CLASS. Known: Endless, Second")


def test_item_25_parquet_is_not_written_over_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n")
    refused(run("simulate", GOLDEN, "--run-out", path), "is written as Parquet; expected FILE.parquet")
    assert path.read_text() == "a,b\n"


def test_item_25_explain_of_what_is_no_run_says_what_it_is(tmp_path: Path) -> None:
    refused(run("explain", GOLDEN, "1"), "case1.csv: is a .csv file; expected a run's file, of")
    table = tmp_path / "jobs.parquet"
    pd.read_csv(GOLDEN).to_parquet(table)
    refused(run("explain", table, "1"), "jobs.parquet: has no column 'start_s', so it is no run's")


def test_item_25_intervals_end_where_their_metric_does() -> None:
    seeds = {"policy": ["a", "a"], "seed": [1, 2]}
    runs = pd.DataFrame(
        seeds
        | {"average_jct_s": [1.0, 9.0], "jain_index": [0.2, 0.9], "own": [1.0, 9.0], "gpu_utilisation": [0.5, 0.9]}
    )
    names = ("average_jct_s", "jain_index", "gpu_utilisation", "own")
    table = compare_runs(runs, metrics=names, baseline="a").set_index("metric")
    assert table["low"].tolist()[:3] == [0.0, 0.0, 0.0]
    assert table["high"].tolist()[1:3] == [1.0, 1.0]
    assert table.loc["own", "low"] < 0  # it may be anything


def test_item_25_wide_jitter_is_told() -> None:
    factors = jitter_factors(10.0)
    said = run("simulate", GOLDEN, "--jitter-cv", 10).stderr
    assert f"half of the compute tasks take less than {np.median(factors):.2f} of the job's time" in said
    assert "the coefficient of variation is 6.2" in said
    assert "Jitter" not in run("simulate", GOLDEN, "--jitter-cv", 0.5).stderr


def test_item_25_a_saturated_network_is_told() -> None:
    slow, fast = (
        run("simulate", GOLDEN, "--topology", f"star:nic_gbps={gbps}", "--contention", "max-min").stdout
        for gbps in (0.01, 100)
    )
    assert "Network: the network is saturated, jobs on their GPUs communicate, or wait to, for 100 % of" in slow
    assert "saturated" not in fast


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--placement", "lwf:kappa=-1"), "lwf: kappa is -1; expected a whole number from 0"),
        (("--communication", "bounded-overlap:limit=0"), "bounded-overlap: limit is 0; expected a whole number from 1"),
        (("--topology", "leaf-spine:oversubscription=0"), "leaf-spine: oversubscription is 0"),
        (("--topology", "star:latency_s=1e9"), "star: latency_s is 1000000000.0; expected seconds from 0 to 1e6"),
        (("--server-mtbf-s", "0"), "server_mtbf_s is 0"),
    ],
)
def test_item_25_a_range_error_names_its_parameter_and_value(flags: tuple[str, str], named: str) -> None:
    refused(run("simulate", GOLDEN, *flags), named)


@pytest.mark.long
def test_item_17_an_error_about_a_million_columns_is_short(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{column}" for column in range(1_000_000)) + "\n")
    told = run("simulate", path)
    refused(told, "wide.csv: column 'job_id' is missing")
    assert len(told.stderr) < 1000


@pytest.mark.slow
def test_an_error_about_a_name_among_many_is_short() -> None:
    jobs = [data_parallel_job(f"{number:05}") for number in range(20_000)]
    with pytest.raises(UnknownNameError) as refused:
        Workload.of(jobs).number_of("zzz")
    assert str(refused.value).endswith(", 00098, 00099 and 19,900 more.")


@pytest.mark.long
def test_item_17_a_job_that_never_comes_to_its_end_is_told_soon() -> None:
    workload = read_workload(GOLDEN)
    failing = Disturbances(server_mtbf_s=0.001, server_repair_s=1.0)
    with pytest.raises(SimulationError, match="failures stopped job '11' 1000 times in a row") as told:
        simulate(workload, Cluster(num_servers=16), disturbances=failing, seed=1)
    assert len(str(told.value)) < 1000


class HighLevel(MaxMin):
    def level(self, transfer: object) -> int:
        return 8


@pytest.mark.long
def test_item_17_a_level_is_at_most_7() -> None:
    with pytest.raises(Exception, match="level answered 8; expected a whole number from 0 to 7"):
        simulate(read_workload(GOLDEN), contention=HighLevel())


def test_item_17_a_plug_in_by_its_name_has_a_python_form() -> None:
    assert python_form(resolve("contention", "crux")).compiled is False


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (
            "simulate {tmp}/w.json --timeline {tmp}/t.txt",
            "--timeline {tmp}/t.txt: the suffix is '.txt'; expected .json or .parquet",
        ),
        ("simulate {tmp}/w.json --draws 0", "--draws 0: is no number of runs; expected 1 to 100000"),
        ("simulate {tmp}/w.json --draws 100001", "--draws 100001: is no number of runs; expected 1 to 100000"),
        (
            "estimate gpt3-350m --groups --job-out {tmp}/j.csv",
            "--job-out {tmp}/j.csv: the suffix is '.csv'; expected .json",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(command: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "j.csv").symlink_to("elsewhere.json")  # a job is written by its own suffix
    assert run(*command.format(tmp=tmp_path).split()).stderr == f"ddlsched: error: {fault.format(tmp=tmp_path)}\n"


def test_an_option_of_a_part_is_named_with_the_part(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("options: {jiter_cv: 0.1}\n")
    said = run("compare", "--config", tmp_path / "c.yaml", "--out", tmp_path / "o").stderr
    assert "options.jiter_cv: is no field. Did you mean 'disturbances.jitter_cv'" in said


def test_a_workload_of_no_jobs_is_refused() -> None:
    with pytest.raises(InputError, match=r"workload, row 1: is 1; expected a Job"):
        Workload.of([1])


def test_a_sampled_run_in_which_nobody_meets_says_so() -> None:
    done = run("simulate", GOLDEN, "--servers", 64, "--exclusive", "--sample")
    assert "Sampled: but no jobs share GPUs or links, so that all iterations are exact." in done.stdout


def test_what_a_plug_in_raised_is_shown_behind_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException] = []
    monkeypatch.setattr(reporting, "_show_plugin_traceback", shown.append)
    error = PluginError("order mine.py:Mine: key raised")
    with pytest.raises(SystemExit), reporting.reported():
        raise error
    assert shown == [error]
