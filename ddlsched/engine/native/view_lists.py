"""Lists that views give in compiled code: their items lie in the state, or are listed in its scratch array."""

from __future__ import annotations

import operator
from typing import Any

from numba.core import types
from numba.extending import overload, register_jitable

from ddlsched.engine.native.number_kinds import typed
from ddlsched.engine.native.view_types import (
    CABLE,
    TRANSFER,
    ListType,
    ViewType,
    cable_at,
    count_of,
    first_of,
    make_list,
    number_of,
    state_of,
    transfer_at,
)

__all__ = ["make_crossed", "make_links", "make_numbers", "make_paths", "make_transfers", "take_scratch"]


@register_jitable
def _in_scratch(row: Any, place: int) -> int:
    return state_of(row).scratch[first_of(row) + place]


make_transfers = make_list(TRANSFER, "scratch", lambda row, place: transfer_at(row, _in_scratch(row, place)))
make_numbers = make_list(types.int64, "scratch", lambda row, place: _in_scratch(row, place))
make_crossed = make_list(types.int64, "entries", lambda row, place: state_of(row).entries[first_of(row) + place].link)
make_links = make_list(CABLE, "themselves", lambda row, place: cable_at(row, first_of(row) + place))


def _path_link(row: Any, place: int) -> int:
    number: int = state_of(row).path_links[first_of(row) + place]
    return number


_make_path = make_list(types.int64, "path_links", _path_link)


def _path(row: Any, place: int) -> Any:
    path = state_of(row).paths[first_of(row) + place]
    return _make_path(row, path.first_link, path.num_links)


make_paths = make_list(ListType(types.int64, "path_links", _path_link), "paths", _path)


@overload(len)
@typed
def _length(row: Any) -> Any:
    return (lambda row: count_of(row)) if isinstance(row, ListType) else None


@overload(operator.getitem)
@typed
def _item(row: Any, place: Any) -> Any:
    if not isinstance(row, ListType) or not isinstance(place, types.Integer):
        return None
    item = register_jitable(row.get)

    @typed
    def get(row: Any, place: Any) -> Any:
        if place < 0:
            place += count_of(row)
        if place < 0 or place >= count_of(row):
            raise IndexError("list index out of range")
        return item(row, place)

    return get


@overload(operator.contains)
@typed
def _contains(row: Any, item: Any) -> Any:  # noqa: ARG001
    if not isinstance(row, ListType):
        return None

    @typed
    def contains(row: Any, item: Any) -> Any:
        for other in row:  # noqa: SIM110 (generators are not compiled)
            if other == item:
                return True
        return False

    return contains


@typed
def _same(a: Any, b: Any) -> Any:
    if isinstance(a, ViewType) and a == b:
        return lambda a, b: number_of(a) == number_of(b)
    return None


overload(operator.eq)(_same)
overload(operator.is_)(_same)


@register_jitable
def take_scratch(s: Any, count: int) -> int:
    """Return the first of so many places of the scratch array, which are free until the policy has answered."""
    run = s.run[0]
    first = run.scratch_used
    if first + count > len(s.scratch):
        raise MemoryError("too many lists at once")
    run.scratch_used = first + count
    return first
