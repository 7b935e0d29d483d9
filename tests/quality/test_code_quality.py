"""The linter, the type checker, the import contracts and the names promised in the documents."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tiers import tried

from ddlsched.plugins.names import KINDS, names, resolve, resolve_bundle
from ddlsched.workload.workload_files import workload_of

ROOT = Path(__file__).parents[2]

CHECKS = {
    "ruff": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "import contracts": ["-c", "from importlinter.cli import lint_imports_command as check; check()"],
}


@pytest.mark.parametrize("check", tried(CHECKS, lambda place: [*CHECKS][place] != "mypy"))
def test_check_passes(check: str) -> None:
    done = subprocess.run([sys.executable, *CHECKS[check]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _unmarked(source: str) -> list[str]:
    """Return the tests that try as many cases as ``examples`` says, and that ``-m slow`` leaves out all the same."""
    body, varied = ast.parse(source).body, {"examples"}

    def varies(node: ast.AST) -> bool:
        return any(isinstance(each, ast.Name) and each.id in varied for each in ast.walk(node))

    for node in body:
        if isinstance(node, ast.Assign) and varies(node.value):
            varied |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("test_") and varies(node):
            varied.add(node.name)
    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    marks = [
        {"given", "drawn"} & set(re.findall(r"\w+", " ".join(map(ast.unparse, node.decorator_list)))) for node in tests
    ]
    return [node.name for node, marked in zip(tests, marks, strict=True) if varies(node) and not marked]


def test_no_two_files_of_tests_have_one_name() -> None:
    """Folders of tests are no packages, so that pytest takes the second for the first and collects nothing."""
    names_of_files = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, files in names_of_files.items() if files > 1]


@pytest.mark.long
def test_slow_runs_try_more_of_every_random_test() -> None:
    """The command that was to send 60,000 frames sent none."""
    assert _unmarked("MANY = examples(9)\ndef test_many():\n    for _ in range(MANY): pass") == ["test_many"]
    paths = [
        path for path in (ROOT / "tests").rglob("test_*.py") if "pytestmark = pytest.mark.drawn" not in path.read_text()
    ]
    assert {path.name: names for path in paths if (names := _unmarked(path.read_text()))} == {}


PROMISED = {
    "placement": {"random", "first-fit", "list-scheduling", "lwf", "blocks", "delay", "sjf-bsbf"},
    "order": {"srsf", "srtf", "fifo", "las", "tiresias", "themis", "qssf"},
    "communication": {"bounded-overlap", "adadual", "preemptive"},
    "allocation": {
        "elastic-scaling",
        "malleable",
        "malleable-equal-share",
        "malleable-links",
        "malleable-milp",
        "malleable-survival",
        "malletrain",
        "tiresias",
    },
    "admission": {"kai", "kueue", "slurm-multifactor", "volcano"},
    "path": {"ecmp", "least-congested", "route", "sglb"},
    "ranks": {"least-bytes", "nested", "tp-dp-pp", "tp-pp-dp"},
    "contention": {
        "linear",
        "10gbe",
        "1gbe",
        "1gbe-measured",
        "connection-shares",
        "equal-share",
        "max-min",
        "mltcp",
        "packet-rings",
        "size-shares",
        "strict-levels",
    },
    "interference": {"uniform", "pairs"},
    "checkpoint": {"daly", "fixed", "young"},
    "recovery": {"shrink", "spares", "wait"},
    "health": {"repeated-failures"},
    "topology": {
        "star",
        "leaf-spine",
        "fat-tree",
        "clos",
        "double-sided",
        "lingjun",
        "monkeytree",
        "rail-optimised",
    },
    "collective": {"ring", "hierarchical", "double-binary-tree", "halving-doubling", "direct", "in-network", "nccl"},
    "workload": {"elastic-mix", "microsoft-160", "stream", "trace"},
    "bundle": {"srsf-1", "srsf-2", "srsf-3", "ada-srsf", "block-srtf"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_promised_names_are_registered_and_can_be_made(kind: str) -> None:
    assert PROMISED[kind] <= set(names(kind))
    for name in names(kind):
        if kind == "bundle":
            for door, given in resolve_bundle(name).items():
                resolve(door, given)
        elif name in ("pairs", "replay", "trace"):
            continue  # which need a file
        elif kind == "workload":
            assert len(workload_of(name, seed=1)) > 0
        else:
            resolve(kind, name)


@pytest.mark.long
def test_listing_names_imports_no_plugin() -> None:
    program = (
        "import sys, ddlsched.plugins.names as p\n"
        "[p.names(kind) for kind in p.KINDS]\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('algorithms', 'topologies', 'numba')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, ddlsched; print([m for m in ('numpy', 'pandas', 'numba', 'networkx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_imported() -> None:
    import ddlsched

    for name in ddlsched.__all__:
        assert getattr(ddlsched, name).__doc__, name


def test_what_python_calls_of_the_event_loop_can_be_called() -> None:
    """A function without a wrapper for Python ends the process when it is called."""
    loop = ROOT / "ddlsched" / "engine" / "loop"
    compiled = ROOT / "ddlsched" / "engine" / "compiled_views.py"  # calls from compiled code
    outside = [p for p in (ROOT / "ddlsched").rglob("*.py") if loop not in p.parents and p != compiled]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in [*outside, loop / "compilation.py"])
    imported = re.findall(r"from ddlsched\.engine\.loop\.(\w+) import (\([^)]*\)|[^\n]*)", sources)
    called = {(module, name) for module, names in imported for name in re.findall(r"\w+", names)}
    assert {("advance", "advance"), ("placement", "place_job")} <= called
    for module, name in called:
        function = getattr(importlib.import_module(f"ddlsched.engine.loop.{module}"), name)
        assert not getattr(function, "targetoptions", {}).get("no_cpython_wrapper"), (module, name)
