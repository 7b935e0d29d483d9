"""How a plug-in gets in: an instance, a registered name, or a class in a file of the user's.

===========================================  ====================================================
``lwf:kappa=1``                              a name from entry points, with parameters
``path/to/mine.py:MyPolicy:alpha=0.5``       a class in a file, with parameters
``MyPolicy(alpha=0.5)``                      the instance itself
===========================================  ====================================================

Names are entry points of the groups ``ddlsched.placement``, ``ddlsched.order``, ``ddlsched.communication``,
``ddlsched.allocation``, ``ddlsched.path``, ``ddlsched.ranks``, ``ddlsched.admission``, ``ddlsched.collective``,
``ddlsched.contention``, ``ddlsched.interference``, ``ddlsched.topology``, ``ddlsched.checkpoint``,
``ddlsched.recovery``, ``ddlsched.health``, ``ddlsched.workload`` and ``ddlsched.bundle``; listing them imports nothing.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from ddlsched.errors import InputError, PluginError, UnknownNameError, abbreviated, did_you_mean, guarded
from ddlsched.plugins.user_files import class_in_file

Made = TypeVar("Made")
Kind: TypeAlias = Literal[
    "placement",
    "order",
    "communication",
    "allocation",
    "path",
    "ranks",
    "admission",
    "collective",
    "contention",
    "interference",
    "topology",
    "checkpoint",
    "recovery",
    "health",
    "workload",
    "bundle",
]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)


def names(kind: Kind) -> list[str]:
    """Return the registered names of a kind, sorted."""
    return sorted(_registered(kind))


@lru_cache
def _registered(kind: Kind) -> dict[str, EntryPoint]:
    return {point.name: point for point in _all_entry_points().select(group=f"ddlsched.{kind}")}


@lru_cache
def _all_entry_points() -> Any:
    """Return those of all packages, which take longer to read than many a run."""
    return entry_points()


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
    make = maker(kind, given)
    plugin = make()
    _refuse_other_kind(kind, make.label, plugin)
    return plugin


@dataclass(frozen=True)
class Maker:
    """What makes a plug-in, with the parameters that a text gives it.

    Attributes
    ----------
    kind, label
        What it makes and how messages call it.
    function
        A class or a function.
    values
        The parameters given.
    supplied
        Names of further parameters that the function has and that its caller gives.
    """

    kind: Kind
    label: str
    function: Callable[..., Any]
    values: dict[str, Any]
    supplied: frozenset[str]

    def __call__(self, **supplied: Any) -> Any:
        """Return what the function makes; what it raises becomes a PluginError."""
        values = self.values | {name: value for name, value in supplied.items() if name in self.supplied}
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        return guarded(f"{self.kind} {self.label}({given})", lambda: self.function(**values))


def maker(kind: Kind, given: str, supplied: Collection[str] = ()) -> Maker:
    """Return what makes the plug-in that a text names.

    Parameters
    ----------
    kind, given
        The kind, and a text such as ``lwf:kappa=1`` or ``mine.py:MyPolicy:alpha=0.5``.
    supplied
        Parameters that the caller gives later, if the plug-in has them; refused in the text.

    Raises
    ------
    UnknownNameError, InputError, PluginError
        As :func:`resolve`.
    """
    function, label, text = _find(kind, given)
    where = f"{kind} {label}"
    known = _parameters(where, function)
    taken = {name for name in supplied if known.pop(name, None) is not None}
    for part in text.split(","):
        if (name := part.partition("=")[0].strip()) in taken:
            raise InputError(f"{where}: {name} is given by the run; expected {given!r} without it")
    values = _parse_parameters(where, known, _pairs(where, text), label)
    return Maker(kind, label, function, values, frozenset(taken))


def made_by(kind: Kind, name: str) -> tuple[Callable[..., Any], dict[str, inspect.Parameter]]:
    """Return the class or function of a registered name, or of one in a file, and its parameters.

    Raises
    ------
    UnknownNameError, InputError, PluginError
        As :func:`resolve`.
    """
    function, label, _ = _find(kind, name)
    return function, _parameters(f"{kind} {label}", function)


def _elsewhere(kind: Kind, name: str) -> str:
    """Return under which other flags a name is known: somebody who writes ``--scheduler tiresias`` means an order."""
    others = [other for other in KINDS if other not in (kind, "workload") and name in _registered(other)]
    flags = " or ".join(f"--{'scheduler' if other == 'bundle' else other} {name}" for other in others)
    return f" Did you mean {flags}?" if flags else ""


def resolve_bundle(name: str) -> dict[str, str]:
    """Return the placement, order and communication that a bundle such as ``ada-srsf`` stands for."""
    point = _registered("bundle").get(name)
    if point is None:
        hint = _elsewhere("bundle", name) or did_you_mean(name, names("bundle"))
        raise UnknownNameError(f"no bundle is named {name!r}.{hint}")
    return dict(_load("bundle", point))


def _load(kind: Kind, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        what = f"{point.value} cannot be imported ({type(error).__name__}: {error})"
        raise PluginError(f"{kind} {point.name}: {what}") from error


_METHODS: dict[Kind, tuple[str, ...]] = {
    "placement": ("place or place_round",),
    "order": ("key",),
    "communication": ("admit or transfer_key or select",),
    "allocation": ("allocate",),
    "path": ("path",),
    "ranks": ("order",),
    "admission": ("admit",),
    "collective": ("kinds", "phases"),
    "contention": ("alone_per_byte_s", "penalty_per_byte_s", "latency_s", "bound_to", "link_rate or weight or rates"),
    "interference": ("penalty_share",),
    "topology": ("graph", "route"),
    "checkpoint": ("interval_s",),
    "recovery": ("start_s", "spares", "recover"),
    "health": ("check_s", "replaces"),
}


_BEGIN: tuple[Kind, ...] = ("placement", "order", "communication", "allocation", "path", "admission")


def _refuse_other_kind(kind: Kind, label: str, plugin: object) -> None:
    if inspect.isclass(plugin):
        raise InputError(f"{kind} {plugin.__name__}: is a class; expected an instance of it")
    # What ``begin`` returns is asked instead, and an attribute made on demand is seen only when asked for.
    begins = kind in _BEGIN and _has(plugin, "begin")
    if kind in _METHODS and not (begins or _has(plugin, "__getattr__")):
        missing = [needed for needed in _METHODS[kind] if not any(_has(plugin, name) for name in needed.split(" or "))]
        if missing:
            raise InputError(f"{kind} {label}: has no {', no '.join(missing)}, which every {kind} plug-in must have")


def _has(plugin: object, name: str) -> bool:
    return inspect.getattr_static(plugin, name, None) is not None


def _find(kind: Kind, given: str) -> tuple[Callable[..., Any], str, str]:
    if ".py:" in given or given.endswith(".py"):
        file, _, rest = given.partition(".py")
        class_name, _, parameters = rest.removeprefix(":").partition(":")
        return class_in_file(Path(file + ".py"), class_name), class_name, parameters
    name, _, parameters = given.partition(":")
    point = _registered(kind).get(name)
    if point is None:
        hint = _elsewhere(kind, name) or did_you_mean(name, names(kind))
        if "=" in name:
            hint = " Parameters follow a colon: name:parameter=value."
        raise UnknownNameError(f"no {kind} is named {name!r}.{hint} A class of your own: path/to/file.py:ClassName")
    return _load(kind, point), name, parameters


def _pairs(where: str, text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{where}: {abbreviated(part)} is no parameter; expected name=value")
        yield name.strip(), value.strip()


def _parse_parameters(
    where: str, known: dict[str, inspect.Parameter], pairs: Iterable[tuple[str, str]], label: str
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            hint = did_you_mean(name, known) if known else " It has no parameters."
            raise UnknownNameError(f"{where}: no parameter is named {abbreviated(name)}.{hint}")
        if name in values:
            raise InputError(f"{where}: parameter {name} is given twice; expected once")
        values[name] = parsed_value(f"{where}, parameter {name}", _type_of(known[name]), value)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in values:
            raise InputError(f"{where}: parameter {name} is missing; expected {label}:{name}=VALUE")
    return values


def made_of_text(where: str, maker: Callable[..., Made], text: str) -> Made:
    """Return what a class makes of the parameters in a text such as ``mean_life_s=7200,seed=1``.

    Raises
    ------
    UnknownNameError, InputError
        No such parameter, or a value that cannot be used; ``where`` says whose it is.
    """
    return made_of_pairs(where, maker, _pairs(where, text))


def made_of_pairs(where: str, maker: Callable[..., Made], pairs: Iterable[tuple[str, str]]) -> Made:
    """Return what a class makes of the names and texts of parameters; raises as :func:`made_of_text`."""
    return maker(**_parse_parameters(where, _parameters(where, maker), pairs, where))


def _parameters(where: str, maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        read = _signature if isinstance(maker, Hashable) else _signature.__wrapped__
        found = read(maker).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: its parameters are unknown ({error}); expected a class") from None
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: parameter for name, parameter in found.items() if parameter.kind not in rest}


@lru_cache
def _signature(maker: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(maker, eval_str=True)
    except Exception:  # An annotation that only type checkers can evaluate, or that a parent's module can.
        signature, hints = inspect.signature(maker), {}
    with suppress(Exception):
        hints = typing.get_type_hints(maker)
    known = [each.replace(annotation=hints.get(name, each.annotation)) for name, each in signature.parameters.items()]
    return signature.replace(parameters=known)


_PLAIN_TYPES = {plain.__name__: plain for plain in (bool, int, float, str)}


def _type_of(parameter: inspect.Parameter) -> Any:
    """Return a parameter's type, from its annotation or else its default."""
    if parameter.annotation is parameter.empty:
        return str if parameter.default is None else type(parameter.default)
    if isinstance(parameter.annotation, str):
        return _PLAIN_TYPES.get(parameter.annotation, str)
    return parameter.annotation


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parsed_value(where: str, kind: Any, text: str) -> Any:
    """Return a value of a type (bool, int, float, str, or a union of them and None) from its text.

    Raises
    ------
    InputError
        It is none; ``where`` says whose.
    """
    accepted = typing.get_args(kind) or (kind,)
    if bool in accepted:
        if text.lower() not in _BOOLEANS:
            raise InputError(f"{where}: {abbreviated(text)} is not a truth value; expected true or false")
        return _BOOLEANS[text.lower()]
    if type(None) in accepted and text.lower() == "none":
        return None
    numbers = [number for number in (int, float) if number in accepted]
    for number in numbers:
        with suppress(ValueError):
            return number(text.replace("_", "?"))  # Python reads 1_000 as a number, nobody else does.
    if numbers and str not in accepted:
        raise InputError(f"{where}: {abbreviated(text)} is not {'a number' if float in numbers else 'a whole number'}")
    return text


class Charts:
    """An attribute that a registered class makes of its owner when it is asked for, such as ``result.plot``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__doc__ = f"Charts, by the entry point ``{name}`` of the group ``ddlsched.charts``."

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Return what is made of the owner.

        Raises
        ------
        PluginError
            Nobody has registered a class that draws it.
        """
        if owner is None:
            return self
        points = _all_entry_points().select(group="ddlsched.charts", name=self._name)
        if not points:
            raise PluginError(f"nobody draws a {self._name}; expected ddlsched installed anew (pip install -e .)")
        return next(iter(points)).load()(owner)
