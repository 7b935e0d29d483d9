"""What PyTorch calls collectives, how many bytes a call brings, and process groups as traces tell them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from ddlsched.errors import InputError, abbreviated
from ddlsched.io.tables import parsed_json, read_text, readable
from ddlsched.units import is_whole

GLOO: Final = {
    "c10d::allreduce_": ("all-reduce", "gloo:all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all-reduce", "gloo:all_reduce", 0),
    "c10d::_allgather_base_": ("all-gather", "gloo:all_gather", 1),
    "c10d::allgather_": ("all-gather", "gloo:all_gather", 1),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", "gloo:all_reduce", 1),
    "c10d::alltoall_base_": ("all-to-all", "gloo:all_to_all", 1),
    "c10d::alltoall_": ("all-to-all", "gloo:all_to_all", 1),
    "c10d::broadcast_": ("broadcast", "gloo:broadcast", 0),
    "c10d::barrier": ("barrier", "gloo:barrier", 0),
    "c10d::send": ("send", "gloo:send", 0),
    "c10d::recv_": ("receive", "gloo:recv", 0),
}
"""Of an operator: the kind of its collective, what gloo calls its work, and which argument holds what a rank brings."""

NCCL: Final = {
    name: kind
    for kind, names in {
        "all-reduce": ("allreduce", "allreduce_coalesced"),
        "all-gather": ("allgather", "_allgather_base", "all_gather", "allgather_into_tensor_coalesced"),
        "reduce-scatter": ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
        "all-to-all": ("all_to_all", "all_to_allv", "alltoall", "alltoall_base"),
        "broadcast": ("broadcast", "_broadcast_oop"),
        "barrier": ("barrier",),
        "send": ("send",),
        "receive": ("recv",),
    }.items()
    for name in names
}
"""Of a ``Collective name``: its kind."""

NO_COLLECTIVES: Final = {"wait", "init", "coalesced"}
"""Names of ``record_param_comms`` that move nothing themselves."""

_FLOATS_OF_8_BITS = "float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"
BYTES_OF: Final = {
    name: size
    for size, names in {
        8: ("double", "long", "long int"),
        4: ("float", "int"),
        2: ("half", "bfloat16", "c10::half", "c10::bfloat16", "short"),
        1: ("byte", "char", "bool", "unsigned char", "signed char", *_FLOATS_OF_8_BITS),
    }.items()
    for name in names
}
"""Of a type's name, in small letters, as operators and NCCL write it."""


def tensor_bytes(shapes: Any, types: Any) -> int | None:
    """Return the bytes of tensors by their shapes (``[[2, 3], [4]]``) and types, None if these do not tell."""
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes or len(shapes) > len(types):
        return None
    total = 0
    for shape, name in zip(shapes, types, strict=False):
        size = BYTES_OF.get(str(name).lower())
        if size is None or not isinstance(shape, list) or not all(isinstance(each, int) for each in shape):
            return None
        total += math.prod(shape) * size
    return total


_MOST_RANKS = 1 << 20
_EXPECTED = "expected a list of objects with pg_name and ranks"


def groups_of_text(where: str, text: str) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """Return the groups in the JSON text of a ``process_group:init`` node; as :func:`groups_of_configuration`."""
    expected = _EXPECTED.removeprefix("expected ")
    return groups_of_configuration(where, parsed_json(text, f"{where}: {abbreviated(text)}", expected))


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
        found = parsed_json(read_text(path), str(path), '{"1": [0, 1], ...}')
        if not isinstance(found, dict):
            raise InputError(f'{path}: is {abbreviated(found)}; expected {{"1": [0, 1], ...}}')
        return {name: ranks_of(f"{path}, group {name!r}", ranks) for name, ranks in found.items()}

    return readable(path, "a file of process groups", read)
