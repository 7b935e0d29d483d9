"""Dataclasses from JSON without the library that checks them, whose import takes as long as copying 0.1 GB.

Only what that library would take without any conversion but from lists to tuples is understood; whatever else, errors
included, is left to it.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

__all__ = ["plain_value"]

T = TypeVar("T")
_MOST = 2**63 - 1


class _NotPlainError(Exception):
    """Something must be converted, or is wrong."""


def plain_value(kind: type[T], text: bytes) -> T | None:
    """Return what a text describes as a dataclass of this kind; None if it is not understood."""
    try:
        decoded = text.decode()
        if "\\u" in decoded:  # Might be half a character.
            return None
        return cast(T, _reader(cast(Any, kind))(json.loads(decoded, parse_constant=_refused)))
    except (_NotPlainError, ValueError, RecursionError):
        return None


def _refused(text: str) -> Any:
    raise _NotPlainError(text)


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type hint."""
    if dataclasses.is_dataclass(hint):
        return _of_fields(cast(type, hint))
    if hasattr(hint, "_fields"):
        return _of_named_tuple(hint)
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint is int:
        return _whole
    if origin is Literal:
        return lambda value: _checked(value, type(value) in map(type, args) and value in args)
    if origin in (Union, types.UnionType):
        return _first_of([_reader(arg) for arg in args])
    if origin is tuple and args[1:] == (...,):
        return _tuple_of(_reader(args[0]))
    if origin is dict and args[0] is str:
        return _dict_of(_reader(args[1]))
    return lambda value: _checked(value, type(value) is hint)


def _checked(value: Any, right: bool) -> Any:
    if not right:
        raise _NotPlainError
    return value


def _whole(value: Any) -> Any:
    return _checked(value, type(value) is int and -_MOST <= value <= _MOST)


def _tuple_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple(map(read, _checked(value, type(value) is list)))


def _dict_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {name: read(item) for name, item in _checked(value, type(value) is dict).items()}


def _first_of(readers: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except _NotPlainError:
                pass
        raise _NotPlainError

    return read


def _of_named_tuple(kind: Any) -> Callable[[Any], Any]:
    readers = [_reader(hint) for hint in get_type_hints(kind).values()]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise _NotPlainError
        return kind(*(reader(item) for reader, item in zip(readers, value, strict=True)))

    return read


def _of_fields(kind: type) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}

    def read(value: Any) -> Any:
        if type(value) is not dict or not readers.keys() >= value.keys():
            raise _NotPlainError
        try:
            return kind(**{name: readers[name](item) for name, item in value.items()})
        except TypeError:  # A field is missing.
            raise _NotPlainError from None

    return read
