"""For authors of plug-ins: views made by hand, and conformance classes to subclass, one a door.

    from ddlsched.testing import PlacementConformance

    class TestMine(PlacementConformance):
        def make(self):
            return MyPolicy(alpha=0.5)

pytest then runs every check of the door on the policy.
"""

from __future__ import annotations

from ddlsched.testing.admission_conformance import AdmissionConformance
from ddlsched.testing.conformance_runs import example_network, example_workload, python_form
from ddlsched.testing.handmade import (
    capacity_view,
    cluster_view,
    elastic_job_view,
    flow_view,
    job_queue,
    job_view,
    link_loads,
    network_view,
    transfer_view,
)
from ddlsched.testing.network_conformance import (
    CollectiveConformance,
    CommunicationConformance,
    ContentionConformance,
    PathConformance,
    TopologyConformance,
)
from ddlsched.testing.policy_conformance import (
    AllocationConformance,
    InterferenceConformance,
    OrderingConformance,
    PlacementConformance,
)

__all__ = [
    "AdmissionConformance",
    "AllocationConformance",
    "CollectiveConformance",
    "CommunicationConformance",
    "ContentionConformance",
    "InterferenceConformance",
    "OrderingConformance",
    "PathConformance",
    "PlacementConformance",
    "TopologyConformance",
    "capacity_view",
    "cluster_view",
    "elastic_job_view",
    "example_network",
    "example_workload",
    "flow_view",
    "job_queue",
    "job_view",
    "link_loads",
    "network_view",
    "python_form",
    "transfer_view",
]
