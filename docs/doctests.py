"""Run the examples of pages and docstrings that begin with ``>>>``: ``docs/build`` and the tests do."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("ddlsched", "algorithms", "topologies")
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def sources() -> list[Path]:
    """Return the pages and modules that have examples."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in (*pages, *modules) if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.M)]


def examples_of(path: Path) -> Iterator[doctest.DocTest]:
    """Yield the examples of a page, which share their names, or those of each docstring of a module."""
    if path.suffix == ".md":
        # A fence would be taken for output; an empty line in its place keeps the numbers of lines.
        text = re.sub(r"^```.*$", "", path.read_text(encoding="utf-8"), flags=re.M)
        yield doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0)
    else:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield from doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))


def run(path: Path) -> doctest.TestResults:
    """Run the examples of a page or module in an empty folder, print those that fail, and count both."""
    runner = doctest.DocTestRunner(optionflags=_OPTIONS)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for examples in examples_of(path):
                runner.run(examples)
        finally:
            os.chdir(before)
    return runner.summarize(verbose=False)


def main() -> int:
    """Run all; 1 if one fails."""
    sys.path.insert(0, str(ROOT))
    return int(sum(run(path).failed for path in sources()) > 0)


if __name__ == "__main__":
    sys.exit(main())
