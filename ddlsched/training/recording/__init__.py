"""Recording of PyTorch training runs as jobs: ``record`` is all that a script calls, or ``ddlsched record`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlsched.training.recording.recorder import Recorder, record

__all__ = ["Recorder", "record"]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch only when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddlsched.training.recording import recorder

    return getattr(recorder, name)
