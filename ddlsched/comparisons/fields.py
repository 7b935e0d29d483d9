"""The fields of a comparison's settings: how each may be written, and what it is checked for.

A check raises :class:`~ddlsched.errors.InputError`, which pydantic reports with the place of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, create_model

from ddlsched.cluster.cluster_files import read_cluster, read_throughputs
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError
from ddlsched.io.tables import located
from ddlsched.options import declared, hints_of
from ddlsched.plugins.names import Kind, resolve, resolve_bundle
from ddlsched.workload.workload_files import workload_of

DOORS: tuple[Kind, Kind, Kind] = ("placement", "order", "communication")
"""What every policy has."""
FURTHER_DOORS: tuple[Kind, ...] = ("allocation", "path", "admission")
"""What a policy may have: one of elastic jobs has an allocation, one of tenants may have an admission."""
_MOST_SEEDS = 100_000
_MOST_DIGITS = 19


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else [value]


Listed = BeforeValidator(_as_list)
"""One may be given without a list around it."""

Whole = Annotated[int, Field(gt=0)]
Draws = Annotated[int, Field(gt=0, le=_MOST_SEEDS)]


def Accepted(check: Callable[[Any], object]) -> AfterValidator:  # noqa: N802 - it makes a type, as pydantic's own
    """Return the check of a value that stays as it is: what refuses it raises."""

    def checked(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(checked)


def Plugin(kind: Kind) -> AfterValidator:  # noqa: N802
    """Return the check of a plug-in's name, or of an instance."""
    return Accepted(partial(resolve, kind))


def _printable(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise InputError("expected a name of printable characters")
    return name.strip()


Name = Annotated[str, AfterValidator(_printable)]


Bundle = Annotated[str, Accepted(resolve_bundle)]


def _text(given: Any) -> Any:
    return str(given) if isinstance(given, Path) else given


def _usable(text: str, info: ValidationInfo) -> str:
    workload_of(text, info.data.get("seeds", [0])[0])
    return text


ServerTable = Annotated[str, BeforeValidator(_text), Accepted(read_cluster)]
"""A file, which is read."""


def _throughputs(name: str, info: ValidationInfo) -> str:
    tables = info.data.get("server_table", [])
    if not tables:
        raise InputError("the kinds of GPUs are those of servers; expected server_table as well")
    values = read_throughputs(name, info.data.get("reference_kind"))
    for table in tables:
        cluster = read_cluster(table)
        located(f"server_table {table}", partial(replace, cluster, throughputs=values))
    return name


ThroughputTable = Annotated[str, BeforeValidator(_text), AfterValidator(_throughputs)]
"""A file, which is read, and which has the kinds of the tables of servers."""

Workload = Annotated[str, BeforeValidator(_text), AfterValidator(_usable)]
"""A file, which is read, or a generator, which is tried with the first seed."""


def _seeds(given: Any) -> list[int]:
    if isinstance(given, str):
        given = _seeds_of_text(given.strip())
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= _MOST_SEEDS:
        given = range(1, given + 1)
    listed = isinstance(given, list | tuple | range) and 0 < len(given) <= _MOST_SEEDS
    if not listed or not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in given):
        expected = f"at most {_MOST_SEEDS} whole numbers >= 0"
        raise InputError(f"expected how many (20), a range (0-19) or a list (1,5,9): {expected}")
    if len(set(given)) < len(given):
        raise InputError("a seed is there twice; expected each once")
    return list(given)


def seeds_of(text: str, where: str) -> list[int]:
    """Return the seeds of a text such as ``12``, ``0-19`` or ``1,5,9``; ``where`` begins what is said of any other."""
    return located(where, lambda: _seeds(text))


def _seeds_of_text(text: str) -> Any:
    """Return a number, or the numbers that a text such as ``0-19`` or ``1,5-8`` lists; None if it is neither."""
    ranges = [[end.strip() for end in part.split("-")] for part in text.split(",")]
    if not all(len(ends) <= 2 and all(end.isdecimal() and len(end) < _MOST_DIGITS for end in ends) for ends in ranges):
        return None
    if text.isdecimal():
        return int(text)
    spans = [range(int(ends[0]), int(ends[-1]) + 1) for ends in ranges]
    too_many = sum(len(span) for span in spans) > _MOST_SEEDS
    return None if too_many or not all(spans) else [seed for span in spans for seed in span]


Seeds = Annotated[list[int], BeforeValidator(_seeds)]
"""A list; N for 1 to N; or a text such as ``0-19`` or ``1,5,9``."""


def _window(given: Any) -> tuple[float, float] | None:
    if given is None:
        return None
    try:
        from_s, to_s = (float(part) for part in (given.split(":") if isinstance(given, str) else given))
    except (TypeError, ValueError):
        from_s = to_s = -1.0
    if not 0 <= from_s < to_s:
        raise InputError("expected [FROM, TO] in seconds, 0 <= FROM < TO, such as [100, 160]")
    return from_s, to_s


Window = Annotated[tuple[float, float] | None, BeforeValidator(_window)]
"""A pair; or a text such as ``100:160``."""

GIVEN_OTHERWISE = {name for name, option in declared(RunOptions).items() if option.listed}
"""What is no option that all runs of a comparison share, but a field of its own, or of a policy."""

if TYPE_CHECKING:
    Options: TypeAlias = BaseModel
else:
    _PLUGINS = {"interference": Annotated[Any, Plugin("interference")] | None}
    Options = create_model(
        "Options",
        __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True),
        **{
            name: (_PLUGINS.get(name, hints_of(RunOptions)[name]), option.default)
            for name, option in declared(RunOptions).items()
            if name not in GIVEN_OTHERWISE
        },
    )
"""The further options of :class:`ddlsched.engine.run_options.RunOptions`."""
