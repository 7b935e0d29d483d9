"""The command line: results on stdout, one line for each failure, exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, Run, refused, run
from golden_cases import golden_cases

from ddlsched import read_workload
from ddlsched.cli import main
from ddlsched.plugins.names import KINDS, names
from ddlsched.simulation import warm_up

METRICS = ["average_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "gpu_utilisation"]
METRICS += ["jobs", "unfinished_jobs", "restarts", "events", "engine_s"]
HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
ROWS = (
    "alone,0.5,1,10,0.025,0.037,99200000.0,3213\n"
    '"two, ""wide""",0,2,5,0.001,0.002,1e6,1000.5\n'
    "third,0.25,3,4,0.010,0.020,2.5e8,4527\n"
    "fourth,0.25,4,6,0.010,0.030,5e8,4527\n"
)
POLICIES = '''
from __future__ import annotations
import os, signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

class Base:
    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

@dataclass(frozen=True, kw_only=True)
class Last(Base):
    """Its last parameter has a type that only type checkers import."""
    skip: int = 0
    share: float = 1.0
    table: pd.DataFrame | None = None
    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)[self.skip :]
        return gpus[-job.num_gpus :] if len(gpus) >= job.num_gpus else None

class Raises(Base):
    def place(self, job, cluster):
        return self.helper(cluster)
    def helper(self, cluster):
        raise KeyError("first line\\nsecond [bold]line[/bold]")

class RaisesInOurs(Base):
    def place(self, job, cluster):
        return cluster.load_ns("zero")

class Twice(Base):
    def place(self, job, cluster):
        return [0] * job.num_gpus if job.num_gpus > 1 else [0]

class TooFew(Base):
    def place(self, job, cluster):
        return [0][: job.num_gpus - 1]

class Elsewhere(Base):
    def place(self, job, cluster):
        return range(10_000, 10_000 + job.num_gpus)

class Nonsense(Base):
    def place(self, job, cluster):
        return 42

class Never(Base):
    def place(self, job, cluster):
        return None

class NoArguments(Base):
    def place(self):
        return [0]

class Interrupted(Base):
    def place(self, job, cluster):
        os.kill(os.getpid(), signal.SIGINT)

class Needs(Base):
    def __init__(self, beta: int, gamma=2.5, *rest, **more):
        self.beta, self.gamma = beta, gamma
        assert type(beta) is int and type(gamma) is float

class Refuses(Base):
    def __init__(self, *, alpha: float = 1.0):
        raise ValueError(f"alpha is {alpha}")

class Either(Base):
    def __init__(self, limit: int | None = 3, size: int | float = 1):
        assert (limit, size) == (None, 2.5)

class NotAPolicy:
    pass

class NanKey:
    def key(self, job, now_s):
        return float("nan")

class TextAndNumber:
    def key(self, job, now_s):
        return job.job_id if job.number else 1

class SaysYes:
    def admit(self, transfer, network):
        return "yes"

class SelectsNonsense:
    def select(self, transfers, network):
        return [1]

@dataclass(frozen=True, kw_only=True)
class Backwards:
    latency_s: float = 0.0
    alone_per_byte_s: float = 1e-9
    penalty_per_byte_s: float = 0.0
    def __post_init__(self):
        if self.latency_s > 1:
            raise ValueError("latency_s is too long")
    def bound_to(self, network):
        return self
    def wire_bytes(self, message_bytes, num_servers):
        return message_bytes
    def rates(self, active, waiting, links):
        return [-1.0 for _ in active]
'''


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Let no command say that it compiles."""
    warm_up()


@pytest.fixture(autouse=True)
def _files(in_a_new_folder: None) -> None:
    Path("jobs.csv").write_text(HEADER + ROWS)
    Path("mine.py").write_text(POLICIES)


def simulate(*args: object) -> Run:
    return run("simulate", "jobs.csv", "--servers", 4, "--gpus-per-server", 1, *args)


def times(*args: object) -> str:
    """Return what --jobs-out gives for a run."""
    result = simulate("--jobs-out", "times.csv", *args)
    assert result.exit_code == 0, result.stderr
    return Path("times.csv").read_text()


def usage_error(result: Run, *parts: str) -> None:
    words = " ".join(result.stderr.replace("│", " ").split())
    assert (result.exit_code, result.stdout) == (2, "")
    for part in ("Usage:", *parts):
        assert part in words


def leftovers() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"jobs.csv", "mine.py", "__pycache__"}


# ---- Help, names, version


def options(command: str) -> dict[str, Any]:
    parameters = COMMAND.get_command(None, command).params
    return {name: parameter for parameter in parameters for name in parameter.opts}


def test_simulate_has_the_published_flags() -> None:
    flags = """servers gpus-per-server gpu-memory-mb topology scheduler placement order communication contention
    load-per-byte-s seed jobs-out timeline timeline-window json
    server-table jitter-cv straggler-share straggler-slowdown server-mtbf-s server-repair-s outages
    checkpoint-iterations restart-s state-mb capacity allocation rescale-cost warmup-s until-s run-out interference
    exclusive path throughputs reference-kind prediction-error steady
    queues admission replay draws state-share failures sample checkpoint checkpoint-to recovery health restart-gpu-s
    restart-iterations"""
    assert set(options("simulate")) == {"jobs"} | {f"--{flag}" for flag in flags.split()}


def test_every_option_has_a_help_text() -> None:
    for command in ("simulate", "list"):
        for name, option in options(command).items():
            assert len(option.help) > 8, name


@pytest.mark.parametrize("command", [(), ("simulate",), ("workload",), ("workload", "microsoft-160"), ("list",)])
def test_help(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert " ".join(("Usage:", "ddlsched", *command)) in " ".join(result.stdout.split())


@pytest.mark.long
def test_only_options_of_a_run_are_helped_with_the_names_that_there_are() -> None:
    """The scheduler whose cluster is imported is no bundle of policies."""
    assert ("Names:" in run("simulate", "--help").stdout, "Names:" in run("import-cluster", "--help").stdout) == (1, 0)


def test_version() -> None:
    from ddlsched import __version__

    result = run("--version")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"ddlsched {__version__}\n", "")


def test_list() -> None:
    lines = run("list").stdout.splitlines()
    assert {line.split()[0] for line in lines} == set(KINDS)
    assert "lwf" in next(line for line in lines if line.startswith("placement"))


def test_list_one_kind_gives_a_name_a_line() -> None:
    assert run("list", "bundle").stdout.split() == names("bundle")


def test_list_json() -> None:
    assert json.loads(run("list", "--json").stdout) == {kind: names(kind) for kind in KINDS}
    assert json.loads(run("list", "order", "--json").stdout) == {"order": names("order")}


def test_list_of_a_misspelt_kind() -> None:
    refused(run("list", "plcement"), "'plcement'", "Did you mean 'placement'?")


def test_a_misspelt_command() -> None:
    usage_error(run("simulat"), "No such command 'simulat'", "simulate")


# ---- Results


def test_json_has_exactly_the_metrics() -> None:
    result = simulate("--json", "--exclusive")
    assert result.stderr == ""
    assert list(json.loads(result.stdout)) == METRICS


def test_plain_result_has_units_and_no_escape_codes() -> None:
    result = simulate()
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "4 jobs on 4 GPUs" in result.stdout
    assert [line.split()[-1] for line in result.stdout.splitlines() if "JCT" in line] == ["s", "s", "s"]


def test_names_values_and_units_of_a_plain_result_stand_in_columns_two_blanks_apart() -> None:
    found = [re.fullmatch(r" (\S.*\S)  +([\d.,]+)(  \S+)?", line) for line in simulate().stdout.splitlines()]
    rows = [row for row in found if row]
    assert len(rows) >= 7
    assert len({row.end(2) for row in rows}) == 1
    assert min(row.start(2) for row in rows) == max(row.end(1) for row in rows) + 2


@pytest.mark.long
def test_a_terminal_gets_progress_on_stderr_and_the_same_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1m4 jobs on 4 GPUs" in simulate().stdout
    result = simulate("--json")
    assert "simulating 4 jobs on 4 GPUs" in result.stderr
    assert list(json.loads(result.stdout)) == METRICS


def test_jobs_out_worked_out_by_hand() -> None:
    # 5 iterations of 1 + 2 ms and 1 MB at 1 ns a byte; 10 of 25 + 37 ms.
    Path("jobs.csv").write_text(HEADER + "".join(ROWS.splitlines(keepends=True)[:2]))
    expected = 'alone,0.500000000,1.120000000,0.620000000\n"two, ""wide""",0.000000000,0.020000000,0.020000000\n'
    constants = ("--contention", "linear:per_byte_s=1e-9,latency_s=0,penalty_per_byte_s=0")
    assert times(*constants) == "job_id,start_s,finish_s,jct_s\n" + expected


def test_jobs_out_keeps_nanoseconds_that_floats_of_seconds_lose() -> None:
    Path("jobs.csv").write_text(HEADER + "late,1e9,1,1,1e-9,2e-9,0,1\n")
    assert times().splitlines()[1] == "late,1000000000.000000000,1000000000.000000003,0.000000003"


@pytest.mark.parametrize("case", ["case1", "case7", "case8"])
@pytest.mark.parametrize("communication", ["bounded-overlap:limit=2", "adadual", "preemptive:by=bytes"])
def test_jobs_out_agrees_with_the_golden_cases(case: str, communication: str) -> None:
    golden = golden_cases()[case, "lwf:kappa=1", communication]
    policies = ("--placement", "lwf:kappa=1", "--communication", communication)
    size = ("--servers", golden.servers, "--contention", f"10gbe:latency_s={golden.latency_s}")
    run("simulate", golden.workload, *policies, *size, "--jobs-out", "times.csv")
    with Path("times.csv").open(newline="") as file:
        got = {row["job_id"]: (row["start_s"], row["finish_s"]) for row in csv.DictReader(file)}
    assert list(got.items()) == list(golden.times_s.items())


def test_the_defaults_are_the_experiments() -> None:
    run("simulate", "jobs.csv", "--jobs-out", "default.csv")
    policies = ("--placement", "lwf:kappa=1", "--order", "srsf", "--communication", "adadual")
    size = ("--servers", 16, "--gpus-per-server", 4, "--gpu-memory-mb", 32768, "--topology", "star")
    constants = ("--contention", "linear:latency_s=0,per_byte_s=8.56e-10,penalty_per_byte_s=2.35e-10")
    run("simulate", "jobs.csv", *size, *policies, *constants, "--jobs-out", "given.csv")
    assert Path("default.csv").read_text() == Path("given.csv").read_text()


@pytest.mark.long
def test_a_policy_replaces_that_of_the_bundle() -> None:
    assert times("--scheduler", "srsf-2") != times("--scheduler", "srsf-1")
    mixed = times("--scheduler", "srsf-1", "--communication", "bounded-overlap:limit=2")
    assert mixed == times("--scheduler", "srsf-2")


@pytest.mark.long
def test_a_seed_repeats_a_random_placement_to_the_bit() -> None:
    runs = [times("--gpus-per-server", 4, "--placement", "random", "--seed", seed) for seed in (1, 1, 2, 3, 4)]
    assert runs[0] == runs[1]
    assert len(set(runs)) > 1


@pytest.mark.long
def test_topologies_take_parameters() -> None:
    flat = times("--contention", "max-min")
    thin = "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=8"
    assert times("--contention", "max-min", "--topology", thin) != flat


@pytest.mark.long
def test_constants_replace_those_of_the_contention_model() -> None:
    gigabit = "linear:per_byte_s=7.8125e-9,penalty_per_byte_s=0.7e-9"
    assert times("--contention", gigabit) == times("--contention", "1gbe")
    assert times("--contention", "linear:latency_s=0.01") == times("--contention", "10gbe:latency_s=0.01") != times()


@pytest.mark.long
def test_a_faster_card_changes_times_and_is_said() -> None:
    fast = ("--topology", "star:nic_gbps=100")
    assert times(*fast) != times() == times(*fast, "--contention", "10gbe")
    said = "Linear contention: b = 8.56e-11 s and η = 2.35e-11 s a byte, scaled to the topology's card of 100 Gbit/s."
    assert simulate(*fast).stdout.splitlines()[-1] == said
    assert said in simulate(*fast, "--json").stderr
    assert "Linear contention" not in simulate().stdout


def test_a_constant_that_the_model_lacks() -> None:
    result = simulate("--contention", "max-min:penalty_per_byte_s=1e-10")
    refused(result, "max-min: no parameter is named 'penalty_per_byte_s'")
    result = simulate("--contention", "mine.py:Backwards:per_byte_s=1")
    refused(result, "Backwards: no parameter is named 'per_byte_s'")


def test_load_per_byte_changes_the_load_only() -> None:
    assert simulate("--load-per-byte-s", 0).exit_code == 0
    refused(simulate("--load-per-byte-s", -1), "load_per_byte_s", "-1")


# ---- Files that a run writes


@pytest.mark.long
def test_timeline() -> None:
    result = simulate("--timeline", "all.json", "--json")
    assert list(json.loads(result.stdout)) == METRICS
    assert "all.json" in result.stderr
    simulate("--timeline", "part.json", "--timeline-window", "0.5:0.6")
    events = [json.loads(Path(name).read_text())["traceEvents"] for name in ("all.json", "part.json")]
    assert 0 < len(events[1]) < len(events[0])


@pytest.mark.parametrize("window", ["5:1", "1:1", "abc", "1", "1:2:3", ":", "", "1:", "nan:2", "1:nan", "-1:5", "1:x"])
def test_a_bad_window(window: str) -> None:
    refused(simulate("--timeline", "t.json", f"--timeline-window={window}"), "--timeline-window", window, "FROM")
    assert leftovers() == set()


def test_a_window_without_a_timeline() -> None:
    refused(simulate("--timeline-window", "1:2"), "--timeline-window", "expected --timeline")


@pytest.mark.parametrize("flag", ["--jobs-out", "--timeline"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".", "is a folder"),
        ("", "is a folder"),
        ("missing/x.csv", "there is no folder missing"),
        ("jobs.csv/x.csv", "there is no folder jobs.csv"),
        ("jobs.csv", "same file as JOBS"),
        ("../NAME/jobs.csv", "same file as JOBS"),
        ("a" * 300, "cannot be written"),
        ("/proc/x.csv", "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_written(flag: str, path: str, why: str, tmp_path: Path) -> None:
    path = path.replace("NAME", tmp_path.name)
    refused(simulate("--placement", "mine.py:Raises", flag, path), flag, path, why)
    assert leftovers() == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_file_is_kept() -> None:
    Path("old.csv").write_text("old")
    Path("old.csv").chmod(0o444)
    refused(simulate("--jobs-out", "old.csv"), "--jobs-out old.csv", "Permission denied")
    assert Path("old.csv").read_text() == "old"


def test_two_outputs_to_one_file() -> None:
    refused(simulate("--jobs-out", "x", "--timeline", "./x"), "--timeline x", "same file as --jobs-out")


def test_a_failed_run_keeps_the_file_of_the_run_before() -> None:
    Path("times.csv").write_text("old")
    assert simulate("--jobs-out", "times.csv", "--placement", "mine.py:Raises").exit_code == 1
    assert Path("times.csv").read_text() == "old"
    assert leftovers() == {"times.csv"}


def test_a_link_is_followed_and_a_device_is_not_replaced() -> None:
    Path("link.csv").symlink_to("real.csv")
    simulate("--jobs-out", "link.csv")
    assert Path("link.csv").is_symlink()
    assert Path("real.csv").read_text().startswith("job_id,start_s")
    assert simulate("--jobs-out", "/dev/null").exit_code == 0
    assert not Path("/dev/null").is_file()
    assert leftovers() == {"link.csv", "real.csv"}


def test_a_full_disk() -> None:
    refused(simulate("--jobs-out", "/dev/full"), "--jobs-out /dev/full", "No space left")


# ---- Workloads


def test_workload_file_and_stdout_are_the_same() -> None:
    result = run("workload", "microsoft-160", "--seed", 3, "--out", "w.csv")
    assert "wrote 160 jobs to w.csv" in result.stderr
    assert (result.exit_code, result.stdout) == (0, "")
    assert "160 jobs" in result.stderr
    result = run("workload", "microsoft-160", "--seed", 3)
    assert (result.stdout, result.stderr) == (Path("w.csv").read_text(), "")
    assert result.stdout != run("workload", "microsoft-160").stdout


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_workload_formats_agree(suffix: str) -> None:
    for out in (f"w.{suffix}", "w.csv"):
        assert run("workload", "microsoft-160", "--scale", 0.01, "--out", out).exit_code == 0
    assert read_workload(f"w.{suffix}") == read_workload("w.csv")
    assert leftovers() == {f"w.{suffix}", "w.csv"}


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--seed", "-1"], ["seed is -1"]),
        (["--scale", "0"], ["scale is 0.0"]),
        (["--scale", "1e9"], ["scale is 1000000000.0"]),
        (["--out", "w.txt"], ["w.txt", "'.txt'", ".parquet"]),
        (["--out", "w"], ["w: the suffix is ''"]),
        (["--out", "missing/w.csv"], ["--out missing/w.csv", "no folder"]),
    ],
)
def test_bad_workload_arguments(args: list[str], parts: list[str]) -> None:
    refused(run("workload", "microsoft-160", *args), *parts)
    assert leftovers() == set()


# ---- Bad arguments


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--servers", value) for value in ("1e3", "abc", "nan", "1_6", "", "1.5", "[red]4[/red]")),
        *(("--seed", value) for value in ("1.5", "x")),
        *(("--gpu-memory-mb", value) for value in ("nan", "inf", "x", "1_000")),
        *(("--load-per-byte-s", value) for value in ("nan", "-inf", "1e400", "x", "")),
    ],
)
def test_a_value_that_is_no_number(flag: str, value: str) -> None:
    usage_error(simulate(flag, value), f"'{flag}'", f"'{value}' is not a ")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--servers", "0"], ["num_servers is 0; expected a whole number from 1"]),
        (["--gpus-per-server", "-3"], ["gpus_per_server is -3"]),
        (["--gpu-memory-mb", "0"], ["gpu_memory_mb is 0.0"]),
        (["--seed", "-1"], ["seed is -1"]),
        (["--contention", "linear:latency_s=-1"], ["latency_s is -1.0"]),
        (["--contention", "linear:latency_s=nan"], ["latency_s is nan"]),
        (["--contention", "linear:per_byte_s=0"], ["per_byte_s is 0"]),
        (["--servers", "1"], ["jobs.csv, row 2, column gpus", "'two, \"wide\"'", "2 GPUs", "the cluster's 1"]),
        (["--gpu-memory-mb", "4000"], ["jobs.csv, row 3, column gpu_memory_mb", "'third'", "4527 MB", "4000"]),
    ],
)
def test_a_value_out_of_range(args: list[str], parts: list[str]) -> None:
    refused(simulate(*args), *parts)


def test_usage_errors() -> None:
    usage_error(run("simulate"), "Missing argument 'JOBS'")
    usage_error(run("simulate", "jobs.csv", "more.csv"), "more.csv")
    usage_error(run("simulate", "jobs.csv", "--sever", 4), "--sever", "--servers")


@pytest.mark.parametrize(
    ("flag", "name", "parts"),
    [
        ("--scheduler", "ada-srfs", ["no bundle", "'ada-srfs'", "'ada-srsf'"]),
        ("--scheduler", "mine.py:Last", ["no bundle", "'mine.py:Last'"]),
        ("--placement", "lfw", ["no placement", "'lfw'", "'lwf'", "path/to/file.py:ClassName"]),
        ("--placement", "", ["no placement", "''", "Known: arnold, blocks, cassini, conservative-backfill, delay"]),
        ("--placement", "mine.py", ["mine.py: is a file; expected mine.py:CLASS", "Known: Backwards"]),
        ("--order", "srtsf", ["no order", "'srsf'", "'srtf'"]),
        ("--communication", "adaduel", ["no communication", "'adadual'"]),
        ("--contention", "10gb", ["no contention", "'10gbe'"]),
        ("--topology", "spine-leaf", ["no topology", "'leaf-spine'"]),
        ("--placement", "lwf:kapa=1", ["lwf", "'kapa'", "Did you mean 'kappa'?"]),
        ("--placement", "lwf:kappa=two", ["lwf", "kappa", "'two' is not a whole number"]),
        ("--placement", "lwf:kappa=1.5", ["lwf", "kappa", "'1.5' is not a whole number"]),
        ("--placement", "lwf:kappa=1_0", ["lwf", "kappa", "'1_0' is not a whole number"]),
        ("--placement", "lwf:kappa=", ["lwf", "kappa", "'' is not a whole number"]),
        ("--placement", "lwf:kappa", ["lwf", "'kappa' is no parameter", "name=value"]),
        ("--placement", "lwf:kappa=1,", ["lwf", "'' is no parameter"]),
        ("--placement", "lwf:kappa=1,kappa=2", ["lwf", "kappa is given twice"]),
        ("--placement", "lwf:kappa=-1", ["lwf", "kappa is -1"]),
        ("--placement", "random:p=1", ["random", "'p'", "no parameters"]),
        ("--order", "srsf:communication=maybe", ["srsf", "communication", "'maybe'", "true or false"]),
        ("--communication", "preemptive:by=byte", ["'byte'", "'bytes'"]),
        ("--contention", "linear:per_byte_s=fast", ["linear", "per_byte_s", "'fast' is not a number"]),
        ("--topology", "fat-tree:k=3", ["k is 3", "even"]),
    ],
)
def test_a_misspelt_name_or_parameter(flag: str, name: str, parts: list[str]) -> None:
    refused(simulate(flag, name), *parts)


def test_a_workload_that_is_missing() -> None:
    refused(run("simulate", "job.csv"), "job.csv", "no such file", "ddlsched workload --help")
    refused(run("simulate", "."), "is a folder")
    refused(run("simulate", "a" * 300 + ".csv"), "File name too long")


def test_a_name_with_control_characters_stays_one_line() -> None:
    refused(run("simulate", "a\nb\x1b[31m.csv"), r"a\nb\x1b[31m.csv: no such file")


# ---- Plug-ins from files


def test_a_class_in_a_file() -> None:
    refused(simulate("--placement", "mine.py:Base:skip=1"), "Base: no parameter is named 'skip'")
    path = Path("mine.py").resolve()
    assert times("--placement", f"{path}:Last:skip=0,share=0.5") == times("--placement", "first-fit")
    stuck = simulate("--placement", "mine.py:Last:skip=2")
    refused(stuck, "Last(skip=2, share=1.0, table=None) keeps waiting with jobs third, fourth", exit_code=1)


def test_parameters_get_the_type_of_the_annotation_or_the_default() -> None:
    assert times("--placement", "mine.py:Needs:beta=1,gamma=3") == times("--placement", "mine.py:Base")
    assert times("--placement", "mine.py:Either:limit=none,size=2.5") == times("--placement", "mine.py:Base")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("none.py:Last", ["none.py: no such file", "'Last'"]),
        ("mine.py:Lst", ["mine.py: has no class or function 'Lst'", "'Last'"]),
        ("mine.py:", ["mine.py: is a file; expected mine.py:CLASS", "Known:", "Last"]),
        ("mine.py:TYPE_CHECKING", ["has no class or function 'TYPE_CHECKING'"]),
        ("mine.py:NotAPolicy", ["placement NotAPolicy: has no place"]),
        ("mine.py:Needs", ["placement Needs: parameter beta is missing", "Needs:beta=VALUE"]),
        ("mine.py:Needs:gamma=x", ["Needs, parameter gamma: 'x' is not a number"]),
        ("mine.py:Last:skp=1", ["Last: no parameter is named 'skp'", "'skip'"]),
        ("mine.py:Last:skip=half", ["Last, parameter skip: 'half' is not a whole number"]),
    ],
)
def test_a_class_that_cannot_be_used(name: str, parts: list[str]) -> None:
    refused(simulate("--placement", name), *parts)


@pytest.mark.parametrize("kind", ["order", "communication", "contention", "topology"])
def test_a_class_of_another_kind(kind: str) -> None:
    refused(simulate(f"--{kind}", "mine.py:Last"), f"{kind} Last: has no ")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("placement mine.py:Twice", ["Twice", "0.0 s", "'two, \"wide\"'", "GPU 0 twice"]),
        ("placement mine.py:TooFew", ["TooFew", "0.0 s", "1 GPUs [0]", "expected 2"]),
        ("placement mine.py:Elsewhere", ["Elsewhere", "0.0 s", "GPU 10000", "0 to 3"]),
        ("placement mine.py:Nonsense", ["Nonsense", "0.0 s", "answered 42", "2 GPU numbers or None"]),
        ("placement mine.py:NoArguments", ["NoArguments", "0.0 s", "takes 1 positional argument"]),
        ("placement mine.py:Never", ["Never", "0.5 s", "nothing is left to happen", "fourth"]),
        ("order mine.py:NanKey", ["NanKey", "key is nan"]),
        ("order mine.py:TextAndNumber", ["TextAndNumber", "expected numbers that can be ordered"]),
        ("communication mine.py:SaysYes", ["SaysYes", "'yes'", "True or False"]),
        ("communication mine.py:SelectsNonsense", ["SelectsNonsense", "answered 1"]),
        ("contention mine.py:Backwards", ["Backwards", "-1.0", "numbers > 0"]),
    ],
)
def test_a_plugin_that_answers_nonsense(name: str, parts: list[str]) -> None:
    kind, _, plugin = name.partition(" ")
    result = simulate(f"--{kind}", plugin)
    said = [line for line in result.stderr.splitlines(keepends=True) if "is asked in Python" not in line]
    first, rest = said[0], "".join(said[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "ddlsched/" not in rest
    for part in ("ddlsched: error: ", kind, *parts):
        assert part in first


def traceback_of(result: Run) -> list[str]:
    """Return the files and functions of the traceback on stderr, and its last line."""
    assert (result.exit_code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()[1:]
    frames = [line.split('"')[1].rpartition("/")[2] + line.split(", in ")[-1] for line in lines if "  File " in line]
    return [*frames, lines[-1]]


def test_a_plugin_that_raises_shows_its_own_traceback() -> None:
    result = simulate("--placement", "mine.py:Raises")
    assert result.stderr.startswith("ddlsched: error: placement Raises raised KeyError at 0.0 s, job 'two, \"wide\"': ")
    message = r"KeyError: 'first line\nsecond [bold]line[/bold]'"
    assert traceback_of(result) == ["mine.pyplace", "mine.pyhelper", message]


def test_a_plugin_that_raises_inside_ours_shows_all_from_its_file_on() -> None:
    frames = traceback_of(simulate("--placement", "mine.py:RaisesInOurs"))
    assert frames[:2] == ["mine.pyplace", "cluster_view.pyload_ns"]


def test_a_plugin_that_refuses_its_parameters() -> None:
    result = simulate("--placement", "mine.py:Refuses:alpha=2")
    assert "Refuses(alpha=2.0)" in result.stderr.splitlines()[0]
    assert traceback_of(result) == ["mine.py__init__", "ValueError: alpha is 2.0"]
    result = simulate("--contention", "mine.py:Backwards:latency_s=2")
    assert traceback_of(result) == ["mine.py__post_init__", "ValueError: latency_s is too long"]


@pytest.mark.parametrize(
    ("source", "last"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported(source: str, last: str) -> None:
    Path("broken.py").write_text(source)
    result = simulate("--placement", "broken.py:Any")
    assert "broken.py: cannot be imported" in result.stderr.splitlines()[0]
    assert traceback_of(result) == ["broken.py<module>", last]


def test_a_syntax_error_shows_its_place() -> None:
    Path("broken.py").write_text("x = 1\ndef f(:\n")
    result = simulate("--placement", "broken.py:Any")
    assert result.exit_code == 1
    assert "line 2" in result.stderr
    assert "def f(:" in result.stderr
    assert "ddlsched/" not in result.stderr


def test_an_interrupt_ends_with_130_and_a_line() -> None:
    Path("times.csv").write_text("old")
    result = simulate("--placement", "mine.py:Interrupted", "--jobs-out", "times.csv")
    assert (result.exit_code, result.stdout, result.stderr) == (
        130,
        "",
        "ddlsched: error: interrupted in mine.py, line 61, place: a policy that never answers ends no run\n",
    )
    assert Path("times.csv").read_text() == "old"
    assert leftovers() == {"times.csv"}


# ---- Whole processes


def process(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ddlsched", *args], text=True, **more)


def test_main_takes_arguments_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["list", "bundle"])
    assert (ended.value.code, capsys.readouterr().out.split()) == (0, names("bundle"))


@pytest.mark.long
def test_a_process_writes_the_result_to_stdout_only() -> None:
    done = process("simulate", "jobs.csv", "--json", "--jobs-out", "times.csv", capture_output=True)
    assert done.returncode == 0
    assert list(json.loads(done.stdout)) == METRICS
    assert done.stderr.splitlines()[-1] == "ddlsched: wrote the times of 4 jobs to times.csv"


@pytest.mark.long
def test_a_process_with_bad_input_exits_with_2_and_one_line() -> None:
    done = process("simulate", "jobs.csv", "--placement", "lfw", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("ddlsched: error: no placement is named 'lfw'. Did you mean 'lwf'?")


@pytest.mark.long
def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = process("list", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_reported_once() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("list", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == "ddlsched: error: the result cannot be written to stdout (No space left on device)\n"


HEAVY = ["pandas", "numba", "networkx", "pyarrow", "scipy", "matplotlib", "algorithms", "topologies"]


@pytest.mark.long
def test_what_must_be_quick_imports_nothing_heavy() -> None:
    program = f"""
import sys
from ddlsched.cli import main
for args in (["--help"], ["simulate", "--help"], ["list"]):
    try:
        main(args)
    except SystemExit:
        print(args, sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "['--help'] []\n['simulate', '--help'] []\n['list'] []\n"


# ---- Servers, disturbances, and checking files


def test_the_flags_of_disturbances_reach_the_run() -> None:
    Path("servers.csv").write_text("servers,gpus,gpu_memory_mb,relative_speed\n16,4,32768,2\n")
    Path("outages.csv").write_text("server,from_s,to_s\n0,0.01,0.02\n")
    plain = json.loads(run("simulate", "jobs.csv", "--json").stdout)
    fast = json.loads(run("simulate", "jobs.csv", "--json", "--server-table", "servers.csv").stdout)
    assert fast["average_jct_s"] < plain["average_jct_s"]
    for flags in (
        ["--jitter-cv", "0.3"],
        ["--straggler-share", "1", "--straggler-slowdown", "3"],
        ["--outages", "outages.csv", "--restart-s", "1", "--checkpoint-iterations", "5"],
        ["--server-mtbf-s", "0.3", "--server-repair-s", "0.5"],
    ):
        disturbed = run("simulate", "jobs.csv", "--json", *flags)
        assert disturbed.exit_code == 0, disturbed.stderr
        assert json.loads(disturbed.stdout)["average_jct_s"] > plain["average_jct_s"]
        assert (
            run("simulate", "jobs.csv", "--json", *flags, "--seed", "0").stdout.splitlines()[:8]
            == (disturbed.stdout.splitlines()[:8])
        )


def test_a_run_that_is_cut_off_says_how_many_jobs_are_not_finished() -> None:
    done = run("simulate", "jobs.csv", "--json", "--until-s", "0.001", "--jobs-out", "times.csv")
    found = json.loads(done.stdout)
    assert (found["unfinished_jobs"], found["average_jct_s"]) == (found["jobs"], None)
    assert Path("times.csv").read_text().splitlines()[1].endswith(",,")
    assert "unfinished jobs" in run("simulate", "jobs.csv", "--until-s", "0.001").stdout


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--server-table", "servers.csv", "--servers", "4"], "--servers: the servers are those of --server-table"),
        (["--straggler-slowdown", "3"], "--straggler-slowdown: does nothing alone; expected --straggler-share as well"),
        (
            ["--restart-s", "3"],
            "--restart-s: does nothing alone; expected --server-mtbf-s or --failures or --outages or --capacity or",
        ),
        (["--server-repair-s", "3", "--outages", "o.csv"], "--server-repair-s: does nothing alone"),
        (
            ["--health", "repeated-failures", "--server-mtbf-s", "9"],
            "--health: does nothing alone; expected --failures",
        ),
    ],
)
def test_flags_without_effect_are_refused(flags: list[str], fault: str) -> None:
    for command in (["simulate"], ["compare", "--scheduler", "srsf-1"]):
        done = run(*command, "jobs.csv", *flags)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert fault in done.stderr


@pytest.mark.long
def test_a_flag_beside_a_configuration_may_need_what_that_holds() -> None:
    options = "options: {disturbances: {server_mtbf_s: 1000}}"
    Path("c.yaml").write_text(f"workloads: [jobs.csv]\npolicies: [srsf-1]\nseeds: [1]\n{options}\n")
    assert run("compare", "--config", "c.yaml", "--server-repair-s", "3").exit_code == 0


def test_the_warm_up_is_left_out() -> None:
    assert json.loads(run("simulate", "jobs.csv", "--json", "--warmup-s", "1e6").stdout)["jobs"] == 0


@pytest.mark.parametrize(
    ("name", "text", "kind", "found"),
    [
        ("jobs.csv", None, "workload", {"jobs": 4, "jobs_that_never_fit": 0}),
        ("servers.csv", "servers,gpus,gpu_memory_mb\n3,2,1000\n1,8,2000\n", "servers", {"servers": 4, "gpus": 14}),
        ("outages.csv", "server,from_s,to_s\n0,1,2\n0,3,\n", "outages", {"outages": 2, "never_repaired": 1}),
        (
            "capacity.csv",
            "server,join_s,leave_s,warned\n0,0,10.5,1\n0,20,,\n1,0,30,0\n",
            "capacity",
            {"stays": 3, "servers": 2, "never_leave": 1, "leave_with_a_warning": 1, "joins_s": [0.0, 20.0]},
        ),
        (
            "causes.csv",
            "cause,per,per_1000_days\nnode,server,2.34\nany-job,job,15.6\nswitch,rack,1\n",
            "failures",
            {"causes": 3, "of_each": "job, rack, server"},
        ),
        (
            "compare.yaml",
            "workloads: [jobs.csv, microsoft-160:scale=0.01]\npolicies: [srsf-1, ada-srsf]\nseeds: 3\n",
            "comparison",
            {"policies": 2, "workloads": 2, "clusters": 1, "seeds": 3, "runs": 2 + 6},
        ),
        (
            "queues.yaml",
            "# teams\nqueues:\n- name: all\n- {name: a, parent: all, gpus: 4}\n- {name: b, parent: all, gpus: 4}\n",
            "queues",
            {"queues": 3, "queues_that_take_jobs": 2},
        ),
        ("queues.json", '{\n "queues": [{"name": "a", "gpus": 4}]}', "queues", {"queues": 1}),
    ],
)
def test_validate_says_what_is_in_a_file(name: str, text: str | None, kind: str, found: dict[str, int]) -> None:
    if text is not None:
        Path(name).write_text(text)
    done = json.loads(run("validate", name, "--json").stdout)
    assert (done["file"], done["kind"]) == (name, kind)
    assert {key: done[key] for key in found} == found
    assert run("validate", name).stdout.startswith(f"{name}: valid ({kind})\n")


def test_validate_counts_jobs_that_never_fit_a_cluster() -> None:
    Path("servers.csv").write_text("gpus,gpu_memory_mb\n1,1\n")
    found = json.loads(run("validate", "jobs.csv", "--server-table", "servers.csv", "--json").stdout)
    assert found["jobs_that_never_fit"] == found["jobs"]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.csv", "job_id,arrival_s\nx,1\n", "column 'gpus' is missing"),
        ("a.csv", "server,from_s,to_s\n7,1,2\n", "server 7 is down; expected servers from 0 to 0"),
        ("a.csv", "\xff", "column 'job_id' is missing"),
        ("a.csv", "server,join_s\n0,1\n", "column 'leave_s' is missing"),
        ("a.csv", "server,join_s,leave_s\n0,x,9\n", "a.csv, row 1 (line 2), column join_s: 'x' is no number"),
        (
            "a.csv",
            "server,join_s,leave_s\n0,0,9\n0,5,7\n",
            "a.csv, row 2 (line 3): capacity: server 0 is there from 0.0",
        ),
        ("a.csv", "server,join_s,leave_s\n3,0,9\n", "a.csv, row 1 (line 2), column server: '3' is out of range"),
        ("a.yaml", "workloads: jobs.csv\npolicies: [srsf-9]\n", "a.yaml, line 2, field policies[0]"),
        ("a.yaml", "queues:\n- {name: a, parent: b}\n", "no queue is named 'b'"),
        ("a.yaml", "workloads: jobs.csv\npolicies: srsf-1\noptions:\n  queues: none.yaml\n", "none.yaml: no such file"),
        ("a.txt", "", "the suffix is '.txt'"),
        ("none.csv", None, "no such file"),
    ],
)
def test_validate_says_what_is_wrong(name: str, text: str | None, fault: str) -> None:
    Path("servers.csv").write_text("gpus,gpu_memory_mb\n1,1\n")
    if text is not None:
        Path(name).write_text(text)
    done = run("validate", name, "--server-table", "servers.csv")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert fault in done.stderr
