"""Every error that ddlsched raises on purpose, and the bounds of parameters, whose faults are errors.

Each error says what to do about it. What a field may be is said once, where it is declared, by its type and range.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, field, fields
from importlib.util import find_spec
from math import inf, isfinite, nextafter
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from ddlsched.units import MAX_NS, NS_PER_S, is_whole

Answer = TypeVar("Answer")
Called = TypeVar("Called", bound=Callable[..., Any])
_MOST_SHOWN = 100
_MOST_CHARACTERS = 80


class DdlschedError(Exception):
    """The root of this package's errors."""


class InputError(DdlschedError, ValueError):
    """A file, a flag or an argument holds what cannot be used.

    The message is one line that names the place, the value found and the value expected.
    """


class FaultyInputError(InputError):
    """Input with one or more faults, all of which are reported, a line each."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[FaultyInputError], tuple[tuple[str, ...]]]:
        return type(self), (self.faults,)  # From another process it comes with its faults, not with their letters.


class UnknownNameError(InputError):
    """A policy, topology, model, bundle or parameter that nobody has registered."""


class PluginError(DdlschedError, RuntimeError):
    """A plug-in raised, or answered with something that is not an answer.

    The message names the plug-in, the job and the simulated time; ``__cause__`` is the plug-in's own
    exception, if it raised one.
    """


class InvalidDecisionError(PluginError):
    """A decision that cannot be carried out: a GPU twice, too few GPUs, no memory left."""


class MeasurementError(DdlschedError, RuntimeError):
    """A measurement between hosts that failed: one cannot be reached, does not know the token, or broke off."""


class SimulationError(DdlschedError, RuntimeError):
    """A run that cannot go on: jobs remain and nothing will ever happen, or the clock would overflow."""


class TestbedError(DdlschedError, RuntimeError):
    """A run on the testbed that cannot go on: a worker, a link or the gate failed, or nothing will ever happen."""

    __test__ = False  # pytest would take it for a class of tests


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 2 * _MOST_CHARACTERS, 2 * _MOST_CHARACTERS

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write more than 4,300 digits; hexadecimal ones it does.
        return super().repr_int(x, level) if x.bit_length() < 14_000 else f"{x:#x}"


def abbreviated(value: Any) -> str:
    """Return how a value is shown in a message, also one that a few aliases of YAML make larger than memory."""
    text = _Short().repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names, at most three, that could be meant, the nearest first."""
    return difflib.get_close_matches(name[:_MOST_CHARACTERS], sorted(set(known)), n=3, cutoff=0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known names, or a list of them if none is near."""
    names = sorted(set(known))
    near = nearest_names(name, names)
    if near:
        return " Did you mean " + " or ".join(repr(n) for n in near) + "?"
    more = f" and {len(names) - _MOST_SHOWN:,} more" if len(names) > _MOST_SHOWN else ""
    return f" Known: {', '.join(names[:_MOST_SHOWN])}{more}." if names else ""


def need(who: str, *modules: str, extra: str) -> None:
    """Raise InputError unless the modules of an extra of this package are installed, without loading them."""
    if any(find_spec(module) is None for module in modules):
        raise InputError(f"{who} needs {' and '.join(modules)}; expected: pip install 'ddlsched[{extra}]'")


def says_unknown_arguments(called: Called) -> Called:
    """Let a function or class that users call refuse a keyword that it does not know with the nearest that it does."""
    known = inspect.signature(called).parameters.keys()
    function: Callable[..., Any] = vars(called)["__init__"] if isinstance(called, type) else called

    @functools.wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        for name in named:
            if name not in known:
                raise UnknownNameError(f"{called.__name__}: no argument is named {name!r}.{did_you_mean(name, known)}")
        return function(*given, **named)

    if isinstance(called, type):
        cast(Any, called).__init__ = checked
        return called
    return cast(Called, checked)


def guarded(who: str | Callable[[], str], question: Callable[[], Answer]) -> Answer:
    """Return what a plug-in answers; what it raises becomes a PluginError that names it, also ``sys.exit``.

    ``who`` may be a function, asked only if need be: a plug-in's label is its repr, which may be long.
    """
    try:
        return question()
    except DdlschedError:
        raise
    except (Exception, SystemExit) as error:
        name = who if isinstance(who, str) else who()
        raise PluginError(f"{name} raised {type(error).__name__}: {error}") from error


def label(plugin: object) -> str:
    """Return how messages call a plug-in: as it would be written, if it says so, else by its class."""
    try:
        text = repr(plugin)
    except Exception:
        text = "<"
    return type(plugin).__name__ if text.startswith("<") else text


T = TypeVar("T")
LAST_S = nextafter(MAX_NS / NS_PER_S, 0.0)
"""The latest time that the clock can hold, seconds."""
REQUIRED: Any = MISSING
"""The default of a ranged field that has none."""
_UNITS = {"gb_per_s": "GB/s", "_s": "seconds", "_ns": "nanoseconds", "_mb": "MB", "_gbps": "Gbit/s"}


class Range(NamedTuple):
    """The finite numbers from ``least`` (``above``: without itself) to ``most``; whole ones if ``least`` is whole."""

    least: float
    most: float
    above: bool = False

    def holds(self, value: object) -> bool:
        """Return whether a value is one of these numbers."""
        if isinstance(self.least, int):
            return is_whole(value, self.least) and float(value) <= self.most  # type: ignore[arg-type]
        if not _is_number(value) or (self.above and value == self.least):
            return False
        return self.least <= value <= self.most and value < inf  # type: ignore[operator]

    def said(self, name: str) -> str:
        """Return what a parameter of this name is expected to be."""
        what = "a whole number" if isinstance(self.least, int) else unit_of(name)
        begin = f"{what} {'>' if self.above else 'from'} {_shown(self.least)}"
        return begin + (f" to {_shown(self.most)}" if self.most < inf else "")

    def said_of(self, name: str, value: object) -> str:
        """Return the same, and that the number is finite where one is given that is not and no bound says it."""
        is_endless = isinstance(value, float) and not isfinite(value) and self.most == inf
        return self.said(name) + (", finite" if is_endless else "")


def unit_of(name: str) -> str:
    """Return the unit that a number's name ends with, or that it is a number."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "a number")


def ranged(default: T, least: float, most: float = inf, *, above: bool = False) -> T:
    """Return a dataclass's field with a default and a :class:`Range`.

    A default of None stands beside the range.
    """
    return field(default=default, metadata={"range": Range(least, most, above)})


def range_of(parameter: Field[Any]) -> Range | None:
    """Return the range of a dataclass's field, if it says one."""
    return parameter.metadata.get("range")


def check_fields(given: Any, who: str) -> None:
    """Raise InputError for the first field of a dataclass that holds what its range or its type does not allow.

    Checked are ranges, ``bool`` and ``Literal`` fields; ``who`` says whose they are.
    """
    for parameter in fields(given):
        value, wanted, choices = getattr(given, parameter.name), range_of(parameter), choices_of(parameter)
        if wanted and not (wanted.holds(value) or (value is None and parameter.default is None)):
            expected = wanted.said_of(parameter.name, value) + (", or none" if parameter.default is None else "")
            raise InputError(f"{who}: {parameter.name} is {abbreviated(value)}; expected {expected}")
        if choices and (type(value), value) not in [(type(choice), choice) for choice in choices]:
            expected = "True or False" if True in choices else f"one of {', '.join(map(str, choices))}"
            near = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
            hint = f".{near}" if "Did you mean" in near else ""  # else those that are known stand there already
            raise InputError(f"{who}: {parameter.name} is {abbreviated(value)}; expected {expected}{hint}")


class Checked:
    """A dataclass whose fields are checked as an instance is made: ``class Kai(Checked, who="kai")``.

    ``who`` says in an error whose field it is; a subclass has its base's unless it gives its own.
    """

    _who: ClassVar[str] = ""

    def __init_subclass__(cls, *, who: str = "") -> None:
        super().__init_subclass__()
        cls._who = who or cls._who

    def __post_init__(self) -> None:
        check_fields(self, self._who or type(self).__name__)


def check_arguments(who: str, /, **given: tuple[object, float] | tuple[object, float, float]) -> None:
    """Raise InputError for the first argument outside its range; each is its value, the least and perhaps the most."""
    for name, (value, least, *most) in given.items():
        wanted = Range(least, most[0] if most else inf)
        if not wanted.holds(value):
            raise InputError(f"{who}: {name} is {abbreviated(value)}; expected {wanted.said_of(name, value)}")


def choices_of(parameter: Field[Any]) -> tuple[object, ...]:
    """Return what a dataclass's field is one of, by its annotation: ``bool``, or a ``Literal``; nothing for others."""
    said = str(parameter.type)
    if said == "bool" or parameter.type is bool:
        return True, False
    return ast.literal_eval(f"({said[8:-1]},)") if said.startswith("Literal[") else ()


def _is_number(value: object) -> bool:
    """Return whether a value is a real number, of Python's or numpy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(number: float) -> str:
    return f"{number:g}".replace("e+0", "e").replace("e-0", "e-") if isinstance(number, float) else str(number)
