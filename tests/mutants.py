"""Puts faults in at random, one at a time, and runs the tests that cover the line.

    python tests/mutants.py --cover tests/network            first: which test runs which line
    python tests/mutants.py --cover --plain tests/engine     the same, nothing compiled
    python tests/mutants.py --seed 7 --number 20 ddlsched/network
    python tests/mutants.py ddlsched/network/rates.py:51     every fault of a line
    python tests/mutants.py --told                           what became of all that were tried

A fault is a comparison turned, a sign, a constant, a guard removed, or a line dropped. --cover copies the tree into
--data, once, and keeps there what it finds; later calls add tests and bring only those up to date. Remove the folder to
begin anew. Each process puts its faults into a copy of its own, so that several may run beside each other, and appends
each verdict to --results: a fault that has one is not tried again.

A process has imported the libraries, not the product, and forks for each fault. Tests run in rounds of --rounds seconds
of CPU together: the quickest of the room first, in the first round at most two cases of a function. One that fails,
or needs many times its time, has noticed the fault. Coverage does not see compiled lines: tests that run them are
found, and run, with ``NUMBA_DISABLE_JIT=1``; with --compiled what survived there is tried as users run it, a minute
each. What runs on import is covered by the tests of its file, and those of the lines that name it.

A survivor is a test to write, a line to delete, or a change that changes nothing. For those write a line into the
results with ``nothing`` for the verdict and say why; a test that was written since is found by --cover, and the fault
is tried again once its line in the results is gone.
The file in the repository holds what was tried of the 500 of seed 35 over all rooms, and 24 of seed 41 outside the
engine, by tests of the lines or, where those were not known, of the module, ten seconds of CPU each; those of the loop
were compiled and had a minute. "written since" is a test that a survivor led to.
Ends with status 1 if fewer than 97 % are noticed, in the event loop and the contention models 99 %.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import hypothesis
import numba
import pytest
from tiers import MUST_PASS, is_drawn

ROOT = Path(__file__).resolve().parents[1]
LOOP = "ddlsched/engine/loop/"
COMPILED = {"ddlsched/engine/loop/batch/": "tests/envs/", LOOP: "tests/engine/"}
"""Folders of what is only compiled, a minute for each fault, and of its tests."""
PLAIN = {"NUMBA_DISABLE_JIT": "1", "FUZZ": "8"}
"""A test of random cases tries few of them where each takes seconds."""
STAMPED = (LOOP, *(f"ddlsched/{part}" for part in ("engine/native/", "engine/records.py", "engine/field_values.py")))
STAMPED_POLICIES = tuple(
    f"ddlsched/policies/{name}.py" for name in ("network_views", "job_view", "choosing", "view_parts")
)
COMPILING_S = 150.0
"""Where faults have the loop compiled anew, which the first test waits for: it takes less CPU than that."""
STRICT = (LOOP, "ddlsched/network/", "algorithms/contention/")
ASKED, ASKED_OF_STRICT = 0.97, 0.99
READS_DEFAULTS = (
    "tests/plugins/test_parameters.py::test_what_is_left_out_means_what_it_meant",
    "tests/plugins/test_kept_beginnings.py::test_what_modules_begin_with_is_what_it_was",
)
"""They run no line of what they read, which is executed on import."""
IMPORTED = (
    "hypothesis", "matplotlib.pyplot", "msgspec", "networkx", "numba.core.ccallback", "pandas", "pyarrow.parquet",
    "scipy.optimize", "scipy.sparse.csgraph", "scipy.stats",
)  # fmt: skip
"""What tests would import anew for each fault."""
_TURNED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
_GIVEN = re.compile(r"\s*(?:def (\w+)|((?:\w+, )*\w+)(?:: [^=]+)? = )")
_KIND = {False: "compiled", True: "plain"}
_SETTINGS = """
[run]
source = ddlsched, algorithms, topologies
relative_files = true
patch = subprocess
context = ${PYTEST_CURRENT_TEST-}
"""


class Mutant(NamedTuple):
    """A fault: in which file and line, what stands there now, and what is put in its place."""

    path: str
    line: int
    begin: int
    end: int
    text: str

    def put_into(self, source: bytes) -> bytes:
        """Return a file's source with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]

    def said(self, source: bytes) -> str:
        """Return it in one line, with its column, as a line may have two that read alike."""
        there = source[self.begin : self.end].decode()
        column = self.begin - source.rfind(b"\n", 0, self.begin)
        return f"{self.path}:{self.line}:{column}: " + " -> ".join(
            " ".join(text.split())[:60] for text in (there, self.text)
        )


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all faults that can be put into a file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: ast.expr) -> str:
        begin, end = span(node)  # without the parentheses around it
        said = source[begin:end].decode()
        return f"({said})" if isinstance(node, _LOOSE) else said

    found = []
    for node in _executed(ast.parse(source)):
        for changed, new in _changes(node, text):
            if (place := span(changed)) and source[slice(*place)].decode() != new:
                found.append(Mutant(path, changed.lineno, *place, new))
    return found


_LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp)
"""What may need parentheses."""
_VALUED = (ast.Assign, ast.AnnAssign, ast.Compare, ast.IfExp, ast.Return)
"""What has a value by itself, not as a part of another."""


def _executed(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that do something: no annotation or docstring, nothing for type checkers, no zip's check."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_ignores", "decorator_list"):
                continue
            below = field if isinstance(field, list) else [field]
            nodes = [each for each in below if isinstance(each, ast.AST) and not _is_said_only(each)]
            waiting += [each for each in nodes if not (isinstance(node, _VALUED) and _is_none(each))]


def _is_said_only(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Raise | ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_none(node: ast.AST) -> bool:
    """Return whether it is -1, which stands for none where it is assigned or compared: -2 would, too."""
    return isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1"


def _changes(node: ast.AST, text) -> Iterator[tuple[ast.expr | ast.stmt, str]]:  # type: ignore[no-untyped-def]
    """Yield what may be replaced in a node, and by what."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, f"({text(node.left)} {_TURNED[type(node.ops[0])]} {text(node.comparators[0])})"
    elif isinstance(node, ast.BinOp) and (sign := _SIGNS.get(type(node.op))):
        yield node, f"({text(node.left)} {sign} {text(node.right)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, repr(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield node, repr(node.value + 1)
    elif isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise | ast.Return | ast.Continue | ast.Break):
        yield node.test, "False"
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield node, "pass"


def drawn(tree: Path, places: list[str], seed: int, number: int) -> list[Mutant]:
    """Return as many faults as asked of the files under some folders, or all of a PATH:LINE; the same for a seed."""
    every = []
    for place in places:
        name, _, line = place.partition(":")
        for path in sorted((tree / name).rglob("*.py")) or [tree / name]:
            found = mutants_of(str(path.relative_to(tree)), path.read_bytes())
            every += [mutant for mutant in found if not line or mutant.line == int(line)]
    return random.Random(seed).sample(every, min(number, len(every)))


class Covered:
    """Which tests run which lines, in what time: compiled as users run them, and (True) with nothing compiled."""

    def __init__(self, data: Path) -> None:
        self.seconds: dict[bool, dict[str, float]] = {False: {}, True: {}}
        self.drawn = {test for plain in self.seconds for test in _drawn(data, plain)}
        self._tests: dict[tuple[bool, str], dict[int, set[str]]] = {}
        self._tree = data / "tree"
        for plain, seconds in self.seconds.items():
            seconds |= _took(data, plain)
            found = coverage.CoverageData(str(data / _KIND[plain]))
            found.read()
            for path in found.measured_files():
                lines = found.contexts_by_lineno(path).items()
                self._tests[plain, path] = {line: {_test(each) for each in tests} for line, tests in lines}

    def by(self, mutant: Mutant, plain: bool) -> dict[str, float]:
        """Return the tests that run a fault's line and pass, and their times in seconds."""
        source = (self._tree / mutant.path).read_text()
        lines = self._tests.get((plain, mutant.path), {}).values()
        if mutant.line not in _bodies(source):
            reading = {test for test in self.seconds[plain] if test.startswith(READS_DEFAULTS)}
            found = self._that_name(_name(source, mutant.line), plain, mutant.path).union(reading, *lines)
        else:
            found = self._that_run(source, mutant, plain)
        if not found and plain and mutant.path.startswith(LOOP):
            found = self.drawn
        if not found and not plain:
            folder = next((tests for loop, tests in COMPILED.items() if mutant.path.startswith(loop)), None)
            found = {test for test in self.seconds[plain] if test.startswith(folder)} if folder else set().union(*lines)
        return {test: self.seconds[plain][test] for test in found if test in self.seconds[plain]}

    def _that_run(self, source: str, mutant: Mutant, plain: bool) -> set[str]:
        lines = self._tests.get((plain, mutant.path), {})
        return (lines.get(mutant.line) or lines.get(_begin(source, mutant.line), set())) - {""}

    def _that_name(self, name: str, plain: bool, path: str) -> set[str]:
        """Return the tests that run lines of a file, else of any, with one of the names; none if it is compiled."""
        named, found, is_named = re.compile(rf"\b(?:{name.replace(', ', '|')})\b"), set[str](), False
        for paths in ([path], [each for of, each in self._tests if of == plain]):
            for each in paths if name and not is_named else ():
                lines, source = self._tests.get((plain, each), {}), (self._tree / each).read_text()
                for line, text in enumerate(source.splitlines(), 1):
                    if named.search(text) and line in _bodies(source):
                        is_named = True
                        found |= lines.get(line, set()) - {""}
        return found


@cache
def _bodies(source: str) -> set[int]:
    """Return the lines in bodies of functions."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}


def _begin(source: str, line: int) -> int:
    """Return where the statement of a line begins; some lines in it have no code of their own."""
    return max(
        node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and node.lineno <= line
    )


def _name(source: str, line: int) -> str:
    """Return what a statement that runs on import gives its name to, or the names."""
    above = source.splitlines()[line - 1 :: -1]
    return next((found[1] or found[2] for text in above if (found := _GIVEN.match(text))), "")


def _test(context: str) -> str:
    """Return the test of a context: of pytest-cov, or of a process that a test started."""
    return re.sub(r"(\|\w+| \((setup|call|teardown)\))$", "", context)


def _took(data: Path, plain: bool) -> dict[str, float]:
    """Return the seconds of each test that passed."""
    file = data / f"{_KIND[plain]}-seconds.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _drawn(data: Path, plain: bool) -> set[str]:
    """Return the tests of random cases."""
    file = data / f"{_KIND[plain]}-drawn.json"
    return set(json.loads(file.read_text())) if file.exists() else set()


class _TooLong(BaseException):
    pass


class Covering:
    """Notes the seconds of tests that pass; ends slow ones where nothing is compiled."""

    def __init__(self, data: Path, plain: bool, most_s: float) -> None:
        self._file, self._took = data / f"{_KIND[plain]}-seconds.json", _took(data, plain)
        self._file_of_drawn, self._drawn = data / f"{_KIND[plain]}-drawn.json", _drawn(data, plain)
        self._most_s, self._begun_s = most_s if plain else 0.0, 0.0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note which try random cases."""
        self._drawn |= {item.nodeid for item in items if isinstance(item, pytest.Function) and is_drawn(item)}

    def _too_long(self, *_: object) -> None:
        raise _TooLong

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin to count: CPU, as other processes on the machine take none of that."""
        self._took[nodeid], self._begun_s = 0.0, sum(os.times()[:4])
        signal.signal(signal.SIGPROF, self._too_long)
        signal.setitimer(signal.ITIMER_PROF, self._most_s)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a part of a test took; leave the test out if it fails or is skipped."""
        if report.nodeid in self._took:
            self._took[report.nodeid] = round(sum(os.times()[:4]) - self._begun_s, 3)
        if not report.passed:
            self._took.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        """Keep it."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self._file.write_text(json.dumps(self._took, indent=0))
        self._file_of_drawn.write_text(json.dumps(sorted(self._drawn), indent=0))


class Noticing:
    """Runs chosen tests, the quickest files first; the process ends if a test needs many times its time."""

    def __init__(self, chosen: dict[str, float], least_s: float, now: Path) -> None:
        self._chosen, self._least_s, self._now = chosen, least_s, now

    def pytest_sessionstart(self) -> None:
        """Look for no simpler case once one fails, which takes longer than to find it."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("noticing", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("noticing")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is chosen."""
        took = self._chosen
        chosen = [item for item in items if item.nodeid in took]
        files: Counter[Path] = Counter()
        for item in chosen:
            files[item.path] += took[item.nodeid]  # type: ignore[assignment]
        items[:] = sorted(chosen, key=lambda item: (files[item.path], item.path, took[item.nodeid]))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test it is; let the system end what does not end: also what waits, and compiled code."""
        self._now.write_text(nodeid)
        most_s = self._least_s + 3 * self._chosen[nodeid]
        signal.setitimer(signal.ITIMER_PROF, most_s)
        signal.setitimer(signal.ITIMER_REAL, 20 + 5 * most_s)


def tests_pass(tree: Path, plain: bool, plugin: Any, arguments: list[str]) -> bool:
    """Return whether pytest finds nothing wrong in a copy of the tree; what they import is there."""
    child = os.fork()
    if child:
        try:
            _, status = os.waitpid(child, 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status) in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    code = 1
    try:
        os.setsid()
        os.chdir(tree)
        os.dup2(os.open(tree.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.environ.pop("PYTEST_CURRENT_TEST", None)
        os.environ |= {"PYTHONPATH": str(tree)} | (PLAIN if plain else {})
        numba.config.reload_config()
        options = ["-q", "-n0", "-m", MUST_PASS, "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        code = pytest.main([*options, *arguments], plugins=[plugin])
    finally:
        os._exit(code)


def noticed_by(mutant: Mutant, covered: Covered, tree: Path, plain: bool, rounds: list[float]) -> str:
    """Put a fault in, run the tests that cover it round by round, and take it out; return the test that noticed it."""
    target = tree / mutant.path
    source = target.read_bytes()
    kept = Path(cache_from_source(str(target)))
    target.write_bytes(mutant.put_into(source))
    kept.unlink(missing_ok=True)  # Python would take a file of the same second and size for the same
    least_s = 3.0 if plain else COMPILING_S if _is_stamped(mutant.path) else 15.0
    waiting, now = covered.by(mutant, plain), tree.parent / "now"
    try:
        for number, most_s in enumerate(rounds):
            tests = _within(waiting, covered.drawn, most_s, _own(mutant.path), 0 if number else 2)
            waiting = {test: took for test, took in waiting.items() if test not in tests}
            now.write_text("import")
            files = sorted({test.partition("::")[0] for test in tests})
            if tests and not tests_pass(tree, plain, Noticing(tests, least_s, now), ["-x", *files]):
                return now.read_text()
    finally:
        target.write_bytes(source)
        kept.unlink(missing_ok=True)
    return ""


def _is_stamped(path: str) -> bool:
    """Return whether a fault there has the loop compiled anew."""
    return path.startswith((*STAMPED, *STAMPED_POLICIES))


def _own(path: str) -> str:
    """Return the folder of a file's own tests."""
    room, *parts = Path(path).parts
    return f"tests/{parts[0] if room == 'ddlsched' else room}/"


def _within(tests: dict[str, float], drawn: set[str], most_s: float, own: str, cases: int = 0) -> dict[str, float]:
    """Return those that take together no longer than that: the room's own, then others; the quickest first.

    Those of random cases may take three times as long for it. ``cases`` of a function are enough, unless that is 0.
    """
    found: dict[str, float] = {}
    of_function: Counter[str] = Counter()
    order = sorted(
        tests.items(), key=lambda each: (not each[0].startswith(own), each[1] / (1 + 2 * (each[0] in drawn)))
    )
    for test, took in order:
        function = test.partition("[")[0]
        if took <= most_s and not 0 < cases <= of_function[function]:
            found[test], most_s = took, most_s - took
            of_function[function] += 1
    return found


def copied(tree: Path) -> None:
    """Copy all files that git knows, and their entry points, which those installed may lack; later the tests only."""
    places = ["tests"] if tree.exists() else []
    tree.mkdir(parents=True, exist_ok=True)
    known = subprocess.run(["git", "ls-files", "-z", *places], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(
        ["xargs", "-0", "cp", "-p", "--parents", "-t", str(tree.resolve())], cwd=ROOT, input=known, check=True
    )
    if not places:
        program = "import setuptools; setuptools.setup()"
        subprocess.run([sys.executable, "-c", program, "-q", "egg_info"], cwd=tree, check=True)


def cover(data: Path, plain: bool, tests: list[str], most_s: float) -> None:
    """Note which lines tests run and how long they take, beside what is noted already."""
    (data / "settings").write_text(_SETTINGS + f"data_file = {data / _KIND[plain]}\n")
    noted = ["--cov", f"--cov-config={data / 'settings'}", "--cov-context=test", "--cov-append", "--cov-report="]
    tests_pass(data / "tree", plain, Covering(data, plain, most_s), [*noted, *tests])


def results_of(file: Path) -> dict[str, tuple[str, str]]:
    """Return what became of each fault, and by which test or why; what was written last counts."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {fault: (verdict, by) for fault, verdict, by in (line.split("\t") for line in lines)}


def try_all(data: Path, file: Path, chosen: list[Mutant], compiled: bool, rounds: list[float]) -> None:
    """Try what has no verdict yet, in a copy of the tree; ``compiled``: what survived with nothing compiled."""
    covered = Covered(data)
    list(map(import_module, IMPORTED))
    gc.freeze()  # otherwise each process that is forked copies what its garbage collector looks at
    with tempfile.TemporaryDirectory(dir=data) as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(data / "tree", tree, symlinks=True)
        for mutant in random.sample(chosen, len(chosen)):
            said = mutant.said((tree / mutant.path).read_bytes())
            if results_of(file).get(said, ("",))[0] != ("survived-plain" if compiled else ""):
                continue
            plain = not compiled and _is_stamped(mutant.path) and bool(covered.by(mutant, True))
            by = noticed_by(mutant, covered, tree, plain, rounds)
            verdict = "noticed" if by else "survived-plain" if plain else "survived"
            with file.open("a") as results:
                results.write(f"{said}\t{verdict}\t{by}\n")
            print(verdict, said, by, flush=True)


def told(results: dict[str, tuple[str, str]]) -> int:
    """Print how many were noticed of those that change anything, by room; return 1 if fewer than is asked."""
    status = 0
    rooms: dict[str, Counter[str]] = {}
    for fault, (verdict, _) in results.items():
        for room in (_own(fault)[6:-1], "loop and contention" if fault.startswith(STRICT) else "the others"):
            rooms.setdefault(room, Counter())[verdict] += 1
    print("room, tried, change nothing, noticed, of, share")
    for room, counts in sorted(rooms.items(), key=lambda each: (" " in each[0], each[0])):
        changing = counts.total() - counts["nothing"]
        share = counts["noticed"] / changing if changing else 1.0
        print(f"{room}, {counts.total()}, {counts['nothing']}, {counts['noticed']}, {changing}, {share:.1%}")
        if " " in room:
            status |= share < (ASKED_OF_STRICT if room.startswith("loop") else ASKED)
    for fault, (verdict, by) in sorted(results.items()):
        if verdict != "noticed":
            print(verdict, fault, by)
    return status


def main(arguments: list[str]) -> int:
    """Note what tests cover, or put faults in, or tell what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "places",
        nargs="*",
        default=["ddlsched", "algorithms", "topologies"],
        help="folders, files or FILE:LINE, from the root",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--rounds", type=float, nargs="+", default=[4.0, 30.0, 120.0], help="seconds of CPU of tests")
    parser.add_argument("--compiled", action="store_true", help="try compiled what survived with nothing compiled")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "mutants", help="a folder; it may be removed")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("mutants.tsv"), help="a file")
    parser.add_argument("--told", action="store_true", help="only print what is in the results")
    parser.add_argument("--cover", action="store_true", help="note what the tests in these folders run")
    parser.add_argument("--plain", action="store_true", help="with --cover: nothing is compiled")
    parser.add_argument("--most-s", type=float, default=15.0, help="with --plain: of a test, in CPU")
    asked = parser.parse_args(arguments)
    if asked.cover:
        copied(asked.data / "tree")
        cover(asked.data, asked.plain, asked.places, asked.most_s)
        print(*(asked.data / "log").read_text().splitlines()[-1:])
        return 0
    if not asked.told:
        chosen = drawn(asked.data / "tree", asked.places, asked.seed, asked.number)
        try_all(asked.data, asked.results, chosen, asked.compiled, asked.rounds)
    return told(results_of(asked.results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
