"""What belongs to a result but is made by a module above it: charts, the timeline."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["MadeAbove"]


class MadeAbove:
    """An attribute that a class or function makes of its owner when it is asked for.

    It is named, not imported: a result knows nothing of charts until somebody wants one.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self.__doc__ = f"See :obj:`{module}.{name}`."

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Return what is made of the owner."""
        return self if owner is None else getattr(importlib.import_module(self._module), self._name)(owner)
