"""Memory of a change does not grow with the checkpoint, whatever the format."""

from __future__ import annotations

from pathlib import Path

import pytest
from resharding_processes import memory
from tiers import tried


@pytest.mark.long
@pytest.mark.parametrize("form", tried(["huggingface", "torch"], lambda place: place == 0))
def test_a_change_holds_a_fraction_of_the_checkpoint(form: str, tmp_path: Path) -> None:
    for name, written_gb, anonymous_mb in memory(tmp_path, 0.3, [form]).rows:
        assert written_gb > 0.05, name  # Hugging Face files have no state of the optimiser
        assert 1 < anonymous_mb < 130, name
