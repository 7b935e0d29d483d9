"""What a run can be asked for can be asked for everywhere: simulate, compare, YAML, tune and Python.

Each set of options is read from its command, so that a door that is new in one of them is missed in the others.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, run

import ddlsched
from ddlsched.cli.simulate_command import OutputOptions
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.comparisons import tuning
from ddlsched.comparisons.fields import Options
from ddlsched.comparisons.settings import Policies, Settings

OUTPUTS = {field.name for field in fields(OutputOptions)} | {"jobs", "help"}
DISTURBANCES = {field.name for field in fields(Disturbances)}
POLICY = {"scheduler", "placement", "order", "communication", "allocation", "path", "admission"}

ONE_RUN = {"seed", "replay"}
"""What belongs to one run: a comparison has seeds, and the jobs of each seed are placed anew."""


def options_of(command: str) -> set[str]:
    return {str(each.name) for each in COMMAND.get_command(None, command).params}


SIMULATED = options_of("simulate") - OUTPUTS


def test_simulate_in_python_has_what_the_command_has() -> None:
    parameters = set(inspect.signature(ddlsched.simulate).parameters)
    assert parameters >= SIMULATED - DISTURBANCES
    assert "disturbances" in parameters
    assert parameters - SIMULATED == {"workload", "cluster", "disturbances", "watch", "timeline", "draw"}


def test_compare_has_what_simulate_has() -> None:
    assert SIMULATED - options_of("compare") == ONE_RUN
    assert "seeds" in options_of("compare")


def test_a_yaml_file_and_python_have_what_compare_has() -> None:
    fields_of_yaml = set(Settings.model_fields) | set(Policies.model_fields) | set(Options.model_fields) | DISTURBANCES
    assert fields_of_yaml >= SIMULATED - ONE_RUN
    flags = options_of("compare") - {"config", "out", "processes", "dask", "as_json", "jobs", "help"}
    own = set(Settings.model_fields) - {"workloads", "policies", "options"}
    assert flags - POLICY - {"name"} - DISTURBANCES == own | set(Options.model_fields) - {"disturbances"}
    assert set(inspect.signature(ddlsched.compare).parameters) >= set(Settings.model_fields)


def test_tune_has_what_simulate_has() -> None:
    assert SIMULATED - options_of("tune") == {"scheduler", *ONE_RUN}
    assert {"seeds", "held_out"} <= options_of("tune")


# ---- The new doors, all at once, by each way


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Files of jobs on two kinds of GPUs, the longest of which goes on elsewhere, and a run with every door."""
    monkeypatch.chdir(tmp_path)
    header = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,model\n"
    Path("jobs.csv").write_text(
        header + "d,0,1,5,0.5,0.5,1e8,1000,r\na,0.1,2,20,0.5,0.5,1e8,1000,r\nb,1.2,3,4,0.5,0.5,1e8,1000,r\n"
    )
    Path("servers.csv").write_text("servers,gpus,gpu_memory_mb,gpu_kind\n3,1,8000,new\n1,1,8000,old\n")
    Path("t.csv").write_text("model,new,old\nr,2,1\nother,1,\n")
    return {
        "server_table": "servers.csv",
        "throughputs": "t.csv",
        "reference_kind": "new",
        "exclusive": True,
        "topology": "leaf-spine:servers_per_leaf=2,spines=2",
        "contention": "max-min",
        "order": "stopping-srtf",
        "placement": "first-fit",
        "communication": "bounded-overlap:limit=9",
        "path": "ecmp:seed=1",
        "restart_s": 3.0,
        "state_mb": 500.0,
    }


def flags_of(doors: dict[str, Any]) -> list[str]:
    named = {f"--{name.replace('_', '-')}": value for name, value in doors.items()}
    return [word for flag, value in named.items() for word in ([flag] if value is True else [flag, str(value)])]


def average_jct_s(doors: dict[str, Any]) -> float:
    done = run("simulate", "jobs.csv", *flags_of(doors), "--json")
    assert done.exit_code == 0, done.stderr
    return float(json.loads(done.stdout)["average_jct_s"])


@pytest.mark.long
def test_every_way_gives_the_run_that_simulate_gives(doors: dict[str, Any]) -> None:
    expected = average_jct_s(doors)
    for names in ({"throughputs", "reference_kind"}, {"reference_kind"}, {"exclusive"}, {"restart_s"}, {"state_mb"}):
        assert average_jct_s({name: value for name, value in doors.items() if name not in names}) != expected, names
    plain = {name: value for name, value in doors.items() if name not in ("restart_s", "state_mb")}
    price = {"restart_s": 3.0, "state_mb": 500.0}
    in_python = ddlsched.simulate("jobs.csv", disturbances=Disturbances(**price), **plain)
    assert in_python.summary()["average_jct_s"] == expected
    for flags in (flags_of(doors), ["--config", "asked.yaml"], ["--config", "other.yaml", "--restart-s", "3"]):
        write_yaml(plain, price if "asked.yaml" in flags else {"state_mb": 500.0, "restart_s": 7.0})
        jobs = [] if "--config" in flags else ["jobs.csv"]
        out = ["--seeds", "1", "--processes", "1", "--out", f"out{len(flags)}"]
        done = run("compare", *jobs, *flags, *out)
        assert done.exit_code == 0, done.stderr
        runs = ddlsched.Comparison.open(f"out{len(flags)}").runs
        assert runs["average_jct_s"].tolist() == [expected]
        assert "ecmp:seed=1" in runs["policy"].item()


def write_yaml(plain: dict[str, Any], price: dict[str, float]) -> None:
    kinds = ("order", "placement", "communication", "path")
    asked = {name: value for name, value in plain.items() if name not in kinds}
    asked |= {"workloads": ["jobs.csv"], "policies": [{kind: plain[kind] for kind in kinds}]}
    asked["options"] = {"disturbances": price}
    for file in ("asked.yaml", "other.yaml"):
        Path(file).write_text(json.dumps(asked))  # which is YAML


@pytest.mark.long
def test_tune_runs_what_simulate_runs(doors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def record(workload: str, policies: dict[str, str], **given: Any) -> None:
        asked.update(given, policies=policies)
        raise ddlsched.InputError("enough")

    monkeypatch.setattr(tuning, "tune", record)
    run("tune", "microsoft-160:scale=0.002", *flags_of(doors))
    kinds = ("order", "placement", "communication", "path")
    assert asked["policies"] == {kind: doors[kind] for kind in kinds}
    result = ddlsched.simulate("jobs.csv", **asked["options"], **asked["policies"])
    assert result.summary()["average_jct_s"] == average_jct_s(doors)


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        (
            "throughputs: t.csv",
            "line 4, field throughputs: the kinds of GPUs are those of servers; expected server_table",
        ),
        ("server_table: servers.csv\nthroughputs: no.csv", "line 5, field throughputs: no.csv: no such file"),
        (
            "server_table: plain.csv\nthroughputs: t.csv",
            "server_table plain.csv: cluster: the gpu_kind of server 0 is",
        ),
        ("server_table: servers.csv\nreference_kind: new", "reference_kind is given; expected throughputs as well"),
        (
            "server_table: servers.csv\nthroughputs: t.csv",
            "field throughputs: workload, row 1: job 'x': t.csv has no throughput in the row of model 'other', column",
        ),
        ("options: {disturbances: {restart_s: -1}}", "line 4, field options.disturbances"),
    ],
)
@pytest.mark.usefixtures("doors")
def test_bad_fields_are_told_with_their_line(yaml: str, said: str) -> None:
    Path("plain.csv").write_text("servers,gpus,gpu_memory_mb\n4,1,8000\n")
    rows = Path("jobs.csv").read_text().splitlines()[0] + "\nx,0,1,1,1,1,0,1000,other\n"
    Path("jobs.csv").write_text(rows)
    Path("c.yaml").write_text(f"workloads: jobs.csv\nseeds: 1\npolicies: ada-srsf\n{yaml}\n")
    done = run("compare", "--config", "c.yaml", "--out", "out")
    assert done.exit_code == 2
    assert said.replace("workload, row", "jobs.csv, row") in done.stderr
    assert not Path("out").exists()


@pytest.mark.usefixtures("doors")
def test_admission_without_queues_is_refused_before_the_runs() -> None:
    done = run("compare", "jobs.csv", "--admission", "kai", "--out", "out")
    assert done.exit_code == 2
    assert "--admission: does nothing alone; expected --queues as well" in done.stderr
    assert not Path("out").exists()
