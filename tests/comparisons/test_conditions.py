"""The conditions of results: which doors the runs used, said by comparisons, reports and runs from numbers by hand."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pandas as pd
import pytest
from command_line import run

import ddlsched
from ddlsched.comparisons.comparison_tables import conditions
from ddlsched.comparisons.report import html_report
from ddlsched.comparisons.report.report_tables import door_table
from ddlsched.comparisons.report.reported import Reported

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,model\n"
STOPPING = "stopping-srtf"
LEAF_SPINE = "leaf-spine:servers_per_leaf=2,spines=2"
PRICE = {"disturbances": {"restart_s": 2.0, "state_mb": 500.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An order that stops, with ECMP, beside one that does not: on two kinds of GPUs, exclusive.

    "b" needs three GPUs; "a" stops for it after an iteration and a half, and goes on where "d" was: one of its two
    workers finds its state there, the other's crosses the network.
    """
    place = tmp_path_factory.mktemp("conditions")
    rows = "d,0,1,5,0.5,0.5,0,1000,r\na,0.1,2,20,0.5,0.5,0,1000,r\nb,1.2,3,4,0.5,0.5,0,1000,r\n"
    (place / "jobs.csv").write_text(HEADER + rows)
    (place / "servers.csv").write_text("servers,gpus,gpu_memory_mb,gpu_kind\n3,1,8000,new\n1,1,8000,old\n")
    (place / "t.csv").write_text("model,new,old\nr,2,1\n")
    ddlsched.compare(
        place / "jobs.csv",
        [{"name": "stops", "order": STOPPING, "path": "ecmp:seed=1"}, {"name": "waits", "order": "srtf"}],
        seeds=[1],
        server_table=place / "servers.csv",
        throughputs=place / "t.csv",
        reference_kind="new",
        exclusive=True,
        topology=LEAF_SPINE,
        options=PRICE,
        folder=place / "out",
        processes=1,
    )
    return place / "out"


@pytest.mark.long
def test_a_comparison_says_which_doors_its_runs_used(folder: Path) -> None:
    notes = ddlsched.Comparison.open(folder).notes()
    cluster = f"servers exclusive {LEAF_SPINE}"
    assert notes[-4:] == [
        "Paths of flows were chosen by ecmp:seed=1 under 'stops'; else the topology's own routes.",
        f"{cluster}: exclusive, one job a GPU at a time.",
        f"{cluster}: GPUs of several kinds (3 new, 1 old), with the throughputs of {folder.parent / 't.csv'}; the "
        "workload's times are those on new.",
        "Policies stopped running jobs 1 time and moved them 0 times, over all runs. Going on took 2 s (restart_s) "
        "and, on other servers, 500 MB from each GPU over the network: 0.5 GB.",
    ]


@pytest.mark.long
def test_runs_have_the_counts_that_are_not_0_everywhere(folder: Path) -> None:
    runs = ddlsched.Comparison.open(folder).runs.set_index("policy")
    assert runs["stops"].to_dict() == {"stops": 1, "waits": 0}
    assert runs["state_bytes"].to_dict() == {"stops": 500e6, "waits": 0}
    assert not {"moves", "inside_bytes"} & set(runs.columns)


@pytest.mark.long
def test_the_report_shows_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = Reported.open(folder)
    table = door_table(reported, reported.settings[0])
    assert table.columns == ["Stops by a policy", "State over the network (GB)"]
    values = {policy: [cell.value for cell in cells if cell] for policy, cells in table.rows}
    assert values == {"stops": ["1.00", "0.500"], "waits": ["0.00", "0.000"]}
    monkeypatch.setattr(html_report, "draw_charts", lambda _: [])
    page = html.unescape(ddlsched.report(folder).read_text(encoding="utf-8"))
    for note in reported.comparison.notes():
        assert f"<li>{note}</li>" in page
    assert table.caption in page
    for asked in ("path: ecmp:seed=1", "restart_s: 2.0", "state_mb: 500.0", "gpu_kinds: new: 3, old: 1"):
        assert asked in page


@pytest.mark.long
def test_simulate_prints_them(folder: Path) -> None:
    files = [str(folder.parent / name) for name in ("jobs.csv", "servers.csv", "t.csv")]
    command = ["simulate", files[0], "--server-table", files[1], "--throughputs", files[2], "--reference-kind", "new"]
    command += ["--exclusive", "--topology", LEAF_SPINE, "--restart-s", "2", "--state-mb", "500"]
    printed = run(*command, "--order", STOPPING).stdout
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "stops by a policy 1" in lines
    assert "state over the network 0.500 GB" in lines
    told = json.loads(run(*command, "--order", STOPPING, "--json").stdout)
    assert (told["stops"], told["state_bytes"]) == (1, 500e6)
    plain = json.loads(run(*command, "--order", "srtf", "--json").stdout)
    assert not {"stops", "moves", "state_bytes", "inside_bytes"} & plain.keys()


@pytest.mark.long
def test_bytes_inside_servers_are_counted_over_the_ports(tmp_path: Path) -> None:
    # An all-reduce of 800 MB over 4 GPUs of a server: 2 x 3/4 x 800 MB through each port, in 3 iterations.
    (tmp_path / "jobs.csv").write_text(HEADER + "a,0,4,3,0.1,0.1,8e8,1000,\n")
    (tmp_path / "c.yaml").write_text(
        f"workloads: {tmp_path / 'jobs.csv'}\npolicies: ada-srsf\nseeds: [1]\nservers: 1\ncontention: max-min\n"
        "topology: 'star:nvlink_gbps=1600'\n"
    )
    done = run("compare", "--config", tmp_path / "c.yaml", "--out", tmp_path / "out", "--processes", 1)
    assert done.exit_code == 0, done.stderr
    comparison = ddlsched.Comparison.open(tmp_path / "out")
    assert comparison.runs["inside_bytes"].tolist() == [pytest.approx(3 * 4 * 1.5 * 8e8)]
    assert "the inside of servers counts, 1600 Gbit/s a GPU and 1 network card a server." in comparison.notes()[-1]


def test_what_no_run_used_is_not_said() -> None:
    place = {"gpus": [4], "exclusive": False, "remark": None}
    asked = {"policies": {"a": {"order": "fifo"}}, "clusters": {"1x4": place}, "options": {}}
    assert conditions(asked, pd.DataFrame({"file": ["x"], "most_jobs_on_a_gpu": [1]})) == []
    shared = conditions(asked, pd.DataFrame({"file": ["x"], "most_jobs_on_a_gpu": [3]}))
    assert shared == ["GPUs were shared: up to 3 jobs at a time on one (--exclusive: one job a GPU)."]


def test_moves_and_memory_are_said_too() -> None:
    runs = pd.DataFrame(
        {"file": ["x", "y", "y"], "stops": [1, 2, 2], "moves": [4, 1, 1], "state_bytes": [0, 2e12, 2e12]}
    )
    (said,) = conditions({"policies": {}, "clusters": {}}, runs)
    assert said.startswith(
        "Policies stopped running jobs 3 times and moved them 5 times, over all runs. Going on took 0 s"
    )
    assert "all memory that the job takes there from each GPU over the network: 2,000.0 GB." in said
