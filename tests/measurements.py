"""Where measurements and traces are that are no part of the project; tests of them skip without them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = next(
    (path for parent in ROOT.parents if (path := parent / "shared" / "data").is_dir()), ROOT.parent / "shared" / "data"
)


def needs_data(*names: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test without these files or folders of the data."""
    missing = [str(DATA / name) for name in names if not (DATA / name).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
