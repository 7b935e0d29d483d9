"""What all views share: they cannot be changed, and say which attribute was meant; how fields are declared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, dataclass_transform

import numpy as np

from ddlsched.errors import did_you_mean
from ddlsched.units import s_from_ns

GpuId: TypeAlias = int
"""A GPU's number, counted server by server."""

Columns: TypeAlias = Any
"""An attribute a field, each an array with an entry a job, transfer or GPU: what the engine keeps."""

V = TypeVar("V")

Kind: TypeAlias = Literal["int", "float", "float | None", "str | None"]


class View:
    """What policies see of one thing: they read it, and change nothing."""

    __slots__ = ()
    _what = "a view"

    def __getattr__(self, name: str) -> NoReturn:
        known = [attribute for attribute in dir(type(self)) if not attribute.startswith("_")]
        raise AttributeError(f"{self._what} has no attribute {name!r}.{did_you_mean(name, known)}", name=name, obj=self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        what = f"{name} of {self._what} cannot be set: policies read views, and answer"
        raise AttributeError(what, name=name, obj=self)


class ViewAtAnInstant(View):
    """What policies see of one thing at one time."""

    __slots__ = ()
    now_ns: int

    @property
    def now_s(self) -> float:
        """Simulated time, seconds."""
        return s_from_ns(self.now_ns)


put = object.__setattr__
"""Gives an attribute of a view its value, as only the engine does."""


@dataclass_transform(frozen_default=True, eq_default=False)
def view(kind: type[V]) -> type[V]:
    """Give a view its slots and the constructor that fills them; like any other it cannot be changed afterwards."""
    made = dataclass(frozen=True, slots=True, eq=False, repr=False)(kind)
    del made.__setattr__, made.__delattr__  # dataclass's, which know a class without slots
    return made


class StoredField:
    """A field that policies see and a record holds: Python reads it through a property, compiled code by its place.

    Attributes
    ----------
    name, doc
        Of the view's attribute; an underscore begins the name of one from which only others are made.
    record
        The field of the record.
    submitted
        The attribute of a submitted job from which it gets its first value, or None if it begins as 0.
    changes
        Whether it changes as a job trains, or a transfer runs.
    kind
        What it is; a record holds a text as its :func:`text_code`, and NaN for no number.
    """

    def __init__(self, doc: str, record: str | None, submitted: str | None, changes: bool) -> None:
        self.doc, self.submitted, self.changes = doc, submitted, changes
        self.name, self.record, self.kind = "", record or "", "int"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.record, self.kind = name, self.record or name, owner.__annotations__[name]
        read = f"view._columns.{self.record}.item(view._place)"
        if self.kind != "int":  # what a submitted job has is quicker to read
            read = f"float(view._job.{self.submitted})" if self.kind == "float" else f"view._job.{self.submitted}"
        read_field: Any = eval(f"lambda view: {read}")
        read_field.__annotations__ = {"return": self.kind}
        setattr(owner, name, property(read_field, doc=self.doc))
        owner._stored = {**getattr(owner, "_stored", {}), name: self}  # type: ignore[attr-defined]

    def first_values(self, jobs: Sequence[Any]) -> list[Any]:
        """Return what a record of each of some submitted jobs begins with."""
        values = map(attrgetter(self.submitted or ""), jobs)
        if self.kind == "str | None":
            return [*map(cache(text_code), values)]
        return [math.nan if value is None else value for value in values]


def stored(doc: str, submitted: str | None = None, *, record: str | None = None, changes: bool = False) -> Any:
    """Declare a field of a view, in its class; see :class:`StoredField`."""
    return StoredField(doc, record, submitted, changes)


def fields_of(view: type[Any]) -> dict[str, StoredField]:
    """Return by their names the fields of a view that a record holds."""
    fields: dict[str, StoredField] = view._stored
    return fields


def write_fields(view: type[Any], records: Any, jobs: Sequence[Any]) -> None:
    """Write into records what a view's fields begin with for submitted jobs."""
    for field in fields_of(view).values():
        if field.submitted is not None:
            records[field.record] = field.first_values(jobs)


def changing_fields(view: type[Any]) -> frozenset[str]:
    """Return the fields that change as a job trains, and the properties that are made of such."""
    changing = {name for name, field in fields_of(view).items() if field.changes}
    made: dict[str, tuple[str, ...]] = {
        name: attrgetter("fget.__code__.co_names")(member)
        for name, member in vars(view).items()
        if isinstance(member, property)
    }
    while more := {name for name, reads in made.items() if changing.intersection(reads)} - changing:
        changing |= more
    return frozenset(changing)


def text_code(text: str | None) -> int:
    """Return 64 bits by which compiled code tells texts apart, 0 for none; of a million texts two are alike at 3e-8."""
    if text is None:
        return 0
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True) or 1


def as_list(numbers: np.ndarray) -> list[int]:
    """Return an array of whole numbers, such as GPUs, as a list."""
    found: list[int] = numbers.tolist()
    return found


def times(a: int, b: int) -> int:
    """Return a product; compiled code raises where 64 bits do not hold it."""
    return a * b


def plus(a: int, b: int) -> int:
    """Return a sum; compiled code raises where 64 bits do not hold it."""
    return a + b
