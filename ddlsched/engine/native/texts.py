"""Texts of jobs in compiled code: a code of 64 bits each, which is compared and nothing else."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic, models, overload, register_model

from ddlsched.engine.native.number_kinds import refusal, typed
from ddlsched.policies.view_parts import text_code

__all__ = ["code_of", "has_text", "text_of"]


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
