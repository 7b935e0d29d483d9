"""What the documents show runs, and what they link to is there."""

from __future__ import annotations

import ast
import gzip
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from ddlsched import errors
from ddlsched.engine.compiled_forms import compile_method
from ddlsched.network.contention import SharedLink
from ddlsched.plugins.names import resolve
from ddlsched.policies import doors
from ddlsched.policies.compiling.source import CannotCompileError
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import ClusterView, JobView, NetworkView, TransferView
from ddlsched.workload.workload_files import workload_of

ROOT = Path(__file__).parents[2]
POLICIES = (ROOT / "docs" / "writing_policies.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", "node_modules"} & set(path.parts))

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page) if kind == language]


def files(page: str) -> dict[str, str]:
    """Return the Python blocks that begin with a file's name, by that name."""
    named = [(re.match(r"# (\w+\.py)\n", text), text) for text in blocks(page, "python")]
    return {found[1]: text for found, text in named if found}


def commands(page: str) -> list[tuple[str, str]]:
    """Return each ``ddlsched simulate small.csv``, and what it says on stderr by the block that follows."""
    found = re.findall(r"^```sh\n([^`]*)^```\n(?:\n```text\n([^`]*)^```)?", page, re.MULTILINE)
    return [
        (line, said) for text, said in found for line in text.splitlines() if line.startswith("ddlsched simulate small")
    ]


def without_waits(stderr: str) -> str:
    """Return what a run said, but for the line that the event loop is being prepared, which a busy machine brings."""
    return "".join(line for line in stderr.splitlines(True) if "preparing the event loop" not in line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files and its workload, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    (making,) = re.findall(r"^ddlsched (workload .*)$", POLICIES, re.MULTILINE)
    assert run(*making.split()).exit_code == 0
    for name, text in files(POLICIES).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_every_policy_of_the_page_is_run_by_a_command() -> None:
    given = " ".join(command for command, _ in commands(POLICIES))
    assert {name for name in files(POLICIES) if not name.startswith("test_")} == set(re.findall(r"\w+\.py", given))


@pytest.mark.long
@pytest.mark.parametrize(("command", "said"), commands(POLICIES))
def test_command_of_the_page_runs_and_says_what_it_shows(folder: Path, command: str, said: str) -> None:
    errors.say_once.cache_clear()  # what is said once a process
    done = run(*command.split()[1:])
    assert done.exit_code == 0, done.stderr
    assert without_waits(done.stderr) == said


@pytest.mark.long
def test_python_of_the_page_runs(folder: Path) -> None:
    (program,) = (text for text in blocks(POLICIES, "python") if not text.startswith("# "))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, without_waits(done.stderr)) == (0, "")


@pytest.mark.slow
def test_tests_of_the_page_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions(column: int) -> list[str]:
    """Return the expressions of a column of the table of what compiles."""
    table = POLICIES.split("| compiled | not compiled |\n|---|---|\n")[1].split("\n\n")[0]
    cells = [row.strip("|").split(" | ")[column] for row in table.splitlines()]
    codes = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return [code for code in codes if not isinstance(ast.parse(code, mode="eval").body, ast.Name)]


def compiles(expression: str, folder: Path) -> bool:
    path = folder / "policy.py"
    path.write_text(
        f"import math\n\nclass Policy:\n    def key(self, job, now_s):\n        return {expression}\n", encoding="utf-8"
    )
    try:
        compile_method(resolve("order", f"{path}:Policy"), "key")
    except CannotCompileError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("expression", expressions(0))
def test_what_the_page_says_compiles_does(expression: str, tmp_path: Path) -> None:
    assert compiles(expression, tmp_path)


@pytest.mark.parametrize("expression", expressions(1))
def test_what_the_page_says_does_not_compile_does_not(expression: str, tmp_path: Path) -> None:
    assert not compiles(expression, tmp_path)


@pytest.mark.long
def test_example_of_the_readme_is_compiled(folder: Path) -> None:
    (text,) = files(README).values()
    (folder / "mine.py").write_text(text, encoding="utf-8")
    assert "ddlsched simulate jobs.csv --communication mine.py:SmallerFirst:limit=3" in README
    done = run("simulate", "small.csv", "--communication", "mine.py:SmallerFirst:limit=3")
    assert (done.exit_code, "in Python" in done.stderr) == (0, False)


def test_the_readme_uses_only_files_that_it_has_made_and_each_for_one_thing() -> None:
    made = list(files(README))
    for text in blocks(README, "sh"):
        for line in text.splitlines():
            command, _, written = line.partition(" --out ")
            named = re.findall(r"[\w./-]+\.(?:csv|json|parquet|py|yaml)\b", command)
            assert [name for name in named if name not in made and not (ROOT / name).exists()] == [], line
            made += written.split()[:1]
    assert "jobs.csv" in made
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "view", [JobView, TransferView, NetworkView, SharedLink, ClusterView, ElasticJobView, CapacityView]
)
def test_page_of_doors_lists_what_a_view_offers(view: type) -> None:
    listed = re.search(rf":class:`~[\w.]*\.{view.__name__}`.*\n((?:    .*\n)+)", doors.__doc__ or "")
    assert listed
    texts = ", ".join(re.findall(r"``(.*?)``", listed[1], re.DOTALL))
    names = set(re.findall(r"\w+", re.sub(r"\([^)]*\)", "", texts)))
    set_in_init = re.findall(r"self\.([a-z]\w*)(?:: \w+)? = ", inspect.getsource(view))
    offered = {*dir(view), *getattr(view, "__annotations__", {}), *set_in_init} - {"all_reduce"}  # for all_reduce_s
    assert names == {name for name in offered if not name.startswith("_")}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.long
def test_the_generator_of_the_page_on_traces_draws_models_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    sample = (ROOT / "tests" / "workload" / "traces" / "samples" / "philly-csv.csv").read_bytes()
    monkeypatch.chdir(tmp_path)
    Path("gen.py").write_text(files(page)["gen.py"], encoding="utf-8")
    Path("philly.csv.gz").write_bytes(gzip.compress(sample))
    models = {tuple(job.model for job in workload_of("gen.py:philly:scale=0.5", seed)) for seed in range(8)}
    assert len(models) > 1
