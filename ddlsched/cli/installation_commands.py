"""``ddlsched list``: all plug-ins by name, and the parameters of one; ``ddlsched doctor``: what works on this host."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import platform
import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, NamedTuple

import typer

from ddlsched.cli.reporting import emit, json_text
from ddlsched.errors import UnknownNameError, did_you_mean
from ddlsched.options import Option
from ddlsched.plugins.names import KINDS, Kind, made_by, names, resolve_bundle
from ddlsched.ranges import choices_of, range_of, unit_of

_ENTRY = re.compile(r"^(\w+(?:, \w+)*)(?: : .*)?\n((?: {4}.*\n?)+)", flags=re.MULTILINE)


class ParameterDescription(NamedTuple):
    """A parameter: its name, its default as a text ("" if it has none), what it may be, and what it means."""

    name: str
    default: str
    expected: str
    meaning: str


def description_of(kind: Kind, name: str) -> tuple[str, list[ParameterDescription]]:
    """Return what a registered plug-in is, in a sentence, and its parameters; it is imported.

    Raises
    ------
    UnknownNameError, PluginError
        No such name, or it cannot be imported.
    """
    if kind == "bundle":
        return " + ".join(f"{part} {given}" for part, given in resolve_bundle(name).items()), []
    made, known = made_by(kind, name)
    meanings = _meanings(made)
    fields = {field.name: field for field in dataclasses.fields(made)} if dataclasses.is_dataclass(made) else {}
    told = [
        ParameterDescription(each.name, _default(each), _expected(each, fields), meanings.get(each.name, ""))
        for each in known.values()
    ]
    return _plain((inspect.getdoc(made) or "").partition("\n")[0]), told


def _meanings(made: Any) -> dict[str, str]:
    """Return what docstrings say of each parameter: the class's own before those of its bases."""
    found: dict[str, str] = {}
    for each in reversed(made.__mro__ if inspect.isclass(made) else (made,)):
        for told, lines in _ENTRY.findall(inspect.cleandoc(each.__doc__ or "") + "\n"):
            found |= dict.fromkeys(told.split(", "), _plain(" ".join(lines.split())))
    return found


def _plain(text: str) -> str:
    """Return a text without the marks of its markup."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", text).replace("``", "")


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else str(parameter.default).lower() or '""'


def _expected(parameter: inspect.Parameter, fields: dict[str, dataclasses.Field[Any]]) -> str:
    field = fields.get(parameter.name)
    if field is not None and (bounds := range_of(field)):
        return bounds.said(parameter.name)
    if field is not None and (choices := choices_of(field)):
        return " or ".join(str(choice).lower() for choice in choices)
    kinds = {"int": "a whole number", "bool": "true or false", "float": unit_of(parameter.name), "str": "a text"}
    words = re.findall(r"\w+", str(parameter.annotation))
    return next((text for kind, text in kinds.items() if kind in words), "a value")


def list_plugins(
    kind: Annotated[str | None, Option(metavar="[KIND]", shown="all")] = None,
    name: Annotated[str | None, Option(metavar="[NAME]", shown="none")] = None,
    *,
    as_json: bool = False,
) -> None:
    """List the names that the flags of 'simulate' and 'compare' accept, yours included.

    A package adds names with entry points of the group ddlsched.KIND; listing them imports none of it.

    Parameters
    ----------
    kind
        Only these: placement, order, communication, allocation, path, ranks, collective, contention,
        interference, topology, workload or bundle.
    name
        Its parameters: defaults, units, meaning.
    as_json
        Print it as one JSON object.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind of plug-in is named {kind!r}.{did_you_mean(kind, KINDS)}")
    if kind is not None and name is not None:
        emit(_described(kind, name, as_json))
        return
    found = {each: names(each) for each in KINDS if kind in (None, each)}
    if as_json:
        emit(json_text(found))
    elif kind is not None:
        emit("".join(f"{name}\n" for name in found[kind]))
    else:
        emit("".join(f"{each:<15}{', '.join(found[each])}\n" for each in found))


def _described(kind: Kind, name: str, as_json: bool) -> str:
    summary, parameters = description_of(kind, name)
    if as_json:
        told = [parameter._asdict() for parameter in parameters]
        return json_text({"name": name, "summary": summary, "parameters": told})
    lines = [f"{name}: {summary}"]
    for each in parameters:
        lines += ["", f"{each.name}{f'={each.default}' if each.default else ''}   {each.expected}"]
        lines += textwrap.wrap(each.meaning, 100, initial_indent="    ", subsequent_indent="    ")
    if not parameters and kind != "bundle":
        lines += ["", "It has no parameters."]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Check:
    """Something that is looked for: what it is for, whether it is there, what was found, and how to get it."""

    what: str
    purpose: str
    works: bool
    found: str
    get: str = ""


def doctor(*, as_json: bool = False) -> None:
    """Say what works here (versions, cache, extras, Chromium, root, tc, PyTorch, Slurm) and how to get the rest.

    Ends with 1 if something is missing that every run needs.

    Parameters
    ----------
    as_json
        Print one JSON object a check.
    """
    found = list(checks())
    if as_json:
        emit("".join(json.dumps(asdict(check)) + "\n" for check in found))
    else:
        emit(_text(found))
    if not all(check.works for check in found if check.purpose == _EVERY_RUN):
        raise typer.Exit(1)


_EVERY_RUN = "every run"


def checks() -> Iterator[Check]:
    """Yield all checks; none of them imports what it looks for, but those of the compiler and of its folder."""
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
    counts = {kind: len(names(kind)) for kind in KINDS}
    known = f"{sum(counts.values())} names of {len(KINDS)} kinds"
    return Check(
        "plug-ins", _EVERY_RUN, all(counts.values()), known, "pip install -e . (names are read at installation)"
    )


def _cache() -> Check:
    from ddlsched.engine.native.kept_files import cache_folder

    folder, get = cache_folder(), "set NUMBA_CACHE_DIR to a folder that can be written"
    found = "no folder can be written, so that every process compiles anew" if folder is None else str(folder)
    return Check("compiled policies", _EVERY_RUN, folder is not None, found, get)


def _compiler() -> Check:
    from ddlsched.engine.native.jit import HOW_TO_MEND, why_unsupported

    why = why_unsupported()
    return Check("compiler", _EVERY_RUN, why is None, why or "numba, of a version that was tested", HOW_TO_MEND)


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
