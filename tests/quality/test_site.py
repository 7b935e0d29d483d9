"""The site: its examples, its notebook, its tables, and what it must mention."""

from __future__ import annotations

import ast
import csv
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ddlsched

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURE = re.compile(r"^(:::\{bars-from\}|```\{image\}) ", re.MULTILINE)
COMMUNICATION = "experiments/contention_64gpu/expected/communication.csv"
EXAMPLES = sorted((DOCS / "examples").glob("plot_*.py"))


def test_there_are_thirty_examples_with_titles_of_their_own() -> None:
    titles = [
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0] for path in EXAMPLES
    ]
    assert len(EXAMPLES) >= 30
    assert len(set(titles)) == len(EXAMPLES)
    assert all(titles)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_ends_with_a_figure(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 45
    assert re.search(r"^ *figure(, axes)? = ", source, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    subprocess.run(
        [sys.executable, "-m", "ipykernel", "install", "--prefix", str(tmp_path)], check=True, capture_output=True
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    notebook = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without them
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    html = "".join(output["data"].get("text/html", "") for output in shown)
    assert html.count('<img alt="chart"') == 2
    assert "160 jobs of 1 to 32 GPUs" in html


def test_the_glossary_explains_the_words_of_charts_and_tables() -> None:
    text = (DOCS / "concepts.md").read_text(encoding="utf-8")
    glossary = text[text.index("```{glossary}") :]
    terms = {line.strip() for line in glossary.splitlines() if line and not line.startswith((" ", "`"))}
    assert {"job", "iteration", "bucket", "contention", "JCT", "κ", "b", "η", "U", "T_fwd", "slowdown"} <= terms


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"auto(?:function|class):: (\w+)$", text, re.MULTILINE))
    errors = set(re.search(r":members: (.*)$", text[text.index("ddlsched.errors") :], re.MULTILINE)[1].split(", "))  # type: ignore[index]
    assert set(ddlsched.__all__) <= listed | errors


def test_every_page_is_in_the_site() -> None:
    listed = {
        line.strip()
        for path in (DOCS / "index.md", DOCS / "guides.md")
        for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
    }
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= listed


@pytest.fixture
def from_tables():
    pytest.importorskip("docutils")
    spec = importlib.util.spec_from_file_location("from_tables", DOCS / "from_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def directive(module, kind: str, argument: str, **options):
    made = getattr(module, kind).__new__(getattr(module, kind))
    made.arguments, made.options = [argument], options
    made.error = ValueError
    return made.run()


@pytest.mark.long
def test_a_table_of_a_page_is_that_of_the_file(from_tables) -> None:
    name = "experiments/contention_64gpu/expected/communication.csv"
    with (ROOT / name).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "average_jct_s"]
    options = {"columns": "policy, change", "where": "metric=average_jct_s", "percent": "change", "rows": 2}
    (table,) = directive(from_tables, "FromTable", name, **options)
    cells = [entry.astext() for entry in table.findall(lambda node: node.tagname == "entry")]
    shown = [[f"{100 * float(row[f'change{end}']):+.1f}" for end in ("", "_low", "_high")] for row in rows[:2]]
    changes = [f"{value} [{low}, {high}] %" for value, low, high in shown]
    assert cells == ["policy", "change", "SRSF(1)", changes[0], "SRSF(2)", changes[1]]


@pytest.mark.long
def test_the_results_have_the_best_by_what_is_known_on_all_grounds(from_tables) -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    path, lines = re.search(r"\{from-table\} (\S+leads\.csv)\n((?::.*\n)+?):::", text).groups()  # type: ignore[union-attr]
    options = dict(re.findall(r"^:(\w+): (.*)$", lines, re.MULTILINE))
    (table,) = directive(from_tables, "FromTable", path, **options)
    rows = [
        [entry.astext() for entry in row.findall(lambda node: node.tagname == "entry")]
        for row in table.findall(lambda node: node.tagname == "row")
    ]
    assert [name for name in ("nothing", "kinds", "lengths") if any(name in cell for cell in rows[0])] == [
        "nothing",
        "kinds",
        "lengths",
    ]
    with (ROOT / "experiments/arena/expected/league.csv").open(encoding="utf-8", newline="") as file:
        league = {(row["ground"], row["policy"]): row for row in csv.DictReader(file)}
    assert {row[0] for row in rows[1:]} == {ground for ground, _ in league}
    for ground, _, nothing, kinds, change, lengths, _ in rows[1:]:
        assert [league[ground, name]["knows"] for name in (nothing, kinds, lengths)] == ["nothing", "kinds", "lengths"]
        assert {league[ground, name]["shares"] for name in (nothing, kinds, lengths)} == {"False"}
        assert re.fullmatch(r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\] %", change)


def test_a_table_names_units_and_the_baseline(from_tables) -> None:
    options = {"columns": "policy, mean, verdict", "where": "metric=average_jct_s", "rows": 2}
    (table,) = directive(from_tables, "FromTable", COMMUNICATION, **options)
    cells = [entry.astext() for entry in table.findall(lambda node: node.tagname == "entry")]
    assert cells == ["policy", "average JCT (s)", "verdict", "SRSF(1)", "1603", "baseline", "SRSF(2)", "1711", "worse"]


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("experiments/none.csv", {}),
        ("experiments/contention_64gpu/expected/communication.csv", {"columns": "speed"}),
        ("experiments/contention_64gpu/expected/communication.csv", {"where": "metric=speed"}),
    ],
)
def test_a_table_that_is_not_there_stops_the_build(from_tables, argument: str, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"none.csv|has no column 'speed'|no row has metric=speed"):
        directive(from_tables, "FromTable", argument, **options)


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "experiments").glob("*/README.md")))
def test_every_experiment_has_an_answer_on_the_site(from_tables, folder: str) -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    told = re.findall(rf"\{{answer-of\}} {folder}\n(?::begins: (.*)\n)?", text)
    assert told
    for begins in told:
        question, answer = directive(from_tables, "AnswerOf", folder, **({"begins": begins} if begins else {}))
        assert len(question.astext()) > 50
        assert len(answer.astext()) > 50
        assert answer.astext().startswith(begins)


def test_an_answer_that_is_no_longer_there_stops_the_build(from_tables) -> None:
    with pytest.raises(ValueError, match="no paragraph that begins with 'Forty-two'"):
        directive(from_tables, "AnswerOf", "arena", begins="Forty-two")


def test_every_experiment_has_a_picture_on_the_site() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    parts = re.split(r"^:::\{answer-of\} (\w+)\n", text, flags=re.MULTILINE)[1:]
    without = [name for name, part in zip(parts[::2], parts[1::2], strict=True) if not PICTURE.search(part)]
    assert (len(parts) > 30, without) == (True, [])
    assert all((DOCS / path).is_file() for path in re.findall(r"\{image\} (\S+)", text))


@pytest.fixture
def bars_from(tmp_path: Path):
    pytest.importorskip("docutils")
    spec = importlib.util.spec_from_file_location("bars_from", DOCS / "bars_from.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DRAWN = str(tmp_path)
    return module


@pytest.mark.long
def test_bars_of_a_page_are_those_of_the_file(bars_from, tmp_path: Path) -> None:
    with (ROOT / COMMUNICATION).open(encoding="utf-8", newline="") as file:
        row = next(
            row for row in csv.DictReader(file) if row["policy"] == "SRSF(2)" and row["metric"] == "average_jct_s"
        )
    options = {
        "label": "policy",
        "value": "change",
        "ends": "change_low, change_high",
        "percent": None,
        "axis": "Change (%)",
    }
    (image,) = directive(bars_from, "BarsFrom", COMMUNICATION, where="metric=average_jct_s", rows=2, **options)
    assert image["alt"] == f"Change (%). SRSF(1): 0; SRSF(2): {100 * float(row['change']):.3g}"
    assert Path(image["uri"]).read_bytes().startswith(b"\x89PNG")


def test_all_bars_of_the_results_are_in_their_files(bars_from, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars_from, "_draw", lambda *_: None)
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    found = re.findall(r"^:::\{bars-from\} (\S+)\n((?::.*\n)+?):::", text, re.MULTILINE)
    assert len(found) == text.count("{bars-from}")
    for path, lines in found:
        options = dict(re.findall(r"^:(\w+): ?(.*)$", lines, re.MULTILINE))
        options |= {"rows": int(options["rows"])} if "rows" in options else {}
        (image,) = directive(bars_from, "BarsFrom", path, **options)
        assert ": nan" not in image["alt"]


@pytest.mark.parametrize("wrong", [{"value": "speed"}, {"where": "metric=speed"}, {"label": "x"}, {"value": "policy"}])
def test_bars_that_are_not_there_stop_the_build(bars_from, wrong: dict[str, str]) -> None:
    options = {"label": "policy", "value": "change", "axis": "Change", "where": "metric=average_jct_s"} | wrong
    with pytest.raises(ValueError, match=r"KeyError|no row has metric=speed|could not convert"):
        directive(bars_from, "BarsFrom", COMMUNICATION, **options)


def test_links_of_a_built_page_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.html").write_text('<h1 id="top">Two</h1> <a href="../one.html#end">')
    page = '<a href="b/two.html#top"> <a href="b/two.html#none"> <img src="images/gone.png"> <a href="https://a.b/c">'
    (tmp_path / "one.html").write_text(page + '<a href="#end"> <p id="end"> <a href="b/two.html?q=1">')
    done = subprocess.run([sys.executable, DOCS / "links.py", tmp_path], capture_output=True, text=True)
    expected = ["one.html: b/two.html#none: leads nowhere", "one.html: images/gone.png: leads nowhere"]
    assert (done.returncode, done.stderr.splitlines()) == (1, expected)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery")
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([DOCS / "build"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_item_26_lines_of_code_and_of_parameters_are_broken_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(conf := importlib.util.module_from_spec(spec))
    code = 'compare<span class="w-x"> </span>--gpus-per-server<span> </span>4 --seeds 2 srsf-1:kappa<b>=</b>1\n'
    context = {"body": f"<pre>{code}\n{code}</pre>(--draws 2) <strong>order</strong> -- Who goes first."}
    conf._broken_well(None, "page", "", context, None)
    options = ["--gpus-per-server", "--seeds"]
    assert re.findall(r'<span class="option">([^<]*)</span>', context["body"]) == [*options, *options, "--draws"]
    assert re.findall(r'<span class="word">([^<]*)</span>', context["body"]) == ["srsf-1"] * 2
    assert context["body"].count('<span class="line">compare') == 2
    assert context["body"].endswith("<strong>order</strong>: Who goes first.")
    assert all(kept in (DOCS / "_static" / "site.css").read_text() for kept in (".option", "pre .word"))


def test_item_26_the_front_page_has_an_answer_a_picture_and_three_doors() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    front, doors = text.split("::::{container} doors")
    assert "](images/two-jobs.png)" in front
    assert re.findall(r"\*\*\[(\w+)\]", doors) == ["Start", "Gallery", "Guides"]
