"""A headline stands with its condition, and its number is that of a committed table (``docs/claims.csv``).

Each row: a number as a document shows it, and its interval there (or ``exact``, where nothing is drawn); what must
stand in the same sentence, or in the same section if it is in a table; and the table, row and column that it comes
from, with the command that prints it. A column may name those of the interval's ends, too: ``value:low:high``.

A headline, what a policy changes of the average JCT, has a row in ``docs/headlines.csv``, too: the policy, the
baseline, what each knows of jobs, whether it shares GPUs, ground and seeds. ``own`` matches what belongs to the policy.
Its baseline must be the strongest on that ground of all others that know and share no more.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import scripts_of

from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import Interval, paired_change

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = pd.read_csv(ROOT / "docs" / "claims.csv", dtype=str).to_dict("records")
HEADLINES = pd.read_csv(ROOT / "docs" / "headlines.csv", dtype=str).to_dict("records")
LEAGUE = "experiments/arena/expected/league.csv"
BURST, BURST_TABLE = "64-GPU burst", "experiments/beyond_ada_srsf/expected/exclusive_full_against_fifo.csv"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def whole(number: str, interval: str = "exact") -> re.Pattern[str]:
    """Return what matches a number: none that it is part of, no end of an interval, none with another interval."""
    other = "" if interval == "exact" else rf"(?! \[(?!{re.escape(interval[1:])}))"
    return re.compile(rf"(?<![\d.,+\[-])(?<!\d, ){re.escape(number)}(?![\d.]*\d|\]|, [+-]?\d){other}")


@functools.cache
def sections(text: str) -> list[tuple[str, str, list[str]]]:
    """Return each section of a text, the lines of its tables and its sentences beside them."""
    found = []
    for section in re.split(r"(?m)^(?=#+ )", text):
        tables = "\n".join(line for line in section.splitlines() if line.startswith("|"))
        prose = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
        found.append((section, tables, re.split(r"(?<=[.:])\s+(?=[A-Z*`\[])|\n\s*\n|\n(?=- )", prose)))
    return found


def statements(text: str, number: re.Pattern[str]) -> list[str]:
    """Return where a text shows a number: the sentence, or the section with its heading if it is in a table."""
    found = []
    for section, tables, sentences in sections(text) if number.search(text) else ():
        if number.search(tables):
            found.append(section)
        found += [sentence for sentence in sentences if number.search(sentence)]
    return found


def without_condition(text: str, number: re.Pattern[str], needs: str) -> list[str]:
    """Return the statements of a number that lack a part of its condition."""
    parts = needs.split(";")
    return [one for one in statements(text, number) if not all(part.lower() in one.lower() for part in parts)]


def shown_with_interval(claim: dict[str, str]) -> str:
    """Return how a document shows a claim."""
    return claim["shown"] if claim["interval"] == "exact" else f"{claim['shown']} {claim['interval']}"


def turned(shown: str) -> str:
    """Return ``-9.0 [-9.5, -8.0]`` as ``9.0 [8.0, 9.5]``, what is taken off; an interval around 0 stays."""
    if found := re.fullmatch(r"-([\d.]+) \[-([\d.]+), -([\d.]+)\]", shown):
        shown = f"{found[1]} [{found[3]}, {found[2]}]"
    return shown


def looked_for(claim: dict[str, str]) -> re.Pattern[str]:
    """Return what must not stand without the condition: the bare number, or one that others share with its interval.

    It may also say what is taken off.
    """
    shown = shown_with_interval(claim)
    common = len(re.sub(r"\D", "", claim["shown"])) < 3
    number = re.escape(shown) if common else whole(claim["shown"], claim["interval"]).pattern
    return re.compile(f"{number}|(?<![\\d.,+-]){re.escape(turned(shown))}")


def of_table(claim: dict[str, str]) -> str:
    """Return the number of a claim's table, with its interval, written as the document does."""
    (row,) = pd.read_csv(ROOT / claim["table"]).query(claim["row"]).to_dict("records")
    column, *ends = claim["column"].split(":")
    scale, decimals = float(claim["scale"]), len(claim["shown"].partition(".")[2])
    if claim["interval"] == "exact":
        return f"{row[column] * scale:.{decimals}f}"
    if isinstance(row[column], str):
        return row[column]
    low, high = (
        (row[end] for end in ends) if ends else (row.get(f"{column}_{end}", row.get(end)) for end in ("low", "high"))
    )
    found = Interval(row[column], low, high, 0).scaled(scale)  # of how many is not shown
    return interval_text(found, decimals=decimals, sign=claim["shown"][0] in "+-")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['document']} {claim['shown']}")
def test_a_claim_is_shown_with_its_interval_and_both_are_those_of_its_table(claim):
    text = shown_with_interval(claim)
    assert statements((ROOT / claim["document"]).read_text(encoding="utf-8"), re.compile(re.escape(text)))
    assert of_table(claim) == text


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['shown']} needs {claim['needs']}")
def test_neither_its_document_nor_a_page_shows_a_claim_without_its_condition(claim):
    texts = {path: path.read_text(encoding="utf-8") for path in {*PAGES, ROOT / claim["document"]}}
    bare = {str(path): without_condition(text, looked_for(claim), claim["needs"]) for path, text in texts.items()}
    assert not any(bare.values()), bare


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["command"])
def test_the_command_of_a_claim_is_there_and_documented(claim):
    script = next(word for word in claim["command"].split() if Path(word).suffix in {".py", ".yaml"})
    assert (ROOT / script).is_file()
    assert claim["command"] in (ROOT / claim["document"]).read_text(encoding="utf-8")


def test_a_bare_headline_is_found():
    number = whole("-44.9", "[-45.9, -43.9]")
    bare = "Jobs finish 44.9 % earlier. Block-SRTF: -44.9 [-45.9, -43.9] %. It gains -44.9 %."
    assert len(without_condition(bare, number, "shared")) == 2
    assert not without_condition("Where GPUs are shared, -44.9 %.", number, "shared")
    table = "## Gains\n\n| a | -44.9 |\n"
    assert without_condition(table, number, "shared") == [table]
    assert not without_condition(table.replace("Gains", "Gains, shared GPUs"), number, "shared")


def test_a_bare_headline_is_found_where_it_says_what_is_taken_off():
    claim = {"shown": "-44.9", "interval": "[-45.9, -43.9]"}
    for text in ("It takes 44.9 [43.9, 45.9] % off.", "It has -44.9 [-45.9, -43.9] %."):
        assert without_condition(text, looked_for(claim), "shared") == [text]
    assert not without_condition("It takes 44.9 [43.9, 46.9] % off.", looked_for(claim), "shared")


def test_another_number_is_no_headline():
    number = whole("-44.9", "[-45.9, -43.9]")
    for text in ("-44.9 [-50.0, -40.0] %", "-40.0 [-44.9, -38.1] %", "-50.0 [-53.0, -44.9] %", "-44.91 %"):
        assert not without_condition(text, number, "shared")


# ---- Headlines and their baselines


def entrants() -> pd.DataFrame:
    """Return all of the league and of the 64-GPU burst: ground, policy, knows, shares, seeds, average_jct_s."""
    columns = ["ground", "policy", "knows", "shares", "seeds", "average_jct_s"]
    burst = pd.read_csv(ROOT / BURST_TABLE).query("metric == 'average_jct_s'").rename(columns={"mean": "average_jct_s"})
    (exclusive,) = scripts_of("beyond_ada_srsf", "exclusive")
    blind = burst["policy"].isin(exclusive.BLIND) | burst["policy"].str.contains("LAS")
    burst = burst.assign(ground=BURST, knows=blind.map({True: "nothing", False: "lengths"}))
    burst["shares"] = burst["policy"].str.startswith("GPUs shared")
    return pd.concat([pd.read_csv(ROOT / LEAGUE)[columns], burst[columns]], ignore_index=True)


def known(text: str) -> set[str]:
    return set() if text == "nothing" else set(text.split(", "))


def faults(headline: dict[str, str], table: pd.DataFrame) -> list[str]:
    """Return what is wrong with a headline: a fact of either side, or a baseline that others beat."""
    rows = table[table["ground"] == headline["ground"]].set_index("policy")
    found = []
    for side, prefix in ((headline["policy"], ""), (headline["baseline"], "baseline_")):
        if side not in rows.index:
            return [f"{side!r} does not play on {headline['ground']!r}"]
        facts = {"knows": str(rows.loc[side, "knows"]), "shares": str(rows.loc[side, "shares"])}
        facts |= {} if prefix else {"seeds": str(rows.loc[side, "seeds"])}
        found += [f"{side}: {k} is {v}" for k, v in facts.items() if headline[f"{prefix}{k}"] != v]
    may = known(headline["knows"])
    fair = [known(knows) <= may and (headline["shares"] == "True" or not shares)
            for knows, shares in zip(rows["knows"], rows["shares"], strict=True)]  # fmt: skip
    others = rows[fair & ~rows.index.str.contains(headline["own"])]
    strongest = others["average_jct_s"].idxmin()
    return found + ([] if strongest == headline["baseline"] else [f"{strongest} beats {headline['baseline']}"])


def on_its_seeds(table: pd.DataFrame, headline: dict[str, str]) -> pd.DataFrame:
    """Return the entrants that have all seeds of a headline's policy, with their averages on those."""
    if headline["ground"] == BURST:
        return table
    (league,) = scripts_of("arena", "league")
    jct_s = league.of_ground(pd.read_csv(ROOT / LEAGUE.replace("league", "seeds")), headline["ground"])
    means = league.on_seeds_of(jct_s, headline["policy"]).mean()
    return table[table["policy"].isin(means.index)].assign(average_jct_s=table["policy"].map(means))


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_a_headline_is_held_against_the_strongest_of_the_same_knowledge_and_sharing(headline):
    assert re.search(headline["own"], headline["policy"])
    assert not faults(headline, on_its_seeds(entrants(), headline))


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_the_number_of_a_headline_is_that_of_its_seeds_and_its_sentence_names_both_sides(headline):
    if headline["ground"] == BURST:
        assert any(claim["shown"] == headline["shown"] for claim in CLAIMS)  # with its table and row
    else:
        seeds = pd.read_csv(ROOT / LEAGUE.replace("league", "seeds")).query("ground == @headline['ground']")
        jct_s = seeds.drop(columns="ground").set_index("policy").T[[headline["policy"], headline["baseline"]]].dropna()
        change = paired_change(*jct_s.to_numpy().T).scaled(100)
        assert interval_text(change, decimals=1, sign=True) == shown_with_interval(headline)
    text = (ROOT / headline["document"]).read_text(encoding="utf-8")
    number = re.compile(re.escape(shown_with_interval(headline)))
    assert statements(text, number)
    assert not without_condition(text, number, headline["says"])


def test_a_headline_with_a_weak_baseline_or_a_wrong_fact_is_found():
    table = pd.DataFrame(
        [
            ("g", "ours", "kinds", False, 20, 1.0),
            ("g", "first-fit", "nothing", False, 20, 9.0),
            ("g", "cells", "nothing", False, 20, 2.0),
            ("g", "cells, lengths", "lengths", False, 20, 1.5),
            ("g", "cells, sharing", "nothing", True, 20, 1.4),
        ],
        columns=["ground", "policy", "knows", "shares", "seeds", "average_jct_s"],
    )
    right = {"ground": "g", "policy": "ours", "own": "ours", "baseline": "cells", "knows": "kinds", "shares": "False"}
    right |= {"baseline_knows": "nothing", "baseline_shares": "False", "seeds": "20"}
    assert not faults(right, table)
    assert faults(right | {"baseline": "first-fit"}, table) == ["cells beats first-fit"]
    assert faults(right | {"seeds": "2"}, table) == ["ours: seeds is 20"]
    assert faults(right | {"knows": "lengths"}, table) == ["ours: knows is kinds", "cells, lengths beats cells"]
    assert faults(right | {"shares": "True"}, table) == ["ours: shares is False", "cells, sharing beats cells"]
    assert faults(right | {"baseline": "nobody"}, table) == ["'nobody' does not play on 'g'"]


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_a_headline_is_told_with_its_ground_seeds_sharing_and_what_each_side_knows(headline):
    text = (ROOT / headline["document"]).read_text(encoding="utf-8")
    assert not untold(text, headline)


def untold(text: str, headline: dict[str, str]) -> list[str]:
    """Return what neither the paragraph or item of a headline says nor the paragraph that opens its section."""
    number = re.compile(re.escape(shown_with_interval(headline)))
    found = []
    for section in re.split(r"(?m)^(?=#+ )", text):
        opening, *rest = re.split(r"\n\s*\n|\n(?=- )", section.partition("\n")[2].strip())
        for part in (part for part in (opening, *rest) if number.search(part) and not part.startswith("|")):
            said = f"{opening}\n{part}".lower()
            sharing = "shared" if headline["shares"] == "True" else "one job a gpu"
            needs = [headline["ground"], sharing, "know"]
            found += [need for need in needs if need.lower() not in said]
            found += [] if re.search(rf"\b{headline['seeds']} (seeds|job sets)", said) else ["seeds"]
    return found


def test_a_headline_without_its_seeds_or_ground_is_found():
    headline = {"ground": "g mix", "shown": "-9.0", "interval": "[-9.5, -8.0]", "seeds": "20", "shares": "False"}
    text = "## Answer\n\nOne job a GPU; neither knows lengths.\n\n- G mix, 20 seeds: -9.0 [-9.5, -8.0] %.\n- Another.\n"
    assert not untold(text, headline)
    assert untold(text.replace("20 seeds", "6 seeds"), headline) == ["seeds"]
    assert untold(text.replace("- G mix, 20 seeds: ", "- "), headline) == ["g mix", "seeds"]
    assert untold(text.replace("One job a GPU; neither knows lengths", "As always"), headline) == [
        "one job a gpu",
        "know",
    ]


PRINTED = {
    "1.94 [1.89, 1.99]", "5.4 [4.1, 6.7]", "66.2 [64.7, 67.7]", "1.3 [0.4, 2.2]",  # contention_64gpu
    "6.8 [3.7, 10.0]",  # llm_cluster, whose table has the points with the other sign
    "4.5 [3.5, 5.5]",  # fidelity
    "0.30 [-0.09, 0.70]", "0.33 [0.00, 0.65]", "0.35 [-0.23, 0.94]",  # slurm_live
    "1.15 [1.14, 1.16]",  # beyond_ada_srsf/optimality.py
}  # fmt: skip
"""Numbers that only the output of an experiment's command has, no committed table: those of claims stand apart."""


def plain(number: str) -> str:
    return turned(number).replace("+", "")


TOLD = {plain(shown_with_interval(row)) for row in (*CLAIMS, *HEADLINES)} | PRINTED


def strangers(text: str) -> list[str]:
    """Return the numbers with intervals, outside of tables and comments, that no row of either file has."""
    prose = "\n".join(line for line in re.sub(r"(?s)<!--.*?-->", "", text).splitlines() if not line.startswith("|"))
    shown = re.findall(r"[+-]?[\d.]+ \[[+-]?[\d.]+, [+-]?[\d.]+\]", prose)
    return [number for number in shown if plain(number) not in TOLD]


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("experiments/*/README.md"))], ids=str)
def test_no_number_with_an_interval_stands_beside_the_claims(page):
    assert not strangers(page.read_text(encoding="utf-8"))


def test_a_number_of_no_claim_is_found():
    assert strangers("It has -44.9 [-45.9, -43.9] %, and -44.0 [-45.0, -43.0] %.") == ["-44.0 [-45.0, -43.0]"]


def test_every_claim_of_the_league_is_a_headline():
    """What a policy changes against no matter whom stands in tables alone."""
    told = {(row["document"], row["shown"], row["interval"]) for row in HEADLINES}
    claims = {(row["document"], row["shown"], row["interval"]) for row in CLAIMS if row["table"] == LEAGUE}
    assert claims <= told
