"""Changing a job's parallelism together with its state: from one partitioned checkpoint to another, least data moved.

A job's tensors, how ranks divide them and where the ranks run are a :class:`~.collection.TensorCollection`; on disk it
is a directory with a safetensors file a rank (:class:`~.checkpoint.Checkpoint`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlsched.checkpoints.collection import StoredParallelism

if TYPE_CHECKING:
    from ddlsched.checkpoints.resharding import reshard

__all__ = ["StoredParallelism", "reshard"]


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "reshard":
        from ddlsched.checkpoints.resharding import reshard

        return reshard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
