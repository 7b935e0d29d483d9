"""The directive ``from-table``: tables of a page come from committed CSV files, so that they cannot drift.

::

    :::{from-table} experiments/contention_64gpu/expected/headline.csv
    :columns: policy, mean
    :where: metric=average_jct_s
    :rows: 5
    :::

``answer-of`` quotes the question of an experiment and a paragraph of its answer from its README: the one that
``:begins:`` with some words, by default the first.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives

ROOT = Path(__file__).parents[1]


class FromTable(Directive):
    """A table from a CSV file of the repository, whole or some columns and rows of it."""

    required_arguments = 1
    option_spec: ClassVar = {
        "columns": directives.unchanged,
        "where": directives.unchanged,
        "percent": directives.unchanged,
        "rows": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table; a file or a column that is not there stops the build."""
        path = ROOT / self.arguments[0]
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise self.error(f"{self.arguments[0]}: {error.strerror}") from None
        named = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        columns = named or list(rows[0])
        if missing := [name for name in columns if name not in rows[0]]:
            raise self.error(f"{self.arguments[0]}: has no column {missing[0]!r}; it has {', '.join(rows[0])}")
        name, _, value = self.options.get("where", "").partition("=")
        chosen = [row for row in rows if not name or row[name.strip()] == value.strip()]
        shares = {name.strip() for name in self.options.get("percent", "").split(",")}
        shown = [
            [_percent(name, row) if name in shares else _short(name, row) for name in columns]
            for row in chosen[: self.options.get("rows")]
        ]
        if not shown:
            raise self.error(f"{self.arguments[0]}: no row has {self.options.get('where')}")
        heads = _HEADS | ({"mean": _HEADS["average_jct_s"]} if value.strip() == "average_jct_s" else {})
        return [_table([heads.get(name, name) for name in columns], shown)]


class AnswerOf(Directive):
    """An experiment's question, and a paragraph of its answer."""

    required_arguments = 1
    option_spec: ClassVar = {"begins": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the paragraphs; a README without a question or an answer stops the build."""
        path = ROOT / "experiments" / self.arguments[0] / "README.md"
        text = _LINK.sub(r"\1", path.read_text(encoding="utf-8"))
        question = re.search(r"\*\*Question\.\*\* (.*?)\n\n", text, re.DOTALL)
        parts = [part for part in text.partition("\n## ")[2].split("\n\n")[1:] if _is_prose(part)]
        answers = [_plain(each) for part in parts for each in part.removeprefix("- ").split("\n- ")]
        begins = self.options.get("begins", "")
        answer = next((each for each in answers if each.startswith(begins)), None)
        if question is None or answer is None:
            raise self.error(f"{path}: has no '**Question.**', or no paragraph that begins with {begins!r} after it")
        found: list[nodes.Node] = [nodes.paragraph("", "", nodes.strong(text=_plain(question[1])))]
        return [*found, nodes.paragraph(text=answer)]


_HEADS = {
    "average_jct_s": "average JCT (s)",
    "p99_jct_s": "99th percentile JCT (s)",
    "jct_change": "change",
    "change_low": "from",
    "change_high": "to",
    "average_change": "change (%)",
    "average_change_low": "from",
    "average_change_high": "to",
    "field": "entrants (with all seeds), seeds",
    "nothing": "lowest average JCT with one job a GPU, knowing nothing of jobs",
    "kinds": "knowing kinds (bytes, throughputs, history)",
    "kinds_change": "its average JCT against knowing nothing",
    "lengths": "knowing lengths",
    "lengths_change": "its average JCT against knowing nothing",
}
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def _is_prose(part: str) -> bool:
    """Return whether a part of a page is a paragraph that says something by itself: no table, heading or code."""
    return bool(part.strip()) and not part.startswith(("|", "#", "`", "!", "    ")) and not part.rstrip().endswith(":")


def _plain(text: str) -> str:
    return " ".join(text.replace("**", "").replace("`", "").split())


def _percent(name: str, row: dict[str, str]) -> str:
    """Return a change as it is read, with its interval if the row has one: -0.0732 is -7.3 %."""
    if not row[name]:
        return ""
    value, *ends = (f"{100 * float(row[key]):+.1f}" for key in (name, f"{name}_low", f"{name}_high") if row.get(key))
    return f"{value} [{', '.join(ends)}] %" if len(ends) == 2 else f"{value} %"


def _short(name: str, row: dict[str, str]) -> str:
    """Return a number in four figures, and any other text as it is; who is compared with has no verdict."""
    cell = row[name]
    if name == "verdict" and row.get("difference_low") == row.get("difference_high") == "0":
        return "baseline"
    try:
        return cell if cell.lstrip("-").isdecimal() else f"{float(cell):.4g}"
    except ValueError:
        return cell


def _table(head: list[str], rows: list[list[str]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group)


def _row(cells: list[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=cell)) for cell in cells))


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("from-table", FromTable)
    app.add_directive("answer-of", AnswerOf)
    return {"parallel_read_safe": True}
