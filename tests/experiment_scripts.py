"""Scripts of experiments as modules: they import their neighbours by short names, which other experiments have too."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
_LOADED: dict[str, dict[str, ModuleType]] = defaultdict(dict)
"""By experiment: its scripts that were imported, by their short names."""


def scripts_of(experiment: str, *names: str) -> list[ModuleType]:
    """Return scripts of an experiment, each imported once, and leave no trace of their short names."""
    own = {path.stem for path in (EXPERIMENTS / experiment).glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    sys.modules.update(_LOADED[experiment])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(EXPERIMENTS / experiment)
            return [importlib.import_module(name) for name in names]
    finally:
        for name in own & set(sys.modules):
            _LOADED[experiment][name] = sys.modules.pop(name)
        sys.modules.update(others)
