"""Files of the user's: which ones a text names, what they import from beside them, and how they are run.

A text names a file alone (``jobs.csv``), before a class or function (``mine.py:MyPolicy``), or as the value of
a parameter (``mine.py:trace:file=trace.csv``). With a Python file go the modules and packages that it imports
and that lie in its folder, found from its import statements; what it finds by other means is not known.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ddlsched.errors import InputError, PluginError, UnknownNameError, did_you_mean
from ddlsched.io.files import read_bytes, refuse_irregular

NOT_THE_PLUGINS = (str(Path(__file__).parents[1]) + os.sep, dataclasses.__file__, "<")
"""Beginnings of the file names of our frames, and of those that Python puts between ours and a plug-in's."""
_LIBRARIES = {"site-packages", Path(os.__file__).parent.name}
"""Folders of others' code."""
_MOST_BYTES = 1 << 24
"""Of a Python file; its syntax tree takes some hundred times as many."""


def files_named(text: str) -> list[Path]:
    """Return the files that a text names and that are there."""
    found: list[Path] = []

    def note(path: Path) -> str:
        found.append(path)
        return str(path)

    substituted(text, note)
    return found


def substituted(text: str, put: Callable[[Path], str]) -> str:
    """Return a text with ``put(path)`` in place of each file that it names."""
    if _is_file(text):
        return put(Path(text))
    head, py, rest = text.partition(".py:")
    if py:
        name, colon, parameters = rest.partition(":")
        head = f"{_substituted_file(head + '.py', put)}:{name}"
    else:
        head, colon, parameters = text.partition(":")
    return head + colon + ",".join(_substituted_value(part, put) for part in parameters.split(","))


def _substituted_value(parameter: str, put: Callable[[Path], str]) -> str:
    name, equals, value = parameter.partition("=")
    return name + equals + _substituted_file(value.strip(), put)


def _substituted_file(text: str, put: Callable[[Path], str]) -> str:
    return put(Path(text)) if _is_file(text) else text


def _is_file(text: str) -> bool:
    path = Path(text)
    try:
        return bool(path.suffix) and path.is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def with_neighbours(path: Path) -> list[Path]:
    """Return a file and, if it is Python, what it imports from its folder, directly or not."""
    found, folder = [path], path.resolve().parent
    if path.suffix != ".py" or folder in _library_folders():
        return found
    for file in found:  # which grows
        for name in _imports(file) if file.suffix == ".py" else ():
            found += [neighbour for neighbour in _beside(folder, name) if neighbour not in found]
    return found


def _beside(folder: Path, name: str) -> list[Path]:
    """Return the files of a module or package of this name in a folder."""
    if name in installed_packages():
        return []
    package = sorted(file for file in (folder / name).rglob("*.py") if file.is_file())
    return package or [file for suffix in _SUFFIXES if (file := folder / f"{name}{suffix}").is_file()]


_SUFFIXES = [*importlib.machinery.SOURCE_SUFFIXES, *importlib.machinery.EXTENSION_SUFFIXES]


def _imports(path: Path) -> tuple[str, ...]:
    return _imports_of_version(path, *_version(path))


@lru_cache(maxsize=1024)
def _imports_of_version(path: Path, *_version: int) -> tuple[str, ...]:
    """Return the first names of all absolute imports, anywhere in a file."""
    try:
        nodes = list(ast.walk(ast.parse(read_bytes(path, _MOST_BYTES))))
    except InputError:
        raise
    except (SyntaxError, ValueError):  # which running the file reports
        return ()
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return tuple(dict.fromkeys(name.partition(".")[0] for name in imported))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    return _digest_of_version(path.resolve(), *_version(path))


@lru_cache(maxsize=4096)
def _digest_of_version(path: Path, *_version: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(path: Path) -> tuple[int, int, int]:
    """Return what differs after a file was written anew."""
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


@lru_cache(maxsize=1)
def installed_packages() -> frozenset[str]:
    """Return the names of this package and of those whose plug-ins are registered."""
    groups = [group for group in entry_points().groups if group.startswith("ddlsched.")]
    points = [point for group in groups for point in entry_points(group=group)]
    return frozenset({"ddlsched"} | {point.module.partition(".")[0] for point in points})


@lru_cache(maxsize=1)
def _library_folders() -> frozenset[Path]:
    return frozenset(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def class_in_file(path: Path, class_name: str) -> Callable[..., Any]:
    """Return a class, or another callable, of a user's Python file; the file is run.

    Raises
    ------
    InputError
        No such file.
    UnknownNameError
        The file has no such callable.
    PluginError
        The file cannot be imported.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file; expected a Python file with the class {class_name!r}")
    refuse_irregular(path, _MOST_BYTES)
    module = _module_of_file(path)
    found: Callable[..., Any] | None = getattr(module, class_name, None)
    if not callable(found):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        lacks = f"has no class or function {class_name!r}" if class_name else f"is a file; expected {path}:CLASS"
        raise UnknownNameError(f"{path}: {lacks}.{did_you_mean(class_name, own)}")
    return found


_LOADING = threading.RLock()
"""Held while ``sys.path`` and ``sys.modules`` are other than usual: a Dask worker may have several threads."""


def _module_of_file(path: Path) -> ModuleType:
    """Return the module of a user's file, run once for each version of it and of what it imports from beside it."""
    files = with_neighbours(path)
    version = "".join([str(path.resolve()), *map(digest_of, files)])
    module_name = f"ddlsched_user_{path.stem}_{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    with _LOADING:
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None:
            raise InputError(f"{path}: cannot be imported; expected a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        with _importing_from(path.resolve().parent, files[1:]):
            _run(path, module)
    return module


def _run(path: Path, module: ModuleType) -> None:
    source = read_bytes(path, _MOST_BYTES)
    try:
        # Not the loader's exec_module: its cache takes an edit within a second, of the same length, for none.
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module.__name__, None)
        raise PluginError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from error


@contextmanager
def _importing_from(folder: Path, neighbours: list[Path]) -> Iterator[None]:
    """Let imports find a folder's modules, as they are now, and leave none of them behind.

    So two files may each have a ``helpers.py`` of its own beside them, and an edited one is not taken from
    what an earlier run of this process imported.
    """
    names = {file.relative_to(folder).parts[0].partition(".")[0] for file in neighbours}
    others, before = _taken_out(names), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # a cached form is told from an edited one by whole seconds only
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(folder))
        _taken_out(names)
        sys.modules.update(others)


def _taken_out(names: set[str]) -> dict[str, ModuleType]:
    chosen = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in chosen}


def interrupted_plugin(by: KeyboardInterrupt) -> str:
    """Return where a plug-in that we called was when Ctrl-C came, or nothing: it may never have ended."""
    called, place = False, "".join(getattr(by, "__notes__", []))  # of a compiled one, whose frames nobody sees
    for frame, line in traceback.walk_tb(by.__traceback__):
        file = frame.f_code.co_filename
        called = called or file.startswith(NOT_THE_PLUGINS[0])
        # Cython's frames name a .pyx file without the folder of its package.
        of_others = not file.endswith(".py") or file.startswith(NOT_THE_PLUGINS) or _LIBRARIES & {*Path(file).parts}
        if called and not of_others:
            place = f"{file}, line {line}, {frame.f_code.co_name}"
    return place
