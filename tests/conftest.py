"""Shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import hypothesis
import pytest
import tiers

TESTS = Path(__file__).parent
COMPILED = pytest.StashKey[Future[None]]()


def default_signals() -> None:
    """Let signals do what they do in a process that a terminal started.

    A script's background job inherits that SIGINT is ignored, ``nohup`` ignores SIGHUP, and what is ignored stays so in
    all processes that a test starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def pytest_configure(config) -> None:
    """Begin to compile the event loop, once, while parallel test processes look for their tests."""
    tiers.thorough = "not slow" not in config.option.markexpr
    # The same examples at every run, so that a failure is there for everybody; FUZZ=N tries N new ones.
    settings = {"deadline": None, "derandomize": not tiers.FUZZ, "max_examples": tiers.examples(40, by_default=15)}
    hypothesis.settings.register_profile("ours", **settings)
    hypothesis.settings.load_profile("ours")
    default_signals()
    gc.set_threshold(20_000, 20, 20)  # Python's garbage is looked for among all that the compiler keeps, more seldom
    # Otherwise each of the processes that tests start would compile all sources that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if paths := os.environ.get("PYTHONPATH"):  # a relative one is another folder to processes that start elsewhere
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths.split(os.pathsep))
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from ddlsched.simulation import warm_up

        config.stash[COMPILED] = ThreadPoolExecutor(1).submit(warm_up)
    if config.args == ["tests"] and int(getattr(config, "workerinput", {"workerid": "gw0"})["workerid"][2:]) % 2:
        # In a fresh clone each parallel process would compile all tests: what one has compiled the other reads.
        config.args = sorted(map(str, (*TESTS.glob("*/"), *TESTS.glob("test_*.py"))), reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among modules and tests: all of them stay, and to go through them takes seconds each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """Have one order of tests, from wherever a process began to look for them."""
    items.sort(key=lambda item: item.path)


def pytest_ignore_collect(collection_path: Path, config) -> bool | None:
    """Let a run of the long tests read the files alone that mark some: to look through all takes half of it."""
    only_long = config.option.markexpr.split(" and ")[0] == "long" and collection_path.suffix == ".py"
    return True if only_long and not tiers.marks_long(collection_path) else None


def pytest_itemcollected(item) -> None:
    """Let ``-m slow`` try random cases, too: more of them than other runs do."""
    if tiers.thorough and tiers.is_drawn(item):
        item.add_marker("slow")
    assert not item.get_closest_marker("long") or tiers.marks_long(item.path), f"{item.path} does not say what is long"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids) -> None:
    """Let no test begin before the event loop is compiled: each process would do it."""
    node.config.stash[COMPILED].result()


@pytest.fixture(autouse=True)
def _signals() -> None:
    """What a test before has changed, as some solvers do, is undone."""
    default_signals()


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder in memory, where waiting for the disk costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is an empty folder."""
    monkeypatch.chdir(tmp_path)
