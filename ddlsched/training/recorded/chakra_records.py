"""The records of a Chakra execution trace (``.et``, or what its converter to JSON writes), read one at a time.

The file is a varint length and a message, again and again: ``GlobalMetadata`` first, then a ``Node`` each
(mlcommons/chakra, ``schema/protobuf/et_def.proto``, 1.0.0). Only what a job needs is decoded.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ddlsched.errors import InputError
from ddlsched.io.reading import opened
from ddlsched.io.tables import first_line, read_text, readable
from ddlsched.training.recorded.chakra_messages import METADATA, NODE, Node, node_of

__all__ = ["beginning", "is_chakra_json", "read_nodes"]


_MOST_TEXT_BYTES, _BEGIN_BYTES = 1 << 32, 65_536
_SPACE = re.compile(r"\s*")
_EXPECTED = "expected workload_graph, a list of nodes, or the messages of a Chakra trace one behind the other"


class _GraphNode(msgspec.Struct):
    """A node of a workload graph; the attributes are those of Chakra."""

    node_id: int = msgspec.field(name="Id")
    node_type: int = msgspec.field(name="NodeType")
    name: str = msgspec.field(name="Name", default="")
    runtime: int = 0
    data_deps: list[int] = []
    ctrl_deps: list[int] = []
    is_cpu_op: bool = False
    comm_type: int | None = None
    comm_size: int | None = None
    comm_src: int | None = None
    comm_dst: int | None = None
    comm_tag: int | None = None
    pg_name: str | None = None


class _Graph(msgspec.Struct):
    workload_graph: list[_GraphNode]


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, none if it cannot be read: its reader says what is wrong."""
    try:
        with opened(path, _MOST_TEXT_BYTES) as file:
            return file.read(_BEGIN_BYTES)
    except (OSError, InputError):
        return b""


def is_chakra_json(begin: bytes) -> bool:
    """Return whether a JSON text that begins like this is a Chakra trace."""
    return b'"workload_graph"' in begin or (b'"traceEvents"' not in begin and b'_NODE"' in begin)


def json_nodes(path: Path) -> Iterator[Node]:
    """Yield the nodes of a rank.

    Raises
    ------
    InputError
        It is not there, too large, no JSON, or not of either form.
    """
    text = readable(path, "a Chakra trace", read_text)
    try:
        yield from _graph(text) if '"workload_graph"' in text[:1000] else _messages(text)
    except (ValueError, RecursionError, msgspec.MsgspecError, json_format.ParseError) as error:
        raise InputError(f"{path}: is no Chakra trace in JSON ({first_line(error)}); {_EXPECTED}") from None


def _graph(text: str) -> Iterator[Node]:
    for number, found in enumerate(msgspec.json.decode(text, type=_Graph).workload_graph, start=1):
        fields = msgspec.structs.asdict(found)
        attributes = {name: fields[name] for name in fields if name.startswith(("comm_", "is_", "pg_"))}
        given = {name: value for name, value in attributes.items() if value is not None}
        node = Node(number, found.node_id, found.name, found.node_type, found.ctrl_deps, found.data_deps)
        node.duration_us, node.attributes = found.runtime, given
        yield node


def _messages(text: str) -> Iterator[Node]:
    """Yield the nodes of messages one behind the other, of which the first is ``GlobalMetadata``."""
    decoder, number, text = json.JSONDecoder(), 0, text.strip()
    _, at = decoder.raw_decode(text)
    while at < len(text):
        number += 1
        found, at = decoder.raw_decode(text, _SPACE.match(text, at).end())  # type: ignore[union-attr]
        yield node_of(number, json_format.ParseDict(found, NODE(), ignore_unknown_fields=True))


_MOST_BYTES: Final = 1 << 32
_LONGEST_RECORD: Final = 1 << 26
_CHUNK: Final = 1 << 20
_NO_RECORDS = "expected records of a Chakra trace, each with its length before it"


def read_nodes(path: Path) -> Iterator[Node]:
    """Yield the nodes of a file, plain or gzipped; of JSON, if its suffix says so.

    Raises
    ------
    InputError
        While iterating: it is not there, too large, cut off, or holds no records.
    """
    if path.name.lower().removesuffix(".gz").endswith(".json"):
        yield from json_nodes(path)
        return
    records = _records(path)
    metadata = next(records, None)
    if metadata is None:
        raise InputError(f"{path}: is empty; {_NO_RECORDS}")
    _refuse_text(path, metadata)
    number = 0
    for number, body in enumerate(records, start=1):
        try:
            yield node_of(number, NODE.FromString(body))
        except (DecodeError, UnicodeDecodeError) as error:
            why = first_line(error)
            raise InputError(f"{path}, node {number} of the file: is damaged ({why}); {_NO_RECORDS}") from None
    if number == 0:
        raise InputError(f"{path}: holds no nodes; {_NO_RECORDS}")


def _refuse_text(path: Path, metadata: bytes) -> None:
    """Refuse a first record that cannot be ``GlobalMetadata``, whose fields are texts and attributes only."""
    try:
        good = len(UnknownFieldSet(METADATA.FromString(metadata))) == 0
    except DecodeError:
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
