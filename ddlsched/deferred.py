"""Libraries that take long to import, which is put off until something of theirs is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

__all__ = ["np", "nx", "pa", "pd", "pq"]


class Deferred:
    """Stands for a module that is imported by the first use of it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Return what the module has of a name, and keep it."""
        found = getattr(importlib.import_module(self._module), name)
        setattr(self, name, found)
        return found


def attributes_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: each of its public names is imported from its module when it is asked for."""

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return attribute


if TYPE_CHECKING:
    import networkx as nx
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    np, nx, pa, pd, pq = map(Deferred, ("numpy", "networkx", "pyarrow", "pandas", "pyarrow.parquet"))
