"""Pickles that hold only data, read and written without the classes that they name.

Reading makes nothing but plain values, and refuses every name that is not in a table: nothing in a pickle is run.
Writing needs none of the modules whose names it writes.
"""

from __future__ import annotations

import io
import pickle
import reprlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ddlsched.errors import InputError

_MOST_DIMENSIONS = 64
"""PyTorch's own bound."""
_MOST_VALUES = 10_000
"""In a tuple and the tuples in it: each may be there many times, so that few bytes could stand for very many values."""


class Record:
    """Stands for an object of a class that is only data; its ``state`` has its attributes, if it is a dictionary."""

    state: Any = None  # Where an object was pickled without a state.

    def __init__(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return self.state.get(name) if isinstance(self.state, dict) else None


class _Plain(pickle._Unpickler):
    """An unpickler that knows some names, each as a function that makes a plain value, and no other.

    It is the standard library's in Python: the one in C takes memory for as many objects as a damaged number says.
    """

    def __init__(self, content: bytes, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._names = names
        self._sizes: dict[int, tuple[int, Any]] = {}
        """Of tuples of tuples: how many values they stand for."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of the format") from None

    def persistent_load(self, identity: Any) -> Any:
        return identity

    def refuse_large(self, found: Any) -> None:
        """Raise UnpicklingError for a tuple that stands for too many values."""
        inner = [item for item in found if type(item) is tuple]
        if inner:
            size = len(found) + sum(self._sizes.get(id(item), (len(item),))[0] for item in inner)
            if size > _MOST_VALUES:
                raise pickle.UnpicklingError(f"a tuple stands for more than {_MOST_VALUES:,} values")
            self._sizes[id(found)] = size, found


def _sized(load: Callable[[_Plain], None]) -> Callable[[_Plain], None]:
    def sized(plain: _Plain) -> None:
        load(plain)
        plain.refuse_large(plain.stack[-1])  # type: ignore[attr-defined]

    return sized


def _build(plain: _Plain) -> None:
    """Give an object its state, if it is a record; a dictionary's own attributes say nothing of its items."""
    state, found = plain.stack.pop(), plain.stack[-1]  # type: ignore[attr-defined]
    if isinstance(found, Record):
        found.state = state
    elif not isinstance(found, dict):
        raise pickle.UnpicklingError(f"a {type(found).__name__} has a state")


_known: dict[int, Any] = {**pickle._Unpickler.dispatch}
_known |= {code[0]: _sized(_known[code[0]]) for code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)}
_known[pickle.BUILD[0]] = _build
del _known[pickle.BYTEARRAY8[0]]  # Takes memory for as many bytes as it says, before it has them.
_Plain.dispatch = _known


def unpickled(content: bytes, names: Mapping[tuple[str, str], Any], where: str) -> Any:
    """Return what a pickle holds; ``names`` gives by module and name what stands for it.

    Raises
    ------
    InputError
        It is damaged, or names something else; the message begins with ``where``.
    """
    try:
        return _Plain(content, names).load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        why = str(error)[:200] or type(error).__name__
        raise InputError(f"{where}: cannot be read ({why}); expected a PyTorch distributed checkpoint's") from None


def shape_of(value: Any) -> tuple[int, ...]:
    """Return a tuple of whole numbers from 0, such as a shape or a start; anything else raises ValueError."""
    right = isinstance(value, tuple) and len(value) <= _MOST_DIMENSIONS
    if not right or not all(type(size) is int and 0 <= size < 1 << 63 for size in value):
        raise ValueError(f"{reprlib.repr(value)} is no shape")
    return value  # type: ignore[no-any-return]


def number_of(value: Any) -> int:
    """Return a whole number; anything else raises ValueError."""
    if type(value) is not int:
        raise ValueError(f"a {type(value).__name__} is no whole number")
    return value


def text_of(*parts: Any) -> str:
    """Return the text of a path's parts; what is none, or very long, raises ValueError."""
    if not all(isinstance(part, str) for part in parts) or sum(map(len, parts)) > 4096:
        raise ValueError("no path or name")
    return "/".join(parts)


class Name(NamedTuple):
    """A class or function, by its module and name."""

    module: str
    name: str


class PickledCall(NamedTuple):
    """What a function returns for these arguments."""

    function: Name
    arguments: tuple[Any, ...]


class New(NamedTuple):
    """An object of a class, made without arguments, and its state; None: it has none."""

    kind: Name
    state: Any = None


class Items(NamedTuple):
    """A dictionary whose keys are objects."""

    pairs: Sequence[tuple[Any, Any]]


class Persistent(NamedTuple):
    """A persistent identity."""

    identity: Any


def pickled(value: Any) -> bytes:
    """Return a pickle (protocol 2) of None, booleans, numbers, texts, tuples, lists, dictionaries, the above."""
    out = [pickle.PROTO + b"\x02"]
    _put(value, out, {})
    return b"".join([*out, pickle.STOP])


def _put(value: Any, out: list[bytes], memo: dict[Name, int]) -> None:
    match value:
        case None:
            out.append(pickle.NONE)
        case bool():
            out.append(pickle.NEWTRUE if value else pickle.NEWFALSE)
        case int():
            out.append(_whole(value))
        case float():
            out.append(pickle.BINFLOAT + struct.pack(">d", value))
        case str():
            text = value.encode()
            out.append(pickle.BINUNICODE + struct.pack("<I", len(text)) + text)
        case Name():
            _put_name(value, out, memo)
        case PickledCall():
            _put_name(value.function, out, memo)
            _put_run(pickle.TUPLE, value.arguments, out, memo)
            out.append(pickle.REDUCE)
        case New():
            _put_name(value.kind, out, memo)
            out.append(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
            if value.state is not None:
                _put(value.state, out, memo)
                out.append(pickle.BUILD)
        case Persistent():
            _put(value.identity, out, memo)
            out.append(pickle.BINPERSID)
        case Items():
            out.append(pickle.EMPTY_DICT)
            _put_run(pickle.SETITEMS, [part for pair in value.pairs for part in pair], out, memo)
        case tuple():
            _put_run(pickle.TUPLE, value, out, memo)
        case list():
            out.append(pickle.EMPTY_LIST)
            _put_run(pickle.APPENDS, value, out, memo)
        case dict():
            _put(Items(list(value.items())), out, memo)
        case _:
            raise TypeError(f"{value!r} is no plain value")


def _whole(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return pickle.BININT + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return pickle.LONG1 + bytes([len(data)]) + data


def _put_run(end: bytes, values: Sequence[Any], out: list[bytes], memo: dict[Name, int]) -> None:
    out.append(pickle.MARK)
    for value in values:
        _put(value, out, memo)
    out.append(end)


def _put_name(value: Name, out: list[bytes], memo: dict[Name, int]) -> None:
    if value in memo:
        out.append(pickle.LONG_BINGET + struct.pack("<I", memo[value]))
        return
    memo[value] = len(memo)
    out.append(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
    out.append(pickle.LONG_BINPUT + struct.pack("<I", memo[value]))
