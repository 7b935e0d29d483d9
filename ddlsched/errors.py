"""Every error that ddlsched raises on purpose; each says what to do about it."""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar, cast, get_args

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
    known = inspect.signature(called).parameters
    function: Callable[..., Any] = vars(called)["__init__"] if isinstance(called, type) else called

    @functools.wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        for name in named:
            if name not in known:
                hint = next(_arguments_with(name, known.values()), did_you_mean(name, known))
                raise UnknownNameError(f"{called.__name__}: no argument is named {name!r}.{hint}")
        return function(*given, **named)

    if isinstance(called, type):
        cast(Any, called).__init__ = checked
        return called
    return cast(Called, checked)


def _arguments_with(name: str, parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    """Yield " Expected disturbances=Disturbances(x=...)." for each argument that takes what has a field x."""
    for parameter in parameters:
        for kind in get_args(parameter.annotation):
            if name in getattr(kind, "__dataclass_fields__", ()):
                yield f" Expected {parameter.name}={kind.__name__}({name}=...)."


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


@functools.cache
def say_once(text: str) -> None:
    """Say something on stderr, once a process."""
    with suppress(OSError):
        print(f"ddlsched: {text}", file=sys.stderr, flush=True)
