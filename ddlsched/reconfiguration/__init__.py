"""Changing a job's parallelism together with its state: from one partitioned checkpoint to another, least data moved.

A job's tensors, how ranks divide them and where the ranks run are a :class:`~.collection.TensorCollection`; on disk it
is a directory with a safetensors file a rank (:class:`~.checkpoint.Checkpoint`).
"""

from __future__ import annotations
