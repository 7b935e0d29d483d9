"""Libraries that take long to import, which is put off until something of theirs is asked for."""

from __future__ import annotations

import importlib
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


if TYPE_CHECKING:
    import networkx as nx
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    np, nx, pa, pd, pq = map(Deferred, ("numpy", "networkx", "pyarrow", "pandas", "pyarrow.parquet"))
