"""A program that was built before is given out again only while all that it was made of is what it was."""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlsched.policies.compiling import program
from ddlsched.policies.compiling.program import build_program, program_of
from ddlsched.policies.compiling.source import CannotCompileError

SOURCE = """
from dataclasses import dataclass
from typing import Any, ClassVar
import numpy as np
import {helper} as other

SCALE = 3

def doubled(number, times=2):
    return number * times

def _made():
    step = 5
    def stepped(number):
        return number + step
    return stepped

stepped = _made()

class Base:
    LIMIT = 7
    def inherited(self, job):
        return job.num_gpus

@dataclass(kw_only=True)
class P(Base):
    sign: Any = 1
    name: Any = "up"
    table: Any = None
    @property
    def turned(self):
        return -self.sign
    def helped(self, job):
        return doubled(job.num_gpus) * SCALE
    def key(self, job, now_s):
        if self.name == "up":
            return self.turned * self.inherited(job) * self.LIMIT
        return self.helped(job) + other.tripled(job.num_gpus)

@dataclass(kw_only=True)
class Closed:
    def key(self, job, now_s):
        return stepped(job.num_gpus)
"""


def make(tmp_path: Path) -> tuple[Any, Any]:
    """Return the module of the source, and the one that it gets help from, as they were never loaded before."""
    found = []
    for text in ("def tripled(number):\n    return 3 * number\n", SOURCE):
        name = f"known_{len(sys.modules)}_{tmp_path.name}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text).format(helper=found[0].__name__ if found else ""))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found.append(module)
    return found[1], found[0]


def rewritten(program: Any) -> tuple[str, Any]:
    return program.digest, program.fields.numbers


def found(build: Callable[[Any, str], Any], plugin: Any) -> Any:
    """Return what is built, or why nothing is."""
    try:
        return rewritten(build(plugin, "key"))
    except CannotCompileError as error:
        return str(error)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier tests left may fill the room for known programs, which is then emptied."""
    monkeypatch.setattr(program, "_known", {})


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the methods whose programs were really built."""
    names: list[str] = []

    def noted(plugin: Any, method: str) -> Any:
        names.append(method)
        return build_program(plugin, method)

    monkeypatch.setattr(program, "build_program", noted)
    return names


def test_another_instance_gets_the_same_program_with_its_own_fields(tmp_path, built):
    module, _ = make(tmp_path)
    first, second = program_of(module.P(sign=1), "key"), program_of(module.P(sign=4), "key")
    assert built == ["key"]
    assert first.functions is second.functions
    assert (first.fields.numbers["sign"], second.fields.numbers["sign"]) == (1, 4)


def other_key(self, job, now_s):
    return job.num_gpus * 11


def other_inherited(self, job):
    return job.num_gpus + 1


def other_tripled(number):
    return number * 4


class OtherBase:
    LIMIT = 7

    def inherited(self, job):
        return job.num_gpus - 1


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a method": lambda m, _: setattr(m.P, "key", other_key),
    "a method of the base": lambda m, _: setattr(m.Base, "inherited", other_inherited),
    "a method that hides the base's": lambda m, _: setattr(m.P, "inherited", other_inherited),
    "a property": lambda m, _: setattr(m.P, "turned", property(lambda self: self.sign)),
    "a constant of the class": lambda m, _: setattr(m.Base, "LIMIT", 8),
    "the bases": lambda m, _: setattr(m.P, "__bases__", (OtherBase,)),
    "the code of a method": lambda m, _: setattr(m.P.key, "__code__", other_key.__code__),
}
CHANGES_OF_DOWN: dict[str, Callable[[Any, Any], Any]] = {
    "a number of the module": lambda m, _: setattr(m, "SCALE", 3.0),
    "a function of the module": lambda m, _: setattr(m, "doubled", other_tripled),
    "a default": lambda m, _: setattr(m.doubled, "__defaults__", (2.0,)),
    "a function of another module": lambda _, helper: setattr(helper, "tripled", other_tripled),
}


@pytest.mark.parametrize("what", [*CHANGES, *CHANGES_OF_DOWN])
def test_after_a_change_the_program_is_that_of_now(what, tmp_path, built):
    module, helper = make(tmp_path)
    name = "up" if what in CHANGES else "down"
    plugin = module.P(name=name)
    before = program_of(plugin, "key")
    assert program_of(plugin, "key").functions is before.functions
    (CHANGES | CHANGES_OF_DOWN)[what](module, helper)
    now, expected = found(program_of, plugin), found(build_program, plugin)
    assert now == expected != rewritten(before)
    assert built == ["key", "key"]


@pytest.mark.parametrize("fields", [{"sign": 1.0}, {"sign": True}, {"name": "down"}, {"sign": 2**70}])
def test_fields_of_another_kind_have_a_program_of_their_own(fields, tmp_path):
    module, _ = make(tmp_path)
    before = program_of(module.P(), "key")
    changed = module.P()
    for name, value in fields.items():
        setattr(changed, name, value)
    assert found(program_of, changed) == found(build_program, changed) != rewritten(before)
    assert program_of(module.P(), "key").functions is before.functions


def test_a_variable_of_an_enclosing_function_is_looked_up_again(tmp_path):
    module, _ = make(tmp_path)
    before = program_of(module.Closed(), "key")
    (cell,) = module.stepped.__closure__
    cell.cell_contents = 6
    assert program_of(module.Closed(), "key").digest == build_program(module.Closed(), "key").digest != before.digest


def test_what_is_no_longer_there_is_not_what_it_was(tmp_path):
    module, _ = make(tmp_path)
    (cell,) = module.stepped.__closure__
    assert program._is_still(lambda: cell.cell_contents, cell.cell_contents)
    before = cell.cell_contents
    del cell.cell_contents
    assert not program._is_still(lambda: cell.cell_contents, before)
    assert not program._is_still(lambda: no_such_name, None)  # type: ignore[name-defined]  # noqa: F821
    assert not program._is_still(lambda: 1.0, 1)


def test_a_file_that_was_edited_is_not_compiled_from_memory(tmp_path):
    module, _ = make(tmp_path)
    program_of(module.P(), "key")
    path = Path(module.__file__)
    path.write_text(path.read_text().replace("self.turned", "self.sign"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(CannotCompileError, match="has changed since"):
        program_of(module.P(), "key")


def test_what_is_remembered_has_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_MOST", 3)
    monkeypatch.setattr(program, "_known", {})
    module, _ = make(tmp_path)
    for number in range(10):
        program_of(module.P(name=f"down-{number}"), "key")
    assert sum(map(len, program._known.values())) <= 3
