"""All that a run is given beside its workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.interference import InterferenceModel
from ddlsched.cluster.tenants import Tenants
from ddlsched.engine.outcome import CountedSpan, Window
from ddlsched.engine.run_options import RunOptions
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Network
from ddlsched.workload.rescale import RescaleCost

__all__ = ["RunSettings"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Instances, not names; ``contention`` is bound to ``network``, ``options`` are all, as they were given."""

    cluster: Cluster
    network: Network
    placement: Any
    order: Any
    communication: Any
    allocation: Any
    path: Any
    admission: Any
    tenants: Tenants | None
    rescale_cost: RescaleCost
    contention: ContentionModel
    interference: InterferenceModel | None
    disturbances: Disturbances
    capacity: CapacityTrace | None
    span: CountedSpan
    window: Window | None
    options: RunOptions
