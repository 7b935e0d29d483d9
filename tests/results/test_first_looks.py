"""What somebody sees first: short names of objects, tables in notebooks, charts, and plain arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import ddlsched
from ddlsched.results.result import PHASES

SMALL = "microsoft-160:scale=0.002"


@pytest.fixture(scope="module")
def result() -> ddlsched.Result:
    return ddlsched.simulate(SMALL, seed=1)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> ddlsched.Comparison:
    folder = tmp_path_factory.mktemp("looks") / "comparison"
    return ddlsched.compare(SMALL, ["srsf-1", "srsf-2"], seeds=2, folder=folder, processes=1)


@pytest.mark.long
def test_simulate_takes_what_the_command_line_takes(tmp_path: Path, result: ddlsched.Result) -> None:
    path = tmp_path / "jobs.csv"
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), path)
    for workload in (path, str(path)):
        assert ddlsched.simulate(workload, topology="star", seed=1).jobs.equals(result.jobs)
    wide = ddlsched.simulate(path, servers=8, gpus_per_server=8, gpu_memory_mb=16000.0, exclusive=True)
    assert wide.cluster == ddlsched.Cluster(num_servers=8, gpus_per_server=8, gpu_memory_mb=16000.0, exclusive=True)
    fast = ddlsched.simulate(path, ddlsched.Cluster(num_servers=20), topology="star:nic_gbps=100")
    assert (fast.cluster.num_servers, fast.cluster.topology) == (20, "star:nic_gbps=100")
    table = tmp_path / "servers.csv"
    table.write_text("gpus,gpu_memory_mb,servers\n8,32000,8\n")
    assert ddlsched.simulate(path, server_table=table, exclusive=True).cluster.num_gpus == 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cluster": ddlsched.Cluster(), "servers": 4}, "num_servers and cluster= both say"),
        ({"server_table": "servers.csv", "gpus_per_server": 4}, "expected one of the two"),
        ({"cluster": "star"}, "cluster is 'star'; expected ddlsched.Cluster"),
        ({"topology": "stra"}, "no topology is named 'stra'.*Did you mean 'star'"),
        ({"workload": "nobody.csv"}, "nobody.csv"),
        ({"workload": 3}, r"workload is 3; expected a Workload \(Workload.of\(jobs\) makes one of Job objects\)"),
        ({"workload": list(ddlsched.microsoft_160(seed=1))}, r"^workload is .{,250}; expected a Workload"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_a_line(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ddlsched.InputError, match=said):
        ddlsched.simulate(**({"workload": SMALL} | arguments))  # type: ignore[arg-type]


def test_a_workload_says_what_it_is_in_a_line() -> None:
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    assert repr(workload).startswith("<workload: 160 jobs of 1 to 32 GPUs, arriving ")
    assert len(repr(workload)) < 120
    shown = workload._repr_html_()
    assert shown.count("<tr") == 1 + 5
    assert "and 155 more" in shown


def test_what_users_named_is_escaped() -> None:
    job = ddlsched.microsoft_160(seed=1, scale=0.002)[0]
    nasty = ddlsched.Workload.of([ddlsched.Job(**(vars_of(job) | {"job_id": "<script>alert(1)</script>"}))])
    assert "<script>" not in nasty._repr_html_()
    assert "<script>" not in ddlsched.simulate(nasty)._repr_html_()


def vars_of(job: ddlsched.Job) -> dict[str, object]:
    names = ("job_id", "arrival_s", "num_gpus", "iterations", "iteration", "gpu_memory_mb")
    return {name: getattr(job, name) for name in names}


def test_a_table_becomes_a_workload() -> None:
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    frame = ddlsched.workload_table(workload)
    assert ddlsched.Workload.from_frame(frame.assign(note="mine")) == workload
    assert ddlsched.Workload.from_frame(frame.assign(user=None, buckets=2))[0].iteration.buckets == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop(columns=["gpus", "forward_s"]), "has no column gpus, forward_s; expected job_id"),
        (lambda frame: frame.assign(gpus=1.5), "table, row 1: .*num_gpus is 1.5"),
        (lambda frame: frame.assign(arrival_s=np.nan), "table, row 1: arrival_s is empty"),
        (lambda frame: frame.assign(iterations="many"), "table, row 1: .*iterations is many"),
        (lambda frame: frame.assign(forward_s="long"), "table, row 1: "),
        (lambda frame: frame.assign(job_id="same"), "job_id 'same' is already that of row 1"),
    ],
)
def test_a_table_that_is_no_workload_is_refused(change, said: str) -> None:
    frame = ddlsched.workload_table(ddlsched.microsoft_160(seed=1, scale=0.002))
    with pytest.raises(ddlsched.InputError, match=said):
        ddlsched.Workload.from_frame(change(frame))


def test_a_result_is_a_table_in_a_notebook(result: ddlsched.Result) -> None:
    shown = result._repr_html_()
    assert f"{result.summary()['average_jct_s']:,.6g}" in shown
    assert "160 jobs on 64 GPUs" in shown


@pytest.mark.long
def test_a_comparison_is_a_table_in_a_notebook(comparison: ddlsched.Comparison) -> None:
    shown = comparison._repr_html_()
    mean = comparison.table().query("metric == 'average_jct_s' and policy == 'srsf-2'")["mean"].iloc[0]
    assert f"{mean:.4g}" in shown
    assert "2 seeds: no verdict" in shown


@pytest.mark.long
@pytest.mark.parametrize("name", ["fragmentation", "jct", "phases", "placements", "utilisation", "waterfall"])
def test_a_run_has_charts(result: ddlsched.Result, name: str) -> None:
    figure = getattr(result.plot, name)()
    assert isinstance(figure, Figure)
    assert figure._repr_html_().startswith('<img alt="chart"')
    assert name in repr(result.plot)


def test_the_phases_of_a_chart_add_up_to_the_time_of_the_jobs(result: ddlsched.Result) -> None:
    axes = result.plot.phases().axes[0]
    widths = pd.Series([bar.get_width() for bar in axes.patches])
    assert widths.sum() == pytest.approx(result.jobs.groupby("gpus")["jct_s"].mean().sum())
    assert len(widths) <= len(PHASES) * result.jobs["gpus"].nunique()


@pytest.mark.long
def test_the_hours_beside_the_bars_of_a_short_run_are_the_bars(result: ddlsched.Result) -> None:
    figure = result.plot.waterfall(size=(4.0, 3.0))
    assert tuple(figure.get_size_inches()) == (4.0, 3.0)
    axes = figure.axes[0]
    assert 0 < axes.patches[0].get_width() < 1.5
    for bar, text in zip(axes.patches, axes.texts, strict=True):
        assert float(text.get_text().split()[0]) == pytest.approx(bar.get_width(), rel=5e-3)


@pytest.mark.long
def test_a_comparison_has_charts(comparison: ddlsched.Comparison) -> None:
    for name in ("average_jct", "changes", "jct", "jct_by_size", "network", "utilisation"):
        assert name in repr(comparison.plot)
    assert isinstance(comparison.plot.average_jct(), Figure)  # test_figures_for_papers.py draws them all


@pytest.mark.long
def test_a_chart_of_what_is_not_there_is_refused(comparison: ddlsched.Comparison) -> None:
    assert isinstance(comparison.plot.placements("srsf-1"), Figure)
    with pytest.raises(ddlsched.UnknownNameError, match=r"no policy is named 'srsf'"):
        comparison.plot.placements("srsf")
    with pytest.raises(ddlsched.UnknownNameError, match=r"no workload is named 'mine'"):
        comparison.plot.jct(workload="mine")
    unfinished = ddlsched.simulate(SMALL, seed=1, until_s=1e-3)
    with pytest.raises(ddlsched.InputError, match="no counted job finished"):
        unfinished.plot.jct()


@pytest.mark.long
def test_a_comparison_of_one_policy_says_so(tmp_path: Path, comparison: ddlsched.Comparison) -> None:
    one = ddlsched.compare(SMALL, "srsf-1", seeds=[1], folder=tmp_path / "one", processes=1)
    assert repr(one) == f"<comparison: 1 run of 1 policy in {tmp_path / 'one'}>"
    assert repr(comparison).startswith("<comparison: 4 runs of 2 policies in ")


def test_a_number_of_servers_that_is_a_text_is_told_from_a_number() -> None:
    with pytest.raises(ddlsched.InputError, match="num_servers is '16'; expected a whole number"):
        ddlsched.simulate(SMALL, servers="16")  # type: ignore[arg-type]
