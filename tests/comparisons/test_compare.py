"""Comparisons from one call to a folder of runs and tables, in Python and on the command line."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import COMMAND, Run, refused, run

import ddlsched
from ddlsched.cli.compare_command import comparison_text
from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.comparison import Comparison
from ddlsched.errors import InputError, UnknownNameError
from ddlsched.results.paired_comparison import ALL_METRICS, METRICS, compare_runs

SMALL = "microsoft-160:scale=0.002"
FEW = "stream:num_jobs=10,load=0.7,scale=0.01"
DOCS = Path(__file__).parents[2] / "docs" / "comparing.md"

MINE = """
class Greedy:
    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

class Unlucky(Greedy):
    def begin(self, cluster, rng):
        if rng.random() < {chance}:
            raise ArithmeticError("bad\\nluck")
        return self
"""


@pytest.fixture(scope="module")
def six_seeds(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """For tests that only read it."""
    return compare(seeds=6, folder=tmp_path_factory.mktemp("six") / "out")


@pytest.fixture
def _again(six_seeds: Comparison, _files: None) -> None:
    """Runs of six seeds are in the folder and need not be simulated."""
    shutil.copytree(six_seeds.folder, "out")


@pytest.fixture(autouse=True)
def _files(in_a_new_folder):
    write_mine(0.5)


def write_mine(chance: float) -> None:
    Path("mine.py").write_text(MINE.format(chance=chance))


def compare(policies: Any = ("ada-srsf", "srsf-1"), workloads: Any = SMALL, **more: Any) -> Comparison:
    return ddlsched.compare(workloads, policies, **{"seeds": 2, "processes": 1, "folder": "out"} | more)


def states(folder: str = "out") -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path(folder, "runs").iterdir()}


# ---- What comes out


@pytest.mark.slow
def test_every_run_is_what_simulate_gives():
    comparison = compare(servers=[8, 16], contention=["linear", "max-min"], seeds=[3])
    assert len(comparison.runs) == 8
    for row in comparison.runs.to_dict("records"):
        servers, _, contention = row["cluster"].partition("x4")
        result = ddlsched.simulate(
            ddlsched.microsoft_160(seed=row["seed"], scale=0.002),
            Cluster(num_servers=int(servers)),
            scheduler=row["policy"],
            contention=contention.strip() or "linear",
            seed=row["seed"],
        )
        expected = result.summary()
        assert {name: row[name] for name in expected if name != "engine_s"} == {
            name: value for name, value in expected.items() if name != "engine_s"
        }
        jobs = comparison.jobs(policy=row["policy"], cluster=row["cluster"], seed=row["seed"])
        pd.testing.assert_frame_equal(jobs[result.jobs.columns], result.jobs)


@pytest.mark.long
def test_the_table_is_the_statistics_of_the_runs(six_seeds):
    comparison = six_seeds
    expected = compare_runs(comparison.runs, baseline="ada-srsf", metrics=tuple(ALL_METRICS))
    pd.testing.assert_frame_equal(comparison.table()[expected.columns], expected)
    classes = comparison.classes()
    assert set(classes["size_class"]) == {"1", "2-4", "8+"}
    jobs = comparison.jobs(policy="srsf-1")
    means = jobs[jobs["gpus"] == 1].groupby("seed")["jct_s"].mean()
    chosen = classes[(classes["size_class"] == "1") & (classes["policy"] == "srsf-1")]
    assert chosen.loc[chosen["metric"] == "average_jct_s", "mean"].item() == pytest.approx(means.mean())


@pytest.mark.slow
def test_a_folder_is_read_back():
    comparison = compare([{"name": "1"}, {"name": "NA", "order": "fifo"}])
    again = Comparison.open("out")
    assert list(again.runs["policy"]) == ["1", "NA", "1", "NA"]
    for name in ("runs", "failures"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(comparison, name))
    pd.testing.assert_frame_equal(again.table(), comparison.table())
    assert again.asked["policies"]["NA"]["order"] == "fifo"
    assert len(again.jobs(policy="NA", seed=2)) == 160
    with pytest.raises(UnknownNameError, match=r"no policy is 'N'. Did you mean 'NA'"):
        again.jobs(policy="N")
    with pytest.raises(UnknownNameError, match=r"runs have no 'polcy'. Did you mean 'policy'"):
        again.jobs(polcy="NA")


@pytest.mark.long
@pytest.mark.parametrize("spoil", ["comparison.json", "runs.csv", "failures.csv", "policies", "out"])
def test_what_is_no_comparison_cannot_be_opened(spoil, six_seeds):
    shutil.copytree(six_seeds.folder, "out")
    if spoil == "out":
        Path("out").rename("elsewhere")
    elif spoil == "policies":
        Path("out/comparison.json").write_text('{"policies": []}')
    else:
        Path("out", spoil).unlink()
    with pytest.raises(InputError, match="out"):
        Comparison.open("out")


@pytest.mark.long
def test_a_spoilt_run_is_named_and_done_anew_but_what_is_none_is_kept(capsys):
    first = compare("srsf-1")
    file, other = (Path("out", name) for name in first.runs["file"])
    jobs, whole, untouched = first.jobs(), file.read_bytes(), other.stat().st_mtime_ns
    flipped = whole[:1500] + bytes([whole[1500] ^ 1]) + whole[1501:]  # which is another number
    for spoilt in (b"garbage\n", whole[:2000] + b"\0" * 500 + whole[2500:], flipped):
        file.write_bytes(spoilt)
        with pytest.raises(InputError, match=rf"{file.name}: is no run's file .*compare' does one"):
            Comparison.open("out").jobs()
        again = compare("srsf-1")
        pd.testing.assert_frame_equal(again.jobs(), jobs)
        assert f"ddlsched: {file}: is damaged; its run is done anew\n" in capsys.readouterr().err
    assert other.stat().st_mtime_ns == untouched
    other.unlink()  # so that there is something to simulate
    pd.DataFrame({"a": [1]}).to_parquet(file)
    with pytest.raises(InputError, match=rf"{file.name}: is a Parquet file but no run's"):
        compare("srsf-1")
    assert pd.read_parquet(file)["a"].item() == 1
    file.unlink()
    file.mkdir()
    with pytest.raises(InputError, match=rf"{file.name}: is a folder"):
        compare("srsf-1")
    assert not other.exists()


@pytest.mark.long
@pytest.mark.usefixtures("_again")
def test_the_folder_has_what_reports_are_made_of():
    compare(seeds="4,6", servers=[8, 16], timeline=(1, 2))
    folder = Path("out")
    asked = json.loads((folder / "comparison.json").read_text())
    assert asked["ddlsched"] == ddlsched.__version__
    assert asked["seeds"] == [4, 6]
    assert asked["baseline"] == "ada-srsf"
    assert asked["workloads"] == {SMALL: SMALL}
    assert asked["clusters"]["8x4"] == {
        **{"num_servers": 8, "gpus_per_server": 4, "gpu_memory_mb": 32768.0, "gpus": [4] * 8},
        **{"exclusive": False, "topology": "star", "contention": "linear", "remark": None},
    }
    runs = pd.read_csv(folder / "runs.csv")
    first = runs[(runs["seed"] == 4) & (runs["cluster"] == "8x4")].set_index("policy")
    for policy in ("ada-srsf", "srsf-1"):
        metadata = json.loads(pq.read_schema(folder / first.loc[policy, "file"]).metadata[b"ddlsched"])
        assert metadata["inputs"]["seed"] == 4
        assert metadata["summary"]["makespan_s"] == first.loc[policy, "makespan_s"]
        assert "samples" in metadata
        timeline = json.loads((folder / "timelines" / f"{policy}.json").read_text())
        assert timeline["traceEvents"]
        placements = pd.read_parquet(folder / "placements" / f"{policy}.parquet")
        jobs = pd.read_parquet(folder / first.loc[policy, "file"]).set_index("job_id").sort_index()
        assert (placements.groupby("job_id").size() == jobs["gpus"]).all()
        assert (placements.groupby("job_id")["server"].nunique() == jobs["servers"]).all()
        assert (placements.groupby("job_id")["from_s"].min() == jobs["start_s"]).all()
        assert (placements.groupby("job_id")["to_s"].max() == jobs["finish_s"]).all()
        assert (placements["server"] == placements["gpu"] // 4).all()
        assert list(placements) == ["job_id", "gpu", "server", "from_s", "to_s"]
    assert {path.name for path in (folder / "placements").iterdir()} == {"ada-srsf.parquet", "srsf-1.parquet"}
    pd.testing.assert_frame_equal(Comparison.open("out").placements("srsf-1"), placements)


@pytest.mark.long
def test_a_policy_may_be_an_instance():
    from algorithms.placement.first_fit import FirstFit

    comparison = compare([{"placement": FirstFit()}, {"name": "text", "placement": "first-fit"}])
    assert comparison.asked["policies"]["FirstFit()"]["placement"] == "FirstFit()"
    jct_s = comparison.runs.groupby("policy")["average_jct_s"].mean()
    assert jct_s.nunique() == 1
    assert not Path("out/compare.yaml").exists()


@pytest.mark.long
def test_a_generator_of_ones_own():
    Path("gen.py").write_text(
        "import ddlsched\n"
        "def few(*, seed, jobs: int):\n"
        "    return ddlsched.Workload.of(ddlsched.microsoft_160(seed=seed, scale=0.002).jobs[:jobs])\n"
    )
    comparison = compare(workloads="gen.py:few:jobs=30")
    assert len(comparison.jobs()) == 2 * 2 * 30
    assert comparison.runs["makespan_s"].nunique() > 1


# ---- What is not random


@pytest.mark.slow
def test_a_file_under_policies_that_draw_nothing_is_one_run():
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), "jobs.csv")
    comparison = compare(workloads="jobs.csv", seeds=20)
    assert len(comparison.runs) == 2
    table = comparison.table()
    assert set(table["seeds"]) == {1}
    assert set(table["verdict"]) == {"undecided", "not judged"}
    assert table[["low", "high", "change_low", "change_high"]].isna().all(axis=None)
    assert table.loc[table["metric"].isin(METRICS), "change"].notna().all()
    assert any("jobs: neither the jobs nor the policy draw random numbers" in note for note in comparison.notes())


@pytest.mark.long
def test_a_file_under_a_policy_that_draws():
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), "jobs.csv")
    comparison = compare(["ada-srsf", {"name": "random", "placement": "random"}], "jobs.csv", seeds=6)
    assert len(comparison.runs) == 12
    assert len(states()) == 1 + 6 + 2  # the fixed run once; placements of both
    table = comparison.table().set_index(["metric", "policy"])
    assert np.isnan(table.loc[("average_jct_s", "ada-srsf"), "low"])
    assert table.loc[("average_jct_s", "random"), "verdict"] == "worse"
    assert len(comparison.jobs(policy="ada-srsf")) == 160
    assert len(comparison.jobs(policy="random")) == 6 * 160


@pytest.mark.long
def test_a_generator_that_ignores_its_seed_is_found_out():
    Path("gen.py").write_text(
        "import ddlsched\n"
        "def same(*, seed):\n"
        "    return ddlsched.Workload.of(ddlsched.microsoft_160(seed=1, scale=0.002).jobs[:20])\n"
    )
    comparison = compare(workloads="gen.py:same", seeds=6)
    assert len(comparison.runs) == 12
    assert set(comparison.table()["seeds"]) == {1}
    assert set(comparison.table()["verdict"]) == {"undecided", "not judged"}


@pytest.mark.long
def test_jobs_that_differ_by_seed_are_not_said_to_draw_nothing():
    # Models that the seed draws change what the jobs are, and here no metric: on one GPU nothing contends.
    Path("gen.py").write_text(
        "import ddlsched\n"
        "def drawn(*, seed):\n"
        "    work = ddlsched.DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=1e6 * seed)\n"
        "    job = ddlsched.Job(\n"
        "        job_id='a', arrival_s=0.0, num_gpus=1, iterations=3, iteration=work, gpu_memory_mb=1.0)\n"
        "    return ddlsched.Workload.of([job])\n"
    )
    comparison = compare(workloads="gen.py:drawn", seeds=6)
    said = [note for note in comparison.notes() if note.startswith("gen.py:drawn: ")]
    assert said == ["gen.py:drawn: all seeds came out the same, which leaves no spread for an interval or a verdict."]


@pytest.mark.long
@pytest.mark.usefixtures("_again")
def test_few_seeds_are_said_to_be_few(six_seeds):
    assert compare("srsf-1", seeds=5).notes()[0] == "5 seeds: no verdict is given with fewer than 6."
    assert not any("seeds" in note for note in six_seeds.notes())


# ---- Failures, other comparisons, resuming


@pytest.mark.slow
def test_a_failing_run_is_reported_and_tried_again():
    policies = ["ada-srsf", {"name": "mine", "placement": "mine.py:Unlucky"}]
    first = compare(policies, seeds=5)
    assert 0 < len(first.failures) < 5
    assert set(first.failures["policy"]) == {"mine"}
    assert first.failures["message"].str.contains("ArithmeticError: bad\nluck").all()
    assert len(first.runs) + len(first.failures) == 10
    mine = first.table().set_index(["metric", "policy"]).loc[("average_jct_s", "mine")]
    assert (mine["seeds"], mine["verdict"]) == (5 - len(first.failures), "undecided")
    done = states()
    again = compare(policies, seeds=5)
    assert len(again.failures) == len(first.failures)
    assert states() == done
    write_mine(-1.0)
    mended = compare(policies, seeds=5)
    assert mended.failures.empty
    assert len(mended.runs) == 10
    assert done.items() <= states().items()


@pytest.mark.long
def test_all_runs_may_fail():
    write_mine(2.0)
    comparison = compare([{"name": "mine", "placement": "mine.py:Unlucky"}])
    assert len(comparison.failures) == 2
    assert comparison.runs.empty
    assert comparison.table().empty
    assert comparison.classes().empty


@pytest.mark.slow
def test_a_finished_comparison_is_not_done_again():
    compare()
    done, written = states(), Path("out/comparison.csv").read_bytes()
    compare()
    assert states() == done
    assert Path("out/comparison.csv").read_bytes() == written


@pytest.mark.long
@pytest.mark.usefixtures("_again")
def test_another_comparison_in_the_folder_shares_runs_and_replaces_tables():
    done = states()
    comparison = compare(["srsf-1", "srsf-2"])
    assert set(comparison.runs["policy"]) == {"srsf-1", "srsf-2"}
    assert done.items() <= states().items()
    assert len(states()) == len(done) + 3
    assert {path.stem for path in Path("out/placements").iterdir()} == {"srsf-1", "srsf-2"}


def test_a_folder_with_something_else_is_refused():
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="out: holds something else than a comparison"):
        compare()
    assert {path.name for path in Path("out").iterdir()} == {"thesis.tex"}
    Path("file").write_text("")
    with pytest.raises(InputError, match="file"):
        compare(folder="file")


@pytest.mark.slow
def test_a_timeline_asked_for_later_does_not_rewrite_the_run():
    compare()
    done = states()
    compare(timeline=(1, 2))
    assert done.items() <= states().items()
    assert len(states()) == len(done) + 2
    assert Path("out/timelines/srsf-1.json").exists()


def test_every_fault_is_reported():
    with pytest.raises(InputError) as raised:
        compare(["ada-srs"], "microsof-160", seeds="x", options={"load": 1})
    lines = str(raised.value).splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        *("seeds", "workloads[0]", "policies[0].scheduler", "options.load")
    ]


# ---- Command line


def command(*more: object, workload: str = SMALL) -> Run:
    return run("compare", workload, "--processes", 1, "--out", "out", *more)


@pytest.mark.long
@pytest.mark.usefixtures("_again")
def test_the_command_prints_tables_and_says_where_things_are():
    result = command("--scheduler", "ada-srsf", "--placement", "random", "--seeds", 6)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{SMALL} on 16x4"
    assert "\x1b" not in result.stdout
    assert "Report: ddlsched report out" in lines
    assert "12 runs: 2 policies x 1 workload x 1 cluster x 6 seeds" in result.stderr
    comparison = Comparison.open("out")
    table = comparison.table().set_index(["metric", "policy"])
    worse = table.loc[("average_jct_s", "random")]
    text = f"+{100 * worse['change']:.1f} [+{100 * worse['change_low']:.1f}, +{100 * worse['change_high']:.1f}]"
    assert any(text in line and "worse" in line for line in lines)


@pytest.mark.long
@pytest.mark.usefixtures("_again")
def test_json():
    result = command("--scheduler", "srsf-1", "--scheduler", "srsf-2", "--seeds", "3-4", "--json")
    document = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert (document["folder"], document["baseline"], document["runs"], document["failures"]) == ("out", "srsf-1", 4, 0)
    assert {row["policy"] for row in document["comparison"]} == {"srsf-1", "srsf-2"}
    assert document["notes"][0] == "2 seeds: no verdict is given with fewer than 6."
    assert document["notes"][1].startswith("GPUs were shared: up to")


@pytest.mark.long
def test_one_run_has_no_interval_in_the_table():
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), "jobs.csv")
    result = command("--scheduler", "srsf-1", "--scheduler", "srsf-2", workload="jobs.csv")
    rows = [line for line in result.stdout.splitlines() if line.startswith("|") and "srsf-2" in line]
    assert len(rows) == 8
    assert all("one run" in row and " [" not in row for row in rows)
    assert not any(word in result.stdout for word in ("better", "worse", "nan"))


@pytest.mark.long
def test_a_failure_makes_the_exit_code_1():
    write_mine(2.0)
    named = "--baseline", "Unlucky + adadual"
    result = command("--scheduler", "srsf-1", "--placement", "mine.py:Unlucky", "--seeds", 2, *named)
    assert result.exit_code == 1
    assert "Average JCT" in result.stdout
    assert f"{SMALL} on 16x4: Unlucky + adadual, the baseline, has no finished runs.\n" in result.stdout
    assert not any(word in result.stdout for word in ("against", "| verdict", "paired", "nan"))
    (line,) = (line for line in result.stderr.splitlines() if "runs failed" in line)
    assert line.startswith("ddlsched: 2 runs failed (out/failures.csv), the first: Unlucky + adadual")
    assert line.endswith("seed 1: placement Unlucky: begin raised ArithmeticError: bad\\nluck")
    assert command("--placement", "mine.py:Unlucky", "--seeds", 1).stdout.startswith("No run finished.")


@pytest.mark.slow
def test_another_comparison_in_the_folder_is_spoken_of():
    command("--scheduler", "srsf-1", "--seeds", 1)
    assert "another comparison" not in command("--scheduler", "srsf-1", "--seeds", 1).stderr
    assert (
        "out held another comparison; its tables are replaced" in command("--scheduler", "srsf-2", "--seeds", 1).stderr
    )


@pytest.mark.long
def test_a_file_and_flags_that_replace_its_fields():
    Path("compare.yaml").write_text(f"workloads: {SMALL}\npolicies: [srsf-1, srsf-2]\nseeds: 20\nservers: 8\n")
    flags = ("--seeds", 1, "--servers", 16, "--servers", 9, "--out", "out", "--processes", 1)
    assert run("compare", "--config", "compare.yaml", *flags).exit_code == 0
    asked = Comparison.open("out").asked
    assert (list(asked["policies"]), asked["seeds"], list(asked["clusters"])) == (
        ["srsf-1", "srsf-2"],
        [1],
        ["16x4", "9x4"],
    )


@pytest.mark.slow
def test_the_recorded_command_gives_the_same_tables():
    given = ["--scheduler", "srsf-1", "--order", "fifo", "--order", "las", "--seeds", "2-3", "--servers", 8]
    given += ["--gpu-memory-mb", 16000, "--load-per-byte-s", "7.8e-9", "--baseline", "srsf-1", "--json"]
    first = command(*given)
    recorded = Comparison.open("out").asked["command"]
    assert recorded[:2] == ["ddlsched", "compare"]
    assert recorded[-1] == "--json"
    again = run(*recorded[1:])
    assert json.loads(again.stdout) == json.loads(first.stdout)
    from_yaml = run("compare", "--config", "out/compare.yaml", "--out", "again", "--processes", 1, "--json")
    assert json.loads(from_yaml.stdout)["comparison"] == json.loads(first.stdout)["comparison"]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([], ["--scheduler, --placement, --order, --communication, --allocation, --path or --admission: is missing"]),
        (["--scheduler", "ada-srs"], ["--scheduler: no bundle", "Did you mean 'ada-srsf'?"]),
        (["--allocation", "malable"], ["--allocation: no allocation is named", "Did you mean 'malleable'"]),
        (["--placement", "lfw", "--order", "fifi"], ["--placement: no placement", "--order: no order"]),
        (["--scheduler", "srsf-1", "--seeds", "x"], ["--seeds: is 'x'; expected how many"]),
        (["--scheduler", "srsf-1", "--servers", "0"], ["--servers: is 0; input should be greater than 0"]),
        (["--scheduler", "srsf-1", "--baseline", "srsf-3"], ["--baseline: no policy is called that."]),
        (["--scheduler", "srsf-1", "--option", "steady=true"], ["--option: each option has the flag that it has in"]),
        (["--scheduler", "srsf-1", "--load-per-byte-s", "-1"], ["--load-per-byte-s: load_per_byte_s is"]),
        (["--scheduler", "srsf-1", "--straggler-share", "2"], ["straggler_share is 2"]),
        (["--scheduler", "srsf-1", "--processes", "0"], ["--processes 0: is no number of processes"]),
        (["--scheduler", "srsf-1", "--timeline", "5:1"], ["--timeline: is '5:1'; expected [FROM, TO]"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml: no such file"]),
    ],
)
def test_bad_flags(flags, parts):
    refused(command(*flags), *parts, lines=None)
    assert not Path("out").exists()


def test_a_workload_must_be_given():
    refused(run("compare", "--scheduler", "srsf-1"), "JOBS: is missing")


def test_a_fault_of_the_file_keeps_its_line_beside_flags():
    Path("compare.yaml").write_text(f"workloads: {SMALL}\npolicies: [srsf-1]\nservers: 0\nseeds: x\n")
    result = run("compare", "--config", "compare.yaml", "--seeds", "y")
    refused(result, "--seeds: is 'y'", "compare.yaml, line 3, field servers: is 0", lines=2)


def test_ctrl_c_says_how_to_go_on(monkeypatch):
    from ddlsched.comparisons import compare as module

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "sweep", interrupted)
    result = command("--scheduler", "srsf-1")
    assert result.exit_code == 130
    assert "finished runs are kept in out/runs; the same command goes on from there" in result.stderr


def test_every_flag_has_a_help_text():
    for parameter in COMMAND.get_command(None, "compare").params:
        assert len(parameter.help) > 8, parameter.name


# ---- The document


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_yaml_of_the_document_runs():
    (text,) = blocks("yaml")
    Path("compare.yaml").write_text(text, encoding="utf-8")
    result = run("compare", "--config", "compare.yaml", "--seeds", 1, "--processes", 1)
    assert result.exit_code == 0, result.stderr
    assert list(Comparison.open("comparison").asked["policies"]) == [
        *("ada-srsf", "one at a time", "first-fit + adadual", "lwf:kappa=2 + adadual"),
    ]


@pytest.mark.slow
def test_servers_that_differ_and_disturbances_are_the_same_for_all_policies():
    Path("mixed.csv").write_text("servers,gpus,gpu_memory_mb,relative_speed\n8,4,32768,\n4,8,32768,2\n")
    flags = ["--server-table", "mixed.csv", "--jitter-cv", "0.2", "--warmup-s", "0.01"]
    result = command("--scheduler", "srsf-1", "--scheduler", "srsf-2", "--seeds", "2", *flags)
    assert result.exit_code == 0, result.stderr
    comparison = Comparison.open("out")
    assert comparison.asked["clusters"]["mixed"]["gpus"] == [4] * 8 + [8] * 4
    assert comparison.asked["options"]["disturbances"]["jitter_cv"] == 0.2
    cluster = ddlsched.read_cluster("mixed.csv")
    disturbances = ddlsched.Disturbances(jitter_cv=0.2)
    for row in comparison.runs.itertuples():
        workload = ddlsched.microsoft_160(seed=row.seed, scale=0.002)
        more = {"scheduler": row.policy, "disturbances": disturbances, "warmup_s": 0.01, "seed": row.seed}
        assert row.average_jct_s == ddlsched.simulate(workload, cluster, **more).summary()["average_jct_s"]
    refused(command("--scheduler", "srsf-1", "--server-table", "none.csv"), "--server-table", "none.csv: no such file")
    refused(
        command("--scheduler", "srsf-1", *flags, "--servers", "4"), "--servers: the servers are those of --server-table"
    )


@pytest.mark.long
def test_allocation_policies_are_compared_on_elastic_jobs():
    Path("compare.yaml").write_text(
        """
        workloads: ["elastic-mix:category=balanced,gpus=8,hours=0.5,work_hours=0.2"]
        policies:
          - {allocation: ["elastic-scaling:queue=true", "elastic-scaling:queue=true,batch=max"]}
          - {name: idle nodes, scheduler: srsf-1, allocation: malleable}
          - {scheduler: srsf-2, allocation: malleable}
        seeds: 6
        servers: 2
        options: {rescale_cost: "restart_s=30"}
        """
    )
    result = run("compare", "--config", "compare.yaml", "--out", "out", "--processes", 1)
    assert result.exit_code == 0, result.stderr
    comparison = Comparison.open("out")
    names = ["elastic-scaling:queue=true", "elastic-scaling:queue=true,batch=max", "idle nodes", "srsf-2 + malleable"]
    assert list(comparison.asked["policies"]) == names
    table = comparison.table().set_index(["metric", "policy"])
    assert table.loc[("average_jct_s", names[1]), "verdict"] == "worse"
    assert set(comparison.classes()["size_class"]) == {"8+"}  # by the most that a job can use, 10
    for row in comparison.runs[comparison.runs["policy"] == names[0]].itertuples():
        workload = ddlsched.workload.generators.elastic_mix.elastic_mix(
            seed=row.seed, gpus=8, hours=0.5, work_hours=0.2
        )
        cluster = ddlsched.Cluster(num_servers=2)
        more = {"allocation": names[0], "rescale_cost": "restart_s=30", "seed": row.seed}
        assert row.average_jct_s == ddlsched.simulate(workload, cluster, **more).summary()["average_jct_s"]


@pytest.mark.long
def test_a_warm_up_that_outlasts_the_runs_leaves_tables_without_numbers():
    result = command("--scheduler", "srsf-1", "--seeds", "2", "--warmup-s", "1e6")
    assert result.exit_code == 0, result.stderr
    assert Comparison.open("out").classes().empty
    assert Comparison.open("out").runs["average_jct_s"].isna().all()


@pytest.mark.long
def test_the_commands_of_the_document_are_understood():
    Path("mine.py").write_text(
        "class SmallerFirst:\n    def __init__(self, limit: int): pass\n    def admit(self): pass\n"
    )
    Path("compare.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    jobs = ddlsched.microsoft_160(seed=1).jobs
    days = [dataclasses.replace(job, arrival_s=1000.0 * number) for number, job in enumerate(jobs)]
    ddlsched.write_workload(ddlsched.Workload.of(days), Path("philly.parquet"))
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ddlsched compare")]
    assert len(lines) == 8
    for line in lines:
        # Refused at the last moment, when everything else has been understood.
        Path("comparison").mkdir(exist_ok=True)
        Path("comparison/thesis.tex").write_text("")
        refused(run(*shlex.split(line)[1:]), "holds something else than a comparison")


@pytest.mark.long
def test_the_python_of_the_document_runs():
    Path("mine.py").write_text(
        textwrap.dedent(
            """
            class SmallerFirst:
                def __init__(self, limit: int): self.limit = limit
                def admit(self, transfer, network): return len(network.met_by(transfer)) < self.limit
            """
        )
    )
    (text,) = blocks("python")
    program = text.replace("scale=0.02", "scale=0.002").replace("seeds=20", "seeds=1, processes=1")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, str(DOCS), "exec"), space)
    assert list(space["comparison"].asked["policies"]) == ["ada-srsf", "mine"]


@pytest.mark.long
def test_what_the_card_did_to_the_constants_is_said_of_each_cluster():
    comparison = compare("srsf-1", FEW, seeds=1, topology=["star", "star:nic_gbps=100"], contention=["linear", "10gbe"])
    remarks = [note for note in comparison.notes() if "Linear contention" in note]
    constants = "b = 8.56e-11 s and η = 2.35e-11 s a byte"
    assert remarks == [
        f"16x4 star:nic_gbps=100: Linear contention: {constants}, scaled to the topology's card of 100 Gbit/s.",
        "16x4 star:nic_gbps=100 10gbe: Linear contention: b = 8.56e-10 s and η = 2.35e-10 s a byte, as given, "
        "whatever the topology's card of 100 Gbit/s.",
    ]


def test_the_printed_table_marks_what_the_file_leaves_undecided() -> None:
    """A change that stands among the metrics that are printed, and not among all rows of comparison.csv."""
    seeds = [{"seed": seed, **dict.fromkeys(ALL_METRICS, 100.0)} for seed in range(8)]
    changed = {"average_jct_s": [96.0, 97.5, 96.5, 95.0, 98.0, 96.0, 97.0, 95.5]}
    others = [seed | {"policy": "other", "average_jct_s": changed["average_jct_s"][seed["seed"]]} for seed in seeds]
    runs = pd.DataFrame([*(seed | {"policy": "base"} for seed in seeds), *others])
    rows = compare_runs(runs, baseline="base", metrics=tuple(ALL_METRICS)).assign(workload="w", cluster="c")
    rows.loc[rows["p_value"].notna(), "verdict_holm"] = "undecided"
    compared: Any = SimpleNamespace(table=lambda: rows, asked={}, baseline="base", notes=list)
    assert rows.loc[(rows["policy"] == "other") & (rows["metric"] == "average_jct_s"), "verdict"].tolist() == ["better"]
    (line,) = [line for line in comparison_text(compared).splitlines() if "better" in line]
    assert "better ?" in line


def test_a_table_says_whether_it_is_over_draws_or_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddlsched.results.paired_comparison.readable", lambda rows, baseline, over: over)
    table = pd.DataFrame({"workload": ["drawn", "file"], "cluster": "c", "metric": "average_jct_s"})
    compared: Any = SimpleNamespace(table=lambda: table, asked={"drawn_workloads": ["drawn"]}, baseline="", notes=list)
    assert comparison_text(compared) == "drawn on c\n\ndraws\n\nfile on c\n\nseeds\n"
