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

import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ddlsched.errors import InputError, PluginError, UnknownNameError, did_you_mean

__all__ = ["KINDS", "Kind", "names", "resolve", "resolve_bundle"]

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
        A parameter's value has the wrong type or is refused by the plug-in.
    PluginError
        The user's file cannot be imported.
    """
    if not isinstance(given, str):
        return given
    maker, label, parameters = _find(kind, given)
    return _make(kind, label, maker, _parse_parameters(kind, label, maker, parameters))


def resolve_bundle(name: str) -> dict[str, str]:
    """Return the placement, order and communication that a bundle such as ``ada-srsf`` stands for."""
    point = _registered("bundle").get(name)
    if point is None:
        raise UnknownNameError(f"no bundle is named {name!r}.{did_you_mean(name, names('bundle'))}")
    bundle: dict[str, str] = dict(point.load())
    return bundle


def _find(kind: Kind, given: str) -> tuple[Callable[..., Any], str, str]:
    if ".py:" in given:
        file, _, rest = given.partition(".py:")
        class_name, _, parameters = rest.partition(":")
        return _class_in_file(Path(file + ".py"), class_name), class_name, parameters
    name, _, parameters = given.partition(":")
    point = _registered(kind).get(name)
    if point is None:
        hint = did_you_mean(name, names(kind))
        raise UnknownNameError(f"no {kind} is named {name!r}.{hint} A class of your own: path/to/file.py:ClassName")
    return point.load(), name, parameters


def _class_in_file(path: Path, class_name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a Python file with the class {class_name!r}")
    module_name = f"ddlsched_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: cannot be imported; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from error
    found = getattr(module, class_name, None)
    if not callable(found):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module_name]
        raise UnknownNameError(f"{path}: has no class {class_name!r}.{did_you_mean(class_name, classes)}")
    plugin: Callable[..., Any] = found
    return plugin


def _parse_parameters(kind: Kind, label: str, maker: Callable[..., Any], text: str) -> dict[str, Any]:
    types = _parameter_types(maker)
    values: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"{kind} {label}: {part!r} is no parameter; expected name=value")
        if name not in types:
            hint = did_you_mean(name, types) if types else " It has no parameters."
            raise UnknownNameError(f"{kind} {label}: no parameter is named {name!r}.{hint}")
        if name in values:
            raise InputError(f"{kind} {label}: parameter {name} is given twice; expected once")
        values[name] = _parse_value(f"{kind} {label}, parameter {name}", types[name], value.strip())
    return values


def _parameter_types(maker: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(maker, eval_str=True).parameters.values()
    return {parameter.name: parameter.annotation for parameter in parameters}


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _parse_value(where: str, kind: Any, text: str) -> Any:
    accepted = typing.get_args(kind) or (kind,)
    if bool in accepted:
        if text.lower() not in _BOOLEANS:
            raise InputError(f"{where}: {text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]
    for number, expected in ((int, "a whole number"), (float, "a number")):
        if number in accepted:
            try:
                return number(text)
            except ValueError:
                raise InputError(f"{where}: {text!r} is not {expected}") from None
    return text


def _make(kind: Kind, label: str, maker: Callable[..., Any], values: dict[str, Any]) -> Any:
    try:
        return maker(**values)
    except InputError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        raise PluginError(f"{kind} {label}({given}): cannot be made ({type(error).__name__}: {error})") from error
