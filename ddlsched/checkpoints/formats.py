"""The formats of checkpoints: which a folder has, and how each is written. What a run does not need is not imported."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlsched.checkpoints.file_forms import FileForm
    from ddlsched.checkpoints.reading import Reading


Format = StrEnum("Format", ("safetensors", "torch", "huggingface", "megatron"))
"""What is written."""


def foreign_reading(source: Path | str, like: Path | str | None = None) -> Reading | None:
    """Return a reading of another program's checkpoint, None for one of this package.

    Parameters
    ----------
    like
        A checkpoint that says how the tensors of a PyTorch distributed one are divided.

    Raises
    ------
    InputError
        It cannot be read.
    """
    if Path(source).is_file() and like is None:
        from ddlsched.checkpoints.torch_archives import read_saved

        return read_saved(Path(source))
    from ddlsched.checkpoints.checkpoint import DESCRIPTION

    if like is None and (Path(source) / DESCRIPTION).is_file():
        return None
    from ddlsched.checkpoints.distributed_reading import is_distributed, read_distributed
    from ddlsched.checkpoints.hugging_face import is_hugging_face, read_hugging_face
    from ddlsched.checkpoints.megatron import is_megatron, read_megatron

    if like is not None or is_distributed(source):
        return read_megatron(source) if like is None and is_megatron(source) else read_distributed(source, like)
    return read_hugging_face(source) if is_hugging_face(source) else None


def reading_for(form: Format, reading: Reading) -> Reading:
    """Return what of a checkpoint a format can hold."""
    if form is Format.huggingface:
        from ddlsched.checkpoints.hugging_face import weights_of
        from ddlsched.checkpoints.translation import with_hugging_face_names

        return with_hugging_face_names(weights_of(reading))
    if form is Format.megatron:
        from ddlsched.checkpoints.megatron import stacked
        from ddlsched.checkpoints.translation import with_megatron_names

        return stacked(with_megatron_names(reading))
    return reading


def num_left_out(form: Format, reading: Reading) -> int:
    """Return how many tensors, objects, files and other values of a checkpoint a format cannot hold."""
    if form is not Format.huggingface:
        return reading.num_left_out
    from ddlsched.checkpoints.hugging_face import weights_of

    return reading.num_left_out + len(reading.job.tensors) - len(weights_of(reading).job.tensors)


def form_of(form: Format) -> FileForm:
    """Return how a format's files are laid out."""
    if form is Format.safetensors:
        from ddlsched.checkpoints.file_forms import RANK_FILES

        return RANK_FILES
    from ddlsched.checkpoints.distributed_writing import TORCH_FILES
    from ddlsched.checkpoints.hugging_face import HUGGING_FACE
    from ddlsched.checkpoints.megatron import MEGATRON

    forms = {Format.torch: TORCH_FILES, Format.huggingface: HUGGING_FACE, Format.megatron: MEGATRON}
    return forms[form]
