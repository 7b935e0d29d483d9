"""A headline stands with its condition, and its number is that of a committed table (``docs/claims.csv``).

Each row: a number as a document shows it, and its interval there (or ``exact``, where nothing is drawn); what must
stand in the same sentence, or in the same section if it is in a table; and the table, row and column that it comes
from, with the command that prints it. A column may name those of the interval's ends, too: ``value:low:high``.

The column ``gain`` says on which side of 0, or of 1 for a ratio, a policy beats its baseline, or by a word of
``EXCUSES`` why the number is no policy's gain. A gain is a headline.

A headline, what a policy changes of the average JCT or of what its table measures, has a row in
``docs/headlines.csv``, too: the policy, the baseline, what each knows of jobs, whether it shares GPUs, ground and
seeds. Its baseline must be the strongest on that ground of all others that know and share no more, or its sentence has
that one's number ``beside``. ``own`` lists the parts of a policy of ours, joined by ``;``, that are no baselines of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
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
NOBODY = "(?!)"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@functools.cache
def text_of(path: Path) -> str:
    """Return what a file of text holds."""
    return path.read_text(encoding="utf-8")


def pages_with(row: dict[str, str]) -> list[Path]:
    """Return the pages, and the document of a claim or headline, that have its digits."""
    digits = row["shown"].lstrip("+-")
    return [page for page in {*PAGES, ROOT / row["document"]} if digits in text_of(page)]


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


@pytest.mark.long
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['document']} {claim['shown']}")
def test_a_claim_is_shown_with_its_interval_and_both_are_those_of_its_table(claim):
    text = shown_with_interval(claim)
    assert statements(text_of(ROOT / claim["document"]), re.compile(re.escape(text)))
    assert of_table(claim) == text


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['shown']} needs {claim['needs']}")
def test_neither_its_document_nor_a_page_shows_a_claim_without_its_condition(claim):
    number = looked_for(claim)
    bare = {str(page): without_condition(text_of(page), number, claim["needs"]) for page in pages_with(claim)}
    assert not any(bare.values()), bare


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["command"])
def test_the_command_of_a_claim_is_there_and_documented(claim):
    script = next(word for word in claim["command"].split() if Path(word).suffix in {".py", ".yaml"})
    assert (ROOT / script).is_file()
    assert claim["command"] in text_of(ROOT / claim["document"])


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


def paired(path: Path, rows: str) -> pd.DataFrame:
    """Return a table of ``compare_runs``: its baseline is the policy without a test, and its first if it has another.

    The map has no row of first-fit, and other names.
    """
    table = pd.read_csv(path, dtype={"load": str}).query(rows)
    if "against" in table:
        table = table.rename(columns={"low": "change_low", "high": "change_high"})
        first = table.iloc[:1].assign(policy="first-fit", change=0.0, change_low=0.0, change_high=0.0)
        table = pd.concat([first, table], ignore_index=True)
        table["p_value"] = table["change"].where(table["policy"] != "first-fit")
    (baseline,) = table.loc[table["p_value"].isna(), "policy"]
    return table.assign(baseline=baseline, log_jct=np.log1p(table["change"]))


def on_shared_gpus(path: Path, rows: str) -> pd.DataFrame:
    """Return a table of GPUs shared at no cost, policies named as where one job a GPU plays beside them."""
    table = paired(path, rows)
    for side in ("policy", "baseline"):
        plain = table[side].str.removesuffix(", 10 GbE's b")
        slow = table[side].str.fullmatch(r"SRSF\(\d\)").map({True: ", 1 GbE's b", False: ""})
        table[side] = "GPUs shared at no cost: " + plain + slow
    return table


def measured(path: Path, rows: str) -> pd.DataFrame:
    """Return what policies on real links change of free overlap."""
    table = pd.read_csv(path).query(rows)
    table[["change", "change_low", "change_high"]] = -table[["measured_gain", "high", "low"]]
    first = pd.DataFrame([{"policy": "free overlap", "change": 0.0}])
    both = pd.concat([first, table], ignore_index=True)
    return both.assign(baseline="free overlap", seeds=table["mixes"].iloc[0], log_jct=np.log1p(both["change"]))


def times_as_much(path: Path, rows: str) -> pd.DataFrame:
    """Return how many times as good elastic scaling is as each baseline, which is as much worse."""
    table = pd.read_csv(path).query(rows)
    table = table.rename(columns={"ratio": "change", "low": "change_low", "high": "change_high"})
    others = table.assign(policy=table["baseline"], log_jct=np.log(table["change"]))
    return pd.concat([table.assign(policy="elastic scaling", log_jct=0.0), others], ignore_index=True)


def printed(column: str, policy: str = "policy", *, better: str = "down", seeds: int) -> Reader:
    """Return what reads a table as it is printed: a column of changes against the policy that has none."""

    def read(path: Path, rows: str) -> pd.DataFrame:
        table = pd.read_csv(path).query(rows).rename(columns={policy: "policy"})
        ends = table[column].str.extract(r"([^ ]+) \[(.+), (.+)\]").astype(float)
        table[["change", "change_low", "change_high"]] = ends.fillna(0.0)
        (baseline,) = table.loc[table[column].isna(), "policy"]
        worse = table["change"] if better == "down" else -table["change"]
        return table.assign(baseline=baseline, log_jct=worse, seeds=seeds)

    return read


def in_points(path: Path, rows: str) -> pd.DataFrame:
    """Return what policies change, in points, of how much longer jobs run than alone."""
    table = pd.read_csv(path).query(rows)
    (baseline,) = table.loc[table["change"] == 0, "policy"]
    return table.assign(baseline=baseline, seeds=20, log_jct=table["change"])


Reader = Callable[[Path, str], pd.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A ground beside those of the league: tables of what policies change against a baseline each.

    ``blind`` and ``kinds`` match who knows nothing and kinds of jobs, ``sharing`` who shares GPUs; the others know
    lengths and share none. Where jobs have no GPUs to themselves, ``alone`` says what one of them has. ``scale`` makes
    of a change what is shown. ``tables`` are read by ``read``, with ``;`` between two kinds of tables.
    """

    tables: str
    rows: str
    blind: str
    kinds: str = NOBODY
    sharing: str = NOBODY
    alone: str = "one job a GPU"
    scale: float = 100.0
    read: tuple[Reader, ...] = (paired,)

    @property
    def files(self) -> list[tuple[Path, Reader]]:
        """Return its tables, each with what reads it."""
        kinds = zip(self.tables.split(";"), self.read, strict=True)
        return [(path, read) for kind, read in kinds for path in sorted(ROOT.glob(kind))]

    @functools.cache  # noqa: B019 (there are a few, of the module)
    def changes(self) -> pd.DataFrame:
        """Return a row a policy and baseline: what it changes, who knows and shares what, on how many seeds.

        ``log_jct`` is comparable over the tables: it is shifted by what who plays in an earlier one has there.
        """
        found: list[pd.DataFrame] = []
        for path, read in self.files:
            table = read(path, self.rows)
            if found:
                there = pd.concat(found).drop_duplicates("policy").set_index("policy")["log_jct"]
                shift = (table["policy"].map(there) - table["log_jct"]).dropna()
                table["log_jct"] += shift.iloc[0]
            found.append(table)
        table = pd.concat(found, ignore_index=True)
        table["knows"] = "lengths"
        for knows, names in (("kinds", self.kinds), ("nothing", self.blind)):
            table.loc[table["policy"].str.contains(names), "knows"] = knows
        return table.assign(shares=table["policy"].str.contains(self.sharing))


_BURST = scripts_of("beyond_ada_srsf", "exclusive")[0].BLIND
_STUDIES = "experiments/smaller_claims/expected/claims.csv"
_ELASTIC = "experiments/elastic_scaling/expected/ratios.csv"
COMPARISONS = {
    "64-GPU burst": Comparison(
        tables="experiments/beyond_ada_srsf/expected/exclusive_full_against_*.csv;"
        "experiments/beyond_ada_srsf/expected/policies_against_*.csv",
        rows="metric == 'average_jct_s' and not policy.str.contains('blocks|HiveD$')",  # a placement once
        blind=f"LAS|^(?:{'|'.join(map(re.escape, _BURST))})$",
        sharing="^GPUs shared",
        read=(paired, on_shared_gpus),
    ),
    "64-GPU burst, LWF-1": Comparison(
        tables="experiments/contention_64gpu/expected/communication.csv",
        rows="metric == 'average_jct_s'",
        blind=NOBODY,
        sharing="",
    ),
    "64-GPU burst, published simulator's accounting": Comparison(
        tables="experiments/contention_64gpu/expected/accounting.csv",
        rows="metric == 'average_jct_s'",
        blind=NOBODY,
        sharing="",
    ),
    "100 Mbit/s": Comparison(
        tables="experiments/fidelity/expected/held_out/gains_over_mixes.csv",
        rows="model == 'packet-rings'",
        blind="free overlap",
        sharing="",
        read=(measured,),
    ),
    "load 0.8": Comparison(
        tables="experiments/arena/expected/backfilling.csv",
        rows="metric == 'average_jct_s' and workload.str.contains('load=0.8')",
        blind="^FIFO",
    ),
    "fine-tuning at load 0.8, 100 Gbit/s and 8:1": Comparison(
        tables="experiments/map/expected/map.csv",
        rows="mix == 'fine-tuning' and load == '0.8' and gbps == 100 and oversubscription == 8 and part == 'placement'",
        blind="",
    ),
    "load of 0.95": Comparison(tables=_STUDIES, rows="study.str.startswith('QSSF')", blind="^FIFO", kinds="^QSSF"),
    **{
        f"{network}, load 0.8": Comparison(tables=_STUDIES, rows=f'study == "Dally\'s timers, {study}"', blind="")
        for network, study in (("star", "star"), ("leaf-spine 4:1", "leaf-spine, 4:1"))
    },
    **{
        f"{gbps} Gbit/s, load 0.7": Comparison(tables=_STUDIES, rows=f"study == 'ACCO, {gbps} Gbit/s'", blind="")
        for gbps in (10, 100)
    },
    **{
        f"communication-bound, high load, {gpus}": Comparison(
            tables=_ELASTIC,
            rows=f"claim == 'completion_time' and cluster == '{gpus}' and workload == 'communication-bound, high'",
            blind="",
            scale=1.0,
            read=(times_as_much,),
        )
        for gpus in ("40 GPUs", "400 GPUs")
    },
    "balanced jobs in bursts, 40 GPUs": Comparison(
        tables=_ELASTIC,
        rows="claim == 'completed' and cluster == '40 GPUs' and workload == 'balanced, bursty'",
        blind="",
        scale=1.0,
        read=(times_as_much,),
    ),
    "architecture search": Comparison(
        tables="experiments/idle_nodes/expected/printed/streams.csv",
        rows="stream == 'architecture search'",
        blind="linear|^MalleTrain",
        kinds="average|1 to 4|true",
        alone="one job a node",
        scale=1.0,
        read=(printed("against linear (%)", seeds=8),),
    ),
    "512 nodes": Comparison(
        tables="experiments/idle_nodes/expected/printed/beyond.csv",
        rows="not policy.str.startswith('bound')",  # no policy
        blind="optimum|survival",
        alone="one job a node",
        scale=1.0,
        read=(printed("gain over T_fwd 120 s", better="up", seeds=9),),
    ),
    "idle nodes": Comparison(
        tables="experiments/slurm_live/expected/summary.csv",
        rows="seeds > 0",
        blind="",
        alone="one job a node",
        scale=1.0,
        read=(printed("samples against FreeTrain, %", "idle nodes have", better="up", seeds=6),),
    ),
    "pipelines, half": Comparison(
        tables="experiments/llm_cluster/expected/contention.csv",
        rows="mix == 'tensor and pipeline' and fabric == 'Clos, half'",
        blind="",
        scale=1.0,
        read=(in_points,),
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
    league = table(SEEDS.replace("seeds", "league")).query("ground == @ground").set_index("policy")
    return league[["knows", "shares", "seeds"]].join(means.rename("log_jct"), how="inner")


@functools.cache
def jct_s_of(ground: str) -> pd.DataFrame:
    """Return the average JCTs of the league, a row a seed and a column a policy."""
    return table(SEEDS).query("ground == @ground").set_index("policy").drop(columns="ground").T


def changes(headline: dict[str, str]) -> pd.DataFrame:
    """Return a row a policy and baseline of a headline's ground, at least those of its own and of who is beside."""
    return changes_on(*(headline[name] for name in ("ground", "policy", "baseline", "beside")))


@functools.cache
def changes_on(ground: str, policy: str, *others: str) -> pd.DataFrame:
    """Return a row a policy and baseline of a ground, at least those of a policy against some others."""
    if ground in COMPARISONS:
        return COMPARISONS[ground].changes()
    rows, jct_s = [], jct_s_of(ground)
    for baseline in filter(None, others):
        pair = {"policy": policy, "baseline": baseline}
        change = paired_change(*jct_s[[*pair.values()]].dropna().to_numpy().T)
        rows.append(pair | {"change": change.mean, "change_low": change.low, "change_high": change.high})
    return pd.DataFrame(rows)


def number_of(headline: dict[str, str], changes: pd.DataFrame) -> str:
    """Return the number that the tables have of a headline's policy and baseline, written as the headline is."""
    pair = (changes["policy"] == headline["policy"]) & (changes["baseline"] == headline["baseline"])
    (row,) = changes.loc[pair, ["change", "change_low", "change_high"]].to_numpy()
    comparison, shown = COMPARISONS.get(headline["ground"]), headline["shown"]
    found = Interval(*row, 0).scaled(comparison.scale if comparison else 100.0)
    return interval_text(found, decimals=len(shown.partition(".")[2]), sign=shown[0] in "+-")


def number_beside(headline: dict[str, str], changes: pd.DataFrame) -> str:
    """Return the number of a headline's policy against who is stronger than its baseline, or of that one against it.

    Where no table has the two, what the stronger one changes of the same baseline.
    """
    policy, beside = headline["policy"], headline["beside"]
    known = {*changes[["policy", "baseline"]].itertuples(index=False, name=None)}
    pairs = (policy, beside), (beside, policy), (beside, headline["baseline"])
    one, other = next(pair for pair in pairs if pair in known)
    return number_of(headline | {"policy": one, "baseline": other}, changes)


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


@pytest.mark.long
@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_a_headline_is_held_against_the_strongest_of_the_same_knowledge_and_sharing(headline):
    assert not faults(headline, entrants(headline["ground"], headline["policy"]))


@pytest.mark.long
def test_a_headline_on_a_ground_where_only_its_baseline_plays_says_so():
    alone = [row for row in HEADLINES if len(entrants(row["ground"], row["policy"])) == 2]
    assert alone
    assert not [row for row in alone if "only rival" not in row["says"]]


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_the_number_of_a_headline_is_that_of_its_seeds_and_its_sentence_names_both_sides(headline):
    assert number_of(headline, changes(headline)) == shown_with_interval(headline)
    text = text_of(ROOT / headline["document"])
    assert statements(text, looked_for(headline))
    needs = told_beside(headline)
    for page in pages_with(headline):
        assert not without_condition(text_of(page), looked_for(headline), needs), page


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
    headline = {"policy": "Block", "baseline": "SRTF, cells", "ground": "g", "shown": "-22.9"}
    assert number_of(headline, table) == "-22.9 [-24.5, -21.3]"
    assert number_of(headline | {"baseline": "SRSF(1)"}, table) == "-44.9 [-45.9, -43.9]"
    with pytest.raises(ValueError, match="not enough values"):
        number_of(headline | {"policy": "Room"}, table)


def test_beside_a_weak_baseline_stands_the_number_of_the_pair_in_either_direction_else_that_of_the_stronger_one():
    headline = {"policy": "Block", "baseline": "SRSF(1)", "beside": "SRTF, cells", "ground": "g", "shown": "-40.0"}
    rows = [("Block", "SRSF(1)", -0.4), ("SRTF, cells", "SRSF(1)", -0.3), ("SRTF, cells", "Block", -0.2)]
    rows = [(*row, row[2] - 0.01, row[2] + 0.01) for row in (*rows, ("Block", "SRTF, cells", -0.1))]
    table = pd.DataFrame(rows, columns=["policy", "baseline", "change", "change_low", "change_high"])
    found = [number_beside(headline, table[:count]) for count in (4, 3, 2)]
    assert found == ["-10.0 [-11.0, -9.0]", "-20.0 [-21.0, -19.0]", "-30.0 [-31.0, -29.0]"]


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda row: f"{row['policy']} on {row['ground']}")
def test_a_headline_is_told_with_its_ground_seeds_sharing_and_what_each_side_knows(headline):
    """On the front page, too, and wherever it stands again."""
    needs = told_beside(headline)
    for page in pages_with(headline):
        assert not untold(text_of(page), headline, needs), page


@functools.cache
def parts_of_sections(text: str) -> list[tuple[str, list[str]]]:
    """Return what opens each section of a text, and all its paragraphs, items and tables; no table made of a file."""
    found = []
    for section in re.split(r"(?m)^(?=#+ )", re.sub(r"(?s)<!-- table .*?-->\n\n(?:\|[^\n]*\n)*", "", text)):
        parts = re.split(r"\n\s*\n|\n(?=- )", section.partition("\n")[2].strip())
        found.append((parts[0], parts))
    return found


def untold(text: str, headline: dict[str, str], needs: str = "") -> list[str]:
    """Return what neither the paragraph, item or row of a headline says nor what opens its section or table.

    Tables that are made of files have that in their columns and their section.
    """
    shown = shown_with_interval(headline)
    number = re.compile(rf"{re.escape(shown)}|(?<![\d.,+-]){re.escape(turned(shown))}")
    found = []
    for opening, parts in parts_of_sections(text):
        for part in filter(number.search, parts):
            head, *rows = part.splitlines() if part.startswith("|") else ("", part)
            for row in filter(number.search, rows):
                found += lacking(f"{opening}\n{head}\n{row}", headline, needs if head else "")
    return found


def lacking(text: str, headline: dict[str, str], needs: str) -> list[str]:
    """Return which of the needs, of a headline's ground, sharing, knowledge and seeds a text does not say."""
    said = " ".join(text.lower().split())
    alone = COMPARISONS[headline["ground"]].alone if headline["ground"] in COMPARISONS else "one job a GPU"
    sharing = "shared" if headline["shares"] == "True" else alone.lower()
    parts = [*headline["ground"].split(", "), sharing, "know", *filter(None, needs.split(";"))]
    found = [part for part in parts if part.lower() not in said]
    return found + (
        [] if re.search(rf"\b{headline['seeds']} (seeds|(job )?sets|(random|held-out) mixes)", said) else ["seeds"]
    )


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


@functools.cache
def told() -> set[str]:
    """Return the numbers of both files and those beside a headline, which its sentence must have."""
    shown = {plain(shown_with_interval(row)) for row in (*CLAIMS, *HEADLINES)}
    return shown | PRINTED | {plain(number_beside(row, changes(row))) for row in HEADLINES if row["beside"]}


def strangers(text: str) -> list[str]:
    """Return the numbers with intervals, outside of tables and comments, that no row of either file has."""
    prose = "\n".join(line for line in re.sub(r"(?s)<!--.*?-->", "", text).splitlines() if not line.startswith("|"))
    shown = re.findall(r"[+-]?[\d.]+ \[[+-]?[\d.]+, [+-]?[\d.]+\]", prose)
    return [number for number in shown if plain(number) not in told()]


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("experiments/*/README.md"))], ids=str)
def test_no_number_with_an_interval_stands_beside_the_claims(page):
    assert not strangers(text_of(page))


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


# ---- Gains and what is none

EXCUSES = {
    "error": "how far what is simulated, estimated or computed is off what was measured, published or run elsewhere",
    "amount": "what there is, takes or costs under one policy or none, beside no other policy",
    "hardware": "networks, cards, GPUs, clusters or batches beside each other, under one policy",
    "part": "a policy beside itself without a part or with another number: what the part earns, no rival's loss",
}
"""Why a claim is no gain of a policy over a baseline, by the word in its column ``gain``."""
GAIN = re.compile(r"(below|above) ([01])")
RIVALRY = re.compile(r"change|ratio|points|measured_gain|gain |against |over ")
"""How columns begin in which policies are compared, beside a column ``policy``: no claim of such a one is excused."""


def is_gain(claim: dict[str, str]) -> bool:
    """Return whether a claim is a gain by its whole interval: its column ``gain`` says on which side of what."""
    side, neutral = GAIN.fullmatch(claim["gain"]).groups()  # type: ignore[union-attr]
    ends = [float(end) for end in re.findall(r"[+-]?[\d.]+", claim["interval"])] or [float(claim["shown"])]
    return max(ends) < float(neutral) if side == "below" else min(ends) > float(neutral)


def unheld(claim: dict[str, str], headlines: list[dict[str, str]]) -> list[str]:
    """Return what is wrong with a claim: a gain that is no headline of its document, or an excuse that is none."""
    if claim["gain"] in EXCUSES:
        return [f"{claim['column']} of {claim['table']} compares policies"] if compares(claim) else []
    if not GAIN.fullmatch(claim["gain"]):
        return [f"{claim['gain']!r} says neither where a gain lies nor why there is none"]
    same = [row for row in headlines if plain(shown_with_interval(row)) == plain(shown_with_interval(claim))]
    if not is_gain(claim) or any(row["document"] in (claim["document"], "README.md") for row in same):
        return []
    return [f"{shown_with_interval(claim)} is a gain, and no headline has it"]


def compares(claim: dict[str, str]) -> bool:
    """Return whether a claim's number is what a policy changes of another one.

    One policy with two values of a number of its own is none that beats another.
    """
    found = table(claim["table"])
    if not RIVALRY.match(claim["column"]) or "policy" not in found:
        return False
    baselines = found.get("p_value", found["policy"]).isna()
    names = {
        name.partition(", ")[0] for name in (*found.query(claim["row"])["policy"], *found.loc[baselines, "policy"])
    }
    return claim["gain"] != "part" or len(names) > 1


def test_every_claim_is_a_headline_or_no_gain_or_excused_by_a_reason():
    """What a policy takes off against no matter whom stands in tables alone."""
    assert not [fault for claim in CLAIMS for fault in unheld(claim, HEADLINES)]


def test_a_gain_that_nobody_holds_or_that_is_excused_though_policies_are_compared_is_found():
    gain = {"document": "a.md", "shown": "-9.0", "interval": "[-9.5, -8.0]", "gain": "below 0"}
    gain |= {"table": _STUDIES, "row": "policy == 'hidden' and study == 'ACCO, 10 Gbit/s'", "column": "change"}
    fault = ["-9.0 [-9.5, -8.0] is a gain, and no headline has it"]
    assert unheld(gain, []) == fault
    assert unheld(gain, [gain | {"document": "b.md"}]) == fault
    assert not unheld(gain, [gain])
    for excuse in EXCUSES:
        assert unheld(gain | {"gain": excuse}, [gain]) == [f"change of {_STUDIES} compares policies"]
        assert not unheld(gain | {"gain": excuse, "column": "mean"}, [])
    assert unheld(gain | {"gain": ""}, [gain]) == ["'' says neither where a gain lies nor why there is none"]


@pytest.mark.parametrize(
    ("shown", "interval", "gain", "found"),
    [
        ("-9.0", "[-9.5, -8.0]", "below 0", True),
        ("-9.0", "[-19.5, +0.1]", "below 0", False),
        ("-9.0", "[-9.5, -8.0]", "above 0", False),
        ("+9.0", "[+8.0, +9.5]", "above 0", True),
        ("1.20", "[1.01, 1.30]", "above 1", True),
        ("1.20", "[0.99, 1.30]", "above 1", False),
        ("0.8", "exact", "below 1", True),
    ],
)
def test_a_gain_is_one_by_its_whole_interval(shown, interval, gain, found):
    assert is_gain({"shown": shown, "interval": interval, "gain": gain}) is found


def test_one_policy_with_another_number_is_no_rival_of_itself():
    load = "experiments/contention_64gpu/expected/load.csv"
    claim = {"table": load, "column": "change", "gain": "part", "row": "policy.str.startswith('Ada-SRSF, 10 GbE')"}
    assert not compares(claim)
    assert compares(claim | {"row": "policy.str.startswith('SRSF(1), 10 GbE')"})
