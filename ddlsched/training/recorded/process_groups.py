"""Process groups as traces tell them: JSON texts with a name and the ranks of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError
from ddlsched.io.tables import abbreviated, read_text, readable
from ddlsched.units import is_whole

__all__ = ["groups_of_configuration", "groups_of_text", "ranks_of", "read_groups"]

_MOST_RANKS = 1 << 20
_EXPECTED = "expected a list of objects with pg_name and ranks"


def groups_of_text(where: str, text: str) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """Return the groups in the JSON text of a ``process_group:init`` node; as :func:`groups_of_configuration`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: {abbreviated(text)} is no JSON; {_EXPECTED}") from None
    return groups_of_configuration(where, found)


def groups_of_configuration(where: str, found: Any) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """Return the ranks of each group by its name, and the size of the default group, None if there is none.

    A group without ranks is that of all ranks.

    Raises
    ------
    InputError
        It is not what PyTorch writes.
    """
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InputError(f"{where}: is {abbreviated(found)}; {_EXPECTED}")
    groups, size = {}, None
    for each in found:
        name = str(each.get("pg_name"))
        groups[name] = ranks_of(f"{where}, group {name!r}", each.get("ranks", []))
        given = each.get("group_size", each.get("pg_size"))
        if is_whole(given, 1, _MOST_RANKS) and (name == "0" or "default" in str(each.get("pg_desc"))):
            size = int(given)
    return groups, size


def ranks_of(where: str, ranks: Any) -> tuple[int, ...]:
    """Return the ranks of a list, ascending.

    Raises
    ------
    InputError
        It is no list of different whole numbers.
    """
    good = isinstance(ranks, list) and all(is_whole(rank, 0, _MOST_RANKS) for rank in ranks)
    if not good or len(set(ranks)) < len(ranks):
        raise InputError(f"{where}: ranks are {abbreviated(ranks)}; expected a list of different whole numbers from 0")
    return tuple(sorted(ranks))


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Read ASTRA-sim's file of communicator groups, ``{"1": [0, 1], ...}``.

    Raises
    ------
    InputError
        It is not there, or not of that form.
    """

    def read(path: Path) -> dict[str, tuple[int, ...]]:
        try:
            found = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise InputError(f'{path}: is no JSON ({error}); expected {{"1": [0, 1], ...}}') from None
        if not isinstance(found, dict):
            raise InputError(f'{path}: is {abbreviated(found)}; expected {{"1": [0, 1], ...}}')
        return {name: ranks_of(f"{path}, group {name!r}", ranks) for name, ranks in found.items()}

    return readable(path, "a file of process groups", read)
