"""No room weighs more than its line in ``.ci/sizes.txt`` allows."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZES = ROOT / ".ci" / "sizes.txt"
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def documented(tree: ast.Module) -> set[int]:
    """Return the lines of all docstrings and of texts that stand alone below what they describe."""
    alone = (node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    texts = (node for node in alone if isinstance(node.value.value, str))
    return {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


@functools.cache
def code_lines(path: Path) -> int:
    """Return the lines of a file that are neither blank nor comments nor docstrings."""
    text = path.read_text(encoding="utf-8")
    words = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for word in words if word.type not in NO_CODE for line in range(word.start[0], word.end[0] + 1)}
    return len(lines - documented(ast.parse(text)))


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
