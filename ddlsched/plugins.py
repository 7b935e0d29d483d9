"""How a plug-in gets in: an instance, a registered name, or a class in a file of the user's.

===========================================  ====================================================
``lwf:kappa=1``                              a name from entry points, with parameters
``path/to/mine.py:MyPolicy:alpha=0.5``       a class in a file, with parameters
``MyPolicy(alpha=0.5)``                      the instance itself
===========================================  ====================================================

Names are entry points of the groups ``ddlsched.placement``, ``ddlsched.order``, ``ddlsched.communication``,
``ddlsched.contention``, ``ddlsched.topology`` and ``ddlsched.bundle``; listing them imports nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from ddlsched.errors import InputError, PluginError, UnknownNameError, did_you_mean, guarded

__all__ = ["KINDS", "Kind", "class_in_file", "names", "resolve", "resolve_bundle"]

Kind: TypeAlias = Literal["placement", "order", "communication", "contention", "topology", "bundle"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)


def names(kind: Kind) -> list[str]:
    """Return the registered names of a kind, sorted."""
    return sorted(_registered(kind))


def _registered(kind: Kind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"ddlsched.{kind}")}


def resolve(kind: Kind, given: object) -> Any:
    """Return the plug-in that ``given`` names, or ``given`` itself if it is no text.

    Raises
    ------
    UnknownNameError
        No such name or parameter; the message has the near matches.
    InputError
        A parameter is missing, has the wrong type or is refused by the plug-in, or the class is not of this kind.
    PluginError
        The plug-in cannot be imported or made.
    """
    if not isinstance(given, str):
        _refuse_other_kind(kind, type(given).__name__, given)
        return given
    maker, label, parameters = _find(kind, given)
    plugin = _make(kind, label, maker, _parse_parameters(kind, label, maker, parameters))
    _refuse_other_kind(kind, label, plugin)
    return plugin


def resolve_bundle(name: str) -> dict[str, str]:
    """Return the placement, order and communication that a bundle such as ``ada-srsf`` stands for."""
    point = _registered("bundle").get(name)
    if point is None:
        raise UnknownNameError(f"no bundle is named {name!r}.{did_you_mean(name, names('bundle'))}")
    bundle: dict[str, str] = dict(_load("bundle", point))
    return bundle


def _load(kind: Kind, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        what = f"{point.value} cannot be imported ({type(error).__name__}: {error})"
        raise PluginError(f"{kind} {point.name}: {what}") from error


_METHODS: dict[Kind, tuple[str, ...]] = {
    "placement": ("place",),
    "order": ("key",),
    "communication": ("admit or select",),
    "contention": (
        "alone_per_byte_s",
        "penalty_per_byte_s",
        "latency_s",
        "bound_to",
        "wire_bytes",
        "rates",
    ),
    "topology": ("graph", "route"),
}


def _refuse_other_kind(kind: Kind, label: str, plugin: object) -> None:
    if inspect.isclass(plugin):
        raise InputError(f"{kind} {plugin.__name__}: is a class; expected an instance of it")
    # What ``begin`` returns is asked instead, and an attribute made on demand is seen only when asked for.
    begins = kind in ("placement", "order", "communication") and _has(plugin, "begin")
    if kind in _METHODS and not (begins or _has(plugin, "__getattr__")):
        for needed in _METHODS[kind]:
            if not any(_has(plugin, name) for name in needed.split(" or ")):
                raise InputError(f"{kind} {label}: has no {needed}, which every {kind} plug-in must have")


def _has(plugin: object, name: str) -> bool:
    return inspect.getattr_static(plugin, name, None) is not None


def _find(kind: Kind, given: str) -> tuple[Callable[..., Any], str, str]:
    if ".py:" in given:
        file, _, rest = given.partition(".py:")
        class_name, _, parameters = rest.partition(":")
        return class_in_file(Path(file + ".py"), class_name), class_name, parameters
    name, _, parameters = given.partition(":")
    point = _registered(kind).get(name)
    if point is None:
        hint = did_you_mean(name, names(kind))
        if "=" in name:
            hint = " Parameters follow a colon: name:parameter=value."
        raise UnknownNameError(f"no {kind} is named {name!r}.{hint} A class of your own: path/to/file.py:ClassName")
    return _load(kind, point), name, parameters


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
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a Python file with the class {class_name!r}")
    module = _module_of_file(path)
    found = getattr(module, class_name, None)
    if not callable(found):
        here = module.__name__
        classes = [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == here]
        raise UnknownNameError(f"{path}: has no class {class_name!r}.{did_you_mean(class_name, classes)}")
    plugin: Callable[..., Any] = found
    return plugin


def _module_of_file(path: Path) -> ModuleType:
    """Return the module of a user's file, run once for each version of it; it may import its neighbours."""
    version = f"{path.resolve()} {path.stat().st_mtime_ns}"
    module_name = f"ddlsched_user_{path.stem}_{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None:
        raise InputError(f"{path}: cannot be imported; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        # Not the loader's exec_module: its cache takes an edit within a second, of the same length, for none.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise PluginError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        sys.path.remove(folder)
    return module


def _parse_parameters(kind: Kind, label: str, maker: Callable[..., Any], text: str) -> dict[str, Any]:
    where = f"{kind} {label}"
    known = _parameters(where, maker)
    values: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"{where}: {part!r} is no parameter; expected name=value")
        if name not in known:
            hint = did_you_mean(name, known) if known else " It has no parameters."
            raise UnknownNameError(f"{where}: no parameter is named {name!r}.{hint}")
        if name in values:
            raise InputError(f"{where}: parameter {name} is given twice; expected once")
        values[name] = _parse_value(f"{where}, parameter {name}", _type_of(known[name]), value.strip())
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in values:
            raise InputError(f"{where}: parameter {name} is missing; expected {label}:{name}=VALUE")
    return values


def _parameters(where: str, maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        found = _signature(maker).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: its parameters are unknown ({error}); expected a class") from None
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: parameter for name, parameter in found.items() if parameter.kind not in rest}


def _signature(maker: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(maker, eval_str=True)
    except Exception:  # An annotation that only type checkers can evaluate.
        return inspect.signature(maker)


_PLAIN_TYPES = {plain.__name__: plain for plain in (bool, int, float, str)}


def _type_of(parameter: inspect.Parameter) -> Any:
    """Return a parameter's type, from its annotation or else its default."""
    if parameter.annotation is parameter.empty:
        return str if parameter.default is None else type(parameter.default)
    if isinstance(parameter.annotation, str):
        return _PLAIN_TYPES.get(parameter.annotation, str)
    return parameter.annotation


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _parse_value(where: str, kind: Any, text: str) -> Any:
    accepted = typing.get_args(kind) or (kind,)
    if bool in accepted:
        if text.lower() not in _BOOLEANS:
            raise InputError(f"{where}: {text!r} is not a truth value; expected true or false")
        return _BOOLEANS[text.lower()]
    if type(None) in accepted and text.lower() == "none":
        return None
    numbers = [number for number in (int, float) if number in accepted]
    for number in numbers:
        with suppress(ValueError):
            return number(text.replace("_", "?"))  # Python reads 1_000 as a number, nobody else does.
    if numbers and str not in accepted:
        raise InputError(f"{where}: {text!r} is not {'a number' if float in numbers else 'a whole number'}")
    return text


def _make(kind: Kind, label: str, maker: Callable[..., Any], values: dict[str, Any]) -> Any:
    given = ", ".join(f"{name}={value}" for name, value in values.items())
    return guarded(f"{kind} {label}({given})", lambda: maker(**values))
