"""Views in compiled code: a job, a transfer, a link or the network is the state's address and a number.

They come in two flavours, of which a policy is compiled for the one that its run needs: most runs have no predicted
lengths of jobs, and do not ask for them at each access. A view that is made from another, or from a list, is of the
same flavour.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import RefType, impl_ret_untracked, iternext_impl, lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer
from numba.extending import intrinsic, models, register_model

from ddlsched.engine.native.machine_code import overload, register_jitable
from ddlsched.engine.native.operators import typed
from ddlsched.engine.native.state import STATE, StateType


class ViewType(types.Type):
    """A view of one thing; ``predicted`` if policies see predicted lengths of jobs."""

    def __init__(self, what: str, predicted: bool = False) -> None:
        self.what, self.predicted = what, predicted
        super().__init__(f"{what} of predicted length" if predicted else what)

    def flavoured(self, predicted: bool) -> ViewType:
        """Return the view of the same thing in one of the flavours."""
        return ViewType(self.what, predicted)


@register_model(ViewType)
class _ViewModel(models.StructModel):
    def __init__(self, manager: Any, view: ViewType) -> None:
        super().__init__(manager, view, [("state", STATE), ("number", types.int64)])


JOB, TRANSFER, LINK, NETWORK = ViewType("job"), ViewType("transfer"), ViewType("link"), ViewType("network")
CABLE = ViewType("link of the network")
"""A link as ``network.links`` holds it: without what runs on it."""
FLOW, LOADS = ViewType("flow"), ViewType("network of a path policy")


class ListType(types.SimpleIterableType):
    """Things in a row: ``count`` of them, from ``first`` on.

    ``item`` is the type of one, ``place`` says where their numbers are, and ``get`` is the function of a list and a
    place in it that returns one.
    """

    def __init__(self, item: Any, place: str, get: Callable[..., Any]) -> None:
        self.item, self.place, self.get = item, place, get
        self.predicted = isinstance(item, ViewType) and item.predicted
        super().__init__(f"list of {item} in {place}", _IteratorType(self))


class _IteratorType(types.SimpleIteratorType):
    def __init__(self, row: ListType) -> None:
        self.row = row
        super().__init__(f"iterator of {row.item} in {row.place}", row.item)


@register_model(ListType)
class _ListModel(models.StructModel):
    def __init__(self, manager: Any, row: ListType) -> None:
        super().__init__(manager, row, [("state", STATE), ("first", types.int64), ("count", types.int64)])


@register_model(_IteratorType)
class _IteratorModel(models.StructModel):
    def __init__(self, manager: Any, iterator: _IteratorType) -> None:
        members = [("row", iterator.row), ("place", types.EphemeralPointer(types.int64))]
        super().__init__(manager, iterator, members)


# --- views and lists are made and taken apart


def _state_in(context: Any, builder: Any, kind: Any, given: Any) -> Any:
    """Return the state of a view or list, or the state that is given."""
    return given if isinstance(kind, StateType) else cgutils.create_struct_proxy(kind)(context, builder, given).state


def make_view(plain: ViewType) -> Any:
    """Return the function of a view or list and a number that makes a view of the same state and flavour.

    Of a state it makes the view as it is given, from which others are made.
    """

    @intrinsic
    def make(typing_context: Any, near: Any, number: Any) -> Any:  # noqa: ARG001
        view = plain if isinstance(near, StateType) else plain.flavoured(near.predicted)

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            made = cgutils.create_struct_proxy(view)(context, builder)
            made.state, made.number = _state_in(context, builder, sig.args[0], arguments[0]), arguments[1]
            return made._getvalue()

        return signature(view, near, types.int64), generate

    return make


def make_list(item: Any, place: str, get: Callable[..., Any]) -> Any:
    """Return the function of a view, a first place and a count that makes a list of the same state and flavour."""

    @intrinsic
    def make(typing_context: Any, near: Any, first: Any, count: Any) -> Any:  # noqa: ARG001
        row = ListType(item.flavoured(near.predicted) if isinstance(item, ViewType) else item, place, get)

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            made = cgutils.create_struct_proxy(row)(context, builder)
            made.state = _state_in(context, builder, sig.args[0], arguments[0])
            made.first, made.count = arguments[1:]
            return made._getvalue()

        return signature(row, near, types.int64, types.int64), generate

    return make


def _member(name: str, kind: Any) -> Any:
    @intrinsic
    def get(typing_context: Any, view: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            return getattr(cgutils.create_struct_proxy(sig.args[0])(context, builder, arguments[0]), name)

        return signature(kind, view), generate

    return get


state_of = _member("state", STATE)
number_of = _member("number", types.int64)
first_of = _member("first", types.int64)
count_of = _member("count", types.int64)


# --- iteration


@infer
class _GetIterator(AbstractTemplate):
    key = "getiter"

    def generic(self, arguments: Any, keywords: Any) -> Any:
        (row,) = arguments
        return signature(row.iterator_type, row) if isinstance(row, ListType) else None


@lower_builtin("getiter", ListType)
def _getiter(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    iterator = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    iterator.row = arguments[0]
    iterator.place = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(64), 0))
    return impl_ret_untracked(context, builder, sig.return_type, iterator._getvalue())


@lower_builtin("iternext", _IteratorType)
@iternext_impl(RefType.UNTRACKED)
def _iternext(context: Any, builder: Any, sig: Any, arguments: Any, result: Any) -> None:
    (kind,) = sig.args
    iterator = cgutils.create_struct_proxy(kind)(context, builder, arguments[0])
    row = cgutils.create_struct_proxy(kind.row)(context, builder, iterator.row)
    place = builder.load(iterator.place)
    more = builder.icmp_signed("<", place, row.count)
    result.set_valid(more)
    with builder.if_then(more):
        item_signature = signature(kind.row.item, kind.row, types.int64)
        item = context.compile_internal(builder, kind.row.get, item_signature, (iterator.row, place))
        result.yield_(item)
        builder.store(builder.add(place, ir.Constant(ir.IntType(64), 1)), iterator.place)


job_at, transfer_at, link_at, cable_at = (make_view(view) for view in (JOB, TRANSFER, LINK, CABLE))
flow_at, loads_at = make_view(FLOW), make_view(LOADS)


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


@overload(operator.eq)
@typed
def _same(a: Any, b: Any) -> Any:
    if isinstance(a, ViewType) and a == b:
        return lambda a, b: number_of(a) == number_of(b)
    return None


@register_jitable
def take_scratch(s: Any, count: int) -> int:
    """Return the first of so many places of the scratch array, which are free until the policy has answered."""
    run = s.run[0]
    first = run.scratch_used
    if first + count > len(s.scratch):
        raise MemoryError("too many lists at once")
    run.scratch_used = first + count
    return first
