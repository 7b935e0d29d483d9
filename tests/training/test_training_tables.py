"""What the training commands print of numbers given by hand, what they pass on, and where their options end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run
from kept_numbers import answered

from ddlsched.comparisons.charts import style, training_charts
from ddlsched.errors import InputError
from ddlsched.training import design_command, estimate_command, record_command
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import MOST
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.recorded import alone, reading
from ddlsched.training.recorded.alone import Card
from ddlsched.training.recording import rank_process
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.workload_files import read_workload

# ---- estimate


def estimated(**changed: Any) -> Any:
    """A step of 8 s on 4 GPUs, of which 6 are computation."""
    memory = {"weights_bytes": 1e9, "gradients_bytes": 2e9, "optimiser_bytes": 12e9, "activations_bytes": 0.5e9}
    parts = {f"{part}_s": 0.0 for part in ("pipeline", "bubble", "optimiser", "offload")}
    told = {"step_s": 8.0, "compute_s": 6.0, "tensor_s": 1.5, "data_s": 0.5, "mfu": 0.4251, "num_gpus": 4}
    more = {"fits": True, "missing_bytes": 0.0, "energy_j": 12_800.0, "cost": 0.025, "price_per_hour": 2.5}
    return SimpleNamespace(**parts | told | more | changed, memory=SimpleNamespace(**memory, total_bytes=15.5e9))


TABLE = """A title
  step                                  8.0000 s
    computation                         6.0000 s    75.0 %
    collectives within the model        1.5000 s    18.8 %
    reduction of gradients              0.5000 s     6.2 %
  sequences a second                      12.5
  model FLOPs utilisation                 42.5 %
  energy of a step                        12.8 kJ
  cost of a step                         0.025 $   at 2.5 $ an hour and GPU, a guess unless given
  memory of a GPU                        15.50 GB  fits
    weights                               1.00 GB
    gradients                             2.00 GB
    optimiser                            12.00 GB
    activations                           0.50 GB
"""


def test_an_estimate_is_told_part_by_part() -> None:
    plan: Any = SimpleNamespace(global_batch=100)
    assert estimate_command._table("A title", "sequences", plan, estimated()) == TABLE
    small = estimate_command._table("A title", "images", plan, estimated(fits=False, missing_bytes=1.234e9))
    assert "GB  does not fit by 1.23 GB\n" in small
    assert "\n  images a second  " in small
    assert list(estimate_command._numbers(estimated()).items()) == [
        ("step_s", 8.0), ("compute_s", 6.0), ("tensor_s", 1.5), ("pipeline_s", 0.0), ("bubble_s", 0.0),
        ("data_s", 0.5), ("optimiser_s", 0.0), ("offload_s", 0.0), ("weights_gb", 1.0), ("gradients_gb", 2.0),
        ("optimiser_gb", 12.0), ("activations_gb", 0.5), ("memory_gb", 15.5), ("fits", True), ("missing_gb", 0.0),
        ("mfu", 0.4251), ("gpus", 4), ("energy_j", 12_800.0), ("cost", 0.025),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("predicted", "measured", "said"),
    [
        ([1.1, 0.8], [1.0, 1.0], "; 15.00 % off the measured times on average"),
        ([1.1, np.nan], [1.0, 1.0], "; 10.00 % off the measured times on average; 1 could not be said (column"),
        ([1.0, 2.0], [np.nan, np.nan], ""),
        ([np.nan, np.nan], [np.nan, 1.0], "; 2 could not be said (column 'remark')"),
    ],
)
def test_how_far_predictions_are_off_is_their_mean(predicted: list[float], measured: list[float], said: str) -> None:
    told = estimate_command._error(pd.DataFrame({"predicted_step_s": predicted, "measured_step_s": measured}))
    assert told.startswith(said)
    assert bool(told) == bool(said)


def test_a_sequence_is_of_one_token_at_least() -> None:
    def model(name: str, sequence: int | None) -> Any:
        return estimate_command._model(name, estimate_command.ModelOptions(sequence=sequence))[1]

    assert model("gpt3-175b", None) == MODELS["gpt3-175b"]
    for sequence in (1, 4096, MOST):
        assert model("gpt3-175b", sequence).sequence == sequence
    for sequence in (0, MOST + 1):
        said = f"--sequence {sequence}: expected a whole number of tokens from 1 to 1,000,000,000,000"
        assert answered(model, "gpt3-175b", sequence) == said
    assert model("resnet-50", None) == MODELS["resnet-50"]
    said = "--sequence 5: resnet-50 has no sequences; expected a language model"
    assert answered(model, "resnet-50", 5) == said


def test_a_configuration_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
    path = tmp_path / "small" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(sizes | {"intermediate_size": 96}))
    for sequence, expected in ((None, 4096), (512, 512)):
        options = estimate_command.ModelOptions(hf_config=path, sequence=sequence)
        name, model = estimate_command._model(None, options)
        assert isinstance(model, Transformer)
        assert (name, model.sequence) == ("small", expected)
    monkeypatch.chdir(path.parent)
    assert estimate_command._model(None, estimate_command.ModelOptions(hf_config=Path("config.json")))[0] == "config"


# ---- design


@pytest.mark.parametrize(
    ("text", "sizes"),
    [(None, []), ("64", [64]), ("64,128,64", [64, 128]), ("1", [1]), ("1000000,8", [1_000_000, 8]),
     *((bad, None) for bad in ("1000001", "0", "8,0", "-8", "x", "", "8,,16", "8.0"))],
)  # fmt: skip
def test_sizes_of_clusters(text: str | None, sizes: list[int] | None) -> None:
    said = f"--gpus {text}: is no list of sizes; expected whole numbers from 1, such as 64,128,256"
    assert answered(design_command._sizes, text) == (said if sizes is None else str(sizes))


WHOLE = "expected whole numbers, such as {0}=1,2"
AXES: list[tuple[str, Any]] = [
    ("tensor=1,2,8,2", [1.0, 2.0, 8.0]), ("tensor=1000000000000", [1e12]), ("tensor=1000000000001", WHOLE),
    ("pipeline=0", WHOLE), ("micro_batch=2.5", WHOLE), ("interleave=", WHOLE), ("expert", WHOLE), ("expert=x", WHOLE),
    ("zero=0,1,2,3", [0.0, 1.0, 2.0, 3.0]), ("zero=4", "expected whole numbers from 0 to 3, such as zero=0,1"),
    ("zero=-1", "from 0 to 3"), ("zero=0.5", "from 0 to 3"), ("overlap=0,1", [0.0, 1.0]),
    ("overlap=2", "expected whole numbers from 0 to 1, such as overlap=0,1"), ("sequence_parallel=1", [1.0]),
    ("sequence_parallel=2", "from 0 to 1"), ("compute=0.5,1.5", [0.5, 1.5]), ("compute=1e-9", [1e-9]),
    ("compute=9e-10", "expected numbers > 0, such as compute=1,2"), ("compute=1e12", [1e12]),
    ("compute=1.1e12", "expected numbers > 0"), ("expansion_gb=0", "expected numbers > 0"),
    ("memory_bandwidth=nan", "expected numbers > 0"), ("memory_bandwidth=2,,3", "expected numbers > 0"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found"), AXES)
def test_values_of_an_axis(text: str, found: Any) -> None:
    name = text.partition("=")[0]
    told = answered(design_command._axis, text)
    if isinstance(found, list):
        assert told == str((name, found))
    else:
        assert told.startswith(f"--sweep {text}: has no usable values; expected ")
        assert found.format(name) in told
        assert told.endswith(f"such as {name}={'0,1' if 'from 0' in told else '1,2'}")


def test_what_is_tried_is_taken_as_it_is_given() -> None:
    sweep = design_command._sweep(["tensor=2,4", "compute=2"], "full,none,full")
    assert (sweep.axes, sweep.recompute) == ({"tensor": [2.0, 4.0], "compute": [2.0]}, ["full", "none"])
    said = "--recompute none,some: 'some' is unknown; expected some of none, selective, elementwise, alternate, full"
    assert answered(design_command._sweep, [], "none,some") == said
    said = "--sweep tensor=8: tensor was given before; expected all its values at once"
    assert answered(design_command._sweep, ["tensor=4", "tensor=8"], "none") == said


DESIGNS = pd.DataFrame(
    {
        "cluster": ["h100", "h100", "b200", "b200"],
        "gpus": 8,
        "tensor": [1, 2, 2, 4],
        "pipeline": 1,
        "data": [8, 4, 4, 2],
        "micro_batch": 2,
        "zero": 0,
        "overlap": [0, 0, 1, 1],
        "compute": [1.0, 1.0, 2.0, 2.0],
        "step_s": [1.23456, 2.0, 3.0, 0.5],
        "mfu": [0.43219, 0.5, 0.1, 0.2],
        "memory_gb": [12.345, 6.0, 3.0, 99.0],
        "missing_gb": [0.0, 0.0, 0.0, 19.0],
        "fits": [True, True, True, False],
        "energy_j": [123_456.0, 1.0, 2.0, 3.0],
        "cost": [0.0123456, 0.5, 0.25, 0.75],
    }
)


def test_the_best_are_told_without_columns_in_which_all_are_alike() -> None:
    told = design_command._text("a-model", DESIGNS, DESIGNS.head(1)).splitlines()
    assert told[0] == "a-model: 4 valid configurations, 3 of them fit"
    names, values = (line.split() for line in told[1:])
    assert dict(zip(names, values, strict=True)) == {
        "cluster": "h100", "gpus": "8", "tensor": "1", "pipeline": "1", "data": "8", "micro_batch": "2",
        "overlap": "0", "compute": "1.0", "step_s": "1.235", "mfu": "0.432", "memory_gb": "12.3", "fits": "True",
        "energy_j": "1.235e+05", "cost": "0.01235",
    }  # fmt: skip
    many = pd.concat([DESIGNS] * 1000, ignore_index=True)
    assert design_command._text("m", many, many.head(2)).startswith("m: 4,000 valid configurations, 3,000 of them fit")


@pytest.mark.parametrize(
    ("by", "steps"),
    [
        ("time", [1.23456, 2.0, 3.0, 0.5]),
        ("cost", [1.23456, 3.0, 2.0, 0.5]),
        ("energy", [2.0, 3.0, 1.23456, 0.5]),
    ],
)
def test_what_fits_comes_first_and_the_best_of_it(monkeypatch: pytest.MonkeyPatch, by: str, steps: list[float]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(design_command, "_all", lambda *given: asked.append(given) or DESIGNS)
    given = ("design", "a-model", "--by", by, "--gpus", "8,16", "--global-batch", 96, "--recompute", "full")
    for top in (1, 2, 9):
        told = json.loads(run(*given, "--top", top, "--json").stdout)
        assert [row["step_s"] for row in told] == steps[:top]
    assert asked[0][0] == "a-model"
    assert asked[0][2:4] == ([8, 16], 96)
    assert (asked[0][4].axes, asked[0][4].recompute) == ({}, ["full"])


def test_all_configurations_are_written_the_best_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(design_command, "_all", lambda *given: DESIGNS)
    done = run("design", "a-model", "--top", 1, "--out", tmp_path / "all.csv")
    assert done.stderr == f"ddlsched: wrote 4 configurations to {tmp_path / 'all.csv'}\n"
    lines = (tmp_path / "all.csv").read_text().splitlines()
    assert lines[1] == "h100,8,1,1,8,2,0,0,1,1.23456,0.43219,12.345,0,True,123456,0.0123456"
    assert len(lines) == 5
    monkeypatch.setattr(design_command, "_all", lambda *given: DESIGNS.head(0))
    refused(run("design", "a-model"), "no combination keeps all rules; expected divisors of the GPUs, layers, heads")


def test_charts_that_are_drawn_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Any] = []

    def draw(table: pd.DataFrame, folder: Path) -> list[Path]:
        drawn.append((len(table), folder))
        return [folder / "a.png", folder / "b.svg"]

    monkeypatch.setattr(design_command, "_all", lambda *given: DESIGNS)
    monkeypatch.setattr(design_command, "_draw", draw)
    folder = tmp_path / "charts"
    done = run("design", "a-model", "--charts", folder)
    assert done.stderr == "".join(f"ddlsched: wrote {folder / name}\n" for name in ("a.png", "b.svg"))
    assert drawn == [(4, folder)]
    assert folder.is_dir()


def test_each_cluster_is_tried_in_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddlsched.training.estimate import design_sweep

    asked: list[Any] = []

    def found(model: Any, plan: Any, **given: Any) -> pd.DataFrame:
        asked.append((model, plan.gpu.name, plan.efficiency, given))
        return pd.DataFrame({"step_s": [1.0]})

    monkeypatch.setattr(design_sweep, "design", found)
    host = {"cluster": ["h100", "b200:nodes=3", "h100"], "topology": None, "efficiency": "ideal"}
    table = design_command._all("gpt3-13b", host, [], 96, "sweep")
    assert table.to_dict("list") == {"cluster": ["h100", "b200:nodes=3"], "gpus": [64, 24], "step_s": [1.0, 1.0]}
    assert [each[1:3] for each in asked] == [("h100", "ideal"), ("b200", "ideal")]
    assert asked[0][0] == MODELS["gpt3-13b"]
    assert asked[1][3] == {"num_gpus": 24, "global_batch": 96, "sweep": "sweep"}
    table = design_command._all("gpt3-13b", {"topology": None, "efficiency": ""}, [8, 16], 96, "sweep")
    assert table[["cluster", "gpus"]].to_numpy().tolist() == [["a100-80", 8], ["a100-80", 16]]


def test_charts_are_of_pairs_that_vary_and_of_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(training_charts, "heat_map", lambda cells, **told: drawn.append((cells, told)))
    monkeypatch.setattr(training_charts, "pareto_chart", lambda *values, **told: drawn.append((values, told)))
    monkeypatch.setattr(style, "save", lambda figure, stem: [stem.with_suffix(".png"), stem.with_suffix(".svg")])
    table = DESIGNS.assign(gpus=[8, 8, 16, 16])
    paths = design_command._draw(table, Path("a"))
    stems = ["tensor_data", "tensor_pipeline", "gpus_compute", "pareto_time_cost"]
    assert paths == [Path("a") / f"{stem}{suffix}" for stem in stems for suffix in (".png", ".svg")]
    cells, told = drawn[0]
    nothing = np.nan
    expected = [[nothing, nothing, 1.23456], [nothing, 2.0, nothing], [nothing, nothing, nothing]]
    np.testing.assert_equal(cells, expected)
    assert told == {
        "rows": ["1", "2", "4"],
        "columns": ["2", "4", "8"],
        "row_axis": "Tensor parallelism",
        "column_axis": "Data parallelism",
        "title": "Shortest step (s); -: nothing fits",
    }
    cells, told = drawn[2]
    np.testing.assert_equal(cells, [[1.23456, nothing], [nothing, 3.0]])
    assert (told["row_axis"], told["column_axis"]) == ("GPUs", "Peak FLOP/s (factor)")
    (times, costs, front), told = drawn[3]
    assert (times.tolist(), costs.tolist()) == ([1.23456, 2.0, 3.0], [0.0123456, 0.5, 0.25])
    assert front.tolist() == [0]
    assert told["names"] == ["8 GPUs, h100", "8 GPUs, h100", "16 GPUs, b200"]
    assert (told["time_axis"], told["cost_axis"]) == ("Step (s)", "Cost of a step ($)")
    whole = pd.concat([table.assign(tensor=t, data=d, fits=True) for t in (1, 2) for d in (1, 2)], ignore_index=True)
    drawn.clear()
    design_command._draw(whole, Path("a"))
    assert drawn[0][1]["title"] == "Shortest step (s)"
    none = "--charts: no configuration fits in memory; expected at least one to draw"
    assert answered(design_command._draw, table.assign(fits=False), Path("a")) == none


@pytest.mark.parametrize(("values", "is_drawn"), [(1, False), (2, True), (24, True), (25, False)])
def test_an_axis_of_24_values_is_drawn(monkeypatch: pytest.MonkeyPatch, values: int, is_drawn: bool) -> None:
    monkeypatch.setattr(training_charts, "heat_map", lambda *_, **__: None)
    monkeypatch.setattr(training_charts, "pareto_chart", lambda *_, **__: None)
    monkeypatch.setattr(style, "save", lambda figure, stem: [stem])
    rows = [DESIGNS.head(1).assign(gpus=gpus, compute=1.0 + n) for gpus in (8, 16) for n in range(values)]
    stems = [path.name for path in design_command._draw(pd.concat(rows, ignore_index=True), Path("a"))]
    assert ("gpus_compute" in stems) == is_drawn


# ---- record and import-training


def spread(begin: float) -> dict[str, float]:
    return {"mean": begin, "p5": begin + 1, "p50": begin + 2, "p95": begin + 3}


def summary(**changed: Any) -> dict[str, Any]:
    sent = [{"kind": "all-reduce", "group": "all ranks", "count": 1234, "bytes": 5_678_900_000}]
    variation: dict[str, Any] = {"step_s": None, "unrecorded_step_s": None, "lengthening": None, "collectives": []}
    shares = {"exposed_share_of_iteration": 0.1254, "exposed_share_of_communication": 0.5}
    path = {"critical_path_tasks": 7, "critical_path_communication_s": 0.25, "compute_s": 1.5}
    counts = {"ranks": 4, "classes": [[0, 1, 2, 3]], "steps": 3, "nodes": 4321, "tasks": 10, "compute_tasks": 6}
    times = {"communication_alone_s": 0.5, "iteration_alone_s": 1.75}
    return counts | {"collectives": sent, "variation": variation} | shares | path | times | changed


SUMMARY = """4 ranks, all alike; 3 steps of 4,321 nodes in all
  tasks of an iteration                   10   6 of them compute
  all-reduce, all ranks                1,234   5,678.900 MB
  computation                       1.500000 s
alone, on cards of 10 Gbit/s, 2.5 us a step:
  communication                     0.500000 s
  iteration (critical path)         1.750000 s   7 tasks, 0.250000 s of communication
  exposed communication                 12.5 % of the iteration, 50.0 % of the communication
"""
STEPS = """  recorded step                     1.000000 s on average, 5 to 95 %: 2.000000 to 4.000000 s
  step before, unrecorded           9.000000 s on average, 5 to 95 %: 10.000000 to 12.000000 s
  its computation                   5.000000 s on average, 5 to 95 %: 6.000000 to 8.000000 s
"""


def test_a_recorded_iteration_is_told_line_by_line() -> None:
    card = Card(gbps=10.0, latency_us=2.5)
    assert record_command._text(summary(), card) == SUMMARY
    assert record_command._text(summary(classes=[[0], [1, 2, 3]]), card).startswith("4 ranks, in 2 classes; 3 steps")
    ready = [{"name": f"r-{n}", "input_bytes": 1000 + n, "ready_s": spread(n)} for n in range(14)]
    varied = {"step_s": spread(1), "unrecorded_step_s": spread(9), "compute_s": spread(5), "collectives": ready}
    lines = record_command._text(summary(variation=varied), card).splitlines(keepends=True)
    assert "".join([*lines[:4], *lines[19:]]) == SUMMARY
    assert "".join(lines[4:7]) == STEPS
    text = "  r-11 ready at                    11.000000 s on average, 5 to 95 %: 12.000000 to 14.000000 s, 1,011 B\n"
    assert lines[18] == text
    assert lines[7].startswith("  r-0 ready at ")
    varied["unrecorded_step_s"] = None
    assert "unrecorded" not in record_command._text(summary(variation=varied), card)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What is asked of a run that is recorded, and of its reader: two ranks that compute and reduce."""
    asked: list[Any] = []
    tasks = ComputeTask(name="c", duration_ns=5), AllReduceTask(name="r", message_bytes=8.0, after=("c",))
    made = SimpleNamespace(num_ranks=2, dag=IterationDag(tasks), notes=Counter({"a note": 1234}), last=None)

    def run_recorded(script: Path, arguments: list[str], folder: Path, **numbers: int) -> list[Path]:
        assert folder.is_dir()
        asked.append((script, arguments, folder, numbers))
        return [folder / "0", folder / "1"]

    def told(found: Any, card: Card) -> dict[str, Any]:
        assert found is made
        asked.append(card)
        return summary(variation=summary()["variation"] | {"lengthening": lengthening[0]})

    lengthening: list[Any] = [None]
    monkeypatch.setattr(rank_process, "run_recorded", run_recorded)
    monkeypatch.setattr(reading, "read_iteration", lambda files, **given: asked.append((files, given)) or made)
    monkeypatch.setattr(alone, "summary", told)
    monkeypatch.chdir(tmp_path)
    asked.append(lengthening)
    return asked


def test_a_script_is_recorded_as_it_is_asked(recorded: list[Any], tmp_path: Path) -> None:
    done = run("record", "--out", "job.json", "train.py", "--lr", "0.1")
    assert done.exit_code == 0
    script, arguments, folder, numbers = recorded[1]
    assert (script, arguments) == (Path("train.py"), ["--lr", "0.1"])
    assert numbers == {"ranks": 2, "skip": 11, "most_steps": 1000}
    assert not folder.exists()
    assert recorded[2] == ([folder / "0", folder / "1"], {})
    assert recorded[3] == Card(gbps=10.0, latency_us=0.0)
    assert done.stderr == "ddlsched: wrote a job of 2 GPUs and 1,000 iterations to job.json\nddlsched: 1,234 a note\n"
    (job,) = read_workload(Path("job.json"))
    assert (job.job_id, job.num_gpus, job.iterations, job.gpu_memory_mb) == ("recorded", 2, 1000, 32_768)
    del recorded[1:]
    more = ("--ranks", 3, "--skip", 1, "--steps", 1, "--keep", "kept", "--gbps", 4, "--latency-us", 7, "--json")
    done = run("record", "--out", "job.json", "--job-id", "mine", "--iterations", 5, *more, "train.py")
    assert recorded[1][1:] == ([], Path("kept"), {"ranks": 3, "skip": 1, "most_steps": 1})
    assert recorded[3] == Card(gbps=4.0, latency_us=7.0)
    assert done.stderr.startswith("ddlsched: kept 2 recordings in kept\nddlsched: wrote a job of 2 GPUs and 5 iter")
    assert json.loads(done.stdout)["nodes"] == 4321


@pytest.mark.parametrize(("lengthening", "said"), [(None, ""), (0.1, ""), (0.1001, "10 %"), (0.256, "26 %")])
def test_steps_that_recording_makes_longer_are_told(recorded: list[Any], lengthening: float | None, said: str) -> None:
    recorded[0][0] = lengthening
    told = run("record", "--out", "job.json", "train.py").stderr.splitlines()
    expected = f"ddlsched: recorded steps took {said} longer than unrecorded ones before, so the job is, roughly"
    assert told[1:-1] == [expected] * bool(said)


def test_traces_are_read_with_what_is_given_beside_them(recorded: list[Any]) -> None:
    assert run("import-training", "a.et", "b.et", "--out", "job.json").exit_code == 0
    assert recorded[1] == ([Path("a.et"), Path("b.et")], {"num_ranks": None, "groups": None})
    del recorded[1:]
    assert run("import-training", "a.et", "--gpus", 9, "--groups", "g.json", "--out", "job.json").exit_code == 0
    assert recorded[1] == ([Path("a.et")], {"num_ranks": 9, "groups": Path("g.json")})


@pytest.mark.parametrize("flag", ["--ranks", "--skip", "--steps"])
def test_a_run_that_cannot_be_recorded_is_not_begun(recorded: list[Any], flag: str) -> None:
    least = 2 if flag == "--ranks" else 1
    done = run("record", "--out", "job.json", flag, least - 1, "train.py")
    refused(done, f"{flag} {least - 1}: expected a whole number from {least}")
    assert len(recorded) == 1
    with pytest.raises(InputError):
        record_command.MadeJob(gbps=0.0).checked_card(Path("job.json"))
