"""The state as compiled code gets it: the address of its arrays, not the arrays, which are 260 words."""

from __future__ import annotations

from numba.core import cgutils, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from ddlsched.engine.loop import layout

__all__ = ["StateType"]


class StateType(types.Type):
    """The type of :class:`~ddlsched.engine.loop.layout.State` in compiled code."""

    def __init__(self, arrays):
        self.dtype = types.Tuple(arrays)  # "dtype" is what numba's pointers call the type of what they point to
        super().__init__(f"State({layout.State._fields}, {self.dtype})")


@typeof_impl.register(layout.State)
def type_of_state(state, context):
    return StateType(tuple(typeof_impl(array, context) for array in state))


register_model(StateType)(models.PointerModel)


@unbox(StateType)
def unbox_state(state_type, state, c):
    """Put the arrays on the caller's stack, where they stay while the called function runs."""
    arrays = c.unbox(state_type.dtype, state)
    return NativeValue(cgutils.alloca_once_value(c.builder, arrays.value), arrays.is_error, arrays.cleanup)


@infer_getattr
class ArrayOfState(AttributeTemplate):
    """What type an attribute of the state has in compiled code."""

    key = StateType

    def generic_resolve(self, state_type, name):  # type: ignore[override]
        """Return the array's type."""
        return state_type.dtype[layout.State._fields.index(name)]


@lower_getattr_generic(StateType)
def array_of_state(context, builder, state_type, address, name):  # noqa: ARG001 (numba's signature)
    place = layout.State._fields.index(name)
    return builder.load(cgutils.gep_inbounds(builder, address, 0, place))
