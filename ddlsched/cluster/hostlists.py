"""Slurm's short form of host names: ``nid[0001-0003,0007],login1``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddlsched.errors import InputError
from ddlsched.io.tables import abbreviated

__all__ = ["expand_hosts"]

_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 1_000_000


def expand_hosts(text: str) -> list[str]:
    """Return the host names that a host list stands for, in its order.

    Raises
    ------
    InputError
        Brackets that do not match, a range that is none, or more than a million hosts.
    """
    hosts: list[str] = []
    place = 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or not part.group():
            raise _refused(text)
        for host in _expanded(part.group(), text):
            hosts.append(host)
            if len(hosts) > _MOST:
                raise _refused(text)
        place = part.end()
        if place < len(text) and (text[place] != "," or place + 1 == len(text)):
            raise _refused(text)
        place += 1
    return hosts


def _expanded(part: str, text: str) -> Iterator[str]:
    prefix, bracket, rest = part.partition("[")
    if not bracket:
        yield prefix
        return
    inside, _, suffix = rest.partition("]")
    for piece in inside.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise _refused(text)
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) > _MOST:
            raise _refused(text)
        for number in range(int(first), int(last) + 1):
            for end in _expanded(suffix, text):
                yield f"{prefix}{number:0{len(first)}}{end}"


def _refused(text: str) -> InputError:
    return InputError(f"host list {abbreviated(text)}: expected names such as nid[0001-0003,0007],login1")
