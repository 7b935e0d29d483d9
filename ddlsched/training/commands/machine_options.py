"""The options of what a training step runs on, which 'estimate' and 'design' have in common."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.cli.dataclass_options import option

__all__ = ["MachineOptions"]


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """GPUs, their servers and networks, as :func:`~ddlsched.training.estimate.clusters.parse_cluster` reads them."""

    cluster: str = option(
        "a100-80",
        "GPU and what differs from its usual server, e.g. h100:nodes=64,nic_gbps=1600 or "
        "a100-80:expansion_gb=256,expansion_gb_per_s=100.",
    )
    topology: str | None = option(
        None,
        "Network between the servers, e.g. leaf-spine:servers_per_leaf=4,nic_gbps=1600,oversubscription=2.",
        shown="one switch",
    )
    efficiency: str = option(
        "",
        "How far GPUs and networks stay below their data sheets: as a program's published steps show it (megatron, "
        "eager, fsdp, torchtitan, megatron-bridge) or ideal (they do not).",
        shown="megatron-bridge on Hopper and Blackwell, else megatron",
    )
