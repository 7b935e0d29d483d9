"""Memory of a change does not grow with the checkpoint, whatever the format."""

from __future__ import annotations

from pathlib import Path

from resharding_processes import memory


def test_a_change_holds_a_fraction_of_the_checkpoint(tmp_path: Path) -> None:
    for name, written_gb, anonymous_mb in memory(tmp_path, 0.4, ["torch", "huggingface"]).rows:
        assert written_gb > 0.07, name  # Hugging Face files have no state of the optimiser
        assert 1 < anonymous_mb < 130, name
