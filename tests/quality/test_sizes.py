"""No room weighs more than its line in ``.ci/sizes.txt`` allows."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZES = ROOT / ".ci" / "sizes.txt"


@functools.cache
def code_lines(path: Path) -> int:
    """Return the lines of a file that are neither blank nor comments nor docstrings.

    Texts that stand alone below what they describe count as docstrings, all lines of other texts as code.
    """
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")
    code = {n for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    alone: set[int] = set()
    tree = ast.parse(source)
    for node in statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            alone.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    if any('"""' in line for n, line in enumerate(lines, 1) if n not in alone):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and '"""' in lines[node.lineno - 1]:
                code.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code - alone)


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a block and of all within it, which are a tenth of its nodes."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(block, name, ()):
            yield node
            yield from statements(node)


def own(place: str, suffix: str) -> Iterator[Path]:
    """Yield the files below a place of the project, or the place itself."""
    found = [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob(f"*{suffix}"))
    for path in found:
        if not any(part.startswith(".") or part in ("build", "_build") for part in path.relative_to(ROOT).parts):
            yield path


def measured(unit: str, places: str) -> int:
    """Return the code lines, files or words of places that are joined by ``+``."""
    parts = places.split("+")
    if unit == "words":
        return sum(len(path.read_text(encoding="utf-8").split()) for place in parts for path in own(place, ".md"))
    paths = [path for place in parts for path in own(place, ".py")]
    return len(paths) if unit == "files" else sum(map(code_lines, paths))


def allowed() -> list[tuple[str, str, int]]:
    rows = [line.split() for line in SIZES.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]
    return [(unit, places, int(most)) for unit, places, most in rows]


@pytest.mark.parametrize(("unit", "places", "most"), allowed())
def test_a_room_is_no_larger_than_its_line(unit: str, places: str, most: int) -> None:
    found = measured(unit, places)
    assert found <= most, f"{places} has {found} {unit}; .ci/sizes.txt allows {most}: delete, or raise it and say why"


def test_every_room_has_a_line() -> None:
    named = {place.rstrip("/") for _, places, _ in allowed() for place in places.split("+")}
    rooms = {f"ddlsched/{path.name}" for path in (ROOT / "ddlsched").iterdir() if (path / "__init__.py").is_file()}
    assert rooms | {"algorithms", "topologies", "experiments", "benchmarks"} <= named
