"""Changing a job's parallelism together with its state: from one partitioned checkpoint to another, least data moved.

A job's tensors, how ranks divide them and where the ranks run are a :class:`~.collection.TensorCollection`; on disk it
is a directory with a safetensors file a rank (:class:`~.checkpoint.Checkpoint`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlsched.checkpoints.collection import StoredParallelism as StoredParallelism
from ddlsched.deferred import attributes_of

if TYPE_CHECKING:
    from ddlsched.checkpoints.resharding import reshard as reshard

__getattr__ = attributes_of(__name__, {"reshard": "ddlsched.checkpoints.resharding"})
