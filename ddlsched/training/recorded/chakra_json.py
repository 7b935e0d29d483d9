"""Chakra traces in JSON: what its converter to JSON writes of a rank, and the workload graphs that ASTRA-sim reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from google.protobuf import json_format

from ddlsched.errors import InputError
from ddlsched.io.reading import opened
from ddlsched.io.tables import first_line, read_text, readable
from ddlsched.training.recorded.chakra_messages import NODE, Node, node_of

__all__ = ["beginning", "is_chakra_json", "json_nodes"]

_MOST_BYTES, _BEGIN_BYTES = 1 << 32, 65_536
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
        with opened(path, _MOST_BYTES) as file:
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
