"""What all views share: how a GPU is named, and the message for an attribute that is none."""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias

from ddlsched.errors import did_you_mean

__all__ = ["Columns", "GpuId", "refuse_attribute"]

GpuId: TypeAlias = int
"""A GPU's number, counted server by server."""

Columns: TypeAlias = Any
"""An attribute a field, each an array with an entry a job, transfer or GPU: what the engine keeps."""


def refuse_attribute(what: str, view: object, name: str) -> NoReturn:
    """Raise AttributeError with the nearest of the view's attributes."""
    known = [attribute for attribute in dir(type(view)) if not attribute.startswith("_")]
    raise AttributeError(f"{what} has no attribute {name!r}.{did_you_mean(name, known)}", name=name, obj=view)
