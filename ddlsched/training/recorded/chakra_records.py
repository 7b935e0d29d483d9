"""The records of a Chakra execution trace (``.et``), read one at a time from their protobuf encoding.

The file is a varint length and a message, again and again: ``GlobalMetadata`` first, then a ``Node`` each
(mlcommons/chakra, ``schema/protobuf/et_def.proto``, 1.0.0). Only what a job needs is decoded.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ddlsched.errors import InputError
from ddlsched.io.reading import opened
from ddlsched.io.tables import first_line

__all__ = ["Node", "read_nodes"]

_MOST_BYTES: Final = 1 << 32
_LONGEST_RECORD: Final = 1 << 26
_CHUNK: Final = 1 << 20
_NO_RECORDS = "expected records of a Chakra trace, each with its length before it"

_ID, _NAME, _TYPE, _CONTROL, _DATA, _DURATION, _INPUTS, _ATTRIBUTE = 1, 2, 3, 4, 5, 7, 8, 10
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_WANTED: Final = {
    name.encode(): name
    for name in ("is_cpu_op", "comm_type", "comm_size", "pg_name", "comm_src", "comm_dst", "comm_tag")
}


@dataclass(slots=True)
class Node:
    """A node of a trace.

    Parameters
    ----------
    number
        Place in the file, from 1.
    node_id
        As other nodes name it.
    kind
        The number of its ``NodeType``.
    control, data
        Ids of the nodes that it waits for.
    duration_us
        Microseconds, 0 if none is given.
    input_values
        The text of its inputs' values.
    attributes
        Those of its attributes that say what it communicates, and ``is_cpu_op``.
    """

    number: int
    node_id: int = 0
    name: str = ""
    kind: int = 0
    control: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    duration_us: int = 0
    input_values: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


class _DamagedError(Exception):
    """A record that is no message, and why."""


def read_nodes(path: Path) -> Iterator[Node]:
    """Yield the nodes of a file, plain or gzipped.

    Raises
    ------
    InputError
        While iterating: it is not there, too large, cut off, or holds no records.
    """
    records = _records(path)
    metadata = next(records, None)
    if metadata is None:
        raise InputError(f"{path}: is empty; {_NO_RECORDS}")
    _refuse_text(path, metadata)
    number = 0
    for number, body in enumerate(records, start=1):
        try:
            yield _node(number, body)
        except (_DamagedError, IndexError, UnicodeDecodeError) as error:
            why = "it ends within a field" if isinstance(error, IndexError) else error
            raise InputError(f"{path}, node {number} of the file: is damaged ({why}); {_NO_RECORDS}") from None
    if number == 0:
        raise InputError(f"{path}: holds no nodes; {_NO_RECORDS}")


def _refuse_text(path: Path, metadata: bytes) -> None:
    """Refuse a first record that cannot be ``GlobalMetadata``, whose fields are texts and attributes only."""
    try:
        good = all((number, wire) in ((1, _LENGTH), (2, _LENGTH)) for number, wire, _ in _fields(metadata))
    except (_DamagedError, IndexError):
        good = False
    if not good:
        raise InputError(f"{path}: begins with no GlobalMetadata; {_NO_RECORDS}")


def _records(path: Path) -> Iterator[bytes]:
    """Yield the bodies of all records, holding a chunk of the file at a time."""
    try:
        with opened(path, _MOST_BYTES) as plain:
            zipped = plain.peek(2)[:2] == b"\x1f\x8b"
            yield from _bodies(path, gzip.GzipFile(fileobj=plain) if zipped else plain)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a Chakra trace") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); expected a whole, readable file") from None


def _bodies(path: Path, file: Any) -> Iterator[bytes]:
    window, at, before, read = b"", 0, 0, 0
    while True:
        more = file.read(_CHUNK)
        read += len(more)
        if read > _MOST_BYTES:
            raise InputError(f"{path}: holds more than {_MOST_BYTES / 1e6:,.0f} MB; expected at most that")
        window, at, before = window[at:] + more, 0, before + at
        while True:
            size, start = _length(window, at)
            if size > _LONGEST_RECORD:
                raise InputError(f"{path}, byte {before + at}: a record of {size:,} bytes begins; {_NO_RECORDS}")
            if start < 0 or start + size > len(window):
                break
            yield window[start : start + size]
            at = start + size
        if not more:
            if at < len(window):
                raise InputError(f"{path}, byte {before + at}: the last record is cut off; expected a whole file")
            return


def _length(window: bytes, at: int) -> tuple[int, int]:
    """Return the length of the record at ``at`` and where its body begins, -1 if that is beyond the window."""
    value = shift = 0
    for place in range(at, min(at + 10, len(window))):
        byte = window[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    return (_LONGEST_RECORD + 1, -1) if len(window) >= at + 10 else (0, -1)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise _DamagedError("a number of more than 64 bits")


def _fields(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value (whole number, or bytes) of each field of a message."""
    at, end = 0, len(body)
    while at < end:
        key, at = (body[at], at + 1) if body[at] < 128 else _varint(body, at)
        wire = key & 7
        if wire == _VARINT:
            value: Any = body[at]
            at += 1
            if value > 127:
                value, at = _varint(body, at - 1)
        elif wire == _LENGTH:
            size, at = (body[at], at + 1) if body[at] < 128 else _varint(body, at)
            value, at = body[at : at + size], at + size
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
            value, at = body[at : at + size], at + size
        else:
            raise _DamagedError(f"wire type {wire}")
        if at > end:
            raise _DamagedError("a field is longer than its node")
        yield key >> 3, wire, value


def _node(number: int, body: bytes) -> Node:
    node = Node(number)
    for field_number, wire, value in _fields(body):
        if field_number == _ATTRIBUTE:
            _take_attribute(node, value)
        elif field_number == _CONTROL:
            node.control += [value] if wire == _VARINT else _packed(value)
        elif field_number == _DATA:
            node.data += [value] if wire == _VARINT else _packed(value)
        elif field_number == _ID:
            node.node_id = _number(value, wire, "id")
        elif field_number == _DURATION:
            node.duration_us = _number(value, wire, "duration_micros")
        elif field_number == _TYPE:
            node.kind = _number(value, wire, "type")
        elif field_number == _NAME:
            node.name = _text(value, wire, "name")
        elif field_number == _INPUTS and wire == _LENGTH and b"pg_name" in value:
            texts = [_text(each, kind, "inputs") for part, kind, each in _fields(value) if part == 1]
            node.input_values = "".join(texts)
    return node


def _number(value: Any, wire: int, name: str) -> int:
    if wire != _VARINT:
        raise _DamagedError(f"{name} has wire type {wire}")
    return int(value)


def _text(value: Any, wire: int, name: str) -> str:
    if wire != _LENGTH:
        raise _DamagedError(f"{name} has wire type {wire}")
    return str(value, "utf-8")


def _packed(body: Any) -> list[int]:
    if isinstance(body, int):
        raise _DamagedError("dependencies are no list")
    values, at, end = [], 0, len(body)
    while at < end:
        value = body[at]
        at += 1
        if value > 127:
            value, at = _varint(body, at - 1)
        values.append(value)
    return values


def _take_attribute(node: Node, body: Any) -> None:
    """Keep an attribute if it is one of those wanted."""
    if isinstance(body, int):
        raise _DamagedError("an attribute is no message")
    if body[:1] == b"\x0a" and bytes(body[2 : 2 + body[1]]) not in _WANTED:
        return  # At once: most attributes of a trace are of no use here.
    name, value = "", None
    for number, wire, found in _fields(body):
        if number == 1:
            name = _WANTED.get(found, "")
        elif number > 2:
            value = _scalar(number, wire, found)
    if name:
        node.attributes[name] = value


_SIGNED, _ZIGZAG, _BOOL, _STRING = {7, 9}, {15, 17}, 27, 29
_FIXED: Final = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}


def _scalar(number: int, wire: int, value: Any) -> Any:
    """Return the value of a field of ``AttributeProto``; None for a list, which nothing wanted is."""
    if wire == _VARINT:
        if number == _BOOL:
            return bool(value)
        if number in _ZIGZAG:
            return value >> 1 ^ -(value & 1)
        return value - (1 << 64) if number in _SIGNED and value >> 63 else value
    if number == _STRING:
        return str(value, "utf-8")
    if number in _FIXED and len(value) == struct.calcsize(_FIXED[number]):
        return struct.unpack(_FIXED[number], value)[0]
    return None
