"""What kind of number or text a value is in compiled code, and how what is not compiled is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic, models, register_model

from ddlsched.engine.native.machine_code import overload
from ddlsched.policies.view_parts import text_code

__all__ = ["code_of", "has_text", "kind_of", "raise_if", "refusal", "text_of", "typed"]


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take a function's annotations away: numba compares the signatures of what types a call and what answers it."""
    function.__annotations__ = {}
    return function


def kind_of(given: Any) -> Any:
    """Return int64 or float64, as what a number is computed with, or None."""
    if isinstance(given, types.Optional):
        given = given.type
    if isinstance(given, types.Boolean | types.Integer) or getattr(given, "literal_type", None) is types.int64:
        return types.int64 if not isinstance(given, types.Integer) or given.signed else None
    return types.float64 if isinstance(given, types.Float) else None


def refusal(name: str, *given: Any) -> TypingError:
    """Return the error of an operation on values that it is not compiled for."""
    return TypingError(f"{name} of {' and '.join(str(part) for part in given)} is not compiled")


def raise_if(context: Any, builder: Any, condition: Any, error: type[Exception], text: str) -> None:
    """Let compiled code raise where a condition holds."""
    with builder.if_then(condition, likely=False):
        context.call_conv.return_user_exc(builder, error, (text,))


class TextType(types.Type):
    """A text that is there, by its code."""

    def __init__(self) -> None:
        super().__init__("text")


TEXT = TextType()


@register_model(TextType)
class _TextModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: TextType) -> None:
        super().__init__(manager, kind, ir.IntType(64))


def _same_bits(given: Any, returned: Any) -> Any:
    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:  # noqa: ARG001
        return signature(returned, given), lambda context, builder, sig, arguments: arguments[0]  # noqa: ARG005

    return convert


text_of, _bits_of = _same_bits(types.int64, TEXT), _same_bits(TEXT, types.int64)


def has_text(*given: Any) -> bool:
    """Return whether one of some types is that of a text of a job."""
    return any(getattr(kind, "type", kind) is TEXT or isinstance(kind, TextType) for kind in given)


def code_of(text: Any) -> int:
    """Return the code of a text of a job, of one that stands in the source, or of None."""
    raise NotImplementedError


@overload(code_of)
@typed
def _code_of(text: Any) -> Any:
    if isinstance(text, types.StringLiteral):
        code = text_code(text.literal_value)
        return lambda text: code  # noqa: ARG005
    if isinstance(text, types.NoneType):
        return lambda text: 0  # noqa: ARG005
    if isinstance(text, types.Optional) and has_text(text):
        return lambda text: 0 if text is None else _bits_of(text)
    if isinstance(text, TextType):
        return lambda text: _bits_of(text)
    raise refusal("comparison", text)
