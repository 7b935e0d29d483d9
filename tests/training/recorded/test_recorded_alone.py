"""An iteration alone on its cards, counted by hand, and which files are taken for traces."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_numbers import answered

from ddlsched.training.recorded.alone import Card, summary, timed_alone, variation
from ddlsched.training.recorded.chakra import read_chakra
from ddlsched.training.recorded.kineto import read_kineto
from ddlsched.training.recorded.merging import RecordedIteration
from ddlsched.training.recorded.rank_steps import EVERYBODY, Mark, MarkKind, RankCommunication, RankStep
from ddlsched.training.recorded.reading import found, read_iteration, reader_of, recognises
from ddlsched.training.recorded.recordings import read_recording, recording_text
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, IterationDag


def collective(kind: str, size: float, **given: Any) -> CollectiveTask:
    return CollectiveTask(name=kind, kind=kind, message_bytes=size, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "ranks", "ns"),
    [
        # 1.25e11 bytes are 1e12 bits, 100 s at 10 Gbit/s; a step takes 3 us
        ("all-reduce", 4, 150_000_018_000),  # 2 x 3/4 of them, 6 steps
        ("all-gather", 4, 75_000_009_000),
        ("reduce-scatter", 2, 50_000_003_000),
        ("all-to-all", 5, 80_000_012_000),
        ("broadcast", 4, 100_000_003_000),
        ("send", 2, 100_000_003_000),
    ],
)
def test_a_collective_alone_sends_its_share_in_its_steps(kind: str, ranks: int, ns: int) -> None:
    assert Card(gbps=10, latency_us=3).alone_ns(collective(kind, 1.25e11), ranks) == ns
    assert Card() == Card(gbps=10.0, latency_us=0.0)
    assert "network card: gbps is 0" in answered(Card, gbps=0.0)
    assert "network card: latency_us is -1" in answered(Card, latency_us=-1.0)


def iteration() -> RecordedIteration:
    """Two computes of 3 and 5 ms in a row, an all-reduce beside the second, one of a pair behind both."""
    dag = IterationDag(
        (
            ComputeTask(name="a", duration_ns=3_000_000),
            ComputeTask(name="b", duration_ns=5_000_000, after=("a",)),
            AllReduceTask(name="r", message_bytes=10_000_000, after=("a",)),
            CollectiveTask(name="g", kind="all-gather", message_bytes=5_000_000, group="pair", after=("b", "r")),
            AllReduceTask(name="s", message_bytes=1_000_000, after=("a",)),
        ),
        groups={"pair": ((0, 1), (2, 3))},
    )
    calls = tuple(RankCommunication(*call) for call in (("all-reduce", 8), ("all-gather", 4), ("all-reduce", 6)))
    starts = [Mark(MarkKind.STARTS, place, 0) for place in (0, 2, 1)]
    marks = (starts[0], Mark(MarkKind.PHASE, "backward", 1), starts[1], Mark(MarkKind.WAITS, 0, 2), starts[2])
    step = RankStep(9, calls, marks)
    moments = tuple(tuple(1_000_000 * (step + 10 * place) for place in range(6)) for step in range(21))
    return RecordedIteration(
        dag, 4, 21, (20_000_000,) * 20 + (41_000_000,), (16_000_000,), 77, ((0, 2), (1, 3)), moments, step, Counter(x=3)
    )


def test_an_iteration_alone_waits_for_its_longest_way() -> None:
    recorded, card = iteration(), Card(gbps=8.0)
    alone = timed_alone(recorded.dag, 4, card)
    # 10 MB at 8 Gbit/s are 10 ms, 2 x 3/4 of it 15; the pair sends half of 5 ms
    assert alone.begins_ns == (0, 3_000_000, 3_000_000, 18_000_000, 3_000_000)
    assert alone.ends_ns == (3_000_000, 8_000_000, 18_000_000, 20_500_000, 4_500_000)
    assert alone.critical == (0, 2, 3)
    assert alone.iteration_ns == 20_500_000
    assert alone.length_ns([0, 2]) == 18_000_000
    told = summary(recorded, card)
    told.pop("variation")
    assert told == {
        "ranks": 4,
        "classes": [[0, 2], [1, 3]],
        "steps": 21,
        "nodes": 77,
        "tasks": 5,
        "compute_tasks": 2,
        "collectives": [
            {"kind": "all-reduce", "group": "all ranks", "count": 2, "bytes": 11e6},
            {"kind": "all-gather", "group": "pair", "count": 1, "bytes": 5e6},
        ],
        "compute_s": 0.008,
        "communication_alone_s": pytest.approx(0.019),
        "iteration_alone_s": 0.0205,
        "critical_path_tasks": 3,
        "critical_path_communication_s": 0.0175,
        "exposed_share_of_iteration": pytest.approx(12.5 / 20.5),
        "exposed_share_of_communication": pytest.approx(12.5 / 19),
        "notes": {"x": 3},
    }


def test_an_iteration_that_only_computes_has_nothing_exposed() -> None:
    dag = IterationDag((ComputeTask(name="a", duration_ns=3_000_000),))
    told = summary(replace(iteration(), dag=dag), Card())
    assert (told["exposed_share_of_iteration"], told["exposed_share_of_communication"]) == (0.0, 0.0)
    assert (told["iteration_alone_s"], told["communication_alone_s"], told["collectives"]) == (0.003, 0.0, [])


def test_steps_vary_by_what_their_ranks_say() -> None:
    told = variation(iteration())

    def spread(begin: float) -> dict[str, Any]:
        return {
            name: pytest.approx((begin + more) / 1e3)
            for name, more in (("mean", 10), ("p5", 1), ("p50", 10), ("p95", 19))
        }

    assert told["compute_s"] == spread(50)
    assert told["collectives"] == [
        {"name": "all-reduce-1", "input_bytes": 8, "ready_s": spread(0)},
        {"name": "all-reduce-2", "input_bytes": 6, "ready_s": spread(20)},
        {"name": "all-gather-1", "input_bytes": 4, "ready_s": spread(40)},
    ]
    assert told["step_s"] == {"mean": pytest.approx(0.021), "p5": 0.02, "p50": 0.02, "p95": 0.02}
    assert told["unrecorded_step_s"]["p50"] == 0.016
    assert told["lengthening"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "text", "is_trace", "reader"),
    [
        ("a.et", "", True, read_chakra),
        ("A.ET.gz", "", True, read_chakra),
        ("a.recording.json", "{", True, read_recording),
        ("a.recording.json.gz", "", True, read_recording),
        ("a.json", '{"schemaVersion": 1, "x": 2}', True, read_kineto),
        ("a.json", '{"traceEvents": []}', True, read_kineto),
        ("a.json", '{"jobs": []}', False, read_kineto),
        ("a.json.gz", '{"jobs": []}', True, read_kineto),
        ("a.csv", '{"traceEvents": []}', False, None),
        ("a.et.zip", "", False, None),
    ],
)
def test_traces_are_known_by_their_names_and_first_words(
    tmp_path: Path, name: str, text: str, is_trace: bool, reader: Any
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert recognises(path) is is_trace
    if reader is None:
        said = "the suffix is of no format; expected .et or .json (Chakra), .json (Kineto) or .recording.json"
        assert answered(reader_of, path).startswith(f"{path}: {said}")
    else:
        assert reader_of(path) is reader


def recording(folder: Path, rank: int, groups: Any = None) -> Path:
    path = folder / f"{rank}.recording.json"
    calls = (RankCommunication("all-reduce", 800, EVERYBODY), RankCommunication("all-gather", 40, "own"))
    marks = tuple(Mark(MarkKind.STARTS, place, 1000) for place in range(2))
    steps = {n: RankStep(1_000_000 * n, calls, marks, 9_000_000, (), 5) for n in (4, 5, 7)}
    path.write_text(recording_text(rank, 2, {"own": (0, 1)} if groups is None else groups, steps))
    return path


def test_what_is_in_a_trace_is_told(tmp_path: Path) -> None:
    assert found(recording(tmp_path, 1)) == {
        "rank": 1,
        "ranks": 2,
        "nodes": 6,
        "steps": 3,
        "collectives": 6,
        "bytes_of_them": 2520,
        "groups": 2,
        "computing_s": [0.004, 0.005, 0.007],
    }


def test_files_of_one_format_are_merged_with_the_groups_of_a_file(tmp_path: Path) -> None:
    paths = [recording(tmp_path, rank, {}) for rank in (0, 1)]
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"own": [0, 1]}))
    assert "group 'own' is defined nowhere" in answered(read_iteration, paths)
    made = read_iteration(paths, groups=groups)
    assert (made.num_ranks, made.steps, made.classes) == (2, 3, ((0, 1),))
    assert answered(read_iteration, []) == "no trace is given; expected a file a rank, or one that stands for all"
    other = tmp_path / "a.et"
    said = answered(read_iteration, [paths[0], other])
    assert said == f"{other}: is of another format than {paths[0]}; expected files of one format"
