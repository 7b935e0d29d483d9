"""Memory of a change does not grow with the checkpoint, whatever the format."""

from __future__ import annotations

from pathlib import Path

import pytest
from reshard_memory import peak_bytes, written
from tiers import tried


@pytest.mark.parametrize("form", tried(["huggingface", "torch"], lambda place: place == 0))
def test_a_change_holds_a_fraction_of_the_checkpoint(form: str, tmp_path: Path) -> None:
    source = written(tmp_path / "source", 0.4)
    assert sum(file.stat().st_size for file in source.iterdir()) > 380e6
    assert peak_bytes(source, tmp_path / "new", form, "tp=4", verify=True) < 130e6
