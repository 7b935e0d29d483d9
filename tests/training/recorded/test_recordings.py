"""What ``ddlsched record`` wrote is read back as it was, or refused with step and field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from ddlsched.errors import InputError
from ddlsched.training.recorded.alone import variation
from ddlsched.training.recorded.rank_steps import RankCommunication, RankStep, WallTime
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.training.recorded.recordings import read_recording, recording_text


def step(length_ns: int, *, begin_ns: int = 5000) -> RankStep:
    """Return a step that computes, reduces behind backward, and stands still for it at its end."""
    stretch = WallTime(begin_ns, begin_ns + length_ns)
    stretch.phase("forward", begin_ns)
    stretch.phase("backward", begin_ns + 100)
    waited = begin_ns + length_ns - 300, begin_ns + length_ns - 100
    stretch.communicate(RankCommunication("all-reduce", 4000), begin_ns + 200, waited, (begin_ns + 200, waited[1]))
    stretch.phase("optimizer", begin_ns + length_ns - 50)
    return stretch.step()


def write(path: Path, *, rank: int = 0, lengths_ns: tuple[int, ...] = (1000, 1200, 1400)) -> Path:
    path.write_text(recording_text(rank, 2, {}, {4 + place: step(length) for place, length in enumerate(lengths_ns)}))
    return path


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = read_recording(write(tmp_path / "0.recording.json"))
    assert dict(trace.steps) == {4: step(1000), 5: step(1200), 6: step(1400)}
    zipped = tmp_path / "1.recording.json.gz"
    zipped.write_bytes(gzip.compress((tmp_path / "0.recording.json").read_bytes()))
    assert read_recording(zipped).steps == trace.steps


def test_time_that_a_rank_stood_still_is_no_computation(tmp_path: Path) -> None:
    made = step(1000)
    assert (made.compute_ns, made.wall_ns, made.stalls_ns) == (800, 1000, ((700, 900),))
    assert [mark.at_ns for mark in made.marks] == [0, 100, 200, 700, 750]


def test_how_much_longer_recording_makes_a_step_is_told_by_steps_before_it(tmp_path: Path) -> None:
    paths = [tmp_path / f"{rank}.recording.json" for rank in range(2)]
    for rank, before_ns in enumerate(([900, 1000], [1000, 800])):
        paths[rank].write_text(recording_text(rank, 2, {}, {4: step(1500), 5: step(1250)}, before_ns))
    found = variation(read_iteration(paths))
    assert found["unrecorded_step_s"] == dict.fromkeys(("mean", "p5", "p50", "p95"), 1e-6)
    assert found["lengthening"] == pytest.approx(0.25)
    done = run("import-training", *map(str, paths), "--out", str(tmp_path / "job.json"))
    assert done.exit_code == 0
    assert "recording makes a step 25 % longer than before" in done.stderr
    assert "step before, unrecorded" in done.stdout
    old = write(tmp_path / "old.recording.json")
    old.write_text(old.read_text().replace('"unrecorded_ns": [], ', ""))
    assert read_recording(old).unrecorded_ns == ()


def test_variation_has_means_and_quantiles_over_steps(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "0.recording.json"),
        write(tmp_path / "1.recording.json", rank=1, lengths_ns=(1500, 1200, 1000)),
    ]
    found = variation(read_iteration(paths))
    assert found["step_s"] == {"mean": pytest.approx(4100e-9 / 3), "p5": 1.2e-6, "p50": 1.4e-6, "p95": 1.5e-6}
    assert found["compute_s"]["p95"] == 1.3e-6
    assert found["collectives"] == [
        {"name": "all-reduce-1", "input_bytes": 4000, "ready_s": dict.fromkeys(("mean", "p5", "p50", "p95"), 2e-7)}
    ]


def changed(*way: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in way[:-1]:
            at = at[key]
        at[way[-1]] = to

    return change


STEP = ("steps", 0)
BAD: dict[str, tuple[Callable[[dict[str, Any]], None], tuple[str, ...]]] = {
    "format": (changed("format", to="x"), ("field format: Invalid enum value 'x'", "ddlsched recording 1")),
    "rank": (changed("rank", to=-1), ("field rank: Expected `int` >= 0",)),
    "no steps": (changed("steps", to=[]), ("field steps: Expected `array` of length >= 1",)),
    "step": (changed("steps", 0, to=3), ("field steps[0]: Expected `object`, got `int`",)),
    "groups": (changed("groups", to={"a": [0, 0]}), ("group 'a'", "different whole numbers")),
    "time": (changed(*STEP, "compute_ns", to=1.5), ("field steps[0].compute_ns: Expected `int`, got `float`",)),
    "falling times": (changed(*STEP, "marks", 2, 2, to=900), ("step 1, field marks: their times fall",)),
    "no start": (changed(*STEP, "marks", 2, 0, to="phase"), ("step 1, mark 3",)),
    "start of none": (changed(*STEP, "marks", 2, 1, to=7), ("step 1, mark 3", "7")),
    "waits first": (
        changed(*STEP, "marks", to=[["waits", 0, 1], ["starts", 0, 2]]),
        ("communication 0 is waited for before it starts",),
    ),
    "never starts": (changed(*STEP, "marks", to=[]), ("not every communication starts once",)),
    "kind": (
        changed(*STEP, "communications", 0, "kind", to="shout"),
        ("field steps[0].communications[0].kind: Invalid enum value 'shout'",),
    ),
    "bytes": (
        changed(*STEP, "communications", 0, "input_bytes", to="4"),
        ("field steps[0].communications[0].input_bytes: Expected `int`, got `str`",),
    ),
    "phase": (changed(*STEP, "marks", 0, 1, to="a b"), ("step 1, mark 1", "'a b'")),
    "stalls": (changed(*STEP, "stalls_ns", to=[[1]]), ("field steps[0].stalls_ns[0]: Expected `array` of length 2",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_field_is_named_with_file_and_step(tmp_path: Path, case: str) -> None:
    change, parts = BAD[case]
    path = write(tmp_path / "0.recording.json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        read_recording(path)
    for part in (str(path), *parts):
        assert part in str(error.value)


def test_a_recording_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "0.recording.json")
    text = path.read_text()
    for size in range(0, len(text) - 1, 53):
        path.write_text(text[:size])
        with pytest.raises(InputError, match=r"0\.recording\.json: .*; expected a recording"):
            read_recording(path)
