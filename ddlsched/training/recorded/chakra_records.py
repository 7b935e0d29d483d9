"""The records of a Chakra execution trace (``.et``), read one at a time.

The file is a varint length and a message, again and again: ``GlobalMetadata`` first, then a ``Node`` each
(mlcommons/chakra, ``schema/protobuf/et_def.proto``, 1.0.0). Only what a job needs is decoded.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ddlsched.errors import InputError
from ddlsched.io.reading import opened
from ddlsched.io.tables import first_line
from ddlsched.training.recorded.chakra_json import json_nodes
from ddlsched.training.recorded.chakra_messages import METADATA, NODE, Node, node_of

__all__ = ["read_nodes"]

_MOST_BYTES: Final = 1 << 32
_LONGEST_RECORD: Final = 1 << 26
_CHUNK: Final = 1 << 20
_NO_RECORDS = "expected records of a Chakra trace, each with its length before it"


def read_nodes(path: Path) -> Iterator[Node]:
    """Yield the nodes of a file, plain or gzipped; of JSON (:mod:`.chakra_json`), if its suffix says so.

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
