"""The records of a Chakra execution trace (``.et``, or what its converter to JSON writes), read one at a time.

The file is a varint length and a message, again and again: ``GlobalMetadata`` first, then a ``Node`` each
(mlcommons/chakra, ``schema/protobuf/et_def.proto``, 1.0.0). Only what a job needs is decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ddlsched.errors import InputError
from ddlsched.io.files import opened, unzipped
from ddlsched.io.tables import first_line, read_text, readable

_PACKAGE: Final = "ddlsched.chakra"
_KINDS: Final = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
_FIELDS: Final = {
    "AttributeProto": {
        # A name and a text are bytes, as most of them are of no use here and need not be looked into.
        "name": (1, "bytes"), "double_val": (3, "double"), "float_val": (5, "float"), "int32_val": (7, "int32"),
        "int64_val": (9, "int64"), "uint32_val": (11, "uint32"), "uint64_val": (13, "uint64"),
        "sint32_val": (15, "sint32"), "sint64_val": (17, "sint64"), "fixed32_val": (19, "fixed32"),
        "fixed64_val": (21, "fixed64"), "sfixed32_val": (23, "sfixed32"), "sfixed64_val": (25, "sfixed64"),
        "bool_val": (27, "bool"), "string_val": (29, "bytes"),
    },
    "IOInfo": {"values": (1, "string")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "NodeType"), "ctrl_deps": (4, "uint64*"),
        "data_deps": (5, "uint64*"), "duration_micros": (7, "uint64"), "inputs": (8, "IOInfo"),
        "attr": (10, "AttributeProto*"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto*")},
}  # fmt: skip
"""By message: each field's number and type, ``*`` if it is repeated; of an attribute, one value is set."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="ddlsched/chakra.proto", package=_PACKAGE, syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, kind in enumerate(_KINDS):
        kinds.value.add(name=f"{kind}_NODE", number=number)
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for each, (number, kind) in fields.items():
            _add(message, each, number, kind)
    return file


def _add(message: Any, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=3 if kind.endswith("*") else 1)
    plain = kind.removesuffix("*")
    if plain[0].islower():
        field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{plain.upper()}")
    else:
        field.type_name = f".{_PACKAGE}.{plain}"
    if name.endswith("_val"):
        field.oneof_index = 0


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
NODE: Final[Any] = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.Node"))
METADATA: Final[Any] = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.GlobalMetadata"))

_WANTED: Final = {
    name.encode(): name
    for name in ("is_cpu_op", "comm_type", "comm_size", "pg_name", "comm_src", "comm_dst", "comm_tag")
}


@dataclass(slots=True)
class Node:
    """A node of a trace.

    Parameters
    ----------
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

    node_id: int = 0
    name: str = ""
    kind: int = 0
    control: Sequence[int] = ()
    data: Sequence[int] = ()
    duration_us: int = 0
    input_values: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


def node_of(message: Any) -> Node:
    """Return what a message of a node holds."""
    attributes = {}
    for attribute in message.attr:
        name = _WANTED.get(attribute.name)
        if name is not None:
            kind = attribute.WhichOneof("value")
            value: Any = getattr(attribute, kind) if kind else None
            attributes[name] = value.decode() if kind == "string_val" else value
    is_group = message.HasField("inputs") and "pg_name" in message.inputs.values
    return Node(
        message.id,
        message.name,
        message.type,
        message.ctrl_deps,
        message.data_deps,
        message.duration_micros,
        message.inputs.values if is_group else "",
        attributes,
    )


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
    for found in msgspec.json.decode(text, type=_Graph).workload_graph:
        fields = msgspec.structs.asdict(found)
        attributes = {name: fields[name] for name in fields if name.startswith(("comm_", "is_", "pg_"))}
        given = {name: value for name, value in attributes.items() if value is not None}
        node = Node(found.node_id, found.name, found.node_type, found.ctrl_deps, found.data_deps)
        node.duration_us, node.attributes = found.runtime, given
        yield node


def _messages(text: str) -> Iterator[Node]:
    """Yield the nodes of messages one behind the other, of which the first is ``GlobalMetadata``."""
    decoder, text = json.JSONDecoder(), text.strip()
    _, at = decoder.raw_decode(text)
    while at < len(text):
        found, at = decoder.raw_decode(text, _SPACE.match(text, at).end())  # type: ignore[union-attr]
        yield node_of(json_format.ParseDict(found, NODE(), ignore_unknown_fields=True))


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
            yield node_of(NODE.FromString(body))
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
    with unzipped(path, _MOST_BYTES, "a Chakra trace") as file:
        yield from _bodies(path, file)


def _bodies(path: Path, file: Any) -> Iterator[bytes]:
    window, at, before = b"", 0, 0
    while True:
        more = file.read(_CHUNK)
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
