"""``ddlsched doctor``: what works on this machine, and how to get the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from ddlsched.cli.reporting import emit

__all__ = ["Check", "checks", "doctor"]


@dataclass(frozen=True)
class Check:
    """Something that is looked for: what it is for, whether it is there, what was found, and how to get it."""

    what: str
    purpose: str
    works: bool
    found: str
    get: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a check.")] = False) -> None:
    """Say what works here (versions, cache, extras, Chromium, root, tc, PyTorch, Slurm) and how to get the rest.

    Ends with 1 if something is missing that every run needs.
    """
    found = list(checks())
    if as_json:
        emit("".join(json.dumps(asdict(check)) + "\n" for check in found))
    else:
        emit(_text(found))
    if not all(check.works for check in found if check.purpose == _EVERY_RUN):
        raise typer.Exit(1)


_EVERY_RUN = "every run"
_AGAIN = "pip install -e . once more: names are read at installation"


def checks() -> Iterator[Check]:
    """Yield all checks; none of them imports what it looks for, but the one of the compiled loop's folder."""
    yield Check("Python", _EVERY_RUN, True, platform.python_version())
    for package in ("ddlsched", "numpy", "pandas", "pyarrow", "numba", "networkx", "ortools", "matplotlib"):
        yield _package(package, _EVERY_RUN, "pip install -e .")
    yield _plug_ins()
    yield _compiler()
    yield _cache()
    for package, purpose, extra in _EXTRAS:
        yield _package(package, purpose, f"pip install 'ddlsched[{extra}]'")
    yield _program("g++", "benchmarks/engine.py", "apt-get install g++")
    yield _program("chromium", "tests/browser", "tests/browser/run installs it")
    yield _program("chromedriver", "tests/browser", "tests/browser/run installs it")
    yield _program("sinfo", "idle nodes of a Slurm cluster", "run on a host of the cluster")
    yield _program("tc", "shaping of networks on this machine", "apt-get install iproute2")
    root = os.geteuid() == 0
    yield Check("root", "shaping of networks on this machine", root, "yes" if root else "no", "sudo")


_EXTRAS = (
    ("jinja2", "ddlsched report", "report"),
    ("plotly", "ddlsched report", "report"),
    ("optuna", "ddlsched tune", "tune"),
    ("gymnasium", "ddlsched.envs", "envs"),
    ("greenlet", "ddlsched.envs", "envs"),
    ("sb3-contrib", "experiments/learned_order", "learn"),
    ("distributed", "ddlsched compare --dask", "dask"),
    ("torch", "ddlsched live and record", "real"),
    ("safetensors", "checkpoints in tests", "checkpoints"),
    ("fsspec", "data sets on remote stores", "checkpoints"),
    ("tree-sitter-go", "benchmarks/kueue_tables.py", "bench"),
    ("selenium", "tests/browser", "browser"),
)


def _package(name: str, purpose: str, get: str) -> Check:
    try:
        return Check(name, purpose, True, version(name), get)
    except PackageNotFoundError:
        return Check(name, purpose, False, "not installed", get)


def _program(name: str, purpose: str, get: str) -> Check:
    path = shutil.which(name)
    return Check(name, purpose, path is not None, path or "not found", get)


def _plug_ins() -> Check:
    from ddlsched.plugins.names import KINDS, names

    counts = {kind: len(names(kind)) for kind in KINDS}
    known = f"{sum(counts.values())} names of {len(KINDS)} kinds"
    return Check(
        "plug-ins", _EVERY_RUN, all(counts.values()), known, "pip install -e . (names are read at installation)"
    )


def _cache() -> Check:
    get = "set NUMBA_CACHE_DIR to a folder that can be written"
    return _tried("compiled policies", lambda: str(_cache_folder()), get)


def _compiler() -> Check:
    from ddlsched.engine.native.support import HOW_TO_MEND, why_unsupported

    why = why_unsupported()
    return Check("compiler", _EVERY_RUN, why is None, why or "numba, of a version that was tested", HOW_TO_MEND)


def _cache_folder() -> object:
    from ddlsched.engine.native.kept_files import cache_folder

    folder = cache_folder()
    if folder is None:
        raise OSError("no folder can be written, so that every process compiles anew")
    return folder


def _tried(what: str, look: Callable[[], str], get: str) -> Check:
    with suppress(ImportError):
        try:
            return Check(what, _EVERY_RUN, True, look(), get)
        except OSError as error:
            return Check(what, _EVERY_RUN, False, str(error), get)
    return Check(what, _EVERY_RUN, False, "numba cannot be imported", "pip install -e .")


def _text(found: list[Check]) -> str:
    wide = max(len(check.what) for check in found)
    lines = []
    for works, title in ((True, "Works here"), (False, "Missing")):
        own = [check for check in found if check.works == works]
        if own:
            lines += [title, *(f"  {check.what:<{wide}}  {_said(check)}" for check in own), ""]
    return "\n".join(lines)


def _said(check: Check) -> str:
    if check.works:
        return f"{check.found}" if check.purpose == _EVERY_RUN else f"{check.found}  ({check.purpose})"
    return f"{check.found}; for {check.purpose}: {check.get}"
