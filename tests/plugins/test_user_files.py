"""Files of the user's: found in a text, with what they import from beside them, and run once a version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ddlsched.comparisons.sweeps.run import fingerprint
from ddlsched.errors import PluginError
from ddlsched.plugins import user_files
from ddlsched.plugins.user_files import class_in_file, files_named, interrupted_plugin, substituted, with_neighbours


@pytest.fixture(autouse=True)
def _files(in_a_new_folder):
    Path("mine.py").write_text("from helper import limit\nclass Mine:\n    limit = limit\n")
    Path("helper.py").write_text("limit = 1\n")
    Path("jobs.csv").write_text("")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("jobs.csv", ["jobs.csv"]),
        ("mine.py", ["mine.py"]),
        ("mine.py:Mine", ["mine.py"]),
        ("mine.py:Mine:file=jobs.csv,alpha=1.5", ["mine.py", "jobs.csv"]),
        ("trace:alpha=2, file= jobs.csv", ["jobs.csv"]),
        ("lwf:kappa=1", []),
        ("nothing.py:Mine:file=nothing.csv", []),
        ("", []),
        (":=,\0", []),
    ],
)
def test_files_that_a_text_names(text, named):
    assert [path.name for path in files_named(text)] == named
    moved = substituted(text, lambda path: f"/else/where/{path}")
    assert moved.count("/else/where/") == len(named)
    assert moved.replace("/else/where/", "").replace(" ", "") == text.replace(" ", "")


@pytest.mark.long
def test_neighbours_are_what_is_imported_directly_or_not(tmp_path):
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    (tmp_path / "pack" / "deep" / "core.py").write_text("import last\n")
    (tmp_path / "last.py").write_text("import mine, numpy, ddlsched\n")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "mine.py").write_text("def late():\n    from pack.deep import core\n    import helper\n")
    names = {str(path.relative_to(tmp_path)) for path in with_neighbours(tmp_path / "mine.py")}
    assert names == {"mine.py", "helper.py", "pack/deep/core.py", "last.py"}


@pytest.mark.long
def test_the_framework_beside_a_file_is_no_neighbour(tmp_path):
    (tmp_path / "ddlsched").mkdir()
    (tmp_path / "ddlsched" / "errors.py").write_text("")
    (tmp_path / "mine.py").write_text("from ddlsched.errors import InputError\n")
    assert with_neighbours(tmp_path / "mine.py") == [tmp_path / "mine.py"]


def test_a_file_that_is_no_python_has_no_neighbours(tmp_path):
    (tmp_path / "mine.py").write_text("import helper, (\n")
    assert with_neighbours(tmp_path / "mine.py") == [tmp_path / "mine.py"]
    assert with_neighbours(tmp_path / "jobs.csv") == [tmp_path / "jobs.csv"]


def test_a_fingerprint_changes_with_a_neighbour(tmp_path):
    inputs = {"options": {"order": "mine.py:Mine"}}
    before = fingerprint(inputs, "s")
    (tmp_path / "unused.py").write_text("limit = 2\n")
    assert fingerprint(inputs, "s") == before
    (tmp_path / "helper.py").write_text("limit = 2\n")
    assert fingerprint(inputs, "s") != before


def test_a_fingerprint_changes_with_a_file_that_a_parameter_names(tmp_path):
    inputs = {"workload": "mine.py:Mine:file=jobs.csv"}
    before = fingerprint(inputs, "s")
    (tmp_path / "jobs.csv").write_text("job_id\n")
    assert fingerprint(inputs, "s") != before


def test_a_changed_neighbour_is_run_anew(tmp_path):
    file = tmp_path / "mine.py"
    first = class_in_file(file, "Mine")
    assert class_in_file(file, "Mine") is first
    (tmp_path / "helper.py").write_text("limit = 2\n")
    assert (first.limit, class_in_file(file, "Mine").limit) == (1, 2)
    (tmp_path / "helper.py").write_text("limit = 1\n")
    assert class_in_file(file, "Mine") is first
    assert not list(tmp_path.rglob("*.pyc"))


def test_two_files_have_each_its_own_neighbour(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.py").write_text((tmp_path / "mine.py").read_text())
    (other / "helper.py").write_text("limit = 3\n")
    limits = [class_in_file(folder / "mine.py", "Mine").limit for folder in (tmp_path, other)]
    assert limits == [1, 3]
    assert "helper" not in sys.modules


def test_nothing_is_left_behind_by_a_file_that_cannot_be_imported(tmp_path):
    (tmp_path / "helper.py").write_text("limit = 1 / 0\n")
    path, modules = list(sys.path), set(sys.modules)
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        class_in_file(tmp_path / "mine.py", "Mine")
    assert (sys.path, set(sys.modules)) == (path, modules)


@pytest.mark.parametrize(("file", "place"), [("mine.py", "mine.py, line 2, key"), ("pandas/_libs/zones.pyx", "")])
def test_cython_s_frames_are_no_plug_in_s(file: str, place: str) -> None:
    space: dict[str, Any] = {}
    exec(compile("def key():\n    raise KeyboardInterrupt\n", file, "exec"), space)
    ours = compile("def ask(key):\n    key()\n", user_files.__file__, "exec")
    exec(ours, space)
    with pytest.raises(KeyboardInterrupt) as caught:
        space["ask"](space["key"])
    assert interrupted_plugin(caught.value) == place
