"""Where the measured training times are, for tests that skip without them; and the experiment's scripts as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["DATA", "FOLDER", "ROOT", "experiment", "needs_data"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "cluster_design"
DATA = next((path for parent in ROOT.parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data"))

needs_data = pytest.mark.skipif(
    not (DATA / "training_times").is_dir(), reason="needs the measured training times in shared/data beside the project"
)


def experiment(name: str) -> ModuleType:
    """Return a script of experiments/cluster_design as a module."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # the scripts import their neighbours
    found = sys.modules.get(f"cluster_design_{name}")
    if found is None:
        spec = importlib.util.spec_from_file_location(f"cluster_design_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
    return found
