"""Small parts of estimates by hand: what runs alike say, remarks, bounds of rows, memory and turns of a pipeline."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.errors import InputError
from ddlsched.training.estimate import grouped_steps, step_estimate
from ddlsched.training.estimate import rows as of_rows
from ddlsched.training.estimate.grouped_steps import _dealt
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.presets import GPUS
from ddlsched.training.estimate.rows import COLUMNS, RunsAlike, plans_of, read_rows

ROW = (8, 64, 2, 1024, 16, 24, 2048, 2, 4, 1)


def _file(folder: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...] = COLUMNS) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join(",".join(map(str, line)) for line in [header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        (COLUMNS, [], "has no rows; expected at least one"),
        (COLUMNS[1:], [ROW[1:]], f"has no column 'gpus'; expected the columns {', '.join(COLUMNS)}"),
        (COLUMNS[:-1], [ROW[:-1]], f"has no column 'pipeline_parallel'; expected the columns {', '.join(COLUMNS)}"),
    ],
)
def test_a_file_without_rows_or_a_column_is_refused(
    tmp_path: Path, header: tuple[str, ...], rows: list[tuple[Any, ...]], said: str
) -> None:
    path = _file(tmp_path, rows, header)
    with pytest.raises(InputError) as refused:
        read_rows(path)
    assert str(refused.value) == f"{path}: {said}"


WHOLE = "is out of range or not whole; expected a whole number from 1 to 100000000"


def _of(**changed: int) -> tuple[int, ...]:
    return tuple(({**dict(zip(COLUMNS, ROW, strict=True)), **changed}).values())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (_of(gpus=12, data_parallel=6, global_batch=72), "row 1: gpus is 12; expected up to 8, or whole nodes of 8"),
        (_of(hidden=100_000_001), f"row 1, column hidden: '100000001' {WHOLE}"),
        (_of(layers=0), f"row 1, column layers: '0' {WHOLE}"),
    ],
)  # fmt: skip
def test_a_row_that_no_nodes_run_has_its_reason(tmp_path: Path, row: tuple[int, ...], reason: str) -> None:
    read = read_rows(_file(tmp_path, [row, ROW]))
    assert list(read.reasons) == [0]
    assert read.reasons[0].startswith(reason)
    assert read.said.index.tolist() == [1]
    assert read.said[list(COLUMNS)].to_numpy().tolist() == [list(ROW)]


def test_a_measured_time_is_above_zero_or_left_out(tmp_path: Path) -> None:
    times = ["", "12.5", "0", "x"]
    read = read_rows(_file(tmp_path, [(*ROW, time) for time in times], (*COLUMNS, "iteration_ms")))
    assert math.isnan(read.said["iteration_ms"][0])
    assert read.said["iteration_ms"][1] == 12.5
    said = ["expected milliseconds > 0, or nothing" in reason for reason in read.reasons.values()]
    assert (list(read.reasons), said) == ([2, 3], [True, True])


@pytest.mark.parametrize(
    ("gpus", "tensor", "vocabulary", "recompute", "sizes"),
    [
        (1, 1, 50_257, "none", (1, 1)),
        (8, 2, 50_257, "none", (8, 1)),
        (16, 1, 50_304, "full", (8, 2)),
        (64, 8, 51_200, "full", (8, 8)),
    ],
)
def test_several_nodes_pad_the_vocabulary_and_compute_layers_again(
    gpus: int, tensor: int, vocabulary: int, recompute: str, sizes: tuple[int, int]
) -> None:
    """50,257 are 392.6 times 128, and 49.1 times 1024."""
    model, plan, machine = plans_of(dict(zip(COLUMNS, _of(gpus=gpus, tensor_parallel=tensor), strict=True)))
    assert (int(model.vocabulary), str(plan.recompute)) == (vocabulary, recompute)
    assert tuple(int(tier.size) for tier in machine.tiers) == sizes


@pytest.mark.parametrize(
    ("by", "text"),
    [
        (0.0, "4 % typical error of GPT models on x of A100s, no measured run is alike"),
        (0.000499, "4 % typical error of GPT models on x of A100s, no measured run is alike"),
        (-0.000499, "4 % typical error of GPT models on x of A100s, no measured run is alike"),
        (0.0005, "3 % typical error of GPT models on x of A100s, with +0.1% as runs alike"),
        (-0.05, "3 % typical error of GPT models on x of A100s, with -5.0% as runs alike"),
    ],
)
def test_a_remark_tells_what_runs_alike_moved(by: float, text: str) -> None:
    assert of_rows._remark("x", 3, 4, by) == text


def _left_by_hand(runs: RunsAlike, asked: np.ndarray, known: list[int]) -> float:
    """Return what a Gaussian process says of a run from some of the others, by solving for those alone."""
    logs = np.log(runs.sizes)
    spread = np.array([max(column.std(), 1e-9) for column in logs.T])

    def alike(one: np.ndarray, other: np.ndarray) -> float:
        return math.exp(-sum(((a - b) / s) ** 2 for a, b, s in zip(one, other, spread, strict=True)) / 2)

    table = np.array([[alike(logs[a], logs[b]) + 0.2 * (a == b) for b in known] for a in known])
    weights = np.linalg.solve(table, runs.left[known])
    return float(sum(alike(np.log(asked), logs[each]) * w for each, w in zip(known, weights, strict=True)))


def test_what_is_left_is_told_by_all_runs_but_those_of_the_same_sizes() -> None:
    """The spread of the logarithms of the first column is 0.29, of the second nothing."""
    runs = RunsAlike(np.array([[8.0, 4.0], [10.0, 4.0], [16.0, 4.0], [9.0, 4.0]]), np.array([0.3, 0.1, -0.2, 0.25]))
    asked = np.array([[9.5, 4.0], [16.0, 4.0], [8.0, 4.0], [12.0, 4.0]])
    expected = [
        _left_by_hand(runs, asked[0], [0, 1, 2, 3]), _left_by_hand(runs, asked[1], [0, 1, 3]),
        _left_by_hand(runs, asked[2], [1, 2, 3]), _left_by_hand(runs, asked[3], [0, 1, 2, 3]),
    ]  # fmt: skip
    assert runs.left_of(asked) == pytest.approx(expected, rel=1e-9)
    assert runs.left_of(np.array([[9.5, 5.0]])) == pytest.approx(0.0, abs=1e-12)


def test_many_rows_are_told_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = RunsAlike(np.array([[8.0, 4.0], [10.0, 7.0], [16.0, 5.0]]), np.array([0.3, 0.1, -0.2]))
    asked = np.array([[8.0 + n, 4.0 + n % 3] for n in range(7)])
    single = [float(runs.left_of(asked[n : n + 1])[0]) for n in range(7)]
    for block in (2, 3, 7, 1000):
        monkeypatch.setattr(of_rows, "_BLOCK", block)
        assert runs.left_of(asked) == pytest.approx(single)


def test_the_shipped_runs_are_parted_by_nodes() -> None:
    """The table's first column holds GPUs, its last the logarithm."""
    table = np.loadtxt(of_rows.MEASURED, delimiter=",", skiprows=1)
    one, several = of_rows._gpt_runs(False), of_rows._gpt_runs(True)
    assert (one.sizes[:, 0].max(), several.sizes[:, 0].min()) == (8, 64)
    assert len(one.left) + len(several.left) == len(table)
    assert sorted([*one.left, *several.left]) == sorted(table[:, -1])
    assert one.sizes.shape[1] == several.sizes.shape[1] == len(COLUMNS)


@pytest.mark.parametrize(("beside", "more"), [(None, 0.0), (SimpleNamespace(capacity_per_gpu=5e9), 5e9)])
def test_a_gpu_holds_its_own_memory_and_its_part_of_what_is_beside(beside: Any, more: float) -> None:
    machine: Any = SimpleNamespace(expansion=beside, gpu=SimpleNamespace(memory_bytes=80e9))
    assert step_estimate._capacity_bytes(machine) == 80e9 + more


@pytest.mark.parametrize(
    ("offload", "compute_s", "exposed_s"),
    [(1.0, 0.0, 12.0), (1.0, 5.0, 7.0), (1.0, 12.0, 0.0), (1.0, 20.0, 0.0), (0.0, 0.0, 0.0)],
)
def test_activations_go_to_the_host_and_back_behind_what_is_computed(
    monkeypatch: pytest.MonkeyPatch, offload: float, compute_s: float, exposed_s: float
) -> None:
    """Of 3 micro-batches 20 GB each go there and back at 10 GB/s."""
    gpu = dataclasses.replace(GPUS["a100-80"], host_bytes_per_s=10e9)
    costs: Any = SimpleNamespace(
        parallelism=SimpleNamespace(offload=np.array(offload), micro_batches=3), machine=Machine(gpu=gpu, tiers=())
    )
    monkeypatch.setattr(step_estimate, "offloaded_bytes", lambda layers, plan: 20e9)
    schedule: Any = SimpleNamespace(compute_s=compute_s)
    assert step_estimate._to_host_s(None, costs, schedule) == pytest.approx(exposed_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total_bytes", "longer"),
    [(40e9, None), (80e9, None), (100e9, 0.8 + 0.2 * 20), (160e9, 0.5 + 0.5 * 20)],
)
def test_memory_beside_a_gpu_slows_what_is_spilled_to_it(
    monkeypatch: pytest.MonkeyPatch, total_bytes: float, longer: float | None
) -> None:
    """The GPU has 80 GB at 2 TB/s, beside it there is memory at a twentieth of that; all bytes are touched alike."""

    @dataclasses.dataclass(frozen=True)
    class Given:
        machine: Any
        memory_bytes_per_s: float = 2e12

    expansion = SimpleNamespace(bytes_per_s_per_gpu=1e11)
    machine = SimpleNamespace(expansion=expansion, gpu=SimpleNamespace(memory_bytes=80e9, memory_bytes_per_s=2e12))
    passes = lambda layers, costs: SimpleNamespace(passes_s=6e12 / costs.memory_bytes_per_s)  # noqa: E731
    monkeypatch.setattr(step_estimate, "_schedule", passes)
    memory = SimpleNamespace(total_bytes=total_bytes)
    found = step_estimate._offload_s(None, Given(machine), memory, 3.0, 0.5)  # type: ignore[arg-type]
    assert found == pytest.approx(0.0 if longer is None else (3.0 + 0.5) * (longer - 1))
    none = SimpleNamespace(expansion=None)
    assert step_estimate._offload_s(None, Given(none), memory, 3.0, 0.5) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stages", "chunks", "dealt"),
    [
        (2, 1, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]),
        (2, 2, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]),
        (3, 2, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3)]),
    ],
)
def test_passes_are_dealt_to_chunks_in_turns_of_as_many_micro_batches_as_stages(
    stages: int, chunks: int, dealt: list[tuple[int, int]]
) -> None:
    assert [_dealt(place, stages, chunks) for place in range(len(dealt))] == dealt


@pytest.mark.parametrize(
    ("is_first", "is_last", "parts"),
    [
        (False, False, [("block", 3.0, True)]),
        (True, False, [("block", 2.0, True), ("first", 1.0, False)]),
        (False, True, [("block", 2.0, True), ("last", 1.0, False)]),
        (True, True, [("block", 2.0, True), ("first", 1.0, False), ("last", 1.0, False)]),
    ],
)
def test_chunks_at_the_ends_have_other_layers_that_are_never_recomputed(
    monkeypatch: pytest.MonkeyPatch, is_first: bool, is_last: bool, parts: list[tuple[str, float, bool]]
) -> None:
    """Stages between have 6 blocks in 2 chunks, those at the ends 5."""
    monkeypatch.setattr(grouped_steps, "stage_blocks", lambda count, plan: (np.array(5), np.array(6)))
    layers = SimpleNamespace(num_blocks=16, block="block", first="first", last="last")
    made: Any = SimpleNamespace(layers=layers, plan=None, chunks=2)
    assert list(grouped_steps._Step._parts(made, is_first, is_last)) == parts
