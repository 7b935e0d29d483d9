"""A headline stands with its condition, and its number is that of a committed table (``docs/claims.csv``).

Each row: a number as a document shows it, and its interval there (or ``exact``, where nothing is drawn); what must
stand in the same sentence, or in the same section if it is in a table; and the table, row and column that it comes
from, with the command that prints it. A column may name those of the interval's ends, too: ``value:low:high``.

A headline, what a policy changes of the average JCT, has a row in ``docs/headlines.csv``, too: the policy, the
baseline, what each knows of jobs, whether it shares GPUs, ground and seeds. Its baseline must be the strongest on that
ground of all others that know and share no more, or its sentence has that one's number ``beside``. ``own`` lists the
parts of a policy of ours, joined by ``;``, that are no baselines of it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import scripts_of

from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import Interval, paired_change

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = pd.read_csv(ROOT / "docs" / "claims.csv", dtype=str).to_dict("records")
HEADLINES = pd.read_csv(ROOT / "docs" / "headlines.csv", dtype=str).fillna("").to_dict("records")
SEEDS = "experiments/arena/expected/seeds.csv"
KNOWLEDGE = ("nothing", "kinds", "lengths")
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
    for section, tables, sentences in sections(text):
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


@functools.cache
def table(path: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / path)


def of_table(claim: dict[str, str]) -> str:
    """Return the number of a claim's table, with its interval, written as the document does."""
    (row,) = table(claim["table"]).query(claim["row"]).to_dict("records")
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
    number, digits = looked_for(claim), claim["shown"].lstrip("+-")
    bare = {
        str(path): without_condition(text, number, claim["needs"]) for path, text in texts.items() if digits in text
    }
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


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A ground beside those of the league: tables of what policies change against a baseline each.

    ``blind`` and ``sharing`` match who knows nothing and who shares GPUs; the others know lengths and share none.
    """

    tables: str
    rows: str
    blind: str
    sharing: str

    @functools.cache  # noqa: B019 (there are a few, of the module)
    def changes(self) -> pd.DataFrame:
        """Return a row a policy and baseline: what it changes, who knows and shares what, on how many seeds."""
        found = []
        for path in sorted(ROOT.glob(self.tables)):
            table = pd.read_csv(path, dtype={"load": str}).query(self.rows)
            if "measured_gain" in table:  # on real links, of what free overlap takes
                table[["change", "change_low", "change_high"]] = -table[["measured_gain", "high", "low"]]
                first = pd.DataFrame([{"policy": "free overlap", "change": 0.0}])
                table = pd.concat([first, table], ignore_index=True).assign(seeds=table["mixes"].iloc[0])
                table["p_value"] = table["measured_gain"]
            if "against" in table:  # the map has no row of first-fit, and other names
                table = table.rename(columns={"low": "change_low", "high": "change_high"})
                first = table.iloc[:1].assign(policy="first-fit", change=0.0, change_low=0.0, change_high=0.0)
                table = pd.concat([first, table], ignore_index=True)
                table["p_value"] = table["change"].where(table["policy"] != "first-fit")
            (baseline,) = table.loc[table["p_value"].isna(), "policy"]
            found.append(table.assign(baseline=baseline))
        table = pd.concat(found, ignore_index=True)
        blind = table["policy"].str.contains(self.blind)
        table["knows"] = blind.map({True: "nothing", False: "lengths"})
        return table.assign(shares=table["policy"].str.contains(self.sharing), log_jct=np.log1p(table["change"]))


NOBODY = "(?!)"
_BURST = scripts_of("beyond_ada_srsf", "exclusive")[0].BLIND
COMPARISONS = {
    "64-GPU burst": Comparison(
        tables="experiments/beyond_ada_srsf/expected/exclusive_full_against_*.csv",
        rows="metric == 'average_jct_s' and not policy.str.contains('blocks|HiveD$')",  # a placement once
        blind=f"LAS|^(?:{'|'.join(map(re.escape, _BURST))})$",
        sharing="^GPUs shared",
    ),
    "64-GPU burst, LWF-1": Comparison(
        tables="experiments/contention_64gpu/expected/communication.csv",
        rows="metric == 'average_jct_s'",
        blind=NOBODY,
        sharing="",
    ),
    "100 Mbit/s": Comparison(
        tables="experiments/fidelity/expected/held_out/gains_over_mixes.csv",
        rows="model == 'packet-rings'",
        blind="free overlap",
        sharing="",
    ),
    "load 0.8": Comparison(
        tables="experiments/arena/expected/backfilling.csv",
        rows="metric == 'average_jct_s' and workload.str.contains('load=0.8')",
        blind="^FIFO",
        sharing=NOBODY,
    ),
    "fine-tuning at load 0.8, 100 Gbit/s and 8:1": Comparison(
        tables="experiments/map/expected/map.csv",
        rows="mix == 'fine-tuning' and load == '0.8' and gbps == 100 and oversubscription == 8 and part == 'placement'",
        blind="",
        sharing=NOBODY,
    ),
}


def entrants(ground: str, policy: str) -> pd.DataFrame:
    """Return a row a policy that has all seeds of one: knows, shares, seeds, log_jct.

    ``log_jct`` is the logarithm of its geometric mean over those seeds, but for what is the same of all: policies are
    ranked as the paired changes that are shown rank them.
    """
    if ground in COMPARISONS:
        return COMPARISONS[ground].changes().drop_duplicates("policy").set_index("policy")
    jct_s = jct_s_of(ground)
    means = np.log(jct_s[jct_s[policy].notna()].dropna(axis=1)).mean()
    league = pd.read_csv(ROOT / SEEDS.replace("seeds", "league")).query("ground == @ground").set_index("policy")
    return league[["knows", "shares", "seeds"]].join(means.rename("log_jct"), how="inner")


@functools.cache
def jct_s_of(ground: str) -> pd.DataFrame:
    """Return the average JCTs of the league, a row a seed and a column a policy."""
    return pd.read_csv(ROOT / SEEDS).query("ground == @ground").set_index("policy").drop(columns="ground").T


def changes(headline: dict[str, str]) -> pd.DataFrame:
    """Return a row a policy and baseline of a headline's ground, at least those of its own and of who is beside."""
    if headline["ground"] in COMPARISONS:
        return COMPARISONS[headline["ground"]].changes()
    rows, jct_s = [], jct_s_of(headline["ground"])
    for baseline in filter(None, (headline["baseline"], headline["beside"])):
        pair = {"policy": headline["policy"], "baseline": baseline}
        change = paired_change(*jct_s[[*pair.values()]].dropna().to_numpy().T)
        rows.append(pair | {"change": change.mean, "change_low": change.low, "change_high": change.high})
    return pd.DataFrame(rows)


def number_of(headline: dict[str, str], changes: pd.DataFrame) -> str:
    """Return the number that the tables have of a headline's policy and baseline."""
    pair = (changes["policy"] == headline["policy"]) & (changes["baseline"] == headline["baseline"])
    (row,) = changes.loc[pair, ["change", "change_low", "change_high"]].to_numpy()
    return interval_text(Interval(*row, 0).scaled(100), decimals=1, sign=True)


def number_beside(headline: dict[str, str], changes: pd.DataFrame) -> str:
    """Return the number of a headline's policy against who is stronger than its baseline, or of that one against it.

    Where no table has the two, what the stronger one changes of the same baseline.
    """
    policy, beside = headline["policy"], headline["beside"]
    known = {*changes[["policy", "baseline"]].itertuples(index=False, name=None)}
    pairs = (policy, beside), (beside, policy), (beside, headline["baseline"])
    one, other = next(pair for pair in pairs if pair in known)
    return number_of({"policy": one, "baseline": other}, changes)


def of_ours(policy: str) -> bool:
    return policy.endswith(", near enough") or "Block-SRTF" in policy or policy.startswith("Preemptive, ")


def faults(headline: dict[str, str], rows: pd.DataFrame) -> list[str]:
    """Return what is wrong with a headline: a fact of either side, or a baseline that others beat."""
    own = [name for name in headline["own"].split(";") if name]
    if absent := [name for name in (headline["policy"], headline["baseline"], *own) if name not in rows.index]:
        return [f"{name!r} does not play on {headline['ground']!r}" for name in absent]
    found = [f"{name} is no part of {headline['policy']}" for name in own
             if not (of_ours(name) and of_ours(headline["policy"]))]  # fmt: skip
    for side, prefix in ((headline["policy"], ""), (headline["baseline"], "baseline_")):
        facts = {name: str(rows.loc[side, name]) for name in ("knows", "shares", *(() if prefix else ("seeds",)))}
        found += [f"{side}: {name} is {fact}" for name, fact in facts.items() if headline[f"{prefix}{name}"] != fact]
    fair = rows["knows"].map(KNOWLEDGE.index) <= KNOWLEDGE.index(headline["knows"])
    if headline["shares"] != "True":
        fair &= ~rows["shares"].astype(bool)
    strongest = rows.loc[fair & ~rows.index.isin([headline["policy"], *own]), "log_jct"].idxmin()
    if strongest in (headline["baseline"], headline["beside"]):
        return found
    return [*found, f"{strongest} beats {headline['baseline']}"]


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_a_headline_is_held_against_the_strongest_of_the_same_knowledge_and_sharing(headline):
    assert not faults(headline, entrants(headline["ground"], headline["policy"]))


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_the_number_of_a_headline_is_that_of_its_seeds_and_its_sentence_names_both_sides(headline):
    assert number_of(headline, changes(headline)) == shown_with_interval(headline)
    text = (ROOT / headline["document"]).read_text(encoding="utf-8")
    assert statements(text, looked_for(headline))
    needs = told_beside(headline)
    for page in {*PAGES, ROOT / headline["document"]}:
        text = page.read_text(encoding="utf-8")
        assert not without_condition(text, looked_for(headline), needs), page


def told_beside(headline: dict[str, str]) -> str:
    """Return what the sentence of a headline must have: both sides, who else is strong, and the number of that one."""
    beside = [part.split()[0] for part in headline["beside"].split(", ") if part]
    return ";".join([headline["says"], *beside, *([number_beside(headline, changes(headline))] if beside else [])])


def test_a_headline_with_a_weak_baseline_or_a_wrong_fact_is_found():
    rows = pd.DataFrame(
        [
            ("Room, near enough", "kinds", False, 20, 1.0),
            ("FIFO, near enough", "kinds", False, 20, 0.9),
            ("first-fit", "nothing", False, 20, 9.0),
            ("racks", "nothing", False, 20, 3.0),
            ("racks, traffic", "kinds", False, 20, 2.0),
            ("racks, lengths", "lengths", False, 20, 1.5),
            ("racks, sharing", "nothing", True, 20, 1.4),
        ],
        columns=["policy", "knows", "shares", "seeds", "log_jct"],
    ).set_index("policy")
    right = {"ground": "g", "policy": "Room, near enough", "own": "FIFO, near enough", "baseline": "racks, traffic"}
    right |= {"knows": "kinds", "baseline_knows": "kinds", "shares": "False", "baseline_shares": "False"}
    right |= {"seeds": "20", "beside": ""}
    assert not faults(right, rows)
    weak = right | {"baseline": "first-fit", "baseline_knows": "nothing"}
    assert faults(weak, rows) == ["racks, traffic beats first-fit"]
    assert not faults(weak | {"beside": "racks, traffic"}, rows)
    assert faults(right | {"seeds": "2"}, rows) == ["Room, near enough: seeds is 20"]
    assert faults(right | {"knows": "lengths"}, rows) == [
        "Room, near enough: knows is kinds",
        "racks, lengths beats racks, traffic",
    ]
    assert faults(right | {"shares": "True"}, rows) == [
        "Room, near enough: shares is False",
        "racks, sharing beats racks, traffic",
    ]
    assert faults(right | {"baseline": "nobody"}, rows) == ["'nobody' does not play on 'g'"]
    assert faults(right | {"own": ""}, rows) == ["FIFO, near enough beats racks, traffic"]


def test_only_parts_of_ours_are_passed_over_and_by_their_names():
    """A word that many names have hides no rival: whole racks of first-fit are no part of whole racks of FIFO."""
    names, log_jct = ["FIFO, racks", "Tiresias, racks", "FIFO, HiveD", "first-fit"], [1.0, 0.9, 0.8, 2.0]
    rows = pd.DataFrame({"knows": "nothing", "shares": False, "seeds": 20, "log_jct": log_jct}, index=names)
    row = {"ground": "g", "policy": names[0], "baseline": "first-fit", "seeds": "20", "beside": ""}
    row |= dict.fromkeys(("knows", "baseline_knows"), "nothing") | dict.fromkeys(("shares", "baseline_shares"), "False")
    for own in ("racks|HiveD", "FIFO, racks;HiveD"):
        assert any("does not play" in fault for fault in faults(row | {"own": own}, rows))
    assert "FIFO, HiveD is no part of FIFO, racks" in faults(row | {"own": "Tiresias, racks;FIFO, HiveD"}, rows)


def test_the_number_of_another_pair_is_found():
    """That against SRSF(1), filed against SRTF on cells, and that of another policy."""
    table = pd.DataFrame(
        [("Block", "SRSF(1)", -0.449, -0.459, -0.439), ("Block", "SRTF, cells", -0.229, -0.245, -0.213)],
        columns=["policy", "baseline", "change", "change_low", "change_high"],
    )
    headline = {"policy": "Block", "baseline": "SRTF, cells"}
    assert number_of(headline, table) == "-22.9 [-24.5, -21.3]"
    assert number_of(headline | {"baseline": "SRSF(1)"}, table) == "-44.9 [-45.9, -43.9]"
    with pytest.raises(ValueError, match="not enough values"):
        number_of(headline | {"policy": "Room"}, table)


def test_beside_a_weak_baseline_stands_the_number_of_the_pair_in_either_direction_else_that_of_the_stronger_one():
    headline = {"policy": "Block", "baseline": "SRSF(1)", "beside": "SRTF, cells"}
    rows = [("Block", "SRSF(1)", -0.4), ("SRTF, cells", "SRSF(1)", -0.3), ("SRTF, cells", "Block", -0.2)]
    rows = [(*row, row[2] - 0.01, row[2] + 0.01) for row in (*rows, ("Block", "SRTF, cells", -0.1))]
    table = pd.DataFrame(rows, columns=["policy", "baseline", "change", "change_low", "change_high"])
    found = [number_beside(headline, table[:count]) for count in (4, 3, 2)]
    assert found == ["-10.0 [-11.0, -9.0]", "-20.0 [-21.0, -19.0]", "-30.0 [-31.0, -29.0]"]


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_a_headline_is_told_with_its_ground_seeds_sharing_and_what_each_side_knows(headline):
    """On the front page, too, and wherever it stands again."""
    needs = told_beside(headline)
    for page in {*PAGES, ROOT / headline["document"]}:
        assert not untold(page.read_text(encoding="utf-8"), headline, needs), page


def untold(text: str, headline: dict[str, str], needs: str = "") -> list[str]:
    """Return what neither the paragraph, item or row of a headline says nor what opens its section or table.

    Tables that are made of files have that in their columns and their section.
    """
    shown = shown_with_interval(headline)
    number = re.compile(rf"{re.escape(shown)}|(?<![\d.,+-]){re.escape(turned(shown))}")
    found = []
    for section in re.split(r"(?m)^(?=#+ )", re.sub(r"(?s)<!-- table .*?-->\n\n(?:\|[^\n]*\n)*", "", text)):
        opening, *rest = re.split(r"\n\s*\n|\n(?=- )", section.partition("\n")[2].strip())
        for part in (opening, *rest):
            head, *rows = part.splitlines() if part.startswith("|") else ("", part)
            for row in filter(number.search, rows):
                found += lacking(f"{opening}\n{head}\n{row}", headline, needs if head else "")
    return found


def lacking(text: str, headline: dict[str, str], needs: str) -> list[str]:
    """Return which of the needs, of a headline's ground, sharing, knowledge and seeds a text does not say."""
    said = " ".join(text.lower().split())
    sharing = "shared" if headline["shares"] == "True" else "one job a gpu"
    parts = [*headline["ground"].split(", "), sharing, "know", *filter(None, needs.split(";"))]
    found = [part for part in parts if part.lower() not in said]
    return found + ([] if re.search(rf"\b{headline['seeds']} (seeds|job sets|random mixes)", said) else ["seeds"])


def test_a_headline_without_its_seeds_or_ground_is_found():
    headline = {"ground": "g mix", "shown": "-9.0", "interval": "[-9.5, -8.0]", "seeds": "20", "shares": "False"}
    text = "## Answer\n\nOne job a GPU; neither knows lengths.\n\n- G mix, 20 seeds: -9.0 [-9.5, -8.0] %.\n- Another.\n"
    assert not untold(text, headline)
    assert untold(text.replace("20 seeds", "6 seeds"), headline) == ["seeds"]
    assert untold(text.replace("G mix, 20 seeds: -9.0 [-9.5, -8.0]", "It takes 9.0 [8.0, 9.5]"), headline) == [
        "g mix",
        "seeds",
    ]
    assert untold(text.replace("- G mix, 20 seeds: ", "- "), headline) == ["g mix", "seeds"]
    assert untold(text.replace("One job a GPU; neither knows lengths", "As always"), headline) == [
        "one job a gpu",
        "know",
    ]


PRINTED = {
    "1.94 [1.89, 1.99]", "5.4 [4.1, 6.7]", "66.2 [64.7, 67.7]", "1.3 [0.4, 2.2]",  # contention_64gpu
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


def test_a_row_of_a_table_without_the_strongest_or_its_ground_is_found():
    headline = {"ground": "g mix", "shown": "-9.0", "interval": "[-9.5, -8.0]", "seeds": "20", "shares": "False"}
    needs = "cells;racks;SRTF;-9.1 [-9.6, -8.1]"
    text = "## Answer\n\nOpening.\n\n| what | one job a GPU, 20 seeds, knowing nothing |\n|---|---|\n"
    row = "| racks against cells (G mix) | -9.0 [-9.5, -8.0], SRTF on racks -9.1 [-9.6, -8.1] |\n"
    assert not untold(f"{text}{row}", headline, needs)
    assert untold(text + row.replace(" (G mix)", ""), headline, needs) == ["g mix"]
    assert untold(text + row.replace("SRTF", "FIFO"), headline, needs) == ["SRTF"]
    assert untold(text + row.replace("-9.1", "-9.2"), headline, needs) == ["-9.1 [-9.6, -8.1]"]
    assert untold(text.replace("20 seeds, ", "") + row, headline, needs) == ["seeds"]


def test_every_gain_in_a_table_that_compares_policies_is_a_headline():
    """What a policy takes off against no matter whom stands in tables alone."""
    files = {str(path.relative_to(ROOT)) for one in COMPARISONS.values() for path in ROOT.glob(one.tables)}
    files |= {SEEDS.replace("seeds", name) for name in ("seeds", "league", "leads")}
    gains = {shown_with_interval(row) for row in CLAIMS if row["table"] in files and is_gain(row)}
    assert gains
    assert gains <= {shown_with_interval(row) for row in HEADLINES}


def is_gain(claim: dict[str, str]) -> bool:
    """Return whether a claim takes something off, by its whole interval."""
    return turned(shown_with_interval(claim)) != shown_with_interval(claim)
