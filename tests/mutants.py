"""Puts faults in at random, one at a time, and runs the tests that cover the line.

    python tests/mutants.py --cover tests/network            first: which test runs which line
    python tests/mutants.py --cover --plain tests/network    the same, nothing compiled
    python tests/mutants.py --seed 7 --number 20 ddlsched/network
    python tests/mutants.py ddlsched/network/rates.py:51     every fault of a line

A fault is a comparison turned, a sign, a constant, a guard removed, or a line dropped. It is put into a copy of the
tree, in --data, where what --cover found is kept, too; --cover brings the copy up to date. Coverage does not see
compiled lines: tests that run them are found, and run, with ``NUMBA_DISABLE_JIT=1``. What runs on import is covered by
the tests of the lines that name it, else of its file. Those of its own room are chosen first, then others, of each
those of random cases, then the quickest, up to --most-s of CPU; one that fails, or needs ten times its time, has
noticed the fault. What survives is tried once more, with all others up to --then-s, for the loop compiled. A line that
no test covers is a survivor. ``--cover --plain --times`` only times tests: those of random cases then run for every
fault of the loop.
Prints each survivor: a test to write, a line to delete, or a change that changes nothing.

So far 97 % are not reached, and few were tried. What was drawn, in seconds of CPU or of a busy machine's wall-clock:
how many were noticed at first, and what became of the others. They change nothing (or how something looks, a limit, a
published number); tests that were not chosen notice them; they have tests since, or the line is gone; they are not
decided, or it is not told.

=====================================================  ====  =====  =======  ======  =====  ====
Draw: seeds (--most-s)                                   Of  First  Nothing  Others  Since  Open
=====================================================  ====  =====  =======  ======  =====  ====
network, contention: 61, 71, 91 (12 to 30 s)            120     88       15       2     15     0
policies, workload, cluster, comparisons, results,
topologies, algorithms: 62, 64, 73, 92 (10 to 40 s)     175     98       27       7     43     0
workload, cluster, results, checkpoints: 11 (20 s)       80     50        0       0     15    15
loop, random runs: 51 to 56, 72, 74, 93 (20 to 30 s)     73     40        8       9      8     8
loop, few tests: 31 (15, 45 s)                           42     14        0       0      0    28
loop, random runs: 111, the first 11 (26 s)              11      7        1       0      2     1
rooms but loop, network, real, training, cli: 101,
the first 25 (5 s)                                       25     18        3       1      3     0
=====================================================  ====  =====  =======  ======  =====  ====

Five of the seven survivors of 101 were tried for 60 s more, with tests of all rooms but those: none was noticed.

Ends with status 1 if fewer than 97 % are noticed, in the event loop and the contention models 99 %.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import numba
import pytest
from tiers import is_drawn

ROOT = Path(__file__).resolve().parents[1]
LOOP = "ddlsched/engine/loop/"
COMPILED = {"ddlsched/engine/loop/batch/": "tests/envs/", LOOP: "tests/engine/"}
"""Folders of what is only compiled, a minute for each fault, and of its tests."""
PLAIN = {"NUMBA_DISABLE_JIT": "1", "FUZZ": "8"}
"""A test of random cases tries few of them where each takes seconds."""
STAMPED, COMPILING_S = ("ddlsched/engine/", "ddlsched/policies/"), 150.0
"""Where faults may have the loop compiled anew, which the first test waits for: it takes less CPU than that."""
STRICT = (LOOP, "ddlsched/network/", "algorithms/contention/")
ASKED, ASKED_OF_STRICT = 0.97, 0.99
IMPORTED = ("hypothesis", "matplotlib.pyplot", "networkx", "pandas", "pyarrow.parquet", "scipy.stats")
"""What tests would import anew for each fault."""
_TURNED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
_GIVEN = re.compile(r"\s*(?:def (\w+)|(\w+)(?:: [^=]+)? = )")
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
        """Return it in one line."""
        there = source[self.begin : self.end].decode()
        return f"{self.path}:{self.line}: " + " -> ".join(" ".join(text.split())[:60] for text in (there, self.text))


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
        begin, end = span(node)
        return source[begin:end].decode()

    found = []
    for node in _executed(ast.parse(source)):
        for changed, new in _changes(node, text):
            if (place := span(changed)) and source[slice(*place)].decode() != new:
                found.append(Mutant(path, changed.lineno, *place, new))
    return found


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
        if mutant.line not in _bodies(source):
            found = self._that_name(_name(source, mutant.line), plain, mutant.path)
        else:
            found = self._that_run(source, mutant, plain)
        if not found and plain and mutant.path.startswith(LOOP):
            found = self.drawn
        if not found and not plain:
            lines = self._tests.get((plain, mutant.path), {}).values()
            folder = next((tests for loop, tests in COMPILED.items() if mutant.path.startswith(loop)), None)
            found = {test for test in self.seconds[plain] if test.startswith(folder)} if folder else set().union(*lines)
        return {test: self.seconds[plain][test] for test in found if test in self.seconds[plain]}

    def _that_run(self, source: str, mutant: Mutant, plain: bool) -> set[str]:
        lines = self._tests.get((plain, mutant.path), {})
        return (lines.get(mutant.line) or lines.get(_begin(source, mutant.line), set())) - {""}

    def _that_name(self, name: str, plain: bool, path: str) -> set[str]:
        """Return the tests that run lines of a file, else of any, in which there is a name; none if it is compiled."""
        named, found, is_named = re.compile(rf"\b{name}\b"), set[str](), False
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
    """Return what a statement that runs on import gives its name to."""
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
    """Runs chosen tests, those of random cases first; the process ends if one needs ten times its time."""

    def __init__(self, chosen: dict[str, float], drawn: set[str], least_s: float) -> None:
        self._chosen, self._drawn, self._least_s = chosen, drawn, least_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is chosen."""
        took = self._chosen
        chosen = [item for item in items if item.nodeid in took]
        files: Counter[tuple[bool, Path]] = Counter()
        for item in chosen:
            files[item.nodeid not in self._drawn, item.path] += took[item.nodeid]  # type: ignore[assignment]

        def place(item: pytest.Item) -> tuple[bool, float, Path, float]:
            part = item.nodeid not in self._drawn, item.path
            return part[0], files[part], item.path, took[item.nodeid]

        items[:] = sorted(chosen, key=place)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Let the system end what does not end: also what waits, and compiled code."""
        most_s = self._least_s + 10 * self._chosen[nodeid]
        signal.setitimer(signal.ITIMER_PROF, most_s)
        signal.setitimer(signal.ITIMER_REAL, 10 * most_s)


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
        code = pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=0", *arguments], plugins=[plugin])
    finally:
        os._exit(code)


def is_noticed(mutant: Mutant, covered: Covered, tree: Path, most_s: float, before_s: float = -1.0) -> bool:
    """Put a fault in, run the tests that cover it but for those of an earlier, shorter round, and take it out."""
    target = tree / mutant.path
    source = target.read_bytes()
    of_loop = mutant.path.startswith(LOOP)
    compiling_s = COMPILING_S if mutant.path.startswith(STAMPED) else 30.0
    chosen = {}
    for plain in (of_loop, not of_loop):
        tests = covered.by(mutant, plain)
        ran, may_run = (_within(tests, covered.drawn, each, _own(mutant.path)) for each in (before_s, most_s))
        if of_loop and not plain:  # it is compiled anew, which takes longer than most tests: not in the first round
            ran, may_run = {}, may_run if before_s >= 0 else {}
        chosen[plain] = {test: took for test, took in may_run.items() if test not in ran}
    kept = Path(cache_from_source(str(target)))
    target.write_bytes(mutant.put_into(source))
    kept.unlink(missing_ok=True)  # Python would take a file of the same second and size for the same
    try:
        return not all(
            tests_pass(
                tree,
                plain,
                Noticing(tests, covered.drawn, 5.0 if plain else compiling_s),
                ["-x", *sorted({test.partition("::")[0] for test in tests})],
            )
            for plain, tests in chosen.items()
            if tests
        )
    finally:
        target.write_bytes(source)
        kept.unlink(missing_ok=True)


def _own(path: str) -> str:
    """Return the folder of a file's own tests."""
    room, *parts = Path(path).parts
    return f"tests/{parts[0] if room == 'ddlsched' else room}/"


def _within(tests: dict[str, float], drawn: set[str], most_s: float, own: str) -> dict[str, float]:
    """Return those that take together no longer than that: the room's own, then others.

    Of each, those of random cases go first, then the quickest.
    """
    found: dict[str, float] = {}
    order = sorted(tests.items(), key=lambda each: (not each[0].startswith(own), each[0] not in drawn, each[1]))
    for test, took in order:
        if took <= most_s:
            found[test], most_s = took, most_s - took
    return found


def copied(tree: Path) -> None:
    """Bring a copy of all files that git knows up to date, and its entry points: those installed may be older."""
    tree.mkdir(parents=True, exist_ok=True)
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(
        ["xargs", "-0", "cp", "-p", "--parents", "-t", str(tree.resolve())], cwd=ROOT, input=known, check=True
    )
    subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"], cwd=tree, check=True
    )


def cover(data: Path, plain: bool, tests: list[str], most_s: float, times: bool = False) -> None:
    """Note which lines tests run and how long they take (or only that), beside what is noted already."""
    (data / "settings").write_text(_SETTINGS + f"data_file = {data / _KIND[plain]}\n")
    noted = ["--cov", f"--cov-config={data / 'settings'}", "--cov-context=test", "--cov-append", "--cov-report="]
    tests_pass(data / "tree", plain, Covering(data, plain, most_s), [*([] if times else noted), *tests])


def main(arguments: list[str]) -> int:
    """Put them in, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "places",
        nargs="*",
        default=["ddlsched", "algorithms", "topologies"],
        help="folders, files or FILE:LINE, from the root",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--most-s", type=float, default=60.0, help="of the tests of a fault; with --plain, of a test")
    parser.add_argument("--then-s", type=float, default=600.0, help="of others, if those notice nothing")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "mutants", help="a folder; it may be removed")
    parser.add_argument("--cover", action="store_true", help="note what the tests in these folders run")
    parser.add_argument("--times", action="store_true", help="with --cover: note only how long they take")
    parser.add_argument("--plain", action="store_true", help="with --cover: nothing is compiled")
    asked = parser.parse_args(arguments)
    if asked.cover:
        copied(asked.data / "tree")
        cover(asked.data, asked.plain, asked.places, asked.most_s, asked.times)
        print(*(asked.data / "log").read_text().splitlines()[-1:])
        return 0
    found: dict[Mutant, bool] = {}
    covered, tree, _ = Covered(asked.data), asked.data / "tree", list(map(import_module, IMPORTED))
    with suppress(KeyboardInterrupt):
        chosen = drawn(tree, asked.places, asked.seed, asked.number)
        for before_s, most_s in ((-1.0, asked.most_s), (asked.most_s, asked.then_s)):
            for mutant in [each for each in chosen if most_s > before_s and not found.get(each)]:
                said = mutant.said((tree / mutant.path).read_bytes())
                found[mutant] = is_noticed(mutant, covered, tree, most_s, before_s)
                print("noticed " if found[mutant] else "SURVIVED", said, flush=True)
    noticed = {of: [seen for each, seen in found.items() if each.path.startswith(STRICT) == of] for of in (True, False)}
    return told(noticed)


def told(noticed: dict[bool, list[bool]]) -> int:
    """Print the shares that were noticed; return 1 if one is less than is asked."""
    status = 0
    for strict, what, least in ((True, "event loop and network", ASKED_OF_STRICT), (False, "other rooms", ASKED)):
        if found := noticed[strict]:
            share = sum(found) / len(found)
            print(f"{what}: {sum(found)} of {len(found)} noticed ({share:.1%}; {least:.0%} of what changes anything)")
            status |= share < least
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
