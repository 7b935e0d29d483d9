"""Parameters with bounds: what a field may be is said once, where it is declared, by its type and its range."""

from __future__ import annotations

import ast
from dataclasses import MISSING, Field, field, fields
from math import inf, isfinite, nextafter
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeVar

from ddlsched.errors import InputError, abbreviated, did_you_mean
from ddlsched.units import MAX_NS, NS_PER_S, is_whole

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
        value = getattr(given, parameter.name, None)  # what follows from others is not there yet
        wanted, choices = range_of(parameter), choices_of(parameter)
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
