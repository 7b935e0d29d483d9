"""Clusters in which a GPU has one job at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import run
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.cluster.cluster_files import read_cluster
from ddlsched.comparisons.compare import compare
from ddlsched.errors import InputError, InvalidDecisionError
from ddlsched.results.explanation import explain
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import write_workload

TWO_GPUS = Cluster(num_servers=1, gpus_per_server=2, exclusive=True)


def job(job_id: str, **given: Any) -> Job:
    """Return a job of 10 ms on both GPUs that needs 1 MB."""
    usual = {"gpus": 2, "forward_s": 0.004, "backward_s": 0.006, "message_bytes": 0.0, "memory_mb": 1.0}
    return data_parallel_job(job_id, **usual | given)


def simulated(*jobs: Job, cluster: Cluster = TWO_GPUS, **options: Any) -> ddlsched.Result:
    return ddlsched.simulate(Workload.of(jobs), cluster, placement="first-fit", order="fifo", **options)


def test_a_second_job_waits_for_the_first_to_leave() -> None:
    jobs = job("a", iterations=2), job("b", iterations=1)
    alone = simulated(*jobs)
    assert alone.jobs["start_s"].tolist() == [0.0, 0.02]
    assert alone.jobs["finish_s"].tolist() == [0.02, 0.03]
    assert alone.most_jobs_on_a_gpu == 1
    together = simulated(*jobs, cluster=Cluster(num_servers=1, gpus_per_server=2))
    assert together.jobs["start_s"].tolist() == [0.0, 0.0]
    assert together.most_jobs_on_a_gpu == 2


def test_a_job_without_memory_does_not_share_either() -> None:
    result = simulated(job("a", iterations=2), job("b", iterations=1, memory_mb=0.0))
    assert result.jobs["start_s"].tolist() == [0.0, 0.02]


def test_jobs_take_the_free_gpus_side_by_side() -> None:
    result = simulated(job("a", gpus=1), job("b", gpus=1), job("c", gpus=1))
    assert [result.gpus_of(name) for name in "abc"] == [(0,), (1,), (0,)]


def test_a_failed_server_gives_its_gpus_back() -> None:
    outage = ddlsched.Disturbances(outages=(ddlsched.Outage(server=0, from_s=0.005, to_s=0.1),))
    result = simulated(job("a", iterations=1), disturbances=outage)
    assert result.jobs["finish_s"].tolist() == [0.11]


class SeesBusy:
    """Notes of every GPU, before it takes the first eligible ones, whether its views agree."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[bool], list[float], bool]] = []

    def place(self, job: Any, cluster: Any) -> list[int] | None:
        gpus = cluster.eligible_gpus(job)
        fits = [cluster.fits(job, gpu) for gpu in range(cluster.num_gpus)]
        free_mb = [cluster.free_memory_mb(gpu) for gpu in range(cluster.num_gpus)]
        assert all(cluster.is_up(gpu) for gpu in range(cluster.num_gpus))
        self.seen.append((gpus, fits, free_mb, cluster.exclusive))
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


def test_views_say_that_a_gpu_with_a_job_is_not_eligible() -> None:
    policy = SeesBusy()
    ddlsched.simulate(Workload.of([job("a", gpus=1), job("b", gpus=1)]), TWO_GPUS, placement=policy)
    assert policy.seen == [
        ([0, 1], [True, True], [32768.0, 32768.0], True),
        ([1], [False, True], [0.0, 32768.0], True),
    ]


class Always0:
    """Puts every job on GPU 0."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return [0]


def test_a_policy_that_shares_is_told_why_it_may_not() -> None:
    with pytest.raises(InvalidDecisionError, match=r"GPU 0, which has a job; expected a free one.*exclusive"):
        ddlsched.simulate(Workload.of([job("a", gpus=1), job("b", gpus=1)]), TWO_GPUS, placement=Always0())


def test_explain_says_who_holds_the_gpus() -> None:
    result = simulated(job("a", iterations=2), job("b", iterations=1), timeline=True)
    waits = explain(result, "b").query("phase == 'queueing'")
    assert set(zip(waits["waited_for"], waits["held_by"], strict=True)) == {("GPUs of server 0", "a")}
    assert waits["seconds"].sum() == pytest.approx(0.02)


# ---- Where it is said


def table(folder: Path, *rows: str) -> Path:
    (folder / "servers.csv").write_text("\n".join(["gpus,gpu_memory_mb,exclusive", *rows]) + "\n")
    return folder / "servers.csv"


def test_a_table_of_servers_says_it_of_the_cluster(tmp_path: Path) -> None:
    assert read_cluster(table(tmp_path, "2,1000,1", "4,1000,1")).exclusive
    assert not read_cluster(table(tmp_path, "2,1000,0", "4,1000,")).exclusive
    assert read_cluster(table(tmp_path, "2,1000,0"), exclusive=True).exclusive


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("2,1000,1", "4,1000,0"), "row 2 (line 3), column exclusive: is 0; expected the 1 of the rows above"),
        (("2,1000,2",), "column exclusive"),
        (("2,1000,yes",), "column exclusive"),
    ],
)
def test_a_table_that_is_wrong_is_refused(tmp_path: Path, rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as refused:
        read_cluster(table(tmp_path, *rows))
    assert message in str(refused.value)


def test_exclusive_is_a_truth_value() -> None:
    with pytest.raises(InputError, match="exclusive is 1; expected True or False"):
        Cluster(servers=(Server(),), exclusive=1)  # type: ignore[arg-type]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of two jobs that share the two GPUs of :data:`SIZE` unless they may not."""
    monkeypatch.chdir(tmp_path)
    write_workload(Workload.of([job("a"), job("b")]), tmp_path / "jobs.csv")
    return tmp_path / "jobs.csv"


SIZE = ("--servers", "1", "--gpus-per-server", "2")
LINE = "GPUs were shared: up to 2 jobs at a time on one (--exclusive: one job a GPU)."


def test_results_from_shared_gpus_say_so(jobs: Path) -> None:
    shared = run("simulate", str(jobs), *SIZE)
    assert shared.stdout.splitlines()[-1] == LINE
    alone = run("simulate", str(jobs), *SIZE, "--exclusive")
    assert alone.exit_code == 0, alone.stderr
    assert "shared" not in alone.stdout
    as_json = run("simulate", str(jobs), *SIZE, "--json")
    assert LINE in as_json.stderr
    assert "average_jct_s" in json.loads(as_json.stdout)


def test_interference_on_gpus_that_nobody_shares_is_refused(jobs: Path) -> None:
    done = run("simulate", str(jobs), "--exclusive", "--interference", "uniform")
    assert done.exit_code == 2
    assert "--interference: with --exclusive no GPU is shared" in done.stderr
    table = jobs.with_name("servers.csv")
    table.write_text("gpus,gpu_memory_mb,exclusive\n2,32768,1\n")
    told = run("simulate", str(jobs), "--server-table", str(table), "--interference", "uniform")
    assert (told.exit_code, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert "--interference: the table of servers shares no GPU" in told.stderr


@pytest.mark.long
def test_a_comparison_has_exclusive_clusters(jobs: Path) -> None:
    given: dict[str, Any] = {"servers": 1, "gpus_per_server": 2, "seeds": [1], "processes": 1}
    shared = compare([jobs], ["srsf-1"], folder="shared", **given)
    alone = compare([jobs], ["srsf-1"], exclusive=True, folder="alone", **given)
    assert [shared.runs["cluster"].item(), alone.runs["cluster"].item()] == ["1x2", "1x2 exclusive"]
    assert alone.jobs()["start_s"].tolist() == [0.0, alone.jobs()["finish_s"][0]]
    assert LINE in shared.notes()
    assert not any("shared" in note for note in alone.notes())
    again = ddlsched.Comparison.open(shared.folder)  # stored tables say the same when they are read back
    assert LINE in again.notes()
    pd.testing.assert_series_equal(again.runs["most_jobs_on_a_gpu"], shared.runs["most_jobs_on_a_gpu"])


@pytest.mark.long
def test_a_comparison_can_be_asked_for_again_from_its_yaml(jobs: Path) -> None:
    alone = compare([jobs], ["srsf-1"], exclusive=True, servers=1, gpus_per_server=2, seeds=[1], processes=1)
    assert "exclusive: true" in (alone.folder / "compare.yaml").read_text()
    done = run("compare", "--config", str(alone.folder / "compare.yaml"), "--out", "second", "--processes", "1")
    assert done.exit_code == 0, done.stderr
    assert "1x2 exclusive" in done.stdout
