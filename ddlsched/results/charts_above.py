"""Charts of a result, reached from the result, though they lie in a room above it."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ChartsAbove"]


class ChartsAbove:
    """An attribute that is an object of a class of charts, made when it is first asked for.

    The class is named, not imported: a result knows nothing of charts until somebody wants one.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self.__doc__ = f"Charts; see :class:`{module}.{name}`."

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Return the charts of the owner."""
        return self if owner is None else getattr(importlib.import_module(self._module), self._name)(owner)
