"""READMEs of experiments: their tables are those of committed files, and they are short."""

from __future__ import annotations

import pytest
from experiment_scripts import EXPERIMENTS

from experiments.readmes import Column, made_anew, table

READMES = sorted(EXPERIMENTS.glob("*/README.md"))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_tables_are_those_of_committed_files(readme):
    assert made_anew(readme) == readme.read_text(encoding="utf-8")


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_readme_has_at_most_1200_words(readme):
    assert len(readme.read_text(encoding="utf-8").split()) <= 1200


def test_all_together_have_at_most_20000_words():
    assert sum(len(readme.read_text(encoding="utf-8").split()) for readme in READMES) <= 20_000


def test_rows_are_joined_by_their_texts(tmp_path):
    (tmp_path / "a.csv").write_text("policy,metric,mean,low,high\nA,jct,0.5,0.4,0.625\nA,makespan,10,,\n")
    lines = (
        "policy = policy",
        "JCT, % = mean x100 +.1 interval where metric == 'jct'",
        "makespan = mean .0 where metric == 'makespan'",
    )
    assert table(tmp_path, "a.csv", "\n".join(lines)).splitlines() == [
        "| policy | JCT, % | makespan |",
        "| --- | --- | --- |",
        "| A | +50.0 [+40.0, +62.5] | 10 |",
    ]
    assert Column.of("policy = policy").is_text
