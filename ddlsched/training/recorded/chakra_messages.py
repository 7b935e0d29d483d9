"""The messages of a Chakra execution trace, as far as a job needs them (``et_def.proto`` 1.0.0 of mlcommons/chakra)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["METADATA", "NODE", "Node", "node_of"]

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
    control: Sequence[int] = ()
    data: Sequence[int] = ()
    duration_us: int = 0
    input_values: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


def node_of(number: int, message: Any) -> Node:
    """Return what a message of a node holds; ``number`` is its place in the file."""
    attributes = {}
    for attribute in message.attr:
        name = _WANTED.get(attribute.name)
        if name is not None:
            kind = attribute.WhichOneof("value")
            value: Any = getattr(attribute, kind) if kind else None
            attributes[name] = value.decode() if kind == "string_val" else value
    is_group = message.HasField("inputs") and "pg_name" in message.inputs.values
    return Node(
        number,
        message.id,
        message.name,
        message.type,
        message.ctrl_deps,
        message.data_deps,
        message.duration_micros,
        message.inputs.values if is_group else "",
        attributes,
    )
