"""The formats of checkpoints: which one a folder has, and how each is written."""

from __future__ import annotations

from pathlib import Path

from ddlsched.reconfiguration.distributed_reading import is_distributed, read_distributed
from ddlsched.reconfiguration.distributed_writing import TORCH_FILES
from ddlsched.reconfiguration.file_forms import RANK_FILES, FileForm
from ddlsched.reconfiguration.format_names import Format
from ddlsched.reconfiguration.hugging_face import HUGGING_FACE, is_hugging_face, read_hugging_face, weights_of
from ddlsched.reconfiguration.megatron import MEGATRON, is_megatron, read_megatron, stacked
from ddlsched.reconfiguration.reading import Reading

__all__ = ["foreign_reading", "form_of", "reading_for"]


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
    if like is not None or is_distributed(source):
        return read_megatron(source) if like is None and is_megatron(source) else read_distributed(source, like)
    return read_hugging_face(source) if is_hugging_face(source) else None


def reading_for(form: Format, reading: Reading) -> Reading:
    """Return what of a checkpoint a format can hold."""
    views = {Format.huggingface: weights_of, Format.megatron: stacked}
    return views[form](reading) if form in views else reading


def form_of(form: Format) -> FileForm:
    """Return how a format's files are laid out."""
    return _FORMS[form]


_FORMS = {
    Format.safetensors: RANK_FILES,
    Format.torch: TORCH_FILES,
    Format.huggingface: HUGGING_FACE,
    Format.megatron: MEGATRON,
}
