"""What of a policy is tuned: fields of its dataclass, and between which values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.plugins.names import Kind, maker

if TYPE_CHECKING:
    import optuna

__all__ = ["Knob", "knobs", "with_values"]

_AROUND = 4.0
"""A number whose range nobody gave is varied from its default divided by this to its default times this."""
_LOGARITHMIC = 10.0
"""From this ratio of its ends on, a range of positive numbers is searched by their logarithms."""


@dataclass(frozen=True)
class Knob:
    """A field that is tuned.

    Parameters
    ----------
    door
        The policy's kind, such as ``placement``.
    field
        The field's name.
    default
        Its value untuned.
    low, high
        Ends of a range of numbers, both included, or None.
    choices
        The values, in place of a range.
    """

    door: str
    field: str
    default: Any
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """How flags and tables call it: ``placement.kappa``."""
        return f"{self.door}.{self.field}"

    def suggest(self, trial: optuna.Trial) -> Any:
        """Return a value for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, list(self.choices))
        assert self.low is not None
        assert self.high is not None
        log = self.low > 0 and self.high / self.low >= _LOGARITHMIC
        if isinstance(self.default, int):
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=log)
        return trial.suggest_float(self.name, self.low, self.high, log=log)


def knobs(policies: Mapping[str, str], ranges: Sequence[str]) -> list[Knob]:
    """Return what is tuned: what ``ranges`` name, or else every number and truth value of the policies.

    Parameters
    ----------
    policies
        By kind, such as ``{"placement": "lwf:kappa=1"}``.
    ranges
        Texts such as ``placement.kappa=1:32``, ``communication.limit=1,2,4`` or ``order.communication`` (of a truth
        value, or around the default of a number).

    Raises
    ------
    InputError
        No such policy or field; a range that is none; nothing to tune.
    """
    fields = {f"{door}.{name}": value for door, text in policies.items() for name, value in _fields(door, text).items()}
    found = [_knob(text, fields) for text in ranges] if ranges else [_around(n, v) for n, v in fields.items()]
    kept = [knob for knob in found if knob is not None]
    if not kept:
        raise InputError(
            f"{', '.join(policies.values())}: has no number or truth value to tune; expected another policy"
        )
    if len({knob.name for knob in kept}) < len(kept):
        raise InputError("--vary: a field is given twice; expected each once")
    return kept


def with_values(policies: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the policies with the values of some fields, by the names of their knobs."""
    texts = {}
    for door, text in policies.items():
        made = maker(cast("Kind", door), text)
        own = {name.partition(".")[2]: value for name, value in values.items() if name.partition(".")[0] == door}
        given = ",".join(f"{name}={_text(value)}" for name, value in (made.values | own).items())
        texts[door] = f"{_head(text)}:{given}" if given else _head(text)
    return texts


def _head(text: str) -> str:
    """Return a policy's text without its parameters: its name, or its file and class."""
    file, of_file, rest = text.partition(".py:")
    return f"{file}.py:{rest.partition(':')[0]}" if of_file else text.partition(":")[0]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fields(door: str, text: str) -> dict[str, Any]:
    """Return the fields of a policy that have a value, given or by default."""
    made = maker(cast("Kind", door), text)
    if not dataclasses.is_dataclass(made.function):
        raise InputError(f"{door} {made.label}: is no dataclass; expected one, whose fields can be tuned")
    defaults = {f.name: f.default for f in dataclasses.fields(made.function) if f.default is not dataclasses.MISSING}
    return defaults | made.values


def _around(name: str, value: Any) -> Knob | None:
    """Return what is tuned of a field whose range nobody gave; None if that cannot be told from its value."""
    door, _, field = name.partition(".")
    if isinstance(value, bool):
        return Knob(door, field, value, choices=(False, True))
    if isinstance(value, int | float) and value > 0:
        low, high = value / _AROUND, value * _AROUND
        return Knob(door, field, value, max(1, round(low)) if isinstance(value, int) else low, high)
    return None


def _knob(text: str, fields: Mapping[str, Any]) -> Knob:
    name, equals, given = (part.strip() for part in text.partition("="))
    if name not in fields:
        raise UnknownNameError(f"--vary {text}: no field is named {name!r}.{did_you_mean(name, fields)}")
    default = fields[name]
    if not equals:
        knob = _around(name, default)
        if knob is None:
            raise InputError(f"--vary {text}: {name} is {default!r}; expected a range, such as {name}=1:8")
        return knob
    door, _, field = name.partition(".")
    if ":" in given:
        ends = [_number(text, part, default) for part in given.split(":")]
        if len(ends) != 2 or not ends[0] < ends[1]:
            raise InputError(f"--vary {text}: is no range; expected {name}=LOW:HIGH with LOW < HIGH")
        return Knob(door, field, default, low=ends[0], high=ends[1])
    choices = tuple(_value(part.strip(), default) for part in given.split(","))
    if len(choices) < 2:
        raise InputError(f"--vary {text}: has one value; expected {name}=LOW:HIGH or several with commas")
    return Knob(door, field, default, choices=choices)


def _number(text: str, part: str, default: Any) -> float:
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise InputError(f"--vary {text}: the field is {default!r}, no number; expected values with commas")
    try:
        return int(part) if isinstance(default, int) else float(part)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise InputError(f"--vary {text}: {part!r} is not {kind}") from None


def _value(part: str, default: Any) -> Any:
    if isinstance(default, bool):
        return part.lower() in ("true", "yes", "1")
    for kind in (int, float) if isinstance(default, int | float) else ():
        with suppress(ValueError):
            return kind(part)
    return part
