"""The state as compiled code gets it: the address of its arrays' headers.

An array of the state is read without what arrays in general need: its address does not change while a call runs, which
the compiler is told, and its indices are never negative.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global
from numba.extending import (
    NativeValue,
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from ddlsched.engine.records import State, example_state

_HEADER = ir.LiteralStructType([cgutils.voidptr_t, ir.IntType(64), ir.IntType(64)])
_DATA, _LENGTH, _WIDTH = range(3)
"""What a state holds of each of its arrays, in the order of its fields, and what a value of :class:`RowsType` holds."""


class RowsType(types.Type):
    """One array of the state: records, or numbers in one or two dimensions."""

    def __init__(self, item: Any, dimensions: Any) -> None:
        self.item, self.dimensions = item, dimensions
        super().__init__(f"rows of {item} in {dimensions}")


@register_model(RowsType)
class _RowsModel(models.StructModel):
    def __init__(self, manager: Any, rows: Any) -> None:
        super().__init__(manager, rows, [("data", types.voidptr), ("length", types.intp), ("width", types.intp)])


class StateType(types.Type):
    """The type of :class:`~ddlsched.engine.records.State` in compiled code."""

    def __init__(self, arrays: Any) -> None:
        self.rows = [RowsType(array.dtype, array.ndim) for array in arrays]
        super().__init__("State")


@typeof_impl.register(State)
def _type_of_state(state: Any, context: Any) -> Any:
    return StateType(tuple(typeof_impl(array, context) for array in state))


register_model(StateType)(models.OpaqueModel)


@unbox(StateType)
def _unbox_state(state_type: Any, state: Any, c: Any) -> Any:
    """Take the address, which stays that of the same arrays as long as the state is there."""
    held = c.pyapi.object_getattr_string(state, "address")
    address = c.pyapi.long_as_longlong(held)
    c.pyapi.decref(held)
    pointer = c.builder.inttoptr(address, c.context.get_value_type(state_type))
    return NativeValue(pointer, is_error=cgutils.is_null(c.builder, held))


@infer_getattr
class _RowsOfState(AttributeTemplate):
    key = StateType

    def generic_resolve(self, state_type: Any, name: Any) -> Any:
        return state_type.rows[State._fields.index(name)]


@lower_getattr_generic(StateType)
def _rows_of_state(context: Any, builder: Any, state_type: Any, address: Any, name: Any) -> Any:
    place = State._fields.index(name)
    headers = builder.bitcast(address, _HEADER.as_pointer())
    rows = ir.Constant(context.get_value_type(state_type.rows[place]), ir.Undefined)
    for field in (_DATA, _LENGTH, _WIDTH):
        rows = builder.insert_value(rows, _unchanging(builder, headers, place, field), field)
    return rows


def _unchanging(builder: Any, headers: Any, *path: Any) -> Any:
    """Read what stays the same while a call runs."""
    load = builder.load(cgutils.gep_inbounds(builder, headers, *path))
    load.set_metadata("invariant.load", builder.module.add_metadata([]))
    return load


# --- items of an array


def _indices(kind: Any, index: Any) -> Any:
    """Return the types of the indices that an array takes, or None if it does not take this."""
    if not isinstance(kind, RowsType):
        return None
    if kind.dimensions == 1:
        return types.intp if isinstance(index, types.Integer) else None
    return types.UniTuple(types.intp, 2) if isinstance(index, types.BaseTuple) and len(index) == 2 else None


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        indices = _indices(*arguments)
        return None if indices is None else signature(arguments[0].item, arguments[0], indices)


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        kind, index, _ = arguments
        indices = _indices(kind, index)
        return None if indices is None else signature(types.none, kind, indices, kind.item)


@infer_global(len)
class _Length(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        (kind,) = arguments
        return signature(types.intp, kind) if isinstance(kind, RowsType) else None


def _address(context: Any, builder: Any, kind: Any, rows: Any, index: Any) -> Any:
    """Return the address of an item."""
    if kind.dimensions == 2:
        row, column = cgutils.unpack_tuple(builder, index, 2)
        index = builder.add(builder.mul(row, builder.extract_value(rows, _WIDTH)), column)
    items = builder.bitcast(builder.extract_value(rows, _DATA), context.get_data_type(kind.item).as_pointer())
    return builder.gep(items, [index], inbounds=True)


@lower_builtin(operator.getitem, RowsType, types.Any)
def _get_item(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    kind = sig.args[0]
    return context.unpack_value(builder, kind.item, _address(context, builder, kind, *arguments))


@lower_builtin(operator.setitem, RowsType, types.Any, types.Any)
def _set_item(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    kind = sig.args[0]
    rows, index, value = arguments
    address = _address(context, builder, kind, rows, index)
    if isinstance(kind.item, types.Record):
        size = ir.Constant(ir.IntType(64), kind.item.size)
        cgutils.raw_memcpy(builder, address, value, size, 1)
    else:
        context.pack_value(builder, kind.item, value, address)
    return context.get_dummy_value()


@lower_builtin(len, RowsType)
def _length(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001 (numba's signature)
    return builder.extract_value(arguments[0], _LENGTH)


@intrinsic
def width_of(typing_context: Any, rows: Any) -> Any:  # noqa: ARG001 (numba's signature)
    """Return the length of a row of a two-dimensional array."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001 (numba's signature)
        return builder.extract_value(arguments[0], _WIDTH)

    return signature(types.intp, rows), generate


STATE: StateType = typeof(example_state())


def found_at(kind: Any) -> Any:
    """Return the function that, in compiled code, returns what of a type is at an address."""

    @intrinsic
    def at(typing_context: Any, address: Any) -> Any:  # noqa: ARG001 (numba's signature)
        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001 (numba's signature)
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return signature(kind, types.int64), generate

    return at


state_at = found_at(STATE)


@intrinsic
def call_address(typing_context: Any, address: Any, state: Any, number: Any, place: Any, fields: Any) -> Any:  # noqa: ARG001 (numba's signature)
    """Call what is at an address: ``int64(state, number, place, fields)``, all of them 64-bit whole numbers."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:  # noqa: ARG001 (numba's signature)
        i64 = ir.IntType(64)
        address, state, number, place, fields = arguments
        entry = builder.inttoptr(address, ir.FunctionType(i64, [i64] * 4).as_pointer())
        return builder.call(entry, [builder.ptrtoint(state, i64), number, place, fields])

    return signature(types.int64, types.int64, state, types.int64, types.int64, types.int64), generate


ENTRY_SIGNATURE = types.int64(types.int64, types.int64, types.int64, types.int64)
"""Of what is called by address."""
