"""The names of the formats that checkpoints are written in."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Format"]


class Format(StrEnum):
    """What is written."""

    safetensors = "safetensors"
    torch = "torch"
    huggingface = "huggingface"
    megatron = "megatron"
