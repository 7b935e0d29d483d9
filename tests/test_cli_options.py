"""Options that are derived from dataclasses: each reaches what it is for, with the default that is said once."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from command_line import COMMAND, run

import ddlsched
import ddlsched.comparisons.compare
import ddlsched.simulation
from ddlsched.cli.app import DROPPED
from ddlsched.cli.dataclass_options import Given, Panel, _plain_maker, option, option_names, with_options
from ddlsched.cli.simulate_command import OutputOptions
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import read_causes
from ddlsched.comparisons.settings import Settings
from ddlsched.engine.run_options import CLUSTER_OPTIONS, RunOptions
from ddlsched.errors import InputError
from ddlsched.options import declared, described
from ddlsched.plugins.names import KINDS, names
from ddlsched.simulation import drawn
from ddlsched.workload.workload_files import read_workload

JOBS = (
    "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
    "alone,0.5,1,10,0.025,0.037,99200000.0,3213\n"
)


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(JOBS)
    Path("servers.csv").write_text("servers,gpus,gpu_memory_mb\n2,8,1000\n")
    Path("kinds.csv").write_text("servers,gpus,gpu_memory_mb,gpu_kind\n2,8,1000,new\n1,8,1000,old\n")
    Path("t.csv").write_text("model,new,old\nr,2,1\n")
    Path("outages.csv").write_text("server,from_s,to_s\n3,0.5,1.5\n")


class StopError(Exception):
    """Raised where a run would begin."""


def arguments_of_the_run(monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, Any]:
    """Return the arguments that 'ddlsched simulate' calls ``simulate`` with."""
    got: dict[str, Any] = {}

    def record(workload: Any, **arguments: Any) -> None:
        got.update(arguments)
        raise StopError

    monkeypatch.setattr(ddlsched.simulation, "simulate", record)
    with pytest.raises(StopError):
        COMMAND.main(["simulate", "jobs.csv", *flags], standalone_mode=False)
    return got


# What is given for each field (nothing for a switch), with the flags that it needs, and where it arrives.
SIMULATE: dict[type, dict[str, tuple[list[str], tuple[str, ...], Any]]] = {
    RunOptions: {
        "servers": (["3"], ("cluster", "num_servers"), 3),
        "gpus_per_server": (["2"], ("cluster", "gpus_per_server"), 2),
        "gpu_memory_mb": (["5000"], ("cluster", "gpu_memory_mb"), 5000.0),
        "server_table": (["servers.csv"], ("cluster", "num_gpus"), 16),
        "topology": (["fat-tree:k=4"], ("cluster", "topology"), "fat-tree:k=4"),
        "exclusive": ([], ("cluster", "exclusive"), True),
        "throughputs": (["t.csv", "--server-table", "kinds.csv"], ("cluster", "throughputs", "source"), "t.csv"),
        "reference_kind": (
            ["new", "--server-table", "kinds.csv", "--throughputs", "t.csv"],
            ("cluster", "throughputs", "reference_kind"),
            "new",
        ),
        "scheduler": (["srsf-2"], ("scheduler",), "srsf-2"),
        "placement": (["first-fit"], ("placement",), "first-fit"),
        "replay": (["run.parquet"], ("replay",), "run.parquet"),
        "order": (["fifo"], ("order",), "fifo"),
        "communication": (["preemptive"], ("communication",), "preemptive"),
        "interference": (["uniform"], ("interference",), "uniform"),
        "path": (["ecmp"], ("path",), "ecmp"),
        "queues": (["queues.yaml"], ("queues",), "queues.yaml"),
        "admission": (["kueue", "--queues", "queues.yaml"], ("admission",), "kueue"),
        "allocation": (["malleable"], ("allocation",), "malleable"),
        "rescale_cost": (["restart_s=3", "--allocation", "malleable"], ("rescale_cost",), "restart_s=3"),
        "capacity": (["capacity.csv"], ("capacity",), "capacity.csv"),
        "contention": (["max-min"], ("contention",), "max-min"),
        "load_per_byte_s": (["1e-9"], ("load_per_byte_s",), 1e-9),
        "seed": (["7"], ("seed",), 7),
        "warmup_s": (["2.5"], ("warmup_s",), 2.5),
        "until_s": (["9"], ("until_s",), 9.0),
        "steady": ([], ("steady",), True),
        "sample": ([], ("sample",), True),
    },
    Disturbances: {
        "jitter_cv": (["0.25"], ("disturbances", "jitter_cv"), 0.25),
        "straggler_share": (["0.5"], ("disturbances", "straggler_share"), 0.5),
        "straggler_slowdown": (["4", "--straggler-share", "0.5"], ("disturbances", "straggler_slowdown"), 4.0),
        "server_mtbf_s": (["50"], ("disturbances", "server_mtbf_s"), 50.0),
        "server_repair_s": (["60", "--server-mtbf-s", "50"], ("disturbances", "server_repair_s"), 60.0),
        "failures": (["rsc-2"], ("disturbances", "failures"), read_causes("rsc-2")),
        "outages": (["outages.csv"], ("disturbances", "outages"), (Outage(server=3, from_s=0.5, to_s=1.5),)),
        "checkpoint_iterations": (["5", "--server-mtbf-s", "50"], ("disturbances", "checkpoint_iterations"), 5),
        "checkpoint": (["young"], ("disturbances", "checkpoint"), "young"),
        "checkpoint_to": (["peer", "--checkpoint", "young"], ("disturbances", "checkpoint_to"), "peer"),
        "recovery": (["wait", "--failures", "rsc-2"], ("disturbances", "recovery"), "wait"),
        "health": (["repeated-failures", "--failures", "rsc-2"], ("disturbances", "health"), "repeated-failures"),
        "restart_gpu_s": (["0.5", "--failures", "rsc-2"], ("disturbances", "restart_gpu_s"), 0.5),
        "restart_iterations": (["2.5", "--failures", "rsc-2"], ("disturbances", "restart_iterations"), 2.5),
        "restart_s": (["1.5", "--server-mtbf-s", "50"], ("disturbances", "restart_s"), 1.5),
        "state_mb": (["100", "--order", "stopping-srtf"], ("disturbances", "state_mb"), 100.0),
        "state_share": (["0.5", "--order", "stopping-srtf"], ("disturbances", "state_share"), 0.5),
        "prediction_error": (["0.5"], ("disturbances", "prediction_error"), 0.5),
    },
}


def at(arguments: dict[str, Any], place: tuple[str, ...]) -> Any:
    """Return what stands at a place: an argument, or an attribute of one; None if it is not passed on."""
    first, *attributes = place
    value = ({"cluster": Cluster(), "disturbances": Disturbances()} | arguments).get(first)
    for attribute in attributes:
        value = getattr(value, attribute, None)
    return value


def test_the_fields_are_all_there() -> None:
    assert set(SIMULATE[Disturbances]) == {field.name for field in fields(Disturbances)}
    assert set(SIMULATE[RunOptions]) == {name for name, each in declared(RunOptions).items() if each.panel is not None}


def test_each_option_is_described_and_has_its_type() -> None:
    assert list(described(RunOptions)) == list(declared(RunOptions)) == list(RunOptions.__annotations__)
    parameters = inspect.signature(ddlsched.simulate).parameters
    assert list(parameters) == ["workload", "cluster", *declared(RunOptions)]
    assert all(parameters[name].default == each.default for name, each in declared(RunOptions).items())
    for name, text in described(RunOptions).items():
        assert f"    {name}\n        {text[:20]}" in str(ddlsched.simulate.__doc__)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, given in SIMULATE.items() for name in given])
def test_each_option_of_simulate_reaches_the_run(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, place, expected = SIMULATE[kind][name]
    plain = at(arguments_of_the_run(monkeypatch), place)
    got = at(arguments_of_the_run(monkeypatch, f"--{name.replace('_', '-')}", *words), place)
    assert (got, type(got)) == (expected, type(expected))
    assert plain != expected


@pytest.mark.long
def test_each_output_is_written() -> None:
    flags = ["--jobs-out", "x.csv", "--run-out", "x.parquet", "--timeline", "x.json", "--timeline-window", "0:9"]
    done = run("simulate", "jobs.csv", *flags, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("{")
    assert all(Path(name).stat().st_size for name in ("x.csv", "x.parquet", "x.json"))
    assert {f"--{field.name.replace('_', '-')}" for field in fields(OutputOptions)} - {"--as-json", "--draws"} == set(
        flags[::2]
    )
    three = run("simulate", "jobs.csv", "--draws", "3", "--json")
    assert json.loads(three.stdout)["draws"] == 3
    assert "average JCT of 2 draws" in run("simulate", "jobs.csv", "--draws", "2").stdout
    assert "--draws 0: is no number of runs" in run("simulate", "jobs.csv", "--draws", "0").stderr
    late = run("simulate", "jobs.csv", "--draws", "2", "--warmup-s", "1e9")
    assert "--draws 2: no job that counts has finished in draw 1; expected one in each" in late.stderr


def test_a_draw_in_which_no_job_finishes_is_named() -> None:
    # Ten iterations end at 1.12 s, and the eleven of a longer draw at 1.182 s.
    done = run("simulate", "jobs.csv", "--draws", "9", "--until-s", "1.15")
    longer = next(draw for draw in range(9) if drawn(read_workload("jobs.csv"), draw)[0].iterations > 10)
    fault = f"--draws 9: no job that counts has finished in draw {longer + 1}; expected one in each"
    assert (done.exit_code, done.stdout, fault in done.stderr) == (2, "", True)


def test_a_run_without_options_has_the_defaults_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = inspect.signature(ddlsched.simulation.simulate).parameters
    got = arguments_of_the_run(monkeypatch)
    assert callable(got.pop("watch"))  # the status line
    assert got == {name: parameters[name].default for name in ("seed", "timeline")}


COMPARE: dict[str, Any] = {
    "servers": [3, 5],
    "gpus_per_server": 2,
    "gpu_memory_mb": 5000.5,
    "server_table": ["servers.csv"],
    "topology": ["star", "fat-tree:k=4"],
    "exclusive": True,
    "contention": ["max-min", "1gbe"],
    "scheduler": ["srsf-1", "srsf-2"],
    "placement": ["first-fit", "random"],
    "order": ["fifo", "las"],
    "communication": ["preemptive", "adadual"],
    "allocation": ["malleable", "tiresias"],
}


def asked_of_a_comparison(monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, Any]:
    """Return what 'ddlsched compare' asks for."""
    got: dict[str, Any] = {}

    def record(given: dict[str, Any], where: Any) -> None:
        got.update(given)
        raise StopError

    monkeypatch.setattr(ddlsched.comparisons.compare, "planned", record)
    with pytest.raises(StopError):
        COMMAND.main(["compare", "jobs.csv", *flags], standalone_mode=False)
    return got


@pytest.mark.parametrize("name", COMPARE)
def test_each_option_of_compare_reaches_the_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_of_a_comparison(monkeypatch) == {"workloads": ["jobs.csv"]}
    expected = COMPARE[name]
    flag = f"--{name.replace('_', '-')}"
    values = expected if isinstance(expected, list) else [expected]
    words = [word for value in values for word in ([flag] if value is True else [flag, str(value)])]
    asked = {name: expected}
    if name == "scheduler":
        asked = {"policies": expected}
    elif name in ("placement", "order", "communication", "allocation"):
        asked = {"policies": [{name: expected}]}
    assert asked_of_a_comparison(monkeypatch, *words) == {"workloads": ["jobs.csv"]} | asked


def test_a_comparison_has_the_defaults_of_a_run() -> None:
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    shared = [name for name, each in declared(RunOptions).items() if name in defaults and each.panel is not None]
    assert len(shared) == 9
    of_cluster = {name: getattr(Cluster, name, None) for name in shared} | {"servers": Cluster.num_servers}
    for name in shared:
        default = of_cluster[name] if name in CLUSTER_OPTIONS else declared(RunOptions)[name].default
        assert defaults[name] in ([default], default, [] if default is None else ...)


# ---- Help and dropped flags


KIND_OF = {"--scheduler": "bundle"} | {f"--{kind}": kind for kind in KINDS}


@pytest.mark.long
@pytest.mark.parametrize("command", [("simulate",), ("compare",), ("estimate",), ("design",), ("live",)])
def test_help_lists_every_name(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "1000")
    options = {flag: option for option in COMMAND.get_command(None, command[0]).params for flag in option.opts}
    text = run(*command, "--help").stdout
    named = KIND_OF.keys() & options.keys()
    assert named
    for flag in named:
        assert f"Names: {', '.join(names(KIND_OF[flag]))}." in " ".join(text.replace("│", " ").split())
    assert run(*command, "--help").stdout == text


def test_a_number_that_is_called_as_a_kind_of_plugin_has_no_names() -> None:
    assert "Names:" not in run("record", "--help").stdout  # --ranks


@pytest.mark.parametrize("flag", ["--latency-s", "--per-byte-s", "--penalty-per-byte-s"])
@pytest.mark.parametrize("form", ["{} 1e-4", "{}=1e-4", "{}"])
def test_a_dropped_flag_says_what_to_write_now(flag: str, form: str) -> None:
    done = run("simulate", "jobs.csv", *form.format(flag).split())
    name = flag[2:].replace("-", "_")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"ddlsched: error: {flag}: is a parameter of the contention model now; expected")
    assert f"--contention linear:{name}=" in done.stderr
    assert run("simulate", "jobs.csv", "--json", "--contention", f"linear:{name}=1e-4").exit_code == 0


def test_dropped_flags_are_documented() -> None:
    text = (Path(ddlsched.__file__).parents[1] / "docs" / "migrating.md").read_text(encoding="utf-8")
    assert all(f"`{flag} " in text for flags in DROPPED.values() for flag in flags)


# ---- The adapter


@dataclass(frozen=True, kw_only=True)
class Oven:
    """An oven.

    Parameters
    ----------
    heat_s
        How long it is
        heated, seconds, e.g. ``2.5``; in Python also a pair.
    trays
        How many.
    until_s
        The end.
    label
        What it is called.
    clean
        First clean it.
    """

    heat_s: float | tuple[float, float] = 2.0
    trays: int = 3
    until_s: float = float("inf")
    label: str | None = option(None, metavar="WORDS", shown="nothing")
    clean: bool = option(False, flag="--cleaned")

    def __post_init__(self) -> None:
        if self.trays < 1:
            raise InputError("no trays")


def bake(panel: Panel, *args: str) -> tuple[Given[Oven], dict[str, Any]]:
    """Return what a command gets, and its options."""
    got: list[Given[Oven]] = []

    def command(name: str, *, oven: Annotated[Given[Oven], panel], last: int = 1) -> None:
        got.append(oven)
        assert (name, last) == ("bread", 1)

    command.__annotations__ = {"name": str, "oven": Annotated[Given[Oven], panel], "last": int}
    app = typer.Typer()
    app.command()(with_options(command))
    made: Any = typer.main.get_command(app)
    made.main(["bread", *args], standalone_mode=False)
    return got[0], {each.name: each for each in made.params}


def test_options_of_a_dataclass() -> None:
    given, options = bake(Panel("Oven"), "--trays", "4", "--cleaned")
    assert given.values == {"heat_s": 2.0, "trays": 4, "clean": True}
    assert given.made() == Oven(trays=4, clean=True)
    assert list(options)[:7] == ["name", "heat_s", "trays", "until_s", "label", "clean", "last"]
    assert options["heat_s"].help == "How long it is heated, seconds, e.g. 2.5."
    assert [options[name].metavar for name in ("heat_s", "trays", "label", "clean")] == ["S", "N", "WORDS", None]
    assert [options[name].default for name in ("heat_s", "trays", "until_s")] == [2.0, 3, None]
    assert options["clean"].opts == ["--cleaned"]
    assert [options[name].show_default for name in ("heat_s", "trays", "label", "clean")] == [
        True,
        True,
        "nothing",
        True,
    ]


@pytest.mark.parametrize(
    ("panel", "shown"),
    [
        (Panel("Oven", only_given=True), ["2", "3", "nothing", True]),
        (Panel("Oven", several=("trays",)), [True, "3", "nothing", True]),
        (Panel("Oven", shown={"heat_s": "warm", "trays": None}), ["warm", True, "nothing", True]),
    ],
)
def test_a_default_that_is_left_to_others_is_shown(panel: Panel, shown: list[object]) -> None:
    given, options = bake(panel)
    assert [options[name].show_default for name in ("heat_s", "trays", "label", "clean")] == shown
    left = {"heat_s", "trays"} - set(given.values)
    assert left == {name for name in ("heat_s", "trays") if options[name].default is None}


def test_texts_and_plain_paths_are_made_without_typer() -> None:
    plain, there = typer.Option(readable=False), typer.Option(readable=False, exists=True)
    assert [_plain_maker(kind, plain, several=False) for kind in (str, int, Path)] == [str, None, Path]
    assert _plain_maker(Path, there, several=False) is None
    assert _plain_maker(list[str], plain, several=True) is str


def test_a_dataclass_refuses_when_it_is_made() -> None:
    given, _ = bake(Panel("Oven"), "--trays", "0")
    with pytest.raises(InputError, match="no trays"):
        given.made()


def test_some_fields_several_times_or_only_if_given() -> None:
    panel = Panel("Oven", only=("trays", "heat_s"), several=("trays",), only_given=True, shown={"heat_s": "a while"})
    given, options = bake(panel, "--trays", "4", "--trays", "5")
    assert given.values == {"trays": [4, 5]}
    assert option_names(Oven, panel) == ["heat_s", "trays"]
    assert set(options) & {field.name for field in dataclasses.fields(Oven)} == {"heat_s", "trays"}
    assert [options[name].show_default for name in ("trays", "heat_s")] == ["3", "a while"]
