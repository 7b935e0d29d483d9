"""A headline stands with its condition, and its number is that of a committed table (``docs/claims.csv``).

Each row: a number as a document shows it; what must stand in the same sentence, or in the same section if it is in a
table; and the table, row and column that it comes from, with the command that prints it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import Interval

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = pd.read_csv(ROOT / "docs" / "claims.csv", dtype=str).to_dict("records")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def whole(number: str) -> re.Pattern[str]:
    """Return what matches a number, but not one that it is part of."""
    return re.compile(rf"(?<![\d.,+-]){re.escape(number)}(?![\d.]*\d)")


def statements(text: str, number: str) -> list[str]:
    """Return where a text shows a number: the sentence, or the section with its heading if it is in a table."""
    found = []
    for section in re.split(r"(?m)^(?=#+ )", text):
        tables = "\n".join(line for line in section.splitlines() if line.startswith("|"))
        prose = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
        if whole(number).search(tables):
            found.append(section)
        sentences = re.split(r"(?<=[.:])\s+(?=[A-Z*`\[])|\n\s*\n|\n(?=- )", prose)
        found += [sentence for sentence in sentences if whole(number).search(sentence)]
    return found


def without_condition(text: str, number: str, needs: str) -> list[str]:
    """Return the statements of a number that lack a part of its condition."""
    parts = needs.split(";")
    return [one for one in statements(text, number) if not all(part.lower() in one.lower() for part in parts)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['document']} {claim['shown']}")
def test_a_claim_is_shown_and_is_the_number_of_its_table(claim):
    assert statements((ROOT / claim["document"]).read_text(encoding="utf-8"), claim["shown"])
    (row,) = pd.read_csv(ROOT / claim["table"]).query(claim["row"]).to_dict("records")
    column, scale = claim["column"], float(claim["scale"])
    if "[" in claim["shown"]:
        found = Interval(row[column], row[f"{column}_low"], row[f"{column}_high"], row["seeds"])
        assert interval_text(found.scaled(scale), sign=True) == claim["shown"]
    else:
        decimals = len(claim["shown"].partition(".")[2])
        assert f"{row[column] * scale:.{decimals}f}" == claim["shown"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['shown']} needs {claim['needs']}")
def test_neither_its_document_nor_a_page_shows_a_claim_without_its_condition(claim):
    texts = {path: path.read_text(encoding="utf-8") for path in {*PAGES, ROOT / claim["document"]}}
    bare = {str(path): without_condition(text, claim["shown"], claim["needs"]) for path, text in texts.items()}
    assert not any(bare.values())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["command"])
def test_the_command_of_a_claim_is_there_and_documented(claim):
    script = claim["command"].split()[1]
    assert (ROOT / script).is_file()
    assert claim["command"] in (ROOT / claim["document"]).read_text(encoding="utf-8")


def test_a_bare_headline_is_found():
    bare = "Jobs finish 44.9 % earlier. Block-SRTF: -44.9 [-45.9, -43.9] %."
    assert without_condition(bare, "-44.9", "shared") == ["Block-SRTF: -44.9 [-45.9, -43.9] %."]
    assert not without_condition("Where GPUs are shared, -44.9 %.", "-44.9", "shared")
    table = "## Gains\n\n| a | -44.9 |\n"
    assert without_condition(table, "-44.9", "shared") == [table]
    assert not without_condition(table.replace("Gains", "Gains, shared GPUs"), "-44.9", "shared")
