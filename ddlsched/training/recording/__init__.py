"""Recording of PyTorch training runs as jobs: ``record`` is all that a script calls, or ``ddlsched record`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlsched.deferred import attributes_of

if TYPE_CHECKING:
    from ddlsched.training.recording.recorder import Recorder as Recorder
    from ddlsched.training.recording.recorder import record as record

__getattr__ = attributes_of(__name__, dict.fromkeys(("Recorder", "record"), "ddlsched.training.recording.recorder"))
