"""What policies see: read-only views of jobs, cluster, transfers and network at one instant.

A view is live: it reads the engine's records when asked, so it costs nothing to hand out. Keep what you
need of it by value; do not keep the view itself from one decision to the next.
"""

from __future__ import annotations

from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobQueue, JobView
from ddlsched.policies.network_views import FlowView, LinkLoads, NetworkView, TransferView
from ddlsched.policies.view_parts import GpuId
from ddlsched.policies.view_parts import as_list as as_list

__all__ = ["ClusterView", "FlowView", "GpuId", "JobQueue", "JobView", "LinkLoads", "NetworkView", "TransferView"]
