"""What placements have in common that let jobs share GPUs."""

from __future__ import annotations

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError

__all__ = ["refuse_exclusive"]


def refuse_exclusive(policy: str, cluster: Cluster) -> None:
    """Raise InputError if a cluster lets nobody share a GPU."""
    if cluster.exclusive:
        raise InputError(
            f"{policy}: the cluster is exclusive, so that no jobs can share a GPU; expected one that is not"
        )
