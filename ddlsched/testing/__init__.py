"""For authors of plug-ins: views made by hand, and conformance classes to subclass, one a door.

    from ddlsched.testing import PlacementConformance

    class TestMine(PlacementConformance):
        def make(self):
            return MyPolicy(alpha=0.5)

pytest then runs every check of the door on the policy.
"""

from __future__ import annotations

from ddlsched.testing.admission_conformance import AdmissionConformance as AdmissionConformance
from ddlsched.testing.conformance_runs import example_workload as example_workload
from ddlsched.testing.conformance_runs import python_form as python_form
from ddlsched.testing.handmade import capacity_view as capacity_view
from ddlsched.testing.handmade import cluster_view as cluster_view
from ddlsched.testing.handmade import elastic_job_view as elastic_job_view
from ddlsched.testing.handmade import example_network as example_network
from ddlsched.testing.handmade import flow_view as flow_view
from ddlsched.testing.handmade import job_queue as job_queue
from ddlsched.testing.handmade import job_view as job_view
from ddlsched.testing.handmade import link_loads as link_loads
from ddlsched.testing.handmade import network_view as network_view
from ddlsched.testing.handmade import transfer_view as transfer_view
from ddlsched.testing.network_conformance import CollectiveConformance as CollectiveConformance
from ddlsched.testing.network_conformance import CommunicationConformance as CommunicationConformance
from ddlsched.testing.network_conformance import ContentionConformance as ContentionConformance
from ddlsched.testing.network_conformance import PathConformance as PathConformance
from ddlsched.testing.network_conformance import TopologyConformance as TopologyConformance
from ddlsched.testing.policy_conformance import AllocationConformance as AllocationConformance
from ddlsched.testing.policy_conformance import InterferenceConformance as InterferenceConformance
from ddlsched.testing.policy_conformance import OrderingConformance as OrderingConformance
from ddlsched.testing.policy_conformance import PlacementConformance as PlacementConformance
