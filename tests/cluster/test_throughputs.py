"""Kinds of GPUs with a throughput for each model: by hand, against the reference simulator, tables and bad input."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from command_line import run as run_command
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import Fixed, data_parallel_job
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import MODELS, Setting, settings
from tiers import examples

from ddlsched.cluster.cluster import Cluster, Server, Throughputs
from ddlsched.cluster.cluster_files import read_cluster, read_throughputs
from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError
from ddlsched.simulation import simulate
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import write_workload

MATRIX = Throughputs(
    values=(("resnet", "v100", 40.0), ("resnet", "k80", 10.0), ("lstm", "v100", 30.0), ("lstm", "k80", 15.0)),
    reference_kind="v100",
    source="t.csv",
)
TWO_KINDS = Cluster(servers=(Server(gpus=1, gpu_kind="v100"), Server(gpus=1, gpu_kind="k80")), throughputs=MATRIX)


def job(job_id: str, model: str | None) -> Job:
    return data_parallel_job(job_id, forward_s=1.0, iterations=3, model=model)


def finishes(*jobs: Job, gpus: dict[str, list[int]], cluster: Cluster = TWO_KINDS, **options: Any) -> dict[str, float]:
    table = simulate(Workload(jobs), cluster, placement=Fixed(gpus=gpus), **options).jobs
    return dict(zip(table["job_id"], table["finish_s"], strict=True))


def test_a_job_takes_as_long_on_a_kind_as_its_models_throughput_there_says():
    a, b = job("a", "resnet"), job("b", "lstm")
    assert finishes(a, b, gpus={"a": [1], "b": [0]}) == {"a": 12, "b": 3}
    assert finishes(a, b, gpus={"a": [0], "b": [1]}) == {"a": 3, "b": 6}


def test_without_a_reference_kind_a_throughput_of_1_means_the_jobs_own_times():
    relative = replace(MATRIX, values=(("resnet", "v100", 2.0), ("resnet", "k80", 0.5)), reference_kind=None)
    cluster = replace(TWO_KINDS, throughputs=relative)
    assert finishes(job("a", "resnet"), gpus={"a": [0]}, cluster=cluster) == {"a": 1.5}
    assert finishes(job("a", "resnet"), gpus={"a": [1]}, cluster=cluster) == {"a": 6}


def test_a_kinds_throughput_comes_on_top_of_the_servers_speed_and_the_slowest_worker_counts():
    servers = (Server(gpus=1, gpu_kind="v100"), Server(gpus=1, gpu_kind="k80", relative_speed=2.0))
    cluster = replace(TWO_KINDS, servers=servers)
    both = replace(job("a", "resnet"), num_gpus=2)
    assert finishes(both, gpus={"a": [0, 1]}, cluster=cluster) == {"a": 6}


def test_the_time_alone_is_that_on_the_kinds_that_first_fit_finds():
    assert alone_s(Workload((job("a", "resnet"),)), TWO_KINDS).tolist() == [3]


@dataclass(frozen=True, kw_only=True)
class FastestKind:
    """Waits for the kind on which the job is fastest: heterogeneity-aware, as Gavel's policies are."""

    def place(self, job: Any, cluster: Any) -> Any:
        best = max(cluster.speed(job, gpu) for gpu in range(cluster.num_gpus))
        gpus = [gpu for gpu in cluster.eligible_gpus(job) if cluster.speed(job, gpu) == best]
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


def test_policies_see_kinds_and_speeds():
    seen: list[Any] = []

    @dataclass(frozen=True, kw_only=True)
    class Spy(FastestKind):
        def place(self, job: Any, cluster: Any) -> Any:
            seen.append([(cluster.kind_of(gpu), cluster.speed(job, gpu)) for gpu in (0, 1)])
            return super().place(job, cluster)

    run = simulate(Workload((job("a", "lstm"),)), TWO_KINDS, placement=Spy())
    assert seen == [[("v100", 1.0), ("k80", 0.5)]]
    assert run.gpus_of("a") == (0,)


def test_without_a_matrix_speeds_are_the_servers():
    seen: list[Any] = []

    @dataclass(frozen=True, kw_only=True)
    class Spy(FastestKind):
        def place(self, job: Any, cluster: Any) -> Any:
            seen.append((cluster.kind_of(0), cluster.speed(job, 0)))
            return super().place(job, cluster)

    simulate(Workload((job("a", None),)), Cluster(servers=(Server(gpus=1, relative_speed=2.0),)), placement=Spy())
    assert seen == [(None, 2.0)]


# ---- Against the reference


@st.composite
def kind_settings(draw: st.DrawFn) -> Setting:
    """Return a run on servers of two kinds on which models differ, and of several speeds."""
    setting = draw(settings())
    kinds = st.sampled_from(("fast", "slow"))
    speeds = st.sampled_from((1.0, 1.0, 0.5, 0.37, 2.0))
    given_servers = setting.cluster.servers or tuple(
        Server(gpus=setting.cluster.gpus_per_server, gpu_memory_mb=1000.0) for _ in range(setting.cluster.num_servers)
    )
    values = tuple((model, kind, draw(speeds)) for model in MODELS for kind in ("fast", "slow"))
    cluster = Cluster(
        servers=tuple(replace(server, gpu_kind=draw(kinds)) for server in given_servers),
        exclusive=setting.cluster.exclusive,
        throughputs=Throughputs(values=values, reference_kind=draw(st.sampled_from((None, "fast")))),
    )
    jobs = tuple(replace(job, model=draw(st.sampled_from(MODELS))) for job in setting.workload)
    return replace(setting, cluster=cluster, workload=Workload(jobs))


@pytest.mark.long
@given(kind_settings())
@hypothesis_settings(max_examples=examples(40, by_default=6))
def test_agrees_with_the_reference(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


# ---- Tables


def test_a_csv_and_a_json_of_the_same_throughputs_are_the_same(tmp_path):
    (tmp_path / "t.csv").write_text("\nmodel,v100,k80\n\nresnet,40,10\nlstm,30,\n")
    (tmp_path / "t.json").write_text('{"resnet": {"v100": 40, "k80": 10}, "lstm": {"v100": 30}}')
    tables = [read_throughputs(tmp_path / name) for name in ("t.csv", "t.json")]
    assert (
        tables[0].values
        == tables[1].values
        == (
            ("resnet", "v100", 40.0),
            ("resnet", "k80", 10.0),
            ("lstm", "v100", 30.0),
        )
    )


def test_a_run_from_the_command_line_and_from_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("model,v100,k80\nresnet,40,10\n")
    (tmp_path / "servers.csv").write_text("gpus,gpu_memory_mb,gpu_kind\n1,1000,k80\n1,1000,v100\n")
    write_workload(Workload((job("a", "resnet"),)), tmp_path / "w.csv")
    options = ["--server-table", "servers.csv", "--throughputs", "t.csv", "--reference-kind", "v100"]
    said = run_command("simulate", "w.csv", *options, "--placement", "first-fit", "--json", "--run-out", "run.parquet")
    assert (said.exit_code, json.loads(said.stdout)["makespan_s"]) == (0, 12.0), said.stderr
    assert run_command("explain", "run.parquet", "a").exit_code == 0
    assert "gpu kinds" in run_command("validate", "servers.csv").stdout
    assert read_cluster("servers.csv").servers[1].gpu_kind == "v100"


# ---- Bad input


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model,v100\nresnet,fast\n", r"t.csv, row 1 \(line 2\), column v100: .*fast"),
        ("model,v100\nresnet,0\n", r"row 1 \(line 2\), column v100: is 0; expected a throughput > 0"),
        ("model,v100\nresnet,-2\n", r"row 1 \(line 2\), column v100: '-2' is out of range"),
        ("model,v100\nresnet\n", r"row 1 \(line 2\): has 1 values; expected 2, one for each column"),
        ("model,v100,v100\nresnet,1,2\n", "t.csv: .*v100"),
        ("name,v100\nresnet,1\n", "column 'model' is missing"),
        ("model,v100\n", "has no throughputs; expected a header with model and kinds, and a row a model"),
        ("model,v100\nresnet,1\nresnet,2\n", "t.csv: has a model and kind twice; expected each once"),
        ("", "t.csv: is empty; expected a header row with the columns model"),
    ],
)
def test_a_bad_table_is_refused_with_row_and_column(tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        read_throughputs(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["[1]", '{"a": 1}', '{"a": {"v100": "x"}}', '{"a": {"v100": NaN}}', "{"])
def test_a_bad_json_is_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=r"t\.json"):
        read_throughputs(tmp_path / "t.json")


def test_a_missing_pair_is_told_with_the_jobs_row_and_the_tables_row_and_column(tmp_path):
    (tmp_path / "t.csv").write_text("model,v100,k80\nresnet,40,10\nlstm,30,\n")
    (tmp_path / "servers.csv").write_text("gpus,gpu_memory_mb,gpu_kind\n1,1000,v100\n1,1000,k80\n")
    write_workload(Workload((job("a", "resnet"), job("b", "lstm"))), tmp_path / "w.csv")
    files = [str(tmp_path / name) for name in ("w.csv", "servers.csv", "t.csv")]
    said = run_command("simulate", files[0], "--server-table", files[1], "--throughputs", files[2])
    assert said.exit_code == 2
    assert "row 2: job 'b': " in said.stderr
    assert "t.csv has no throughput in the row of model 'lstm', column 'k80'" in said.stderr
    # Where no server has the kind, the pair is not needed.
    (tmp_path / "servers.csv").write_text("gpus,gpu_memory_mb,gpu_kind\n1,1000,v100\n")
    assert run_command("simulate", files[0], "--server-table", files[1], "--throughputs", files[2]).exit_code == 0


def test_a_job_without_a_model_a_kind_without_a_column_and_a_table_without_kinds_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"job 'a', column model: is empty; expected one of the models of t\.csv"):
        simulate(Workload((job("a", None),)), TWO_KINDS)
    with pytest.raises(InputError, match="the gpu_kind of server 0 is 'a100'; expected one of the kinds v100, k80"):
        Cluster(servers=(Server(gpu_kind="a100"),), throughputs=MATRIX)
    with pytest.raises(InputError, match="the gpu_kind of server 0 is None; expected one of the kinds"):
        Cluster(throughputs=MATRIX)
    with pytest.raises(InputError, match="has no throughput in the row of model 'resnet', column 'a100'"):
        replace(MATRIX, reference_kind="a100")
    said = run_command("simulate", "w.csv", "--throughputs", "t.csv")
    assert (said.exit_code, "--throughputs: does nothing alone; expected --server-table" in said.stderr) == (2, True)


def test_item_15_a_json_of_many_levels_is_refused_in_one_line(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match=r"deep\.json: is no JSON") as refused:
        read_throughputs(tmp_path / "deep.json")
    assert len(str(refused.value).splitlines()) == 1
