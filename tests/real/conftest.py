"""What tests of real runs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file of a token that its owner alone may read."""
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    return path
