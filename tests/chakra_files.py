"""Writes Chakra execution traces, for tests and measurements of what reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7


def varint(value: int) -> bytes:
    """Return a whole number from 0 as protobuf writes it."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def message(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value % (1 << 64))


def attribute(name: str, value: Any) -> bytes:
    """Return an ``AttributeProto``: a truth value, a text, an int64, or (field, value) for another whole number."""
    body = message(1, name.encode())
    if isinstance(value, bool):
        body += number(27, value)
    elif isinstance(value, str):
        body += message(29, value.encode())
    elif isinstance(value, tuple):
        body += number(*value)
    else:
        body += number(9, value)
    return message(10, body)


def chakra_node(
    node_id: int,
    kind: int,
    *,
    name: str = "",
    after: Sequence[int] = (),
    control: Sequence[int] = (),
    duration_us: int = 0,
    inputs: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a ``Node``; ``after`` become its data dependencies, packed, ``control`` those of control, one a field."""
    body = number(1, node_id) if node_id else b""
    body += message(2, (name or f"node-{node_id}").encode()) + number(3, kind)
    body += b"".join(number(4, each) for each in control)
    if after:
        body += message(5, b"".join(varint(each) for each in after))
    if duration_us:
        body += number(7, duration_us)
    if inputs:
        body += message(8, message(1, inputs.encode()))
    return body + b"".join(attribute(*item) for item in (attributes or {}).items())


def write_chakra(path: Path, nodes: Iterable[bytes]) -> Path:
    """Write a trace of these nodes and return its path."""
    with path.open("wb") as file:
        for body in (message(1, b"1.0.0"), *nodes):
            file.write(varint(len(body)) + body)
    return path


def large_trace(path: Path, nodes: int, *, collective_every: int = 1000) -> Path:
    """Write a trace as a converter makes them: each node has attributes of no use and waits for a few before it."""
    rest = {
        "rf_id": (13, 1),
        "fw_parent": (13, 0),
        "seq_id": -1,
        "scope": (13, 7),
        "tid": (13, 1),
        "op_schema": "",
        "stream": 7,
    }

    def bodies() -> Iterable[bytes]:
        for node in range(nodes):
            after = [each for each in (node - 1, node - 2, node - 7, node - 50) if each >= 0]
            if node % collective_every == collective_every - 1:
                own = {"is_cpu_op": False, "comm_type": 0, "comm_size": 1 << 20, "pg_name": "0"}
                yield chakra_node(
                    node, COLLECTIVE, name="ncclDevKernel_AllReduce", after=after[:1], attributes=rest | own
                )
            else:
                name = f"void at::native::vectorized_elementwise_kernel<{node % 97}>"
                after = [each for each in after if each % collective_every != collective_every - 1]
                yield chakra_node(
                    node, COMPUTE, name=name, after=after, duration_us=node % 13, attributes=rest | {"is_cpu_op": False}
                )

    return write_chakra(path, bodies())
