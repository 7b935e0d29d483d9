"""What ``tests/mutants.py`` does: which faults there are, that they are put in, and that they are noticed or told."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import ROOT, _own, _within, drawn, mutants_of, results_of, told

SOURCE = b'''"""Text 1 + 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


def larger(a: "1 < 2", b):
    """Return 3 < 4."""
    if a is None:
        raise ValueError("1 + 1")
    total = 7
    total += a
    print(total)
    none = -1
    return a < b and a + b[-1]

def back(a):
    return -1 * a / (a + b)
'''


def test_item_27_every_kind_of_fault_is_put_in_and_nothing_that_is_only_said() -> None:
    found = mutants_of("x.py", SOURCE)
    put = sorted(mutant.said(SOURCE).removeprefix("x.py:") for mutant in found)
    assert put == [
        "10:8: a is None -> (a is not None)",
        "10:8: a is None -> False",
        "12:13: 7 -> 8",
        "13:5: total += a -> pass",
        "14:5: print(total) -> pass",
        "16:12: a < b -> (a <= b)",
        "16:22: a + b[-1] -> (a - b[-1])",
        "16:29: 1 -> 2",
        "19:12: -1 * a -> ((-1) / a)",
        "19:12: -1 * a / (a + b) -> ((-1 * a) * (a + b))",
        "19:13: 1 -> 2",
        "19:22: a + b -> (a - b)",
    ]
    for mutant in found:
        changed = mutant.put_into(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))


@pytest.mark.long
def test_item_27_the_same_seed_draws_the_same_faults_and_all_of_them_are_programs() -> None:
    first = drawn(ROOT, ["ddlsched/network", "topologies"], 3, 60)
    assert first == drawn(ROOT, ["ddlsched/network", "topologies"], 3, 60)
    assert first != drawn(ROOT, ["ddlsched/network", "topologies"], 4, 60)
    assert len({mutant.path for mutant in first}) > 5
    for mutant in first:
        ast.parse(mutant.put_into((ROOT / mutant.path).read_bytes()))
    line = first[0].line
    assert {mutant.line for mutant in drawn(ROOT, [f"{first[0].path}:{line}"], 1, 9)} == {line}


MODULE = b"""\
WIDTH, STEP = 0, 1
WAITED = 2


def more(a):
    if a > 9:
        return a
    return (
        a
        + STEP
    )
"""
TESTS = """\
from topologies.more import WAITED, more


def test_one_more():
    assert more(1) == 2


def test_more_is_a_number():
    assert more(1) is not None and WAITED


def test_that_fails():
    assert more(10) == 11
"""


PROGRAM = """\
import sys
from pathlib import Path
import mutants
data = Path(sys.argv[1])
mutants.cover(data, False, ["test_more.py"], 60.0)
covered, source = mutants.Covered(data), (data / "tree/topologies/more.py").read_bytes()
found = mutants.mutants_of("topologies/more.py", source)
for mutant in found:
    tests = [test.partition("::")[2] for test in covered.by(mutant, False)]
    print("FOUND", mutant.said(source).split(": ", 1)[1], sorted(tests), sep="; ")
for _ in range(2):
    mutants.try_all(data, data / "results", found, False, [0.001, 60.0])
"""


@pytest.mark.slow
def test_item_27_the_tests_that_run_a_line_run_and_one_that_looks_notices_a_fault(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "topologies").mkdir(parents=True)
    (tree / "topologies" / "__init__.py").write_bytes(b"")
    (tree / "topologies" / "more.py").write_bytes(MODULE)
    (tree / "test_more.py").write_text(TESTS)
    (tree / "setup.cfg").write_text("[tool:pytest]\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=True,
    )
    both = "['test_more_is_a_number', 'test_one_more']"
    found = [line.removeprefix("FOUND; ") for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert sorted(found) == [
        f"0 -> 1; {both}",
        f"1 -> 2; {both}",
        f"2 -> 3; {both}",
        f"9 -> 10; {both}",
        f"a + STEP -> (a - STEP); {both}",
        f"a > 9 -> (a >= 9); {both}",
        f"a > 9 -> False; {both}",
    ]
    noticed, survived = ("noticed", "test_more.py::test_one_more"), ("survived", "")
    assert {fault.split(": ", 1)[1]: what for fault, what in results_of(tmp_path / "results").items()} == {
        "0 -> 1": survived,
        "1 -> 2": noticed,
        "2 -> 3": survived,
        "9 -> 10": survived,
        "a + STEP -> (a - STEP)": noticed,
        "a > 9 -> (a >= 9)": survived,
        "a > 9 -> False": survived,
    }
    assert len((tmp_path / "results").read_text().splitlines()) == len(found)
    assert (tree / "topologies" / "more.py").read_bytes() == MODULE


def _with(noticed: int, survived: int, nothing: int = 0, path: str = "ddlsched/io/a.py") -> dict[str, tuple[str, str]]:
    verdicts = ["noticed"] * noticed + ["survived"] * survived + ["nothing"] * nothing
    return {f"{path}:{line}: 0 -> 1": (verdict, "") for line, verdict in enumerate(verdicts)}


def test_item_27_too_few_that_are_noticed_end_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    loop = "ddlsched/engine/loop/a.py"
    assert told(_with(97, 3, 20) | _with(99, 1, path=loop)) == 0
    out = capsys.readouterr().out
    assert "\nio, 120, 20, 97, 100, 97.0%\n" in out
    assert "\nloop and contention, 100, 0, 99, 100, 99.0%\n" in out
    assert "\nsurvived ddlsched/io/a.py:98: 0 -> 1" in out
    assert told(_with(98, 2, path=loop)) == 1
    assert told(_with(96, 4)) == 1


def test_what_was_written_last_about_a_fault_counts(tmp_path: Path) -> None:
    file = tmp_path / "results"
    assert results_of(file) == {}
    file.write_text("a.py:1: 0 -> 1\tsurvived\t\na.py:2: 0 -> 1\tnoticed\tt\na.py:1: 0 -> 1\tnothing\tit is a sum\n")
    assert results_of(file) == {"a.py:1: 0 -> 1": ("nothing", "it is a sum"), "a.py:2: 0 -> 1": ("noticed", "t")}


def test_a_test_that_takes_too_long_keeps_no_other_from_running() -> None:
    took = {"long": 70.0, "drawn": 12.0, "slow": 5.0, "slower": 7.0, "quick": 1.0}
    assert list(_within(took, {"long", "drawn"}, 20.0, "tests/io/")) == ["quick", "drawn", "slow"]


def test_two_cases_of_a_function_are_enough_at_first() -> None:
    took = {f"t.py::many[{case}]": 0.1 for case in range(9)} | {"t.py::one": 0.5}
    assert list(_within(took, set(), 20.0, "tests/io/", 2)) == ["t.py::many[0]", "t.py::many[1]", "t.py::one"]
    assert len(_within(took, set(), 20.0, "tests/io/")) == 10


def test_other_rooms_leave_a_rooms_own_tests_their_time() -> None:
    took = {"tests/cli/drawn": 1.0, "tests/io/drawn": 2.0, "tests/cli/quick": 0.5, "tests/io/slow": 4.0}
    drawn_ones = {test for test in took if test.endswith("drawn")}
    own = _own("ddlsched/io/reading.py")
    assert list(_within(took, drawn_ones, 7.0, own)) == ["tests/io/drawn", "tests/io/slow", "tests/cli/drawn"]
    assert (_own("algorithms/path/ecmp.py"), _own("topologies/star.py")) == ("tests/algorithms/", "tests/topologies/")


@pytest.mark.long
def test_each_test_that_has_noticed_a_fault_is_there() -> None:
    """Those whose names were changed, or that were merged, would be looked for in vain."""
    gone, texts = [], dict[str, str]()
    for fault, (_, by) in results_of(ROOT / "tests/mutants.tsv").items():
        file, name, *_ = [*by.partition("[")[0].partition(" ")[0].split("::"), ""]
        if file.startswith("tests/"):
            if file not in texts:
                texts[file] = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not texts[file] or not re.search(rf"^(def |class |){name}\b", texts[file], re.M):
                gone.append((fault, by))
    assert len(texts) > 50
    assert gone == []
