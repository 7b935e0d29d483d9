"""What ``tests/mutants.py`` does: which faults there are, that they are put in, and that they are noticed or told."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest
from mutants import Mutant, Notices, covering, drawn, mutants_of, told

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
    return a < b and a + b
'''


def test_item_27_every_kind_of_fault_is_put_in_and_nothing_that_is_only_said() -> None:
    found = mutants_of("x.py", SOURCE)
    put = sorted(mutant.said(SOURCE).removeprefix("x.py:") for mutant in found)
    assert put == [
        "10: a is None -> (a is not None)",
        "10: a is None -> False",
        "12: 7 -> 8",
        "13: total += a -> pass",
        "14: print(total) -> pass",
        "15: a + b -> (a - b)",
        "15: a < b -> (a <= b)",
    ]
    for mutant in found:
        changed = mutant.put_into(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))


def test_item_27_the_same_seed_draws_the_same_faults_and_all_of_them_are_programs() -> None:
    first = drawn(["ddlsched/network", "topologies"], 3, 60)
    assert first == drawn(["ddlsched/network", "topologies"], 3, 60)
    assert first != drawn(["ddlsched/network", "topologies"], 4, 60)
    assert len({mutant.path for mutant in first}) > 5
    for mutant in first:
        ast.parse(mutant.put_into((mutants.ROOT / mutant.path).read_bytes()))


def test_item_27_what_imports_a_module_runs_first_and_then_its_room() -> None:
    tests = covering("ddlsched/network/packet_rings.py")
    assert tests[0][0].startswith("tests/network/")
    assert tests[-1] == ("tests/network",)
    assert covering("algorithms/ordering/las.py")[-1] == ("tests/algorithms",)


def a_tree(folder: Path, test: str) -> Mutant:
    """Write a module and its test; return a fault of the module."""
    (folder / "ddlsched" / "units").mkdir(parents=True)
    (folder / "tests" / "units").mkdir(parents=True)
    source = b"def one_more(a):\n    return a + 1\n"
    (folder / "ddlsched" / "units" / "more.py").write_bytes(source)
    (folder / "tests" / "units" / "test_more.py").write_text(test)
    return mutants_of("ddlsched/units/more.py", source)[0]


@pytest.mark.parametrize(("test", "noticed"), [("one_more(1) == 2", True), ("one_more(1) is not None", False)])
def test_item_27_a_fault_is_noticed_by_a_test_that_looks_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, noticed: bool
) -> None:
    imports = "import sys\nsys.path.insert(0, 'ddlsched/units')\nfrom more import one_more\n"
    program = f"{imports}\n\ndef test_it():\n    assert {test}\n"
    mutant = a_tree(tmp_path, program)
    before = (tmp_path / mutant.path).read_bytes()
    monkeypatch.setattr(mutants, "covering", lambda path: [("tests/units",)])
    assert Notices(tmp_path, 60.0).of(mutant) == noticed
    assert (tmp_path / mutant.path).read_bytes() == before


def test_item_27_too_few_that_are_noticed_end_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert told({True: [True] * 100, False: [True] * 97 + [False] * 3}) == 0
    assert told({True: [True] * 98 + [False] * 2, False: [True]}) == 1
    assert told({True: [], False: [True] * 96 + [False] * 4}) == 1
    assert "98 of 100 noticed (98.0%" in capsys.readouterr().out


@pytest.mark.slow
def test_item_27_faults_of_the_contention_models_are_noticed() -> None:
    assert mutants.main(["--seed", "1", "--number", "20", "ddlsched/network/contention.py"]) == 0
